// The two streams a command writes to: data on stdout, everything said to the user on stderr.
import type { Writable } from 'node:stream'
import { styleText } from 'node:util'

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

/** Colours for `output`, or none where it is no terminal or NO_COLOR is set. */
export function paintFor(output: Output): Paint {
  return (style, text) => styleText(style, text, { stream: output })
}

export const plain: Paint = (_style, text) => text

export function writeLine(output: Output, line: string): void {
  output.write(`${line}\n`)
}
