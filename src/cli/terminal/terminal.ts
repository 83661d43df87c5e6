// The two streams of a command: data goes to stdout, messages to the user go to stderr. All output passes through
// these functions, which escape control characters from callers and model servers: the only escape sequences that
// reach a terminal are our own colours.
import { randomUUID } from 'node:crypto'
import { type Readable, Transform, type Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { StringDecoder } from 'node:string_decoder'
import { styleText } from 'node:util'
import { counted as countedAs, visible, visibleLines } from '../../domain/text.ts'

export interface Output extends Writable {
  isTTY?: boolean
  columns?: number
}

export interface Terminal {
  stdout: Output
  stderr: Output
  /** The input for questions; absent: none can be asked. */
  stdin?: Readable & { isTTY?: boolean }
}

/** Asks a yes-or-no question; false without a terminal. */
export async function confirmed(
  { stdin, stderr }: Terminal,
  question: string,
  signal: AbortSignal | undefined,
): Promise<boolean> {
  if (stdin?.isTTY !== true || stderr.isTTY !== true) return false
  const { createInterface } = await import('node:readline/promises')
  // Not in terminal mode, so that Ctrl-C reaches the process.
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

/** Writes one line to the output; line breaks in it are escaped. */
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

/** Formats rows as aligned lines; the last column is cut where a line would exceed `columns`. */
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

/** The functions for the cells of a row, by the headings of their columns. */
export type Columns<T> = Readonly<Record<string, (row: T) => string>>

export function printTable<T>(output: Output, rows: readonly T[], columns: Columns<T>): void {
  const cells = rows.map((row) => Object.values(columns).map((cell) => cell(row)))
  const width = output.isTTY === true ? (output.columns ?? 80) : undefined
  const [first = '', ...rest] = tableLines(Object.keys(columns), cells, width)
  writeLine(output, paintFor(output)('bold', first))
  for (const line of rest) writeLine(output, line)
}

/** Prints one object, a key and its value on each line; nested values as JSON. */
export function printFields(output: Output, object: object): void {
  const entries = Object.entries(object).map(
    ([key, value]: [string, unknown]) => [key, cell(value, key)] as const,
  )
  const width = Math.max(0, ...entries.map(([key]) => key.length))
  const paint = paintFor(output)
  for (const [key, value] of entries) {
    writeLine(output, `${paint('dim', key.padEnd(width))}${GAP}${value}`)
  }
}

export function printJson(output: Output, value: unknown): void {
  writeLine(output, JSON.stringify(value))
}

function cell(value: unknown, key: string): string {
  if (value === null || value === undefined) return '-'
  if (typeof value === 'number' && /_at$|^created$|^start_after$/.test(key)) return timeInBoth(value)
  return typeof value === 'object' ? JSON.stringify(value) : String(value)
}

// Numbers and text for people, the same in every locale.

const SECOND_MS = 1000
const MINUTE_MS = 60 * SECOND_MS
const HOUR_MS = 60 * MINUTE_MS
const DAY_MS = 24 * HOUR_MS

/** A duration: `820ms`, `4.2s`, `2m 05s`, `1h 02m`, `3d 04h`. */
export function humanDuration(ms: number): string {
  if (ms < SECOND_MS) return `${Math.max(0, Math.round(ms))}ms`
  if (ms < 59_950) return ms < 9950 ? `${(ms / SECOND_MS).toFixed(1)}s` : `${Math.round(ms / SECOND_MS)}s`
  if (ms < HOUR_MS - SECOND_MS / 2) return pair(ms, MINUTE_MS, 'm', SECOND_MS, 's')
  if (ms < DAY_MS - MINUTE_MS / 2) return pair(ms, HOUR_MS, 'h', MINUTE_MS, 'm')
  return pair(ms, DAY_MS, 'd', HOUR_MS, 'h')
}

function pair(ms: number, bigMs: number, big: string, smallMs: number, small: string): string {
  const smalls = Math.round(ms / smallMs)
  const perBig = bigMs / smallMs
  return `${Math.floor(smalls / perBig)}${big} ${String(smalls % perBig).padStart(2, '0')}${small}`
}

/** A rounded number: `1,319`. */
export function humanCount(count: number): string {
  return String(Math.round(count)).replace(/\B(?=(\d{3})+$)/g, ',')
}

/** A rate, with a decimal below ten lines per second: `0.4/s`, `312/s`, `12,400/s`. */
export function humanRate(linesPerSecond: number): string {
  return `${linesPerSecond < 9.95 ? linesPerSecond.toFixed(1) : humanCount(linesPerSecond)}/s`
}

/** An amount with two decimals, and more below a dollar: `$12.40`, `$0.0432`, `$0.00000090`. */
export function humanUsd(usd: number): string {
  if (usd === 0) return '$0.00'
  if (usd >= 999.995) {
    const cents = Math.round(usd * 100)
    return `$${humanCount(Math.floor(cents / 100))}.${String(cents % 100).padStart(2, '0')}`
  }
  if (usd >= 0.995) return `$${usd.toFixed(2)}`
  const decimals = Math.min(9, 2 - Math.floor(Math.log10(usd)))
  return `$${usd.toFixed(decimals)}`
}

/** A size in powers of 1024: `832 B`, `1.2 MiB`. */
export function humanBytes(bytes: number): string {
  let value = bytes
  let unit = 0
  while (value >= 1023.5 && unit < BYTE_UNITS.length - 1) {
    value /= 1024
    unit++
  }
  return `${unit === 0 || value >= 99.95 ? Math.round(value) : value.toFixed(1)} ${BYTE_UNITS[unit]}`
}

const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const

/** A time in Unix seconds as local time: `2026-01-31 08:15`. */
export function humanTime(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return '-'
  return utcTime(seconds - new Date(seconds * 1000).getTimezoneOffset() * 60)
}

function timeInBoth(seconds: number): string {
  const [here, utc] = [humanTime(seconds), utcTime(seconds)]
  return here === utc ? `${utc} UTC` : `${here} (${utc} UTC)`
}

export function utcTime(seconds: number): string {
  return new Date(seconds * 1000).toISOString().slice(0, 16).replace('T', ' ')
}

/** A number with the words that it takes, as `counted` of the domain: `1 line`, `12,000 lines`. */
export function counted(count: number, one: string, many?: string): string {
  return countedAs(count, one, many, humanCount(count))
}
