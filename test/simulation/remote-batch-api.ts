// A batch API that all machines share. It loses answers, lets calls take effect after their caller has given up, creates
// batches twice, reports their end late, ends them early, and delivers files with missing, doubled and unknown lines. It
// says when a name was given to two batches by two calls.
import type { Backend } from '../../src/backends/backend.ts'
import { type BatchApi, BatchApiError, type SeenBatch } from '../../src/backends/batch-api/batch-api.ts'
import { unfinished } from '../../src/backends/batch-api/result-line.ts'
import type { Upstream } from '../../src/dispatch/upstream.ts'
import type { Clock } from '../../src/domain/clock.ts'
import type { Machine } from './machine.ts'
import type { ModelServer } from './model-server.ts'
import type { SeededRandom } from './seeded-random.ts'
import type { Tally } from './tally.ts'
import { lineOf, RISK_MS_MAX } from './upstream-changes.ts'

/** How long a call may take, and how late it may take effect. */
const TIMEOUT_MS = 1_000
const LATE_MS_MAX = 800
const WORK_MS_MAX = 4_000
/** It may say much later that it has ended. */
const LATE_REPORT_CHANCE = 0.1
const LATE_REPORT_MS_MAX = 60_000

interface RemoteLine {
  custom_id: string
  text: string
  max_tokens: number
}

interface RemoteBatch extends SeenBatch {
  name: string
  file_id: string
  endsAt: number
  cancelled: boolean
}

export class RemoteBatchApi {
  readonly #clock: Clock
  readonly #random: SeededRandom
  readonly #server: ModelServer
  readonly #hasFaults: () => boolean
  readonly #onSent: (machine: string, line: string) => void
  /** Of its own, so that it does not change the rest of a run. */
  readonly #late: SeededRandom
  readonly #violate: (violation: string) => void
  readonly #deadlineOf: (line: string) => number
  readonly #tally: Tally
  readonly #files = new Map<string, { name: string; lines: RemoteLine[] | null; content: string[] }>()
  readonly #batches: RemoteBatch[] = []
  readonly #created = new Set<string>()
  /** Lines that a machine has tried to upload. */
  readonly #offered = new Set<string>()
  #ids = 0

  constructor(options: {
    clock: Clock
    random: SeededRandom
    late: SeededRandom
    /** Answers the lines. */
    server: ModelServer
    hasFaults: () => boolean
    onSent: (machine: string, line: string) => void
    violate: (violation: string) => void
    /** When the window of a line closes (Unix ms). */
    deadlineOf: (line: string) => number
    tally: Tally
  }) {
    this.#clock = options.clock
    this.#random = options.random
    this.#late = options.late
    this.#server = options.server
    this.#hasFaults = options.hasFaults
    this.#onSent = options.onSent
    this.#violate = options.violate
    this.#deadlineOf = options.deadlineOf
    this.#tally = options.tally
  }

