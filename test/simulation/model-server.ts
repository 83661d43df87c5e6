// A model server that all machines share. It answers, and it times out, delays, throttles, sends malformed and duplicate
// answers, and bodies that are large or do not end. It records requests and answers for the invariant checks. Each answer
// says which request of which batch it is to, and has another cost than the ones before, so an answer that goes elsewhere
// and a line that is billed for the wrong attempt are detected.
import type { BackendResult } from '../../src/backends/backend.ts'
import type { Receiving, ResponseMemory } from '../../src/backends/response-memory.ts'
import { classify } from '../../src/backends/verdict/classify.ts'
import { type Clock, sleep } from '../../src/domain/clock.ts'
import type { EndpointPath } from '../../src/domain/endpoint.ts'
import { costNanos } from '../../src/domain/money.ts'
import { ABORTED, type Answering, askedBefore, bodyOf } from './answering.ts'
import type { Machine } from './machine.ts'
import type { Plans } from './plans.ts'
import { priceOf } from './run.ts'
import type { SeededRandom } from './seeded-random.ts'
import type { Tally } from './tally.ts'

/** Probabilities; their sum is at most 1, and the rest of the requests is answered. */
export interface ServerFaults {
  timeouts: number
  resets: number
  malformed: number
  duplicates: number
  throttles: number
  usageMissing: number
  /** Beside the others: bodies that are large or do not end. */
  largeBodies: number
}

export interface SentRequest {
  machine: Machine
  /** Which request of which batch: `b0/l5`. */
  request: string
  /** By the clock of the machine that sent it. */
  at: number
}

interface Said {
  content: string
  finish_reason: 'stop' | 'length'
  /** Whether it is not asked for again. */
  stands: boolean
}

function plainly(content: string): Said {
  return { content, finish_reason: 'stop', stands: true }
}

const TIMEOUT_MS = 3_000
/** A second that has begun counts. */
const PART_OF_SECOND = 0.75
/** Bodies of which most of a worker's memory for answers is full. They are counted, and never there. */
const PIECE_BYTES = 200_000
const PIECE_MS = 15
const PIECES_MAX = 8
const ENDLESS_CHANCE = 0.3
/** A client reads no further. */
const ENDLESS_PIECES = 25

export class ModelServer {
  readonly #clock: Clock
  readonly #random: SeededRandom
  /** Of bodies, so that they do not change the rest of a run. */
  readonly #bodies: SeededRandom
  readonly #plans: Plans
  readonly #faults: () => ServerFaults
  readonly #capacity: number
  readonly #onRequest: (sent: SentRequest) => void
  readonly #onEnded: (machine: Machine, request: string, result: BackendResult['kind']) => void
  readonly #tally: Tally
  #inFlight = 0
  /** By request: completion tokens of each answer, one fewer each time. */
  readonly answers = new Map<string, number[]>()
  /** By request: what the answers cost that a machine has received (nano-dollars). */
  readonly costs = new Map<string, number[]>()
  /** By request: the share of its cost by which prices were raised after it was reserved. */
  readonly raises = new Map<string, number>()
  /** When each request was first sent and last, by the clock of the simulation. */
  readonly #sentAt = new Map<string, { first: number; last: number }>()
  /** Prompt tokens of every request. */
  readonly prompt_tokens: number
  /** Requests with an answer without `usage`. */
  readonly unmetered = new Set<string>()

  constructor(options: {
    clock: Clock
    random: SeededRandom
    bodies: SeededRandom
    plans: Plans
    faults: () => ServerFaults
    capacity: number
    prompt_tokens: number
    onRequest: (sent: SentRequest) => void
    /** The machine has received the result of an attempt. */
    onEnded: (machine: Machine, request: string, result: BackendResult['kind']) => void
    tally: Tally
  }) {
    this.#clock = options.clock
    this.#random = options.random
    this.#bodies = options.bodies
    this.#plans = options.plans
    this.#faults = options.faults
    this.#capacity = options.capacity
    this.prompt_tokens = options.prompt_tokens
    this.#onRequest = options.onRequest
    this.#onEnded = options.onEnded
    this.#tally = options.tally
  }

  /** The server as seen by one machine, whose memory for answers is `memory`. `price`: of a model, at this machine now. */
  answering(machine: Machine, memory: ResponseMemory, price: (model: string) => number): Answering {
    return this.#answering(machine, memory, price)
  }

  /** The same as seen by a cell, whose requests and prices are its own. */
  unwatched(machine: Machine, memory: ResponseMemory): Answering {
    return this.#answering(machine, memory, null)
  }

