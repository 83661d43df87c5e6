// A model server that all machines share. It answers, and it times out, delays, throttles, and sends malformed or
// duplicate answers. It records requests and answers for the invariant checks. Each answer to a line has another
// cost, so a line that is billed for the wrong attempt is detected.
import type { Backend, BackendResult } from '../../src/backends/backend.ts'
import { classify } from '../../src/backends/verdict/classify.ts'
import { type Clock, sleep } from '../../src/domain/clock.ts'
import type { Machine } from './machine.ts'
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
}

export interface SentLine {
  machine: string
  /** The line's text. */
  line: string
  /** By the clock of the machine that sent it. */
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
  readonly #onRequest: (asked: SentLine) => void
  readonly #onEnded: (machine: string, line: string, result: BackendResult['kind']) => void
  readonly #tally: Tally
  #inFlight = 0
  /** By line: completion tokens of each answer, one fewer each time. */
  readonly answers = new Map<string, number[]>()
  /** When each line was last sent, by the clock of the simulation. */
  readonly sentAt = new Map<string, number>()
  /** Prompt tokens of every line. */
  readonly prompt_tokens: number
  /** Lines with an answer without `usage`. */
  readonly unmetered = new Set<string>()

  constructor(options: {
    clock: Clock
    random: SeededRandom
    faults: () => ServerFaults
    capacity: number
    prompt_tokens: number
    onRequest: (asked: SentLine) => void
    /** The machine has received the result of an attempt. */
    onEnded: (machine: string, line: string, result: BackendResult['kind']) => void
    tally: Tally
  }) {
    this.#clock = options.clock
    this.#random = options.random
    this.#faults = options.faults
    this.#capacity = options.capacity
    this.prompt_tokens = options.prompt_tokens
    this.#onRequest = options.onRequest
    this.#onEnded = options.onEnded
    this.#tally = options.tally
  }

  /** The server as seen by one machine. */
  backendFor(machine: Machine): Backend {
    return {
      name: 'model-server',
      send: async ({ body, signal }) => {
        const { messages, max_tokens } = JSON.parse(Buffer.from(body).toString())
        const line = String(messages[0].content)
        this.sentAt.set(line, this.#clock.now())
        this.#onRequest({ machine: machine.name, line, at: machine.clock.now() })
        const random = this.#random
        const outcome = this.#outcome()
        const latencyMs =
          outcome === 'timeouts' ? TIMEOUT_MS : random.int(5, random.chance(0.05) ? 2_500 : 200)
        const full = this.#inFlight >= this.#capacity
        this.#tally.count(`server: ${full ? 'full' : outcome}`)
        if (!full) {
          this.#inFlight++
          this.#clock.after(latencyMs, () => {
            this.#inFlight--
          })
        }
        const result = this.#result(line, max_tokens, full ? 'throttles' : outcome)
        await sleep(machine.clock, full ? 5 : latencyMs, signal)
        // An answer may arrive just as the caller aborts.
        const told = signal?.aborted && !random.chance(0.2) ? ABORTED : result
        this.#onEnded(machine.name, line, told.kind)
        return told
      },
      close: async () => {},
    }
  }

  /** The answer to a line, as a batch API delivers it. */
  bodyOf(line: string, tokens_max: number): string {
    return bodyText(line, this.prompt_tokens, this.#answer(line, tokens_max))
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

  #result(line: string, tokens_max: number, outcome: keyof ServerFaults | 'answers'): BackendResult {
    // This line is always throttled, whatever the load.
    if (line.endsWith('poison')) return { kind: 'throttled', status: 503, reason: 'not this one' }
    if (line.endsWith('refuse'))
      return { kind: 'refused', status: 400, code: 'upstream_rejected', message: 'not this one' }
    switch (outcome) {
      case 'timeouts':
        this.#answer(line, tokens_max)
        return { kind: 'failed', status: null, code: 'upstream_timeout', reason: 'no answer came' }
      case 'resets':
        return { kind: 'failed', status: null, code: 'upstream_unavailable', reason: 'connection reset' }
      case 'malformed':
        this.#answer(line, tokens_max)
        return { kind: 'failed', status: 200, code: 'upstream_invalid_response', reason: 'no JSON' }
      case 'throttles':
        return {
          kind: 'throttled',
          status: 429,
          reason: 'too many',
          ...(this.#random.chance(0.3) ? { retry_after_ms: this.#random.int(50, 800) } : {}),
        }
      case 'usageMissing':
        this.unmetered.add(line)
        return answered(line, this.prompt_tokens, null)
      case 'duplicates':
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
  const body = Buffer.from(bodyText(line, prompt_tokens, completion_tokens))
  return classify({ status: 200, body }, '/v1/chat/completions')
}

function bodyText(line: string, prompt_tokens: number, completion_tokens: number | null): string {
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
  return JSON.stringify(body)
}
