// The KV cache of the simulated engine: blocks of tokens, shared by prompts that begin alike. A block that no request
// uses stays cached until its place is needed; the one that was not used for longest goes first.
// https://docs.vllm.ai/en/latest/design/prefix_caching/

/** The blocks of one request. */
export interface Blocks {
  /** Full blocks of the prompt in order, each known by itself and all before it. */
  readonly keys: readonly string[]
  /** How many of `keys` it uses. */
  shared: number
  /** Blocks that cannot be shared: a prompt's last one, and those of generated tokens. */
  own: number
}

export class KvBlocks {
  readonly #total: number
  readonly #caching: boolean
  /** Users of each shared block that has any. */
  readonly #used = new Map<string, number>()
  /** Cached blocks without users, in the order of their last use. */
  readonly #unused = new Set<string>()
  #own = 0

  constructor(total: number, caching: boolean) {
    this.#total = total
    this.#caching = caching
  }

  /** The share of blocks that requests use, 0 to 1. */
  get usage(): number {
    return (this.#used.size + this.#own) / this.#total
  }

  /** How many of the first blocks are cached. */
  cached(keys: readonly string[]): number {
    let count = 0
    while (count < keys.length && this.#isCached(keys[count]!)) count++
    return count
  }

  /** Takes cached blocks for a request that starts; false if there is no place for `more` blocks beside them. */
  begin(blocks: Blocks, cached: number, more: number): boolean {
    let revived = 0
    for (let i = 0; i < cached; i++) if (this.#unused.has(blocks.keys[i]!)) revived++
    if (this.#used.size + this.#own + revived + more > this.#total) return false
    for (let i = 0; i < cached; i++) this.#use(blocks.keys[i]!)
    blocks.shared = cached
    return true
  }

  /** Makes sure that a request has blocks for so many tokens; false if there is no place. */
  grow(blocks: Blocks, count: number): boolean {
    const more = count - blocks.shared - blocks.own
    if (more <= 0) return true
    if (this.#used.size + this.#own + more > this.#total) return false
    for (let i = 0; i < more; i++) {
      const key = this.#caching && blocks.own === 0 ? blocks.keys[blocks.shared] : undefined
      if (key === undefined) {
        blocks.own++
        this.#own++
      } else {
        this.#use(key)
        blocks.shared++
      }
    }
    this.#evict()
    return true
  }

  release(blocks: Blocks): void {
    // The end of a prompt is needed by fewer than its beginning.
    for (let i = blocks.shared - 1; i >= 0; i--) {
      const key = blocks.keys[i]!
      const users = this.#used.get(key)!
      if (users > 1) this.#used.set(key, users - 1)
      else {
        this.#used.delete(key)
        this.#unused.add(key)
      }
    }
    this.#own -= blocks.own
    blocks.shared = 0
    blocks.own = 0
  }

  #isCached(key: string): boolean {
    return this.#used.has(key) || this.#unused.has(key)
  }

  #use(key: string): void {
    this.#unused.delete(key)
    this.#used.set(key, (this.#used.get(key) ?? 0) + 1)
  }

  #evict(): void {
    const most = this.#total - this.#used.size - this.#own
    if (this.#unused.size <= most) return
    for (const key of this.#unused) {
      if (this.#unused.size <= most) break
      this.#unused.delete(key)
    }
  }
}
