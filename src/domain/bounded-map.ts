// Maps with a bounded number of entries.
/** A map of at most `entriesMax` entries: a further one replaces the entry that was set first. */
export class BoundedMap<K, V> extends Map<K, V> {
  readonly #entriesMax: number

  constructor(entriesMax: number) {
    super()
    this.#entriesMax = entriesMax
  }

  /** Sets an entry, which then counts as the newest. */
  override set(key: K, value: V): this {
    this.delete(key)
    super.set(key, value)
    for (const first of this.keys()) {
      if (this.size <= this.#entriesMax) break
      this.delete(first)
    }
    return this
  }
}
