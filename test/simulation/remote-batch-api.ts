// A batch API that all machines share: its files and batches, what it makes of them, and its habits, which are drawn once a
// run. It creates batches twice, never ends some, reports the end of others late or ends them early, goes on with batches
// that were to be cancelled, forgets batches, rejects a file for one of its lines, has statuses and texts that nobody
// expects, and delivers files slowly, with missing, doubled and foreign lines. What it shows is read as the answers of a
// real one are. It says when a name was given to two batches by two calls. remote-calls.ts has what happens on the way.
import {
  type BatchApi,
  type BatchRequest,
  type SeenBatch,
  UndecidedBatch,
} from '../../src/backends/batch-api/batch-api.ts'
import { idInBatch, unfinished } from '../../src/backends/batch-api/result-line.ts'
import { seenBatch } from '../../src/backends/openai/seen-batch.ts'
import type { Clock } from '../../src/domain/clock.ts'
import { parseLineRequestId } from '../../src/domain/ids.ts'
import { bodyOf } from './answering.ts'
import type { Machine } from './machine.ts'
import { anthropicError, type ModelServer } from './model-server.ts'
import type { Plans } from './plans.ts'
import { answeredWith, type RemoteCalls, TIMEOUT_MS } from './remote-calls.ts'
import type { SeededRandom } from './seeded-random.ts'
import type { Tally } from './tally.ts'

export const SETTLE_MS = 2 * TIMEOUT_MS
const WORK_MS_MAX = 4_000
/** It may say much later that it has ended. */
const LATE_REPORT_CHANCE = 0.1
const LATE_REPORT_MS_MAX = 60_000
/** It may name a file of results some time after the end. */
const LATE_FILE_MS_MAX = 5_000
/** Without that, it ends only when the faults do. */
const ENDLESS_CHANCE = 0.03
const FORGET_CHANCE = 0.03
/** How long the lines of a file take that are delivered slowly: longer than many a window. */
const DRIP_MS_MAX = 40_000
/** So often at most it leaves the same line without an answer: one that never has one would fail by its own fault. */
const MISSES_MAX = 2
const NUL = '\u0000'

interface RemoteLine {
  custom_id: string
  request: string
  max_tokens: number
}

interface RemoteFile {
  name: string
  /** Of an input. */
  lines: RemoteLine[] | null
  /** Of results. */
  content: RemoteResult[]
}

interface RemoteResult {
  text: string
  /** Of an answer to a line of the batch. */
  answer?: { request: string; tokens: number }
}

export interface RemoteBatch {
  id: string
  name: string
  file_id: string
  createdAt: number
  endsAt: number
  status: string
  ended: boolean
  /** Whether it was asked to cancel it, and whether it does. */
  cancelAsked: boolean
  /** Whoever looked for its name was shown another one before it. */
  shownAsSecond: boolean
  cancelled: boolean
  forgotten: boolean
  /** A machine that had been suspended created it when no other expected that any more, and has had no answer. */
  isUnknown: boolean
  output_file_id: string | null
  error_file_id: string | null
  error: { code: string; message: string; line?: number } | null
}

/** How it is. */
interface Habits {
  /** When it rejects a whole file for one line, and whether it says which; null: it does not. */
  rejects: { when: 'upload' | 'create' | 'later'; namesLine: boolean } | null
  drips: boolean
  /** Then it honours the idempotency key. */
  cannotList: boolean
  saysNul: boolean
  hasOddStatus: boolean
  saysProgress: boolean
  sendsWebhooks: boolean
}

export interface RemoteBatchApiOptions {
  name: string
  /** As Anthropic's: batches carry their requests, and show their names when they have ended. */
  isAnthropic: boolean
  clock: Clock
  random: SeededRandom
  /** Of its own, so that it does not change the rest of a run. */
  late: SeededRandom
  calls: RemoteCalls
  /** Answers the lines. */
  server: ModelServer
  plans: Plans
  hasFaults: () => boolean
  /** At which lines may have been reserved that are handed over just now. */
  lowestPrice: () => number
  /** A machine is about to upload these requests. */
  onOffered: (machine: Machine, requests: readonly string[]) => void
  /** A machine asks to have these requests answered; the call may take effect much later, or never. */
  onAsked: (machine: Machine, requests: readonly string[]) => void
  /** A machine has heard that its batch is there. */
  onCreated: (machine: Machine) => void
  onWebhook: (remote_id: string) => void
  violate: (violation: string) => void
  tally: Tally
}

