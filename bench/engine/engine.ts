// A simulated engine with continuous batching, scheduled as in vLLM: in every step each running request gets its next
// token, the rest of the step's tokens computes prompts in pieces, and requests wait for a slot, for blocks of the KV
// cache, and for their turn. A request that finds no block for its next token preempts another, which computes
// everything again later. Time passes by `advance` alone, so the same engine runs on a virtual clock and behind HTTP.

interface EngineRequest {
  prompt_tokens: number
  /** At least 1. */
  output_tokens: number
  /** A lower one goes first, with the policy `priority`. */
  priority: number
  /** Names of the prompt's full blocks, each for all before it too. */
  keys: readonly string[]
  /** Called after the step that made the token, with the number of tokens so far. */
  onToken?: (tokens: number, now: number) => void
  onDone: (now: number) => void
}

export interface EngineStats {
  running: number
  waiting: number
  kv_usage: number
  preemptions: number
  prompt_tokens: number
  generation_tokens: number
  /** Tokens of prompts that were looked up in the prefix cache, and found. */
  prefix_queries: number
  prefix_hits: number
  steps: number
  busy_ms: number
}

interface Sequence {
  readonly request: EngineRequest
  readonly arrived: number
  readonly blocks: Blocks
  /** Tokens whose keys and values are in the cache. */
  computed: number
  generated: number
  /** Tokens to compute in this step. */
  scheduled: number
  state: 'waiting' | 'running' | 'ended'
}

