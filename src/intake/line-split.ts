// Cuts a stream of byte blocks into lines, wherever the blocks happen to end. A line that lies within one
// block is not copied; a line without end is not buffered. Blank lines are counted and passed over, a byte
// order mark at the start of the file and the CR of CRLF are not part of any line.

/** Told of every line that is not blank. `number` counts all lines from 1; bytes are lent for the call only. */
export interface LineSink {
  /** `bytes[start, end)` is valid UTF-8; `byte_start` and `byte_end` (after the line break) are its place in the stream. */
  line(bytes: Buffer, start: number, end: number, number: number, byte_start: number, byte_end: number): void
  tooLong(number: number): void
  notUtf8(number: number): void
}

export class LineSplitter {
  constructor(_line_bytes_max: number, _sink: LineSink) {}
  push(_block: Buffer): void {
    throw new Error('not written yet')
  }
  end(): void {
    throw new Error('not written yet')
  }
}

export interface NumberedSpan {
  number: number
  start: number
  end: number
}

/** The lines of a chunk that is in memory as a whole; `first_line` is the number of its first line. */
export function splitLines(_bytes: Buffer, _first_line: number): NumberedSpan[] {
  throw new Error('not written yet')
}
