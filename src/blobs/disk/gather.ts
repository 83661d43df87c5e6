/** A call for each small piece would cost more than writing it. */
const WRITE_BYTES = 1024 * 1024
/** Linux takes at most 1,024 pieces in one call. */
const WRITE_PIECES = 1000

/** The pieces of `source`, none empty, in runs that are worth one write each. */
export async function* gather(
  source: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
): AsyncGenerator<Uint8Array[], void, undefined> {
  let gathered: Uint8Array[] = []
  let bytes = 0
  for await (const piece of source) {
    if (piece.length === 0) continue
    gathered.push(piece)
    bytes += piece.length
    if (bytes < WRITE_BYTES && gathered.length < WRITE_PIECES) continue
    yield gathered
    gathered = []
    bytes = 0
  }
  if (bytes > 0) yield gathered
}