  /** As seen by one machine. */
  apiFor(machine: Machine): BatchApi {
    const call = <T>(work: (delayMs: number) => T): Promise<T> => this.#call(machine, work)
    const api = this
    return {
      lineMetadata: false,
      settleMs: 2 * TIMEOUT_MS,
      upload: (name, content) => {
        const lines = linesOf(Buffer.concat([...content]).toString())
        for (const { text } of lines) this.#offered.add(text)
        return call(() => this.#upload(name, lines))
      },
      findFile: (name) =>
        call(() => [...this.#files].find(([, file]) => file.name === name && file.lines)?.[0] ?? null),
      create: ({ name, file_id }) => call((delayMs) => this.#create(machine, name, file_id, delayMs)),
      find: ({ name }) =>
        call(() => this.#batches.filter((batch) => batch.name === name).map((one) => this.#seen(one))),
      read: (id) =>
        call(() => {
          const batch = this.#batches.find((one) => one.id === id)
          return batch ? this.#seen(batch) : null
        }),
      cancel: (id) =>
        call(() => {
          const batch = this.#batches.find((one) => one.id === id)
          if (!batch || batch.ended !== null || batch.cancelled) return
          if (this.#batches.find((one) => one.name === batch.name) !== batch)
            this.#tally.count('remote: cancelled the second of a name')
          batch.cancelled = true
          batch.endsAt = this.#clock.now() + this.#random.int(0, 1_000)
        }),
      async *lines(file_id) {
        const content = await call(() => api.#files.get(file_id)?.content ?? [])
        for (const line of content) yield Buffer.from(line)
      },
      remove: (file_id) => call(() => void this.#files.delete(file_id)),
      close: async () => {},
    }
  }

  /** A server of a higher tier: it gets what the batch API left, and more only while that is down, or at risk. */
  higherTier(server: Backend, { name, clock }: Machine, whenDownMs: number, lowest: Upstream): Backend {
    return {
      ...server,
      send: async (call) => {
        const line = lineOf(call)
        const at = clock.now()
        if (this.#offered.has(line)) this.#tally.count('remote: a line was finished by another tier')
        else if (lowest.downSince !== null && at - lowest.downSince >= whenDownMs)
          this.#tally.count('remote: spilled while down')
        else if (this.#deadlineOf(line) - at > RISK_MS_MAX)
          this.#violate(`${name} sent ${line} past a batch API that was not asked to take it`)
        else this.#tally.count('remote: spilled at risk')
        return await server.send(call)
      },
    }
  }

  /** `work` is told how late it is: the machine may have been suspended before it sent the request. */
  async #call<T>(machine: Machine, work: (delayMs: number) => T): Promise<T> {
    const random = this.#random
    const begun = this.#clock.now()
    await machine.pass(random.int(1, 100))
    const delayMs = this.#clock.now() - begun
    if (!this.#hasFaults()) return work(delayMs)
    if (random.chance(0.05)) {
      this.#tally.count('remote: unreachable')
      throw broken('it cannot be reached', true)
    }
    if (random.chance(0.08)) {
      this.#tally.count('remote: took effect late')
      // It is on its way: the caller has given up when it takes effect.
      this.#clock.after(random.int(0, LATE_MS_MAX), () => void work(delayMs))
      await machine.pass(random.int(0, TIMEOUT_MS))
      throw broken('no answer came in time', false)
    }
    const value = work(delayMs)
    await machine.pass(random.int(0, 100))
    if (random.chance(0.08)) {
      this.#tally.count('remote: lost the answer')
      throw broken('the connection broke before its answer came', false)
    }
    return value
  }

  #upload(name: string, lines: RemoteLine[]): string {
    const id = `file-${++this.#ids}`
    this.#files.set(id, { name, lines, content: [] })
    return id
  }

  #create(machine: Machine, name: string, file_id: string, delayMs: number): SeenBatch {
    if (this.#created.has(name)) {
      if (delayMs <= TIMEOUT_MS) this.#violate(`the remote batch ${name} was created twice`)
      // The machine takes its turn when the others are sure that it will not: the second is cancelled then.
      else this.#tally.count('remote: created twice by a suspended machine')
    }
    this.#created.add(name)
    for (const { text } of this.#files.get(file_id)?.lines ?? []) this.#sent(machine, text)
    const first = this.#add(name, file_id)
    this.#tally.count('remote: batch created')
    if (this.#hasFaults() && this.#random.chance(0.05)) {
      this.#tally.count('remote: created twice by itself')
      this.#add(name, file_id)
    }
    return this.#seen(first)
  }

  #sent(machine: Machine, line: string): void {
    this.#server.sentAt.set(line, this.#clock.now())
    this.#onSent(machine.name, line)
  }

  #add(name: string, file_id: string): RemoteBatch {
    const isLate = this.#hasFaults() && this.#late.chance(LATE_REPORT_CHANCE)
    const lateMs = isLate ? this.#late.int(0, LATE_REPORT_MS_MAX) : 0
    if (isLate) this.#tally.count('remote: reported its end late')
    const batch: RemoteBatch = {
      id: `batch-${++this.#ids}`,
      name,
      file_id,
      endsAt: this.#clock.now() + this.#random.int(0, WORK_MS_MAX) + lateMs,
      cancelled: false,
      status: 'in_progress',
      isKnown: true,
      ended: null,
      done: 0,
      output_file_id: null,
      error_file_id: null,
      detail: null,
      isThrottled: false,
      blamed: null,
      report: '{}',
    }
    this.#batches.push(batch)
    return batch
  }

  /** It ends when somebody looks: nobody can tell the difference. */
  #seen(batch: RemoteBatch): SeenBatch {
    if (batch.ended === null && this.#clock.now() >= batch.endsAt) this.#end(batch)
    return { ...batch }
  }

  #end(batch: RemoteBatch): void {
    const random = this.#random
    const faulty = this.#hasFaults()
    const early = faulty && random.chance(0.1)
    batch.ended = batch.cancelled ? 'cancelled' : early ? random.pick(['expired', 'failed']) : 'completed'
    this.#tally.count(`remote: ended as ${batch.ended}`)
    if (batch.ended === 'failed') {
      batch.isThrottled = random.chance(0.5)
      if (batch.isThrottled) this.#tally.count('remote: failed for want of room')
      return
    }
    const output: string[] = []
    const error: string[] = []
    for (const { custom_id, text, max_tokens } of this.#files.get(batch.file_id)?.lines ?? []) {
      if ((batch.ended !== 'completed' && random.chance(0.5)) || (faulty && random.chance(0.05))) {
        this.#tally.count('remote: left a line out')
        continue
      }
      if (text.endsWith('refuse') || text.endsWith('poison')) {
        const status_code = text.endsWith('refuse') ? 400 : 503
        error.push(
          JSON.stringify({
            custom_id,
            response: { status_code, body: { error: { message: 'not this one' } } },
          }),
        )
        continue
      }
      const body = this.#server.bodyOf(text, max_tokens)
      output.push(`{"custom_id":"${custom_id}","response":{"status_code":200,"body":${body}},"error":null}`)
      if (!faulty || !random.chance(0.05)) continue
      this.#tally.count('remote: delivered a line twice')
      output.push(output.at(-1)!)
    }
    if (faulty && random.chance(0.1)) {
      this.#tally.count('remote: delivered a line of nobody')
      output.push('{"custom_id":"nobody","response":null,"error":null}')
    }
    if (output.length > 0) batch.output_file_id = this.#store(output)
    if (error.length > 0) batch.error_file_id = this.#store(error)
  }

  #store(content: string[]): string {
    const id = `file-${++this.#ids}`
    this.#files.set(id, { name: id, lines: null, content })
    return id
  }
}

function linesOf(text: string): RemoteLine[] {
  return text
    .split('\n')
    .filter(Boolean)
    .map((line) => JSON.parse(line))
    .map(({ custom_id, body }) => ({
      custom_id,
      text: body.messages[0].content,
      max_tokens: body.max_tokens,
    }))
}

function broken(reason: string, unreachable: boolean): BatchApiError {
  return new BatchApiError({ ...unfinished(reason), ...(unreachable ? { unreachable } : {}) }, unreachable)
}
