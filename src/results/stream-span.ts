// Streams a span of a blob to a caller. Reading ahead costs a few frames of memory per reader, for as long as a slow
// reader takes. With many readers, each has only the piece in memory that it is being sent.
import type { ByteRange } from '../blobs/blobs.ts'
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'

/** A range of a blob. */
export interface Span {
  project_id: string
  blob: SealedBlob
  range: ByteRange
}

/** How many streams may read ahead. */
const AHEAD_MAX = 16
/** Up to this many streams a piece is a frame; beyond that a quarter, although each frame is then opened four times. */
const WHOLE_FRAMES_MAX = 64
const FRAME_BYTES = 256 * 1024
const QUARTER_BYTES = FRAME_BYTES / 4

/** Pieces opened at once: each takes three times its size, stored, decrypted and decompressed. */
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
