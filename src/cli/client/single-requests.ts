// Makes single requests and waits for their ends. What has ended is read by pages of the results of their batches, one after
// the other: a look costs the service the same for a thousand open requests as for one.
import Type from 'typebox'
import { sleep } from '../../domain/clock.ts'
import { isErrorCode, ApiError as ServiceError, wireError } from '../../domain/errors.ts'
import { parseLineRequestId } from '../../domain/ids.ts'
import { isRecord, parsedJson } from '../../domain/json-record.ts'
import { Slots } from '../../domain/project-queue.ts'
import { LF } from '../../jsonl/byte-lines.ts'
import { isObjectAt, membersOf } from '../../jsonl/json-members.ts'
import { Names, type Span } from '../../jsonl/json-scan.ts'
import { Interrupted } from '../terminal/failure.ts'
import { type Call, pathOf, unless } from './client.ts'
import type { Connection } from './connect.ts'

/** The end of a single request: the answer of the model, or an error. */
export interface Ended {
  id: string
  cost_usd: number
  end: Buffer | ServiceError
}

/** The limit of concurrent calls, beside the one that reads ended requests. */
const CALLS_MAX = 64
/** The bounds in ms of the interval between two polls, and its share of the time since a request has ended. */
const LOOK_MS_MIN = 25
const LOOK_MS_MAX = 1_000
const LOOK_SHARE = 1 / 16
/** The number of requests that are looked at by one call. */
const LINES_MAX = 1_000

const AnyRequest = Type.Object({ id: Type.String({ pattern: '^req_' }) })

export class SingleRequests {
  readonly #connection: Connection
  readonly #onWaiting: (reason: string | undefined) => void
  readonly #calls = new Slots(CALLS_MAX)
  readonly #creating = new Set<Promise<string>>()
  /** The open requests by ID, the oldest first. */
  readonly #open = new Map<string, PromiseWithResolvers<Ended | null>>()
  readonly #batches = new Set<string>()
  #isWatching = false
  #isEnding = false

  /** Makes the requests of a run. `onWaiting` gets each reason for which the service says that a request waits. */
  constructor(connection: Connection, onWaiting: (reason: string | undefined) => void) {
    this.#connection = connection
    this.#onWaiting = onWaiting
  }

