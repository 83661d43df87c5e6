// The simulated model server without a transport: it decides what a request is answered, and when. The in-process
// backend and the HTTP server share it, so their answers are the same to the byte.
import { BoundedMap } from '../../domain/bounded-map.ts'
import { DEFAULT_ENDPOINT, type EndpointPath, isBuiltIn } from '../../domain/endpoint.ts'
import type { SimOptions, SimulatedFault } from '../../domain/simulated-server.ts'
import { type SimSettings, simSettings } from '../../domain/simulated-server.ts'
import { randomOf, randomOfHash, type SeededRandom } from './seeded-random.ts'
import { SimulatedError } from './sim-request.ts'
import { ANSWERS } from './simulated-endpoints.ts'

/** The response to a request, `after_ms` from its arrival. It uses a slot until `release` is called. */
export type SimResponse =
  | {
      kind: 'answer'
      after_ms: number
      status: number
      text: string
      retry_after_ms: number | null
    }
  /** A response in which the connection breaks. */
  | { kind: 'reset'; after_ms: number }
  /** A request that never gets a response. */
  | { kind: 'hang' }

export interface SimStats {
  requests: number
  /** The number of answers with status 200, with or without usage. */
  answered: number
  /** The number of requests rejected by 4xx other than 429. */
  refused: number
  /** The number of 429s because every slot was taken. */
  over_capacity: number
  faults: Record<SimulatedFault, number>
  in_flight: number
  in_flight_max: number
  /** The tokens of all answers together. */
  prompt_tokens: number
  completion_tokens: number
}

interface Arrival {
  fate: SimResponse
  sha256: string
  /** The label of the response in logs: `answer`, `refused`, `over_capacity`, or the fault. */
  label: string
}

export class Simulator {
  readonly settings: SimSettings
  readonly #plan: FaultPlan
  readonly #stats: SimStats = {
    requests: 0,
    answered: 0,
    refused: 0,
    over_capacity: 0,
    faults: { 429: 0, 500: 0, 503: 0, hang: 0, reset: 0, garbage: 0, missing_usage: 0, off_schema: 0 },
    in_flight: 0,
    in_flight_max: 0,
    prompt_tokens: 0,
    completion_tokens: 0,
  }

  /** Creates a simulator. Throws a RangeError for invalid options. */
  constructor(options: SimOptions) {
    this.settings = simSettings(options)
    this.#plan = new FaultPlan(this.settings)
  }

  get stats(): SimStats {
    return structuredClone(this.#stats)
  }

  /** Decides the response to a request and takes a slot; every arrival needs one `release`. */
  arrive(body: Uint8Array, endpoint: EndpointPath = DEFAULT_ENDPOINT): Arrival {
    const stats = this.#stats
    const random = randomOf(body)
    stats.requests += 1
    stats.in_flight += 1
    if (stats.in_flight > this.settings.capacity) {
      stats.over_capacity += 1
      return {
        fate: this.#throttle(429, 'every slot is taken', 0),
        sha256: random.sha256,
        label: 'over_capacity',
      }
    }
    if (stats.in_flight > stats.in_flight_max) stats.in_flight_max = stats.in_flight
    const fault = this.#plan.next(random.sha256)
    if (fault !== null) stats.faults[fault] += 1
    return { ...this.#fate(body, endpoint, random, fault), sha256: random.sha256 }
  }

  release(): void {
    this.#stats.in_flight -= 1
  }

  #fate(
    body: Uint8Array,
    endpoint: EndpointPath,
    random: SeededRandom,
    fault: SimulatedFault | null,
  ): { fate: SimResponse; label: string } {
    const { min, max } = this.settings.latency_ms
    const after_ms = min === max ? min : random.between(min, max)
    switch (fault) {
      case '429':
        return { fate: this.#throttle(429, 'rate limit reached', 0), label: fault }
      case '503':
        return { fate: this.#throttle(503, 'overloaded', 0), label: fault }
      case '500':
        return {
          fate: answer(after_ms, 500, errorText('simulated crash', 'InternalServerError', null, 500)),
          label: fault,
        }
      case 'hang':
        return { fate: { kind: 'hang' }, label: fault }
      case 'reset':
        return { fate: { kind: 'reset', after_ms }, label: fault }
      case 'garbage':
        return { fate: answer(after_ms, 200, garbage(random)), label: fault }
    }
    try {
      const text = this.#answer(body, endpoint, random, fault)
      return { fate: answer(after_ms, 200, text), label: fault ?? 'answer' }
    } catch (error) {
      if (!(error instanceof SimulatedError)) {
        // A defect in one request must not end the whole load test.
        const text = errorText(`the simulator broke: ${error}`, 'InternalServerError', null, 500)
        return { fate: answer(0, 500, text), label: 'broken' }
      }
      this.#stats.refused += 1
      const { status, message, type, param, code } = error
      return { fate: answer(0, status, errorText(message, type, param, code)), label: 'refused' }
    }
  }

  #answer(
    body: Uint8Array,
    endpoint: EndpointPath,
    random: SeededRandom,
    fault: SimulatedFault | null,
  ): string {
    if (!isBuiltIn(endpoint))
      throw new SimulatedError(404, 'not_found_error', `the simulator has no ${endpoint}`, null, 404)
    const with_usage = fault !== 'missing_usage'
    const call = { body, settings: this.settings, random, with_usage, off_schema: fault === 'off_schema' }
    const made = ANSWERS[endpoint](call)
    this.#stats.answered += 1
    this.#stats.prompt_tokens += made.prompt_tokens
    this.#stats.completion_tokens += made.completion_tokens
    return made.text
  }

  #throttle(status: number, what: string, after_ms: number): SimResponse {
    const text = errorText(
      `The simulator refuses for now: ${what}.`,
      'rate_limit_error',
      null,
      'rate_limit_exceeded',
    )
    return { ...answer(after_ms, status, text), retry_after_ms: this.settings.retry_after_ms }
  }
}

