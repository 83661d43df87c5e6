// Splits a stream of blocks of bytes into lines, and tells the bytes of an input that belong to no line: the byte order
// mark, the CR of a CRLF, and blank lines. Validation and dispatch have to agree on them.

export const LF = 0x0a
const CR = 0x0d

/** Whether a UTF-8 byte order mark stands at `start`. */
export function hasByteOrderMark(bytes: Buffer, start: number, end: number): boolean {
  return end - start >= 3 && bytes[start] === 0xef && bytes[start + 1] === 0xbb && bytes[start + 2] === 0xbf
}

/** Where the line that ends before `end`, line feed not included, really ends. */
export function withoutCr(bytes: Buffer, start: number, end: number): number {
  return end > start && bytes[end - 1] === CR ? end - 1 : end
}

/** Nothing but JSON's whitespace. */
export function isBlank(bytes: Buffer, start: number, end: number): boolean {
  for (let at = start; at < end; at++) {
    const c = bytes[at]
    if (c !== 0x20 && c !== 0x09 && c !== CR) return false
  }
  return true
}

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
