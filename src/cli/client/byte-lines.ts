// Splits a stream into lines without changing their bytes.

const NEWLINE = 0x0a

/** Yields each line without its `\n`, blank lines included. The caller may keep the bytes. */
export async function* byteLines(blocks: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  /** The blocks of a line whose end has not been read. */
  let open: Buffer[] = []
  for await (const block of blocks) {
    let start = 0
    for (let end = block.indexOf(NEWLINE); end !== -1; end = block.indexOf(NEWLINE, start)) {
      const last = block.subarray(start, end)
      yield open.length === 0 ? last : Buffer.concat([...open, last])
      open = []
      start = end + 1
    }
    if (start < block.length) open.push(block.subarray(start))
  }
  if (open.length > 0) yield Buffer.concat(open)
}
