// Learns the bytes of prompt per token of each model from the usage that servers report. Every few seconds the sums are
// added to those of other workers, and this worker projects by the totals. Commits are asynchronous: a crash loses some
// seconds of the sums.
import { recordOf } from '../domain/json-record.ts'
import type { Model } from '../domain/model.ts'
import { LONG_PROMPT_BYTES, learnedTokens, PROMPT_SUMS, type PromptStatistics } from '../domain/tokens.ts'
import type { ChunkLine } from '../jsonl/chunk-lines.ts'
import type { Store } from '../store/store.ts'
import { addPromptStatistics, readPromptStatistics } from '../store/usage.ts'

export class PromptLearner {
  readonly #store: Store
  /** The models that projections read; changed in place. */
  readonly #models: Map<string, Model>
  #seen = new Map<string, PromptStatistics>()

  constructor(store: Store, models: Map<string, Model>) {
    this.#store = store
    this.#models = models
  }

  ended({ known_model: model, prompt_bytes }: ChunkLine, prompt_tokens: number): void {
    if (model === null || prompt_bytes === null) return
    const tokens = learnedTokens(prompt_bytes, prompt_tokens)
    if (tokens === null) return
    let sums = this.#seen.get(model)
    if (!sums) {
      sums = recordOf(PROMPT_SUMS, () => 0)
      this.#seen.set(model, sums)
    }
    sums.bytes += prompt_bytes
    sums.tokens += tokens
    if (prompt_bytes <= LONG_PROMPT_BYTES) return
    sums.long_bytes += prompt_bytes
    sums.long_tokens += tokens
  }

  /** Shares the sums with other workers; to be called every few seconds. */
  async share(): Promise<void> {
    const seen = this.#seen
    this.#seen = new Map()
    try {
      if (seen.size > 0) await this.#store.writeAsyncCommit((tx) => addPromptStatistics(tx, seen))
    } catch (error) {
      // Shared the next time. If the write took effect all the same they count twice, which changes no rate by much.
      for (const [model, sums] of seen) {
        const since = this.#seen.get(model)
        if (since) for (const name of PROMPT_SUMS) sums[name] += since[name]
        this.#seen.set(model, sums)
      }
      throw error
    }
    const all = await readPromptStatistics(this.#store.read)
    for (const [id, model] of this.#models) this.#models.set(id, { ...model, seen: all.get(id) })
  }
}