export class RemoteBatchApi {
  readonly name: string
  readonly batches: RemoteBatch[] = []
  readonly #options: RemoteBatchApiOptions
  readonly #habits: Habits
  readonly #files = new Map<string, RemoteFile>()
  readonly #created = new Set<string>()
  /** By name, when a batch was asked for first: a call may take effect without its answer. */
  readonly #askedAt = new Map<string, number>()
  readonly #misses = new Map<string, number>()
  /** By request, the lowest price at which it may be reserved. */
  readonly #reserved = new Map<string, number>()
  #ids = 0

  constructor(options: RemoteBatchApiOptions) {
    this.#options = options
    this.name = options.name
    const { late } = options
    this.#habits = {
      rejects: late.chance(0.25)
        ? { when: late.pick(['upload', 'create', 'later'] as const), namesLine: late.chance(0.5) }
        : null,
      drips: late.chance(0.2),
      cannotList: late.chance(0.1),
      saysNul: late.chance(0.15),
      hasOddStatus: late.chance(0.15),
      saysProgress: late.chance(0.5),
      sendsWebhooks: late.chance(0.3),
    }
  }

  get cannotList(): boolean {
    return this.#habits.cannotList
  }

  /** As seen by one machine, which charges `price` for a line of a model. */
  apiFor(machine: Machine, price: (model: string) => number): BatchApi {
    const { calls, clock, onOffered, onAsked, onCreated, plans, server } = this.#options
    const api = this
    const call = calls.from(machine)
    return {
      lineMetadata: false,
      settleMs: SETTLE_MS,
      upload: async (name, requests, signal) => {
        if (this.#options.isAnthropic) return null
        const lines = this.#linesOf(requests)
        onOffered(
          machine,
          lines.map(({ request }) => request),
        )
        // Where batches cannot be listed, one that may be created from here on is in flight, and is created without a look at limits.
        if (this.#habits.cannotList) this.#askedAt.set(name, clock.now())
        return call(() => this.#upload(name, lines), signal)
      },
      findFile: async (name, signal) =>
        this.#options.isAnthropic
          ? null
          : call(
              () => [...this.#files].find(([, file]) => file.name === name && file.lines)?.[0] ?? null,
              signal,
            ),
      create: ({ name, file_id: uploaded, requests }, signal) => {
        const file_id = uploaded ?? this.#carried(machine, name, requests())
        onAsked(machine, this.#requestsOf(file_id))
        if (!this.#askedAt.has(name)) this.#askedAt.set(name, clock.now())
        const answer = call((delayMs) => this.#create(name, file_id, delayMs), signal, 'create')
        void answer.then(
          ({ id }) => {
            const batch = this.#batch(id)
            if (batch) batch.isUnknown = false
            onCreated(machine)
          },
          () => {},
        )
        return answer
      },
      find: ({ name, line_count, taken }, signal) =>
        call(async () => {
          if (this.#habits.cannotList) return null
          const isEnded = (one: RemoteBatch): boolean => this.#seen(one).ended !== null
          const found = this.batches
            .filter((one) => one.name === name && !one.forgotten)
            .filter((one) => !this.#options.isAnthropic || isEnded(one))
          if (this.#options.isAnthropic && found.length === 0) {
            const undecided = this.batches
              .filter((one) => !one.forgotten && this.#requestsOf(one.file_id).length === line_count)
              .filter((one) => !isEnded(one))
            const others = await taken(undecided.map(({ id }) => id))
            if (undecided.some(({ id }) => !others.has(id))) {
              this.#options.tally.count('remote: does not say which batch it is')
              throw new UndecidedBatch(unfinished('it is not known which batch it is'), false)
            }
          }
          for (const other of found.slice(1)) other.shownAsSecond = true
          return found.map((one) => this.#seen(one))
        }, signal),
      read: (id, signal) =>
        call(
          () => {
            const batch = this.#batch(id)
            return batch ? this.#seen(batch) : null
          },
          signal,
          'look',
        ),
      cancel: (id, signal) => call(() => this.#cancel(id), signal),
      async *lines(file_id, signal) {
        const file = await call(() => api.#files.get(file_id), signal)
        if (!file) throw answeredWith(404, 'no such file')
        const { late, hasFaults } = api.#options
        const drips = api.#habits.drips && hasFaults()
        const dripMs = drips ? late.int(0, DRIP_MS_MAX) / file.content.length : 0
        for (const { text, answer } of file.content) {
          if (dripMs > 0) await calls.drip(machine, dripMs, signal)
          if (answer) {
            const { request, tokens } = answer
            const [{ model } = { model: '' }] = plans.ask(request).lines
            server.received(request, tokens, price(model), api.#reserved.get(request) ?? 0)
          }
          yield Buffer.from(text)
        }
      },
      remove: (file_id) => call(() => void this.#files.delete(file_id), undefined),
      close: async () => {},
    }
  }

  /** What goes on for ever, or is reported late, ends soon. */
  endFaults(): void {
    const { clock } = this.#options
    for (const batch of this.batches) batch.endsAt = Math.min(batch.endsAt, clock.now() + WORK_MS_MAX)
  }

  #batch(id: string): RemoteBatch | undefined {
    return this.batches.find((one) => one.id === id && !one.forgotten)
  }

  /** The requests that a batch carries, as a file that nobody sees. */
  #carried(machine: Machine, name: string, requests: readonly BatchRequest[]): string {
    const lines = this.#linesOf(requests)
    this.#options.onOffered(
      machine,
      lines.map(({ request }) => request),
    )
    const id = `file-${++this.#ids}`
    this.#files.set(id, { name, lines, content: [] })
    return id
  }

  #requestsOf(file_id: string): string[] {
    return (this.#files.get(file_id)?.lines ?? []).map(({ request }) => request)
  }

  async #upload(name: string, lines: RemoteLine[]): Promise<string> {
    await this.#reject('upload', lines)
    const id = `file-${++this.#ids}`
    this.#files.set(id, { name, lines, content: [] })
    return id
  }

  /** Throws if it is its habit to reject a file now for one of its lines. */
  async #reject(when: 'upload' | 'create', lines: readonly RemoteLine[]): Promise<void> {
    const { rejects } = this.#habits
    const at = lines.findIndex(({ request }) => request.endsWith('toxic'))
    if (rejects?.when !== when || at === -1) return
    this.#options.tally.count(`remote: rejected a file (${when})`)
    throw answeredWith(when === 'upload' ? 422 : 400, rejection(rejects.namesLine ? at + 1 : null).message)
  }

  async #create(name: string, file_id: string, delayMs: number): Promise<SeenBatch> {
    const { violate, tally, random, hasFaults, server } = this.#options
    const lines = this.#files.get(file_id)?.lines ?? []
    await this.#reject('create', lines)
    if (this.#created.has(name)) {
      const known = this.#habits.cannotList && this.batches.find((one) => one.name === name)
      if (known) return this.#seen(known)
      const isGone = this.batches.every((one) => one.name !== name || one.forgotten)
      if (isGone) tally.count('remote: created again, since the batch API has forgotten it')
      else if (delayMs <= TIMEOUT_MS) violate(`the remote batch ${name} was created twice`)
      // The machine takes its turn when the others are sure that it will not: the second is cancelled then.
      else tally.count('remote: created twice by a suspended machine')
    }
    this.#created.add(name)
    for (const request of this.#requestsOf(file_id)) server.sent(request, this.#askedAt.get(name))
    const first = this.#add(name, file_id)
    first.isUnknown = delayMs > SETTLE_MS
    tally.count('remote: batch created')
    if (hasFaults() && random.chance(0.05) && !this.#habits.cannotList) {
      tally.count('remote: created twice by itself')
      this.#add(name, file_id)
    }
    return this.#seen(first)
  }

  #add(name: string, file_id: string): RemoteBatch {
    const { clock, random, late, hasFaults, tally, onWebhook } = this.#options
    const isEndless = hasFaults() && late.chance(ENDLESS_CHANCE)
    const isLate = hasFaults() && late.chance(LATE_REPORT_CHANCE)
    const lateMs = isLate ? late.int(0, LATE_REPORT_MS_MAX) : 0
    if (isEndless) tally.count('remote: does not end')
    else if (isLate) tally.count('remote: reported its end late')
    const workMs = random.int(0, WORK_MS_MAX) + lateMs
    const createdAt = clock.now()
    const batch: RemoteBatch = {
      id: `batch-${++this.#ids}`,
      name,
      file_id,
      createdAt,
      endsAt: isEndless ? Number.POSITIVE_INFINITY : createdAt + workMs,
      status: this.#habits.hasOddStatus && late.chance(0.5) ? 'in_limbo' : 'in_progress',
      ended: false,
      cancelAsked: false,
      shownAsSecond: false,
      cancelled: false,
      forgotten: false,
      isUnknown: false,
      output_file_id: null,
      error_file_id: null,
      error: null,
    }
    this.batches.push(batch)
    if (hasFaults() && late.chance(FORGET_CHANCE)) {
      tally.count('remote: forgot a batch')
      clock.after(late.int(0, WORK_MS_MAX), () => {
        batch.forgotten = true
      })
    }
    if (this.#habits.sendsWebhooks && !isEndless) clock.after(workMs, () => onWebhook(batch.id))
    return batch
  }

  #cancel(id: string): void {
    const { clock, random, late, hasFaults, tally } = this.#options
    const batch = this.#batch(id)
    if (!batch) return
    batch.cancelAsked = true
    if (batch.ended || batch.cancelled) return
    if (this.batches.find((one) => one.name === batch.name) !== batch)
      tally.count('remote: cancelled the second of a name')
    if (hasFaults() && late.chance(0.1)) {
      tally.count('remote: went on though it was cancelled')
      return
    }
    batch.cancelled = true
    batch.status = 'cancelling'
    batch.endsAt = clock.now() + random.int(0, 1_000)
  }

  /** It ends when somebody looks: nobody can tell the difference. */
  #seen(batch: RemoteBatch): SeenBatch {
    const now = this.#options.clock.now()
    if (!batch.ended && now >= batch.endsAt) this.#end(batch)
    const total = this.#files.get(batch.file_id)?.lines?.length ?? 0
    const share = batch.ended ? 1 : (now - batch.createdAt) / (batch.endsAt - batch.createdAt)
    const { saysProgress, saysNul } = this.#habits
    const nul = saysNul ? NUL : ''
    const seen = seenBatch(
      {
        id: batch.id,
        status: batch.status === 'in_limbo' ? `in_limbo${nul}` : batch.status,
        request_counts: saysProgress ? { total, completed: Math.floor(share * total), failed: 0 } : null,
        output_file_id: batch.output_file_id,
        error_file_id: batch.error_file_id,
        errors: batch.error
          ? { data: [{ ...batch.error, message: `${nul}${batch.error.message}` }] }
          : undefined,
      },
      (text) => text,
    )
    if (!seen) throw new Error('the simulated batch is none')
    return seen
  }

  #end(batch: RemoteBatch): void {
    const { random, hasFaults, tally } = this.#options
    const lines = this.#files.get(batch.file_id)?.lines ?? []
    const early = hasFaults() && random.chance(0.1) && this.#mayMiss(lines)
    batch.ended = true
    batch.status = batch.cancelled ? 'cancelled' : early ? random.pick(['expired', 'failed']) : 'completed'
    const { rejects } = this.#habits
    const toxic = lines.findIndex(({ request }) => request.endsWith('toxic'))
    if (rejects?.when === 'later' && toxic !== -1 && !batch.cancelled) {
      tally.count('remote: rejected a file (later)')
      batch.status = 'failed'
      batch.error = rejection(rejects.namesLine ? toxic + 1 : null)
    } else if (batch.status === 'failed' && random.chance(0.5)) {
      tally.count('remote: failed for want of room')
      batch.error = { code: 'token_limit_exceeded', message: 'too much is queued' }
    }
    tally.count(`remote: ended as ${batch.status}`)
    if (batch.status !== 'failed') this.#answer(batch, lines)
  }

  #answer(batch: RemoteBatch, lines: readonly RemoteLine[]): void {
    const { clock, random, late, hasFaults, tally, server, isAnthropic } = this.#options
    const faulty = hasFaults()
    const output: RemoteResult[] = []
    const error: RemoteResult[] = []
    for (const { custom_id, request, max_tokens } of lines) {
      const isLeft = (batch.status !== 'completed' && random.chance(0.5)) || (faulty && random.chance(0.05))
      if (isLeft && (batch.status !== 'completed' || this.#mayMiss([{ request }]))) {
        tally.count('remote: left a line out')
        const type = batch.status === 'cancelled' ? 'canceled' : 'expired'
        if (isAnthropic && late.chance(0.8))
          output.push({ text: this.#resultLine(batch, custom_id, { type }) })
        continue
      }
      if (/(refuse|poison|toxic)$/.test(request)) {
        const isFull = request.endsWith('poison')
        const message = `not this one${this.#habits.saysNul ? NUL : ''}`
        if (isAnthropic) {
          const said = anthropicError(isFull ? 'overloaded_error' : 'invalid_request_error', message)
          const ended = { type: 'errored', error: JSON.parse(said.toString()) }
          output.push({ text: this.#resultLine(batch, custom_id, ended) })
        } else {
          const response = { status_code: isFull ? 503 : 400, body: { error: { message } } }
          error.push({ text: JSON.stringify({ custom_id, response }) })
        }
        continue
      }
      const text = this.#answerLine(batch, custom_id, server.bodyOf(request, max_tokens))
      const tokens = server.answers.get(request)?.at(-1) ?? 0
      output.push({ text, answer: { request, tokens } })
      if (!faulty || !random.chance(0.05)) continue
      tally.count('remote: delivered a line twice')
      // The first counts.
      output.push({ text: late.chance(0.5) ? text : text.replace(request, 'another answer') })
    }
    if (faulty && random.chance(0.1)) {
      tally.count('remote: delivered a line of nobody')
      output.push({ text: '{"custom_id":"nobody","response":null,"error":null}' })
    }
    if (faulty && late.chance(0.1)) output.push(...this.#foreignLines(batch))
    const output_file_id = output.length > 0 ? this.#store(output) : null
    const error_file_id = error.length > 0 ? this.#store(error) : null
    if (!faulty || !late.chance(0.1)) return void Object.assign(batch, { output_file_id, error_file_id })
    tally.count('remote: named a file late')
    if (late.chance(0.5)) batch.output_file_id = output_file_id
    clock.after(late.int(0, LATE_FILE_MS_MAX), () => Object.assign(batch, { output_file_id, error_file_id }))
  }

  /** As Anthropic writes it: the custom_id carries the name of the batch. */
  #resultLine({ name }: RemoteBatch, custom_id: string, result: object): string {
    return JSON.stringify({ custom_id: idInBatch(custom_id, name), result })
  }

  #answerLine(batch: RemoteBatch, custom_id: string, body: string): string {
    return this.#options.isAnthropic
      ? this.#resultLine(batch, custom_id, { type: 'succeeded', message: JSON.parse(body) })
      : `{"custom_id":"${custom_id}","response":{"status_code":200,"body":${body}},"error":null}`
  }

  /** Answers to lines of another batch. */
  #foreignLines(batch: RemoteBatch): RemoteResult[] {
    const { file_id } = batch
    const { late, server, tally } = this.#options
    const others = [...this.#files].filter(([id, { lines }]) => lines !== null && id !== file_id)
    if (others.length === 0) return []
    const [, { lines }] = late.pick(others)
    const own = new Set(this.#files.get(file_id)?.lines?.map(({ custom_id }) => custom_id))
    return (lines ?? [])
      .filter(({ custom_id }) => !own.has(custom_id))
      .map(({ custom_id, request, max_tokens }) => {
        tally.count('remote: delivered a foreign line')
        const body = server.bodyOf(request, max_tokens).replace(request, 'an answer in a foreign file')
        return { text: this.#answerLine(batch, custom_id, body) }
      })
  }

  #mayMiss(lines: readonly Pick<RemoteLine, 'request'>[]): boolean {
    const misses = this.#misses
    if (lines.some(({ request }) => (misses.get(request) ?? 0) >= MISSES_MAX)) return false
    for (const { request } of lines) misses.set(request, (misses.get(request) ?? 0) + 1)
    return true
  }

  #store(content: RemoteResult[]): string {
    const id = `file-${++this.#ids}`
    this.#files.set(id, { name: id, lines: null, content })
    return id
  }

  #linesOf(requests: readonly BatchRequest[]): RemoteLine[] {
    const { plans, lowestPrice } = this.#options
    return requests.map(({ custom_id, body }) => {
      const { text, max_tokens } = bodyOf({ body })
      const batch = plans.batch(parseLineRequestId(custom_id)?.batchId ?? '')
      const request = `${batch?.name}/${text}`
      this.#reserved.set(request, Math.min(lowestPrice(), this.#reserved.get(request) ?? Infinity))
      return { custom_id, request, max_tokens }
    })
  }
}

function rejection(line: number | null): { code: string; message: string; line?: number } {
  const code = 'invalid_request'
  return line === null
    ? { code, message: 'one of the requests is invalid' }
    : { code, message: `the request on line ${line} is invalid`, line }
}
