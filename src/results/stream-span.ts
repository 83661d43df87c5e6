// A stretch of a blob as it is sent to a caller. Reading ahead costs a few frames for every reader, and slow ones hold
// them for as long as they like: where there are many readers, each has no more than the piece it is being sent.
import type { ByteRange } from '../blobs/blobs.ts'
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'

/** A stretch of a blob. */
export interface Span {
  project_id: string
  blob: SealedBlob
  range: ByteRange
}

/** So many streams read ahead. */
const AHEAD_MAX = 16
/** Up to so many, a piece is a frame; beyond it a quarter, though each is then opened four times. */
const WHOLE_FRAMES_MAX = 64
const FRAME_BYTES = 256 * 1024
const QUARTER_BYTES = FRAME_BYTES / 4

/** Pieces opened at once: each takes its size three times, stored, decrypted and expanded. */
const OPENED_MAX = 8

/** Of this process. */
let streams = 0
let opened = 0
const waiting: (() => void)[] = []

/** Throws BlobMissing, BlobDamaged, BlobStoreFailed. */
export async function* streamSpan(
  sealed: SealedBlobs,
  { project_id, blob, range }: Span,
): AsyncGenerator<Buffer, void, undefined> {
  streams++
  try {
    if (streams <= AHEAD_MAX) {
      yield* sealed.read(project_id, blob, range)
      return
    }
    for (let start = range.start; start < range.end; ) {
      const pieceBytes = streams <= WHOLE_FRAMES_MAX ? FRAME_BYTES : QUARTER_BYTES
      const end = Math.min(range.end, (Math.floor(start / pieceBytes) + 1) * pieceBytes)
      yield await oneAtATime(() => sealed.readAll(project_id, blob, { start, end }))
      start = end
    }
  } finally {
    streams--
  }
}

async function oneAtATime<T>(read: () => Promise<T>): Promise<T> {
  if (opened === OPENED_MAX) await new Promise<void>((resolve) => waiting.push(resolve))
  else opened++
  try {
    return await read()
  } finally {
    const next = waiting.shift()
    if (next) next()
    else opened--
  }
}