  /** Creates a request and returns its ID; a repeated call with the same `key` creates no other. `order`: JSON. */
  async create(order: Buffer, key: string): Promise<string> {
    const creating = this.#calls.run(() => this.#create(order, key))
    this.#creating.add(creating)
    return await creating.finally(() => this.#creating.delete(creating))
  }

  async #create(order: Buffer, key: string): Promise<string> {
    if (this.#isEnding) throw new Interrupted()
    const call = { method: 'POST', path: '/v1/requests', headers: { 'idempotency-key': key } } as const
    const { id } = await this.#connection.client.object(AnyRequest, { ...call, body: () => order })
    this.#wait(id).catch(() => {})
    return id
  }

  /** Resolves at the end of a request; null where the service has lost it. `isKnown`: an earlier run created it. */
  async ended(id: string, isKnown: boolean): Promise<Ended | null> {
    const found = isKnown && !this.#open.has(id) ? await this.#calls.run(() => this.#read(id)) : 'open'
    return found === 'open' ? await this.#wait(id) : found
  }

  /** Creates no further request, and cancels open ones. Returns the numbers of cancelled ones and of failures. */
  async cancelOpen(): Promise<{ cancelled: number; left: number }> {
    this.#isEnding = true
    await Promise.allSettled(this.#creating)
    const cancels = [...this.#open.keys()].map((id) => {
      const path = `${pathOf('requests', id)}/cancel`
      return this.#calls.run(() => this.#connection.client.bytes({ method: 'POST', path }))
    })
    const outcomes = await Promise.allSettled(cancels)
    const left = outcomes.filter(({ status }) => status === 'rejected').length
    return { cancelled: outcomes.length - left, left }
  }

  #wait(id: string): Promise<Ended | null> {
    const open = this.#open.get(id) ?? Promise.withResolvers<Ended | null>()
    this.#open.set(id, open)
    // An embedded service sends only the lines of batches that it is told of.
    const { batchId = '' } = parseLineRequestId(id) ?? {}
    if (!this.#batches.has(batchId)) this.#connection.answer(batchId)
    this.#batches.add(batchId)
    if (!this.#isWatching) void this.#watch()
    return open.promise
  }

  /** Reads the ends of single requests, as long as some are open. */
  async #watch(): Promise<void> {
    const { clock, signal } = this.#connection.watch
    this.#isWatching = true
    try {
      for (let endedAt = clock.steady(); this.#open.size > 0; ) {
        const waitMs = Math.max(LOOK_MS_MIN, Math.min(LOOK_MS_MAX, (clock.steady() - endedAt) * LOOK_SHARE))
        await sleep(clock, waitMs, signal)
        const [oldest = ''] = this.#open.keys()
        // The oldest request tells why it waits, or that it no longer exists.
        if (waitMs === LOOK_MS_MAX) this.#settle(oldest, await this.#read(oldest))
        const before = this.#open.size
        for (const page of pagesOf([...this.#open.keys()])) await this.#readPage(page)
        if (this.#open.size < before) endedAt = clock.steady()
      }
    } catch (error) {
      for (const { reject } of this.#open.values()) reject(error)
      this.#open.clear()
    }
    this.#isWatching = false
  }

  async #readPage([batchId, numbers]: Page): Promise<void> {
    const path = `${pathOf('batches', batchId)}/results`
    const lines = (await this.#get({ path, query: { lines: numbers.join(',') } })) ?? Buffer.alloc(0)
    for (let start = 0, end = 0; start < lines.length; start = end + 1) {
      end = lines.indexOf(LF, start)
      if (end === -1) break
      const ended = endedOf(lines.subarray(start, end))
      if (ended !== 'open' && ended !== null) this.#settle(ended.id, ended)
    }
  }

  async #read(id: string): Promise<Ended | 'open' | null> {
    const record = await this.#get({ path: pathOf('requests', id) })
    const ended = record && endedOf(record)
    if (record && ended === 'open') {
      const reason = parsedJson(textAt(record, membersOf(record, NAMES).waiting_reason))
      this.#onWaiting(isRecord(reason) && typeof reason.message === 'string' ? reason.message : undefined)
    }
    return ended
  }

  /** Reads an object or its content; null where it no longer exists. */
  async #get(call: Pick<Call, 'path' | 'query'>): Promise<Buffer | null> {
    return await unless([404, 410], this.#connection.client.bytes({ method: 'GET', ...call }), null)
  }

  #settle(id: string, end: Ended | 'open' | null): void {
    if (end === 'open') return
    this.#open.get(id)?.resolve(end)
    this.#open.delete(id)
  }
}

type Page = [batchId: string, lines: number[]]

/** The batches and lines of requests, up to LINES_MAX at a time. */
function pagesOf(ids: readonly string[]): Page[] {
  const places = ids.flatMap((id) => parseLineRequestId(id) ?? [])
  return [...Map.groupBy(places, ({ batchId }) => batchId)].flatMap(([batchId, own]) => {
    const lines = own.map(({ line }) => line)
    return Array.from(
      { length: Math.ceil(lines.length / LINES_MAX) },
      (_, i): Page => [batchId, lines.slice(i * LINES_MAX, (i + 1) * LINES_MAX)],
    )
  })
}

// Result lines and audit records as bytes: an answer is handed on as the model server wrote it.

const NAMES = new Names(
  ...(['id', 'status', 'waiting_reason', 'response', 'error', 'body', 'usage', 'cost_usd'] as const),
)

export function textAt(bytes: Buffer, span: Span | undefined): string {
  return span === undefined ? '' : bytes.toString('utf8', span.start, span.end)
}

const OPEN_STATUSES: readonly unknown[] = ['queued', 'in_progress']

/** Reads the end from a result line or an audit record; null: the answer is no longer kept. */
function endedOf(record: Buffer): Ended | 'open' | null {
  try {
    return scannedEnd(record)
  } catch (error) {
    // An answer may be nested as deep as the parser allows, and its result line is deeper.
    if (!(error instanceof SyntaxError)) throw error
    const { id } = JSON.parse(record.toString())
    const message = `The answer cannot be read here (${error.message}); "offpeak requests get ${id}" shows it.`
    return { id, cost_usd: 0, end: new ServiceError('upstream_invalid_response', message) }
  }
}

function scannedEnd(record: Buffer): Ended | 'open' | null {
  const { id, status, response, error } = membersOf(record, NAMES)
  if (OPEN_STATUSES.includes(parsedJson(textAt(record, status)))) return 'open'
  const known = { id: String(parsedJson(textAt(record, id))) }
  const failure = errorIn(parsedJson(textAt(record, error)))
  if (failure) return { ...known, cost_usd: 0, end: failure }
  if (!isObjectAt(record, response)) return null
  const { body } = membersOf(record, NAMES, response)
  return body === undefined ? null : { ...known, ...withoutCost(record, body) }
}

/** The error in an answer of the service. */
export function errorIn(said: unknown): ServiceError | null {
  if (!isRecord(said) || typeof said.code !== 'string') return null
  const { code, message, type: _, param, ...details } = { ...wireError('internal_error'), ...said }
  // The body of the request is the whole body of the caller's call.
  const own = typeof param === 'string' ? { ...details, param: param.replace(/^body\./, '') } : details
  return new ServiceError(isErrorCode(code) ? code : 'internal_error', String(message), own)
}

const COST = Buffer.from(',"cost_usd":')

/** Removes the cost, which the service adds to the usage of an answer. */
function withoutCost(record: Buffer, body: Span): { end: Buffer; cost_usd: number } {
  const whole = { end: record.subarray(body.start, body.end), cost_usd: 0 }
  const { usage } = membersOf(record, NAMES, body)
  const { cost_usd: cost } = isObjectAt(record, usage) ? membersOf(record, NAMES, usage) : {}
  if (cost === undefined) return whole
  const cost_usd = Number(textAt(record, cost))
  const start = cost.start - COST.length
  if (!record.subarray(start, cost.start).equals(COST)) return { ...whole, cost_usd }
  return {
    end: Buffer.concat([record.subarray(body.start, start), record.subarray(cost.end, body.end)]),
    cost_usd,
  }
}