export class Engine {
  readonly settings: EngineSettings
  readonly #kv: KvBlocks
  #running: Sequence[] = []
  readonly #waiting: Sequence[] = []
  /** When the step under way ends; null when the engine is idle. */
  #endsAt: number | null = null
  /** While steps end, so that what is submitted then waits for the next one. */
  #advancing = false
  #arrivals = 0
  /** The counts when the last step was scheduled, which is what a server's metrics show. */
  #seen = { running: 0, waiting: 0 }
  readonly #counts = {
    preemptions: 0,
    prompt_tokens: 0,
    generation_tokens: 0,
    prefix_queries: 0,
    prefix_hits: 0,
    steps: 0,
    busy_ms: 0,
  }

  constructor(settings: EngineSettings) {
    this.settings = settings
    this.#kv = new KvBlocks(settings.kv_blocks, settings.prefix_caching)
  }

  get stats(): EngineStats {
    return {
      ...this.#seen,
      kv_usage: this.#kv.usage,
      ...this.#counts,
    }
  }

  /** When `advance` is next to be called; null while there is nothing to do. */
  get nextAt(): number | null {
    return this.#endsAt
  }

  get isFull(): boolean {
    return this.#waiting.length >= this.settings.queue_max
  }

  /** Whether a request of this size fits at all. */
  fits(tokens: number): boolean {
    return Math.ceil(tokens / this.settings.block_tokens) <= this.settings.kv_blocks
  }

  /** It joins the next step. */
  submit(request: EngineRequest, now: number): Sequence {
    this.advance(now)
    const sequence: Sequence = {
      request,
      arrived: this.#arrivals++,
      blocks: { keys: this.settings.prefix_caching ? request.keys : [], shared: 0, own: 0 },
      computed: 0,
      generated: 0,
      scheduled: 0,
      state: 'waiting',
    }
    this.#enqueue(sequence)
    if (this.#endsAt === null && !this.#advancing) this.#startStep(now)
    return sequence
  }

  /** The caller has gone. */
  abort(sequence: Sequence): void {
    if (sequence.state === 'ended') return
    const queue = sequence.state === 'running' ? this.#running : this.#waiting
    queue.splice(queue.indexOf(sequence), 1)
    this.#end(sequence)
  }

  /** Ends every step that is over by now. */
  advance(now: number): void {
    if (this.#advancing) return
    this.#advancing = true
    while (this.#endsAt !== null && this.#endsAt <= now) {
      const at = this.#endsAt
      this.#endStep(at)
      this.#startStep(at)
    }
    this.#advancing = false
  }

  #startStep(now: number): void {
    const ms = this.#schedule()
    this.#endsAt = ms === null ? null : now + ms
    if (ms === null) return
    this.#counts.steps++
    this.#counts.busy_ms += ms
  }

  /** Says what is computed in the next step, and how long it takes; null if there is nothing. */
  #schedule(): number | null {
    const { max_num_seqs, max_num_batched_tokens, step_ms, seq_ms, prefill_token_ms } = this.settings
    let budget = max_num_batched_tokens
    let preempted = false
    for (let i = 0; i < this.#running.length && budget > 0; i++) {
      const sequence = this.#running[i]!
      const before = this.#running.length
      if (!this.#makeRoom(sequence, Math.min(missing(sequence), budget))) {
        preempted = true
        break
      }
      if (this.#running.length < before) {
        preempted = true
        i = this.#running.indexOf(sequence)
      }
      sequence.scheduled = Math.min(missing(sequence), budget)
      budget -= sequence.scheduled
    }
    if (!preempted) {
      while (this.#waiting.length > 0 && budget > 0 && this.#running.length < max_num_seqs) {
        const sequence = this.#waiting[0]!
        if (!this.#admit(sequence, budget)) break
        this.#waiting.shift()
        this.#running.push(sequence)
        budget -= sequence.scheduled
      }
    }
    this.#seen = { running: this.#running.length, waiting: this.#waiting.length }
    let decoding = 0
    let prefilled = 0
    for (const { scheduled, generated } of this.#running) {
      if (scheduled === 1 && generated > 0) decoding++
      else prefilled += scheduled
    }
    if (decoding + prefilled === 0) return null
    return step_ms + decoding * seq_ms + prefilled * prefill_token_ms
  }

  /** Blocks for the sequence's next tokens, at the cost of another's if need be; false if it lost its own. */
  #makeRoom(sequence: Sequence, tokens: number): boolean {
    const count = this.#blocksFor(sequence.computed + tokens)
    while (!this.#kv.grow(sequence.blocks, count)) {
      const victim = this.#victim()
      this.#running.splice(this.#running.indexOf(victim), 1)
      this.#kv.release(victim.blocks)
      victim.computed = 0
      victim.scheduled = 0
      victim.state = 'waiting'
      this.#enqueue(victim)
      this.#counts.preemptions++
      if (victim === sequence) return false
    }
    return true
  }

  /** The last in order of the running sequences. */
  #victim(): Sequence {
    return this.#running.reduce((last, one) => (this.#isBefore(last, one) ? one : last))
  }

  #admit(sequence: Sequence, budget: number): boolean {
    const { block_tokens } = this.settings
    const total = sequence.request.prompt_tokens + sequence.generated
    // The last token is always computed: the next one follows from it.
    const most = Math.floor((total - 1) / block_tokens)
    const cached = Math.min(this.#kv.cached(sequence.blocks.keys), most)
    const computed = cached * block_tokens
    const tokens = Math.min(total - computed, budget)
    const blocks = this.#blocksFor(computed + tokens)
    if (!this.#kv.begin(sequence.blocks, cached, blocks - cached)) return false
    this.#kv.grow(sequence.blocks, blocks)
    if (sequence.generated === 0) {
      this.#counts.prefix_queries += sequence.request.prompt_tokens
      this.#counts.prefix_hits += computed
    }
    sequence.computed = computed
    sequence.scheduled = tokens
    sequence.state = 'running'
    return true
  }

  #blocksFor(tokens: number): number {
    return Math.ceil(tokens / this.settings.block_tokens)
  }

  #endStep(now: number): void {
    const stepped = this.#running
    this.#running = []
    const made: Sequence[] = []
    for (const sequence of stepped) {
      if (this.#compute(sequence)) made.push(sequence)
      if (sequence.generated >= sequence.request.output_tokens) this.#end(sequence)
      else this.#running.push(sequence)
    }
    for (const { request, generated } of made) {
      request.onToken?.(generated, now)
      if (generated >= request.output_tokens) request.onDone(now)
    }
  }

  /** Whether the step made a token of it; one that does not reach the prompt's end makes none. */
  #compute(sequence: Sequence): boolean {
    const { request, scheduled } = sequence
    if (scheduled === 0) return false
    sequence.scheduled = 0
    const left = request.prompt_tokens - sequence.computed
    if (left > 0) this.#counts.prompt_tokens += Math.min(scheduled, left)
    sequence.computed += scheduled
    if (missing(sequence) > 0) return false
    sequence.generated++
    this.#counts.generation_tokens++
    return true
  }

  #end(sequence: Sequence): void {
    sequence.state = 'ended'
    this.#kv.release(sequence.blocks)
  }

  #enqueue(sequence: Sequence): void {
    let at = this.#waiting.length
    while (at > 0 && this.#isBefore(sequence, this.#waiting[at - 1]!)) at--
    this.#waiting.splice(at, 0, sequence)
  }

  #isBefore(a: Sequence, b: Sequence): boolean {
    const byPriority =
      this.settings.scheduling_policy === 'priority' ? a.request.priority - b.request.priority : 0
    return byPriority === 0 ? a.arrived < b.arrived : byPriority < 0
  }
}

