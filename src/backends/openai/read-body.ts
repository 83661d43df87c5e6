// Reads what servers answer beside the answers to lines: no more than a bound, no longer than a time, and no more slowly
// than any server means.
import type { Readable } from 'node:stream'
import { steadyClock } from '../../domain/clock.ts'
import { tooSlow } from './batch-api-failure.ts'

/** Of lists and single objects. */
export const JSON_BYTES_MAX = 8 * 1024 * 1024
/** Of errors: the rest is left unread. */
export const ERROR_BYTES_MAX = 64 * 1024
/** Of a file, as a mean over the longest wait. */
const LEAST_BYTES_PER_S = 1024

/** The text of a body, or its beginning: what is beyond `bytes_max` is not read. Throws after `ms_max`. */
export async function readText(
  body: Readable,
  bytes_max: number,
  ms_max: number,
): Promise<{ text: string; isWhole: boolean }> {
  const pieces: Uint8Array[] = []
  let bytes = 0
  const cancel = steadyClock.after(ms_max, () => body.destroy(tooSlow()))
  try {
    for await (const piece of body as AsyncIterable<Uint8Array>) {
      pieces.push(piece.subarray(0, bytes_max - bytes))
      bytes += piece.length
      // Leaving the loop ends the connection.
      if (bytes > bytes_max) break
    }
  } finally {
    cancel()
  }
  return { text: Buffer.concat(pieces).toString(), isWhole: bytes <= bytes_max }
}

/** Passes a body on, whatever its size. Throws where it trickles; the time that its reader takes does not count. */
export async function* atLeastSpeed(
  body: AsyncIterable<Uint8Array>,
  periodMs: number,
): AsyncGenerator<Uint8Array> {
  let waitedMs = 0
  let bytes = 0
  let from = steadyClock.now()
  for await (const piece of body) {
    waitedMs += steadyClock.now() - from
    bytes += piece.length
    if (waitedMs >= periodMs) {
      if (bytes < (waitedMs / 1000) * LEAST_BYTES_PER_S) throw tooSlow()
      waitedMs = 0
      bytes = 0
    }
    yield piece
    from = steadyClock.now()
  }
}

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