  #answering(machine: Machine, memory: ResponseMemory, price: ((model: string) => number) | null): Answering {
    return async (call) => {
      const request = this.#plans.requestOf(call)
      const [{ model } = { model: '' }] = this.#plans.ask(request).lines
      const reserved = price?.(model) ?? 0
      const { max_tokens } = bodyOf(call)
      if (price) {
        this.sent(request)
        this.#onRequest({ machine, request, at: machine.clock.now() })
      }
      const random = this.#random
      const outcome = this.#outcome()
      const latencyMs = outcome === 'timeouts' ? TIMEOUT_MS : random.int(5, random.chance(0.05) ? 2_500 : 200)
      const full = this.#inFlight >= this.#capacity
      this.#tally.count(`server: ${full ? 'full' : outcome}`)
      if (!full) {
        this.#inFlight++
        this.#clock.after(latencyMs, () => {
          this.#inFlight--
        })
      }
      const said = this.#said(request, askedBefore(call))
      const result = this.#result(request, max_tokens, full ? 'throttles' : outcome, said, call.endpoint)
      const tokens = this.answers.get(request)?.at(-1) ?? 0
      await sleep(machine.clock, full ? 5 : latencyMs, call.signal)
      const received =
        result.kind === 'answered' && this.#bodies.chance(this.#faults().largeBodies)
          ? await this.#receiveLarge(machine, memory, result, call.signal)
          : result
      // An answer may arrive just as the caller aborts.
      const told = call.signal?.aborted && !random.chance(0.2) ? ABORTED : received
      // It is asked for again.
      const isKept = told.kind === 'answered' && !said.stands
      if (price) this.#onEnded(machine, request, isKept ? 'failed' : told.kind)
      if (price && told.kind === 'answered') this.received(request, tokens, price(model), reserved)
      return told
    }
  }

  /** A request was sent, to this server or to a batch API. */
  sent(request: string, at = this.#clock.now()): void {
    this.#sentAt.set(request, { first: this.#sentAt.get(request)?.first ?? at, last: at })
  }

  /** A machine has received an answer of so many tokens. Prices are factors of that of SIM_MODEL. */
  received(request: string, tokens: number, price: number, reserved: number): void {
    const { endpoint } = this.#plans.ask(request).batch
    const used: [number, number] =
      endpoint === '/v1/transcribe'
        ? [tokens, 0]
        : endpoint === '/v1/classify'
          ? [1, 0]
          : [this.prompt_tokens, tokens]
    this.costs.set(request, [...(this.costs.get(request) ?? []), costNanos(...used, priceOf(price))])
    if (price > reserved)
      this.raises.set(request, Math.max(this.raises.get(request) ?? 0, 1 - reserved / price))
  }

  /** When the line was sent that is billed for a request; the earliest that it can be where several lines ask it. */
  sentAt(request: string): number {
    const { first, last } = this.#sentAt.get(request) ?? { first: 0, last: 0 }
    return this.#plans.ask(request).lines.length > 1 ? first : last
  }

  /** The answer to a request, as a batch API delivers it. */
  bodyOf(request: string, tokens_max: number): string {
    const { endpoint } = this.#plans.ask(request).batch
    return bodyText(plainly(request), this.prompt_tokens, this.#answer(request, tokens_max), endpoint)
  }

  /** Receives as many bytes as the memory for answers lets in; the last of them make up the answer. */
  async #receiveLarge(
    { clock }: Machine,
    memory: ResponseMemory,
    answer: BackendResult,
    signal: AbortSignal | undefined,
  ): Promise<BackendResult> {
    const isEndless = this.#bodies.chance(ENDLESS_CHANCE)
    const pieces = isEndless ? ENDLESS_PIECES : this.#bodies.int(1, PIECES_MAX)
    const until = clock.now() + TIMEOUT_MS
    let isPaused = false
    const body: Receiving = {
      pause: () => {
        this.#tally.count('server: large body paused')
        isPaused = true
      },
      resume: () => {
        isPaused = false
      },
    }
    this.#tally.count(isEndless ? 'server: endless body' : 'server: large body')
    try {
      for (let received = 0; received < pieces; ) {
        await sleep(clock, PIECE_MS, signal)
        if (signal?.aborted) return ABORTED
        if (clock.now() >= until)
          return { kind: 'failed', status: null, code: 'upstream_timeout', reason: 'it took too long' }
        if (!isPaused) memory.received(body, ++received * PIECE_BYTES)
      }
    } finally {
      memory.ended(body)
    }
    return isEndless
      ? { kind: 'failed', status: 200, code: 'upstream_invalid_response', reason: 'it is too long' }
      : answer
  }

  #outcome(): keyof ServerFaults | 'answers' {
    const faults = this.#faults()
    let dice = this.#random.next()
    for (const name of [
      'timeouts',
      'resets',
      'malformed',
      'duplicates',
      'throttles',
      'usageMissing',
    ] as const) {
      dice -= faults[name]
      if (dice < 0) return name
    }
    return 'answers'
  }

  /** Some answers miss their schema, and some are cut. */
  #said(request: string, asked: number | null): Said {
    if (asked === null) return plainly(request)
    const dice = this.#bodies.next()
    const what = dice < 0.25 ? 'missed' : dice < 0.35 ? 'cut' : 'said'
    this.#tally.count(`reask: ${what}, asked ${asked === 0 ? 'first' : 'again'}`)
    return {
      content: JSON.stringify({ [what]: request, asked }),
      finish_reason: what === 'cut' ? 'length' : 'stop',
      stands: what === 'said' || asked >= (this.#plans.ask(request).batch.reask?.max ?? 0),
    }
  }

  #result(
    request: string,
    tokens_max: number,
    outcome: keyof ServerFaults | 'answers',
    said: Said,
    endpoint: EndpointPath,
  ): BackendResult {
    const answered = (completion_tokens: number | null): BackendResult => {
      this.#tally.count(`answered: ${endpoint}`)
      const body = bodyText(said, this.prompt_tokens, completion_tokens, endpoint)
      return classify({ status: 200, body: Buffer.from(body) }, endpoint)
    }
    const isAnthropic = endpoint === '/v1/messages'
    // This line is always throttled, whatever the load.
    if (request.endsWith('poison')) return { kind: 'throttled', status: 503, reason: 'not this one' }
    if (request.endsWith('refuse') || request.endsWith('toxic'))
      return { kind: 'refused', status: 400, code: 'upstream_rejected', message: 'not this one' }
    switch (outcome) {
      case 'timeouts':
        this.#answer(request, tokens_max)
        return { kind: 'failed', status: null, code: 'upstream_timeout', reason: 'no answer came' }
      case 'resets':
        return { kind: 'failed', status: null, code: 'upstream_unavailable', reason: 'connection reset' }
      case 'malformed':
        this.#answer(request, tokens_max)
        if (isAnthropic) return classify({ status: 200, body: anthropicError('api_error') }, endpoint)
        return { kind: 'failed', status: 200, code: 'upstream_invalid_response', reason: 'no JSON' }
      case 'throttles':
        if (isAnthropic) return classify({ status: 529, body: anthropicError('overloaded_error') }, endpoint)
        return {
          kind: 'throttled',
          status: 429,
          reason: 'too many',
          ...(this.#random.chance(0.3) ? { retry_after_ms: this.#random.int(50, 800) } : {}),
        }
      case 'usageMissing':
        this.unmetered.add(request)
        return answered(null)
      case 'duplicates':
        this.#answer(request, tokens_max)
        return answered(this.#answer(request, tokens_max))
      default:
        return answered(this.#answer(request, tokens_max))
    }
  }

  #answer(request: string, tokens_max: number): number {
    const given = this.answers.get(request) ?? []
    this.answers.set(request, given)
    const tokens = Math.max(1, tokens_max - given.length)
    given.push(tokens)
    return tokens
  }
}

export function anthropicError(type: string, message = 'not now'): Buffer {
  return Buffer.from(JSON.stringify({ type: 'error', error: { type, message } }))
}

/** In the words of an endpoint. */
function bodyText(
  { content, finish_reason }: Said,
  prompt_tokens: number,
  completion_tokens: number | null,
  endpoint: EndpointPath,
): string {
  const withUsage = (answer: object, usage: object): string =>
    JSON.stringify(completion_tokens === null ? answer : { ...answer, usage })
  switch (endpoint) {
    case '/v1/messages': {
      const answer = { type: 'message', role: 'assistant', content: [{ type: 'text', text: content }] }
      // Most of the prompt was in a cache, or comes into one.
      const [input_tokens, read] = [1, Math.floor(prompt_tokens / 2)]
      const cache = {
        cache_read_input_tokens: read,
        cache_creation_input_tokens: prompt_tokens - read - input_tokens,
      }
      const usage = { input_tokens, ...cache, output_tokens: completion_tokens }
      return withUsage({ ...answer, stop_reason: 'end_turn' }, usage)
    }
    case '/v1/summarize':
      return withUsage({ summary: content }, { read: prompt_tokens, written: completion_tokens })
    case '/v1/transcribe':
      return withUsage({ summary: content }, { seconds: (completion_tokens ?? 0) - PART_OF_SECOND })
    case '/v1/classify':
      return JSON.stringify({ summary: content })
    default: {
      const choice = { index: 0, message: { role: 'assistant', content }, finish_reason }
      const total_tokens = prompt_tokens + (completion_tokens ?? 0)
      return withUsage(
        { id: 'chatcmpl-1', object: 'chat.completion', choices: [choice] },
        { prompt_tokens, completion_tokens, total_tokens },
      )
    }
  }
}
