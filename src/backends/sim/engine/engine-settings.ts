// What the simulated engine is made of. The defaults are those of Llama 3.1 8B on one H100 with vLLM's defaults, as far as
// they are published; docs/simulator.md names the source of each.

export interface EngineOptions {
  /** Requests in a step, at most (vLLM: --max-num-seqs). Default 256. */
  max_num_seqs?: number | undefined
  /** Tokens computed in a step, at most (vLLM: --max-num-batched-tokens). Default 2048. */
  max_num_batched_tokens?: number | undefined
  /** Blocks of the KV cache. Default 25,000. */
  kv_blocks?: number | undefined
  /** Tokens of a block. Default 16. */
  block_tokens?: number | undefined
  /** Whether prompts keep their blocks for prompts that begin alike. Default true. */
  prefix_caching?: boolean | undefined
  /** Requests that may wait; beyond it 503 (SGLang: --max-queued-requests). Default null: any number. */
  queue_max?: number | null | undefined
  /** Whether a request's `priority` orders the queue; without it, a priority is refused (vLLM). Default fcfs. */
  scheduling_policy?: 'fcfs' | 'priority' | undefined
  /** Milliseconds of every step. Default 4.6. */
  step_ms?: number | undefined
  /** Milliseconds for each request that gets its next token in the step. Default 0.03. */
  seq_ms?: number | undefined
  /** Milliseconds for each token of a prompt. Default 0.02. */
  prefill_token_ms?: number | undefined
}

export type EngineSettings = { [K in keyof EngineOptions]-?: Exclude<EngineOptions[K], undefined | null> }

/** Throws a RangeError that names the option when one makes no sense. */
export function engineSettings(options: EngineOptions): EngineSettings {
  const settings = {
    max_num_seqs: whole('max_num_seqs', options.max_num_seqs ?? 256),
    max_num_batched_tokens: whole('max_num_batched_tokens', options.max_num_batched_tokens ?? 2048),
    kv_blocks: whole('kv_blocks', options.kv_blocks ?? 25_000),
    block_tokens: whole('block_tokens', options.block_tokens ?? 16),
    prefix_caching: options.prefix_caching ?? true,
    queue_max: options.queue_max ?? Number.POSITIVE_INFINITY,
    scheduling_policy: options.scheduling_policy ?? 'fcfs',
    step_ms: atLeast('step_ms', options.step_ms ?? 4.6),
    seq_ms: atLeast('seq_ms', options.seq_ms ?? 0.03),
    prefill_token_ms: atLeast('prefill_token_ms', options.prefill_token_ms ?? 0.02),
  }
  if (settings.max_num_batched_tokens < settings.max_num_seqs)
    throw new RangeError('max_num_batched_tokens must be at least max_num_seqs')
  if (settings.step_ms <= 0) throw new RangeError('step_ms must be more than 0')
  return settings
}

function whole(name: string, value: number): number {
  if (!(Number.isSafeInteger(value) && value >= 1)) throw new RangeError(`${name} must be at least 1`)
  return value
}

function atLeast(name: string, value: number): number {
  if (!(value >= 0 && Number.isFinite(value))) throw new RangeError(`${name} must be at least 0`)
  return value
}
