// Maps that remember so many entries and no more.
/** A map of at most `entriesMax` entries: a further one takes the place of the entry that was set first. */
export class BoundedMap<K, V> extends Map<K, V> {
  readonly #entriesMax: number

  constructor(entriesMax: number) {
    super()
    this.#entriesMax = entriesMax
  }

  /** An entry that is set again counts as new. */
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
