/** A call for each small piece would cost more than writing it. */
const WRITE_BYTES = 1024 * 1024
/** Linux takes at most 1,024 pieces in one call. */
const WRITE_PIECES = 1000

/** Pieces that are worth one write. */
export interface Run {
  pieces: Uint8Array[]
  bytes: number
  /** Whether nothing comes before or after it. */
  isAll: boolean
}

/** The pieces of `source`, none empty, in runs. */
export async function* gather(
  source: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
): AsyncGenerator<Run, void, undefined> {
  let isFirst = true
  let gathered: Uint8Array[] = []
  let bytes = 0
  for await (const piece of source) {
    if (piece.length === 0) continue
    gathered.push(piece)
    bytes += piece.length
    if (bytes < WRITE_BYTES && gathered.length < WRITE_PIECES) continue
    yield { pieces: gathered, bytes, isAll: false }
    isFirst = false
    gathered = []
    bytes = 0
  }
  if (bytes > 0) yield { pieces: gathered, bytes, isAll: isFirst }
}
