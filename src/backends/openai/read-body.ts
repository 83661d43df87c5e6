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
