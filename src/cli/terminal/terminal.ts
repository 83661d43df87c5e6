// The two streams a command writes to: data on stdout, everything said to the user on stderr. Whatever is written
// passes here, and nothing that a caller or a model server has put into it acts on the terminal: the only escape
// sequences that come out are those of our own colours.
import { randomUUID } from 'node:crypto'
import { Transform, type Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { StringDecoder } from 'node:string_decoder'
import { styleText } from 'node:util'
import { visible, visibleLines } from '../../domain/visible-text.ts'

export interface Output extends Writable {
  isTTY?: boolean
  columns?: number
}

export interface Terminal {
  stdout: Output
  stderr: Output
}

export type Style = 'bold' | 'dim' | 'red' | 'green' | 'yellow' | 'cyan'
export type Paint = (style: Style, text: string) => string

/** Stands for the escape character in our own colours until they are written; nobody else can know it. */
const OWN_ESCAPE = `<${randomUUID()}>`

/** Colours for `output`, or none where it is no terminal or NO_COLOR is set. For what goes through `writeLine`. */
export function paintFor(output: Output): Paint {
  return (style, text) => styleText(style, visible(text), { stream: output }).replaceAll('\u001b', OWN_ESCAPE)
}

export const plain: Paint = (_style, text) => text

/** What `writeLine` writes for it. */
export function shown(line: string): string {
  return coloured(visible(line))
}

/** One line, whatever is in it. */
export function writeLine(output: Output, line: string): void {
  output.write(`${shown(line)}\n`)
}

/** Lines whose breaks are our own: what others have put into them went through `visible` before. */
export function writeLines(output: Output, lines: string): void {
  output.write(`${coloured(visibleLines(lines))}\n`)
}

function coloured(text: string): string {
  return text.replaceAll(OWN_ESCAPE, '\u001b')
}

/** Files and reports: byte for byte where a program reads them; on a terminal with what it would act on escaped. */
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
