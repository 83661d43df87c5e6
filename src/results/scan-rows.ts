// Finds the rows of a blob, each of which ends with a line break: their positions and first bytes.

export interface Row {
  start: number
  /** Behind its line break. */
  end: number
  /** Its first bytes, as many as requested. */
  head: string
}

const NEWLINE = 0x0a

/** `start` is the offset of the first piece. Bytes after the last line break are no row. */
export async function* scanRows(
  pieces: AsyncIterable<Buffer>,
  headBytes: number,
  start = 0,
): AsyncGenerator<Row, void, undefined> {
  let row = { start, head: '' }
  let at = start
  for await (const piece of pieces) {
    for (let from = 0; from < piece.length; ) {
      const found = piece.indexOf(NEWLINE, from)
      const end = found === -1 ? piece.length : found + 1
      const missing = headBytes - row.head.length
      if (missing > 0) row.head += piece.toString('latin1', from, Math.min(end, from + missing))
      from = end
      if (found === -1) continue
      yield { ...row, end: at + end }
      row = { start: at + end, head: '' }
    }
    at += piece.length
  }
}
