// Splits a stream of bytes into lines.

const LF = 0x0a
const CR = 0x0d
/** A longer line is no result. */
const LINE_BYTES_MAX = 64 * 1024 * 1024

/** The lines that are not blank, without their line breaks. */
export async function* linesOf(stream: AsyncIterable<Uint8Array>): AsyncGenerator<Buffer> {
  let pieces: Buffer[] = []
  let length = 0
  for await (const bytes of stream) {
    const piece = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
    let at = 0
    for (let end = piece.indexOf(LF); end !== -1; end = piece.indexOf(LF, at)) {
      pieces.push(piece.subarray(at, end))
      at = end + 1
      const line = whole(pieces)
      pieces = []
      length = 0
      if (line !== null) yield line
    }
    length += piece.length - at
    if (length > LINE_BYTES_MAX) throw new Error(`a line has more than ${LINE_BYTES_MAX} bytes`)
    // The stream may use its memory again.
    pieces.push(Buffer.from(piece.subarray(at)))
  }
  const last = whole(pieces)
  if (last !== null) yield last
}

function whole(pieces: readonly Buffer[]): Buffer | null {
  const line = Buffer.concat(pieces)
  const end = line.at(-1) === CR ? line.length - 1 : line.length
  for (let at = 0; at < end; at++) if (line[at]! > 0x20) return line.subarray(0, end)
  return null
}