/** Tokens to compute before the next one can be made. */
function missing({ request, computed, generated }: Sequence): number {
  return request.prompt_tokens + generated - computed
}

// Settings of the simulated engine. The defaults are those of Llama 3.1 8B on one H100 with vLLM's defaults, as far as
// they are published; README.md beside this file names the source of each.

/** Absent ones are as in the table of README.md. */
export interface EngineOptions {
  /** Requests in a step, at most (vLLM: --max-num-seqs). */
  max_num_seqs?: number | undefined
  /** Tokens computed in a step, at most (vLLM: --max-num-batched-tokens). */
  max_num_batched_tokens?: number | undefined
  /** Blocks of the KV cache. */
  kv_blocks?: number | undefined
  /** Tokens of a block. */
  block_tokens?: number | undefined
  /** Whether prompts keep their blocks for prompts that begin alike. */
  prefix_caching?: boolean | undefined
  /** Requests that may wait; beyond it 503 (SGLang: --max-queued-requests). Null: any number. */
  queue_max?: number | null | undefined
  /** Whether a request's `priority` orders the queue; without it, a priority is refused (vLLM). */
  scheduling_policy?: 'fcfs' | 'priority' | undefined
  /** Milliseconds of every step. */
  step_ms?: number | undefined
  /** Milliseconds for each request that gets its next token in the step. */
  seq_ms?: number | undefined
  /** Milliseconds for each token of a prompt. */
  prefill_token_ms?: number | undefined
}

export type EngineSettings = { [K in keyof EngineOptions]-?: Exclude<EngineOptions[K], undefined | null> }

const DEFAULTS: EngineSettings = {
  max_num_seqs: 256,
  max_num_batched_tokens: 2048,
  kv_blocks: 25_000,
  block_tokens: 16,
  prefix_caching: true,
  queue_max: Number.POSITIVE_INFINITY,
  scheduling_policy: 'fcfs',
  step_ms: 4.6,
  seq_ms: 0.03,
  prefill_token_ms: 0.02,
}
const WHOLE = ['max_num_seqs', 'max_num_batched_tokens', 'kv_blocks', 'block_tokens'] as const
const DURATIONS = ['step_ms', 'seq_ms', 'prefill_token_ms'] as const

/** Throws a RangeError that names the option when one makes no sense. */
export function engineSettings(options: EngineOptions): EngineSettings {
  const given = Object.entries(options).filter(([, value]) => value !== undefined && value !== null)
  const settings: EngineSettings = { ...DEFAULTS, ...Object.fromEntries(given) }
  for (const name of WHOLE)
    if (!(Number.isSafeInteger(settings[name]) && settings[name] >= 1))
      throw new RangeError(`${name} must be at least 1`)
  for (const name of DURATIONS)
    if (!(settings[name] >= 0 && Number.isFinite(settings[name])))
      throw new RangeError(`${name} must be at least 0`)
  if (settings.max_num_batched_tokens < settings.max_num_seqs)
    throw new RangeError('max_num_batched_tokens must be at least max_num_seqs')
  if (settings.step_ms <= 0) throw new RangeError('step_ms must be more than 0')
  return settings
}

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

class KvBlocks {
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
