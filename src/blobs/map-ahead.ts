// Maps items in order, several at a time: the thread pool compresses the next frames while one is written, and at most
// `ahead` results wait for a slow reader.

/**
 * `work(item)` for every item, in the items' order; up to `ahead` items beyond the one asked for are begun.
 * The first failure, of an item or of `items` itself, ends it.
 */
export async function* mapAhead<T, R>(
  items: AsyncIterable<T> | Iterable<T>,
  ahead: number,
  work: (item: T) => Promise<R>,
): AsyncGenerator<R, void, undefined> {
  const begun: Promise<R>[] = []
  for await (const item of items) {
    const result = work(item)
    // It is awaited below, or never when an earlier piece fails or the reader leaves.
    result.catch(() => {})
    begun.push(result)
    if (begun.length > ahead) yield await begun.shift()!
  }
  for (const result of begun) yield await result
}
