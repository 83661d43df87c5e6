// Splits a stream of bytes into lines.

const LF = 0x0a
const CR = 0x0d
const BYTE_ORDER_MARK = Buffer.from([0xef, 0xbb, 0xbf])
/** A longer line is no result; its beginning stands for it. */
const LINE_BYTES_MAX = 64 * 1024 * 1024

/** The lines that are not blank, without their line breaks and a byte order mark. */
export async function* linesOf(stream: AsyncIterable<Uint8Array>): AsyncGenerator<Buffer> {
  let pieces: Buffer[] = []
  let length = 0
  let isFirst = true
  const take = (piece: Buffer): void => {
    if (length < LINE_BYTES_MAX) pieces.push(piece)
    length += piece.length
  }
  const end = (): Buffer | null => {
    const bytes = Buffer.concat(pieces)
    const line = whole(isFirst && bytes.indexOf(BYTE_ORDER_MARK) === 0 ? bytes.subarray(3) : bytes)
    pieces = []
    length = 0
    isFirst = false
    return line
  }
  for await (const bytes of stream) {
    const piece = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
    let at = 0
    for (let lf = piece.indexOf(LF); lf !== -1; lf = piece.indexOf(LF, at)) {
      take(piece.subarray(at, lf))
      at = lf + 1
      const line = end()
      if (line !== null) yield line
    }
    // The stream may use its memory again.
    if (at < piece.length) take(Buffer.from(piece.subarray(at)))
  }
  const last = end()
  if (last !== null) yield last
}

function whole(line: Buffer): Buffer | null {
  const end = line.at(-1) === CR ? line.length - 1 : line.length
  for (let at = 0; at < end; at++) if (line[at]! > 0x20) return line.subarray(0, end)
  return null
}