function answer(after_ms: number, status: number, text: string): SimResponse & { kind: 'answer' } {
  return { kind: 'answer', after_ms, status, text, retry_after_ms: null }
}

export function errorText(
  message: string,
  type: string,
  param: string | null,
  code: string | number,
): string {
  return JSON.stringify({ error: { message, type, param, code } })
}

/** Makes a body as a broken proxy or a crashing server sends it with status 200. */
function garbage(random: SeededRandom): string {
  const forms = [
    '<html><body><h1>Bad Gateway</h1></body></html>',
    `{"id":"chatcmpl-sim-${random.sha256.slice(0, 24)}","object":"chat.completion","choices":[{"ind`,
    '{"object":"chat.completion","choices":[]}',
    '',
  ]
  return forms[random.next() % forms.length] ?? ''
}

// Decides which attempts meet which fault, from the request's bytes, the seed, and how many faults this request has met
// in a row: a retry of the same bytes rolls anew, so it can succeed, and a run repeated with the same seed meets the
// same faults whatever the order of its requests.

/** The number of requests whose faults are remembered until their retry; the oldest are evicted. */
const REMEMBERED_MAX = 1_000_000

export class FaultPlan {
  readonly #faults: SimSettings['faults']
  readonly #seed: number
  /** Faults in a row by request, for requests whose last attempt met one. */
  readonly #met = new BoundedMap<string, number>(REMEMBERED_MAX)

  constructor({ faults, seed }: Pick<SimSettings, 'faults' | 'seed'>) {
    this.#faults = faults
    this.#seed = seed
  }

  /** Decides the fault of this attempt at the request `sha256`; null: none. */
  next(sha256: string): SimulatedFault | null {
    if (this.#faults.length === 0) return null
    const met = this.#met.get(sha256) ?? 0
    const fault = this.#roll(sha256, met)
    if (fault === null) this.#met.delete(sha256)
    else this.#met.set(sha256, met + 1)
    return fault
  }

  #roll(sha256: string, met: number): SimulatedFault | null {
    // These bits of the hash are not the seed of the answer's random numbers.
    let at = randomOfHash(sha256.slice(8, 16), this.#seed * 1_000_003 + met + 1).fraction()
    for (const { fault, rate } of this.#faults) {
      if (at < rate) return fault
      at -= rate
    }
    return null
  }
}
