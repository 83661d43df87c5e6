// A model server that all machines share: it answers, and it loses, delays, doubles, garbles and throttles. It
// remembers what it was asked and what it answered, so it is a witness of its own. No answer ever costs as
// much as another to the same line, so a line billed for the wrong attempt shows.

import type { Backend, BackendResult } from '../../src/backends/backend.ts'
import { classify } from '../../src/backends/verdict/classify.ts'
import { type Clock, sleep } from '../../src/domain/clock.ts'
import type { Machine } from './machine.ts'
import type { SeededRandom } from './seeded-random.ts'

/** Sum at most 1; the rest is answered. */
export interface ServerFaults {
  loses: number
  breaks: number
  garbles: number
  doubles: number
  throttles: number
  forgets_usage: number
}

export interface Asked {
  machine: string
  /** The line's text. */
  line: string
  /** By the clock of the machine that asked. */
  at: number
}

const TIMEOUT_MS = 3_000
const ABORTED: BackendResult = {
  kind: 'failed',
  status: null,
  code: 'upstream_unavailable',
  reason: 'aborted',
}

export class ModelServer {
  readonly #clock: Clock
  readonly #random: SeededRandom
  readonly #faults: () => ServerFaults
  readonly #capacity: number
  readonly #onAsked: (asked: Asked) => void
  readonly #onEnded: (machine: string, line: string, result: BackendResult['kind']) => void
  #inFlight = 0
  /** Completion tokens of each answer that was given, by line: each a little less than the line allows. */
  readonly answers = new Map<string, number[]>()
  /** When each line was asked last, by the one true clock. */
  readonly askedAt = new Map<string, number>()
  /** What every prompt comes to. */
  readonly prompt_tokens: number
  /** Lines of which some answer did not say what it used. */
  readonly unmetered = new Set<string>()

  constructor(options: {
    clock: Clock
    random: SeededRandom
    faults: () => ServerFaults
    capacity: number
    prompt_tokens: number
    onAsked: (asked: Asked) => void
    /** The machine has been told how an attempt ended. */
    onEnded: (machine: string, line: string, result: BackendResult['kind']) => void
  }) {
    this.#clock = options.clock
    this.#random = options.random
    this.#faults = options.faults
    this.#capacity = options.capacity
    this.prompt_tokens = options.prompt_tokens
    this.#onAsked = options.onAsked
    this.#onEnded = options.onEnded
  }

  /** The server as one machine reaches it. */
  seenFrom(machine: Machine): Backend {
    return {
      name: 'model-server',
      send: async ({ body, signal }) => {
        const { messages, max_tokens } = JSON.parse(Buffer.from(body).toString())
        const line = String(messages[0].content)
        this.askedAt.set(line, this.#clock.now())
        this.#onAsked({ machine: machine.name, line, at: machine.clock.now() })
        const random = this.#random
        const fate = this.#fate()
        const latency_ms = fate === 'loses' ? TIMEOUT_MS : random.int(5, random.chance(0.05) ? 2_500 : 200)
        const full = this.#inFlight >= this.#capacity
        if (!full) {
          this.#inFlight++
          this.#clock.after(latency_ms, () => {
            this.#inFlight--
          })
        }
        const result = this.#result(line, max_tokens, full ? 'throttles' : fate)
        await sleep(machine.clock, full ? 5 : latency_ms, signal)
        // An answer may come in the very moment in which the caller hangs up.
        const told = signal?.aborted && !random.chance(0.2) ? ABORTED : result
        this.#onEnded(machine.name, line, told.kind)
        return told
      },
      close: async () => {},
    }
  }

  #fate(): keyof ServerFaults | 'answers' {
    const faults = this.#faults()
    let dice = this.#random.next()
    for (const name of ['loses', 'breaks', 'garbles', 'doubles', 'throttles', 'forgets_usage'] as const) {
      dice -= faults[name]
      if (dice < 0) return name
    }
    return 'answers'
  }

  #result(line: string, tokens_max: number, fate: keyof ServerFaults | 'answers'): BackendResult {
    // Not a matter of room, whatever it says: this line never finds any.
    if (line.endsWith('poison')) return { kind: 'throttled', status: 503, reason: 'not this one' }
    if (line.endsWith('refuse'))
      return { kind: 'refused', status: 400, code: 'upstream_rejected', message: 'not this one' }
    switch (fate) {
      case 'loses':
        this.#answer(line, tokens_max)
        return { kind: 'failed', status: null, code: 'upstream_timeout', reason: 'no answer came' }
      case 'breaks':
        return { kind: 'failed', status: null, code: 'upstream_unavailable', reason: 'connection reset' }
      case 'garbles':
        this.#answer(line, tokens_max)
        return { kind: 'failed', status: 200, code: 'upstream_invalid_response', reason: 'no JSON' }
      case 'throttles':
        return {
          kind: 'throttled',
          status: 429,
          reason: 'too many',
          ...(this.#random.chance(0.3) ? { retry_after_ms: this.#random.int(50, 800) } : {}),
        }
      case 'forgets_usage':
        this.unmetered.add(line)
        return answered(line, this.prompt_tokens, null)
      case 'doubles':
        this.#answer(line, tokens_max)
        return answered(line, this.prompt_tokens, this.#answer(line, tokens_max))
      case 'answers':
        return answered(line, this.prompt_tokens, this.#answer(line, tokens_max))
    }
  }

  #answer(line: string, tokens_max: number): number {
    const given = this.answers.get(line) ?? []
    this.answers.set(line, given)
    const tokens = Math.max(1, tokens_max - given.length)
    given.push(tokens)
    return tokens
  }
}

function answered(line: string, prompt_tokens: number, completion_tokens: number | null): BackendResult {
  const usage =
    completion_tokens === null
      ? null
      : { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens }
  const body = {
    id: 'chatcmpl-1',
    object: 'chat.completion',
    choices: [{ index: 0, message: { role: 'assistant', content: line }, finish_reason: 'stop' }],
    ...(usage ? { usage } : {}),
  }
  return classify({ status: 200, body: Buffer.from(JSON.stringify(body)) })
}
