/** The least that S3 takes for a part that is not the last is 5 MiB, and R2 wants all of one size. */
export const PART_BYTES = 8 * 1024 * 1024

/**
 * The bytes of `source` in runs of exactly `part_bytes`, the last one shorter; never an empty run, and none for
 * an empty source.
 */
export async function* inParts(
  source: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  part_bytes = PART_BYTES,
): AsyncGenerator<Buffer, void, undefined> {
  let held: Uint8Array[] = []
  let bytes = 0
  for await (const piece of source) {
    let rest = piece
    while (bytes + rest.length >= part_bytes) {
      const cut = part_bytes - bytes
      held.push(rest.subarray(0, cut))
      yield Buffer.concat(held, part_bytes)
      held = []
      bytes = 0
      rest = rest.subarray(cut)
    }
    if (rest.length === 0) continue
    held.push(rest)
    bytes += rest.length
  }
  if (bytes > 0) yield Buffer.concat(held, bytes)
}
