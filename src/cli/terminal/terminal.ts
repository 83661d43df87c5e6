// The two streams of a command: data goes to stdout, messages to the user go to stderr. All output passes through
// these functions, which escape control characters from callers and model servers: the only escape sequences that
// reach a terminal are our own colours.
import { randomUUID } from 'node:crypto'
import { type Readable, Transform, type Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { StringDecoder } from 'node:string_decoder'
import { styleText } from 'node:util'
import { visible, visibleLines } from '../../domain/text.ts'

export interface Output extends Writable {
  isTTY?: boolean
  columns?: number
}

export interface Terminal {
  stdout: Output
  stderr: Output
  /** Absent: questions cannot be answered. */
  stdin?: Readable & { isTTY?: boolean }
}

/** Asks a question that is answered with yes or no; false without a terminal. */
export async function confirmed(
  { stdin, stderr }: Terminal,
  question: string,
  signal: AbortSignal | undefined,
): Promise<boolean> {
  if (stdin?.isTTY !== true || stderr.isTTY !== true) return false
  const { createInterface } = await import('node:readline/promises')
  // Without a terminal of its own, so that Ctrl-C reaches the process.
  const lines = createInterface({ input: stdin, output: stderr, terminal: false })
  try {
    const asked = lines.question(`${shown(question)} [y/N] `, signal ? { signal } : {})
    return /^y(es)?$/i.test((await asked.catch(() => '')).trim())
  } finally {
    lines.close()
  }
}

type Style = 'bold' | 'dim' | 'red' | 'green' | 'yellow' | 'cyan'
export type Paint = (style: Style, text: string) => string

/** Replaces the escape character in our own colours until they are written; random, so that input cannot contain it. */
const OWN_ESCAPE = `<${randomUUID()}>`

/** Colours for text that `writeLine` writes; none when `output` is not a terminal or NO_COLOR is set. */
export function paintFor(output: Output): Paint {
  return (style, text) => styleText(style, visible(text), { stream: output }).replaceAll('\u001b', OWN_ESCAPE)
}

export const plain: Paint = (_style, text) => text

/** The text that `writeLine` writes for `line`. */
export function shown(line: string): string {
  return coloured(visible(line))
}

/** Writes one line; line breaks in it are escaped. */
export function writeLine(output: Output, line: string): void {
  output.write(`${shown(line)}\n`)
}

/** Writes several lines. Text from others must have passed through `visible` before. */
export function writeLines(output: Output, lines: string): void {
  output.write(`${coloured(visibleLines(lines))}\n`)
}

function coloured(text: string): string {
  return text.replaceAll(OWN_ESCAPE, '\u001b')
}

/** Writes files and reports: unchanged into a pipe or a file, with control characters escaped on a terminal. */
export async function writeData(
  output: Output,
  data: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
): Promise<void> {
  if (output.isTTY === true) await pipeline(data, escaping(), output, { end: false })
  else await pipeline(data, output, { end: false })
}

function escaping(): Transform {
  const decoder = new StringDecoder('utf8')
  return new Transform({
    transform(bytes: Buffer, _encoding, done) {
      done(null, visibleLines(decoder.write(bytes)))
    },
    flush(done) {
      done(null, visibleLines(decoder.end()))
    },
  })
}

// Tables for people. On a terminal a row is cut at its width; elsewhere no row is cut.

const GAP = '  '

/** The rows as aligned lines; the last column is cut where a line would pass `columns`. */
export function tableLines(
  head: readonly string[],
  rows: readonly (readonly string[])[],
  columns = Number.POSITIVE_INFINITY,
): string[] {
  const seen = rows.map((row) => row.map(visible))
  const widths = head.map((title, i) => Math.max(title.length, ...seen.map((row) => row[i]?.length ?? 0)))
  return [head, ...seen].map((row) => {
    const line = row
      .map((cell, i) => cell.padEnd(widths[i] ?? 0))
      .join(GAP)
      .trimEnd()
    return line.length <= columns ? line : `${line.slice(0, Math.max(0, columns - 1))}…`
  })
}

export function printTable(
  output: Output,
  head: readonly string[],
  rows: readonly (readonly string[])[],
): void {
  const columns = output.isTTY === true ? (output.columns ?? 80) : undefined
  const [first = '', ...rest] = tableLines(head, rows, columns)
  writeLine(output, paintFor(output)('bold', first))
  for (const line of rest) writeLine(output, line)
}

/** Prints one object, a key and its value on each line; nested values as JSON. */
export function printFields(output: Output, object: object): void {
  const entries = Object.entries(object).map(([key, value]: [string, unknown]) => [key, cell(value)] as const)
  const width = Math.max(0, ...entries.map(([key]) => key.length))
  const paint = paintFor(output)
  for (const [key, value] of entries) {
    writeLine(output, `${paint('dim', key.padEnd(width))}${GAP}${value}`)
  }
}

export function printJson(output: Output, value: unknown): void {
  writeLine(output, JSON.stringify(value))
}

function cell(value: unknown): string {
  if (value === null || value === undefined) return '-'
  return typeof value === 'object' ? JSON.stringify(value) : String(value)
}
