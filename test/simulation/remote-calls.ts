// What happens to the calls of a batch API on their way: they are slow, they get lost before or after their effect, which may
// come after the caller has given up, and for some time all of them fail in one of several ways, or do not come back at all.
import { BatchApiError } from '../../src/backends/batch-api/batch-api.ts'
import { unfinished } from '../../src/backends/batch-api/result-line.ts'
import { refusedCall } from '../../src/backends/openai/batch-api-failure.ts'
import { type Clock, sleep } from '../../src/domain/clock.ts'
import type { Machine } from './machine.ts'
import type { SeededRandom } from './seeded-random.ts'
import type { Tally } from './tally.ts'

/** How long a call may take, and how late it may take effect. */
export const TIMEOUT_MS = 1_000
const LATE_MS_MAX = 800
/** A call whose answer comes byte by byte is not given up before. */
const HANG_MS_MAX = 90_000
const OUTAGE_CHANCE = 0.03
const OUTAGE_END_CHANCE = 0.08
const OUTAGES = [
  'unreachable',
  'bad key',
  'throttled',
  'file not processed',
  'broken',
  'hanging',
  'looks throttled',
  'looks broken',
  'looks gone',
] as const
/** What is done by a call, where outages differ by that. */
type CallKind = 'create' | 'look' | 'other'

export interface RemoteCallsOptions {
  name: string
  clock: Clock
  random: SeededRandom
  /** Of its own, so that it does not change the rest of a run. */
  late: SeededRandom
  hasFaults: () => boolean
  tally: Tally
}

export class RemoteCalls {
  readonly #options: RemoteCallsOptions
  #outage: (typeof OUTAGES)[number] | null = null
  /** Ends the calls that hang. */
  #release = new AbortController()

  constructor(options: RemoteCallsOptions) {
    this.#options = options
  }

  /** Starts or ends a time in which all calls fail; says so if it does. */
  step(): string | null {
    const { late, name, tally } = this.#options
    if (!late.chance(this.#outage === null ? OUTAGE_CHANCE : OUTAGE_END_CHANCE)) return null
    this.#outage = this.#outage === null ? late.pick(OUTAGES) : null
    if (this.#outage === null) return `${name} is well`
    tally.count(`remote: outage (${this.#outage})`)
    return `${name}: ${this.#outage}`
  }

  endFaults(): void {
    this.#outage = null
    this.#release.abort()
    this.#release = new AbortController()
  }

  /**
   * How a machine calls. `work` is told how late it is: the machine may have been suspended before it sent the request.
   * `kind`: `create` makes a batch of an uploaded file, `look` reads one.
   */
  from(
    machine: Machine,
  ): <T>(
    work: (delayMs: number) => T | Promise<T>,
    signal: AbortSignal | undefined,
    kind?: CallKind,
  ) => Promise<T> {
    return (work, signal, kind = 'other') => this.#call(machine, work, signal, kind)
  }

  async #call<T>(
    machine: Machine,
    work: (delayMs: number) => T | Promise<T>,
    signal: AbortSignal | undefined,
    kind: CallKind,
  ): Promise<T> {
    const { clock, random, late, tally, hasFaults } = this.#options
    const begun = clock.now()
    await pass(machine, random.int(1, 100), signal)
    const delayMs = clock.now() - begun
    if (!hasFaults()) return await work(delayMs)
    if (this.#outage !== null) await this.#fail(this.#outage, machine, () => work(delayMs), signal, kind)
    if (random.chance(0.05)) {
      tally.count('remote: unreachable')
      throw broken('it cannot be reached', true)
    }
    if (random.chance(0.08)) {
      tally.count('remote: took effect late')
      // It is on its way: the caller has given up when it takes effect.
      clock.after(random.int(0, LATE_MS_MAX), () => void attempt(() => work(delayMs)))
      await pass(machine, random.int(0, TIMEOUT_MS), signal)
      throw broken('no answer came in time', false)
    }
    const value = await work(delayMs)
    if (late.chance(0.01)) await this.#hang(machine, signal)
    await pass(machine, random.int(0, 100), signal)
    if (random.chance(0.08)) {
      tally.count('remote: lost the answer')
      throw broken('the connection broke before its answer came', false)
    }
    return value
  }

  /** The next piece of a file comes after `ms`. */
  async drip(machine: Machine, ms: number, signal: AbortSignal | undefined): Promise<void> {
    this.#options.tally.count('remote: dripped a line')
    await pass(machine, ms, signal)
  }

  async #fail(
    outage: (typeof OUTAGES)[number],
    machine: Machine,
    work: () => unknown,
    signal: AbortSignal | undefined,
    kind: CallKind,
  ): Promise<void> {
    const { late } = this.#options
    switch (outage) {
      case 'unreachable':
        throw broken('it cannot be reached', true)
      case 'bad key':
        throw answeredWith(401, 'invalid API key')
      case 'throttled':
        throw answeredWith(429, 'slow down', late.chance(0.5) ? { 'retry-after-ms': '700' } : {})
      case 'file not processed':
        if (kind === 'create')
          throw answeredWith(422, 'the file is still being processed', {}, 'file_not_processed')
        return
      case 'broken':
        if (late.chance(0.5)) await attempt(work)
        throw answeredWith(500, 'oops')
      case 'looks throttled':
        if (kind === 'look')
          throw answeredWith(429, 'slow down', late.chance(0.5) ? { 'retry-after': '3600' } : {})
        return
      case 'looks broken':
        if (kind === 'look') throw answeredWith(503, 'oops')
        return
      case 'looks gone':
        if (kind === 'look') throw answeredWith(404, 'no such batch')
        return
      case 'hanging':
        if (late.chance(0.5)) await attempt(work)
        return await this.#hang(machine, signal)
    }
  }

  async #hang(machine: Machine, signal: AbortSignal | undefined): Promise<never> {
    const { tally } = this.#options
    tally.count('remote: hung')
    const released = this.#release.signal
    const ended = signal ? AbortSignal.any([signal, released]) : released
    await sleep(machine.clock, HANG_MS_MAX, ended)
    // Nothing happens on a machine that is suspended or has crashed.
    await machine.pass(0)
    throw broken(signal?.aborted ? 'aborted' : 'no answer came in time', false)
  }
}

/** An answer with an error, read as a real one is. */
export function answeredWith(
  statusCode: number,
  message: string,
  headers: Record<string, string> = {},
  code?: string,
): BatchApiError {
  const text = JSON.stringify({ error: { message, ...(code === undefined ? {} : { code }) } })
  return refusedCall({ statusCode, headers }, text, (one) => one, 0)
}

function broken(reason: string, unreachable: boolean): BatchApiError {
  return new BatchApiError({ ...unfinished(reason), ...(unreachable ? { unreachable } : {}) }, unreachable)
}

/** Ends early when the caller gives up. */
async function pass(machine: Machine, ms: number, signal: AbortSignal | undefined): Promise<void> {
  await sleep(machine.clock, ms, signal)
  if (signal?.aborted) throw broken('aborted', false)
}

/** The caller is gone: what comes of it reaches nobody. */
async function attempt(work: () => unknown): Promise<void> {
  try {
    await work()
  } catch (error) {
    if (!(error instanceof BatchApiError)) throw error
  }
}
