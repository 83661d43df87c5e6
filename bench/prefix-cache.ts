// A prefix cache as model servers keep it: prompts are cut into blocks of tokens, a block counts as cached only
// if every block before it is, and the block that was not used for longest goes first when there is no room.
// https://docs.vllm.ai/en/latest/design/prefix_caching/

/** Tokens per block, as vLLM has it by default. */
export const BLOCK_TOKENS = 16
/** Bytes of English text per token, about. */
const TOKEN_BYTES = 4

export class PrefixCache {
  readonly #blocks_max: number
  /** In the order of their last use. */
  readonly #blocks = new Set<string>()
  hits = 0
  lookups = 0

  constructor(blocks_max: number) {
    this.#blocks_max = blocks_max
  }

  /** A prompt arrives; its blocks are cached afterwards. */
  serve(prompt: string): void {
    const blockBytes = BLOCK_TOKENS * TOKEN_BYTES
    let isHit = true
    let prefix = ''
    for (let end = blockBytes; end <= prompt.length; end += blockBytes) {
      // A block is known by all that comes before it and itself.
      prefix = prompt.slice(0, end)
      this.lookups++
      isHit &&= this.#blocks.has(prefix)
      if (isHit) this.hits++
      this.#blocks.delete(prefix)
      this.#blocks.add(prefix)
    }
    for (const oldest of this.#blocks) {
      if (this.#blocks.size <= this.#blocks_max) break
      this.#blocks.delete(oldest)
    }
  }
}
