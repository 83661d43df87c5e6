// Splits a stream of blocks of bytes into lines.
import { LF } from './line-scan-span.ts'

interface ByteLine {
  /** Without its line break. The caller may keep it. */
  line: Buffer
  /** Of the whole line. */
  bytes: number
}

/** Blank lines included. Of a line of more than `bytesMax`, `line` is the beginning, with more bytes than that. */
export async function* byteLines(
  blocks: AsyncIterable<Uint8Array>,
  bytesMax = Number.POSITIVE_INFINITY,
): AsyncGenerator<ByteLine> {
  /** The blocks of a line whose end has not been read. */
  let open: Buffer[] = []
  let bytes = 0
  const ended = (last: Buffer): ByteLine => {
    const line = open.length === 0 ? last : Buffer.concat(bytes <= bytesMax ? [...open, last] : open)
    const whole = { line, bytes: bytes + last.length }
    open = []
    bytes = 0
    return whole
  }
  for await (const { buffer, byteOffset, byteLength } of blocks) {
    const block = Buffer.from(buffer, byteOffset, byteLength)
    let start = 0
    for (let end = block.indexOf(LF); end !== -1; end = block.indexOf(LF, start)) {
      yield ended(block.subarray(start, end))
      start = end + 1
    }
    if (start === block.length) continue
    if (bytes <= bytesMax) open.push(block.subarray(start))
    bytes += block.length - start
  }
  if (bytes > 0) yield ended(Buffer.alloc(0))
}
