// A terminal that remembers what was written to it.
import { Writable } from 'node:stream'
import type { Output, Terminal } from '../../src/cli/terminal/terminal.ts'

export interface CapturedTerminal extends Terminal {
  out(): string
  err(): string
}

/** `columns`: the width of a screen; left out, both streams are pipes. */
export function capturedTerminal(columns?: number): CapturedTerminal {
  const stdout = captured(columns)
  const stderr = captured(columns)
  return { stdout: stdout.output, stderr: stderr.output, out: stdout.text, err: stderr.text }
}

function captured(columns: number | undefined): { output: Output; text(): string } {
  const blocks: Buffer[] = []
  const output: Output = new Writable({
    write(block: Buffer, _encoding, done) {
      blocks.push(Buffer.from(block))
      done()
    },
  })
  if (columns !== undefined) {
    output.isTTY = true
    output.columns = columns
  }
  return { output, text: () => Buffer.concat(blocks).toString() }
}
