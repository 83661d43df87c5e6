// Runs a call once per Idempotency-Key. A retry gets the bytes of the first response, or a 409 under
// Idempotency-Mode: implicit. A failed call stores nothing, so its retry runs. The response is stored in the
// transaction that does the work: neither exists without the other.
//
// Without a key every call runs, except a retry of a client library (x-stainless-retry-count): it gets the stored
// response of the same call within the last ten minutes.
import { hash } from 'node:crypto'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import type { Clock } from '../../domain/clock.ts'
import { ApiError, invalidParam } from '../../domain/errors.ts'
import { SharedSlots } from '../../domain/project-queue.ts'
import {
  completeIdempotencyKey,
  dropIdempotencyKey,
  readIdempotency,
  reserveIdempotencyKey,
  storeAnswers,
} from '../../store/calls.ts'
import type { IdempotencyRow } from '../../store/schema.ts'
import type { Store, Writer } from '../../store/store.ts'
import { callerOf } from '../access/caller.ts'

export const KEPT_MS = 25 * 3_600_000
export const KEYLESS_KEPT_MS = 10 * 60_000
const KEY_CHARACTERS_MAX = 255
const IN_PROGRESS_RETRY_S = 1
/** The prefix of keys of calls without a key: no header value begins with a space. */
const KEYLESS_BEGINNING = ' '

/** The endpoints with idempotency; each has its own keys. */
const ROUTES = [
  'POST /v1/batches',
  'POST /v1/files',
  'POST /v1/limits',
  'POST /v1/batches/{batch_id}/retry',
  'POST /v1/messages/batches',
  'POST /v1/requests',
  'POST /v1/responses',
] as const

export const IdempotencyHeaders = Type.Object({
  'Idempotency-Key': Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: KEY_CHARACTERS_MAX,
      description: 'Identifies the call, so that a retry does not create a second object.',
    }),
  ),
  'Idempotency-Mode': Type.Optional(
    Type.Enum(['replay', 'implicit'], {
      description:
        'What a repeated call gets: `replay`, the first answer (the default); `implicit`, a 409 that names the first call.',
    }),
  ),
})

interface Terms {
  key: string | null
  implicit: boolean
  /** Whether the client library marks the call as a retry. */
  resent: boolean
}

export interface IdempotentCall {
  project_id: string
  request_id: string
  route: (typeof ROUTES)[number]
  headers: NodeJS.Dict<string | string[]>
  /** The parameters that equal calls share, beside route and entity header: plain and shallow. */
  request: object
}

/** Describes an idempotent call. `body`: the parameters that equal calls share. */
export function idempotentCall(
  request: FastifyRequest,
  route: IdempotentCall['route'],
  body: object,
): IdempotentCall {
  const { project_id } = callerOf(request)
  return { project_id, request_id: request.id, route, headers: request.headers, request: body }
}

export interface IdempotentResponse {
  /** The JSON of the response, byte for byte as sent or to be sent. */
  text: string
  status: number
  replayed: boolean
}

/** Sends the response of a call, or of the earlier call that it repeats. */
export function sendOnce(reply: FastifyReply, { text, status, replayed }: IdempotentResponse): FastifyReply {
  if (replayed) reply.header('idempotency-replayed', 'true')
  return reply.code(status).type('application/json; charset=utf-8').send(text)
}

export class Idempotency {
  readonly #store: Pick<Store, 'read' | 'write'>
  readonly #clock: Clock
  /** The running calls of this process. */
  readonly #running = new SharedSlots(Number.POSITIVE_INFINITY)

  constructor(store: Pick<Store, 'read' | 'write'>, clock: Clock) {
    this.#store = store
    this.#clock = clock
  }

  /**
   * Runs `perform` in a transaction, unless an earlier call has. `around` runs that transaction, after slow work that
   * is not repeated for a retry; retries get idempotency_in_progress meanwhile. Throws idempotency_key_reused,
   * idempotency_in_progress, idempotency_cache_not_requested, and invalid_request for invalid headers.
   */
  async once(
    call: IdempotentCall,
    perform: (tx: Writer, now: number) => Promise<string>,
    around: (write: () => Promise<IdempotentResponse>) => Promise<IdempotentResponse> = (write) => write(),
  ): Promise<IdempotentResponse> {
    return await this.#unlessRepeated(call, (key, mayRepeat) =>
      around(() => this.#write(key, mayRepeat, perform)),
    )
  }

  /**
   * Runs a call together with others of its project, unless it is a repeated one: `perform` stores their answers in the
   * transaction of their work (storeTogether), and returns that of this call.
   */
  async together(
    call: IdempotentCall,
    status: number,
    perform: (key: CallKey) => Promise<string>,
  ): Promise<IdempotentResponse> {
    return await this.#unlessRepeated(call, async (key) => {
      return { text: await perform(key), status, replayed: false }
    })
  }

  /** Runs `perform`, unless the call repeats another. `mayRepeat`: another process may have run an equal call. */
  async #unlessRepeated(
    call: IdempotentCall,
    perform: (key: CallKey, mayRepeat: boolean) => Promise<IdempotentResponse>,
  ): Promise<IdempotentResponse> {
    const { project_id, request_id, route } = call
    const terms = termsOf(call.headers)
    const fingerprint = fingerprintOf(call)
    const key = terms.key ?? KEYLESS_BEGINNING + fingerprint
    const name = `${project_id}\n${key}`
    const mayRepeat = terms.key !== null || terms.resent
    if (mayRepeat && this.#running.used(name) > 0) throw inProgress()

    const release = this.#running.take(name)
    try {
      if (mayRepeat) {
        const first = await readIdempotency(this.#store.read, { project_id, key }, ROUTES, this.#clock.now())
        if (first) return repeated(first, fingerprint, terms)
      }
      const row = { project_id, route, key, fingerprint, request_id }
      return await perform({ row, terms, keptMs: terms.key === null ? KEYLESS_KEPT_MS : KEPT_MS }, mayRepeat)
    } finally {
      release?.()
    }
  }

  /** The answer to an earlier call with the same key, whatever its parameters; null where there was none. */
  async earlierAnswer({ project_id, headers }: Pick<IdempotentCall, 'project_id' | 'headers'>) {
    const { key } = termsOf(headers)
    if (key === null) return null
    const first = await readIdempotency(this.#store.read, { project_id, key }, ROUTES, this.#clock.now())
    return first?.response ?? null
  }

  #write(
    { row: own, terms, keptMs }: CallKey,
    mayRepeat: boolean,
    perform: (tx: Writer, now: number) => Promise<string>,
  ): Promise<IdempotentResponse> {
    return this.#store.write(async (tx) => {
      const now = this.#clock.now()
      const row = { ...own, created: now, expires: now + keptMs }
      if (mayRepeat) {
        const known = await readIdempotency(tx, row, ROUTES, now)
        const isFirst = !known && (await reserveIdempotencyKey(tx, row))
        const first = known ?? (isFirst ? undefined : await readIdempotency(tx, row, ROUTES, now))
        if (first) return repeated(first, own.fingerprint, terms)
      } else {
        await dropIdempotencyKey(tx, row)
        await reserveIdempotencyKey(tx, row)
      }
      const text = await perform(tx, now)
      await completeIdempotencyKey(tx, row, { status: 200, response: text })
      return { text, status: 200, replayed: false }
    })
  }
}

/** The key under which the answer of a call is stored. */
export interface CallKey {
  row: Pick<IdempotencyRow, 'project_id' | 'route' | 'key' | 'fingerprint' | 'request_id'>
  terms: Terms
  keptMs: number
}

function inProgress(): ApiError {
  return new ApiError('idempotency_in_progress', undefined, {}, IN_PROGRESS_RETRY_S)
}

/** Stores the answers of calls that run together. Throws idempotency_in_progress where another call has a key. */
export async function storeTogether(
  tx: Writer,
  calls: readonly { key: CallKey; status: number; response: string }[],
  now: number,
): Promise<void> {
  const rows = calls.map(({ key: { row, keptMs }, status, response }) => {
    return { ...row, state: 'done' as const, status, response, created: now, expires: now + keptMs }
  })
  const stored = await storeAnswers(tx, rows, KEYLESS_BEGINNING, now)
  if (calls.some(({ key: { row, terms } }) => terms.key !== null && !stored.has(row.key))) throw inProgress()
}

function repeated(first: IdempotencyRow, fingerprint: string, { implicit }: Terms): IdempotentResponse {
  const details = { original_request_id: first.request_id }
  if (first.fingerprint !== fingerprint) throw new ApiError('idempotency_key_reused', undefined, details)
  if (first.response === null || first.status === null) throw inProgress()
  if (implicit) throw new ApiError('idempotency_cache_not_requested', undefined, details)
  return { text: first.response, status: first.status, replayed: true }
}

/** Whether a call has a key; to be checked before a long body is read. Throws invalid_request. */
export function hasIdempotencyKey(headers: IdempotentCall['headers']): boolean {
  return termsOf(headers).key !== null
}

/** Rejects a key at endpoints that create objects without idempotency. Throws invalid_request. */
export function refuseIdempotencyKey(headers: IdempotentCall['headers']): void {
  for (const name of ['Idempotency-Key', 'Idempotency-Mode'])
    if (headers[name.toLowerCase()] !== undefined)
      throw invalidParam(name, `The header ${name} is not supported by this endpoint.`)
}

function termsOf(headers: IdempotentCall['headers']): Terms {
  const mode = headers['idempotency-mode']
  if (mode !== undefined && mode !== 'implicit' && mode !== 'replay') {
    const message = 'The header Idempotency-Mode must be "implicit" or "replay".'
    throw invalidParam('Idempotency-Mode', message)
  }
  return {
    key: headerText(headers, 'Idempotency-Key', KEY_CHARACTERS_MAX),
    implicit: mode === 'implicit',
    resent: Number(headers['x-stainless-retry-count'] ?? 0) >= 1,
  }
}

function fingerprintOf({ route, headers, request }: IdempotentCall): string {
  const what = [route, headers['x-service-entity'] ?? null, sorted(request)]
  return hash('sha256', JSON.stringify(what))
}

/** Sorts a value into canonical JSON: independent of the order of keys; null and absent are the same. */
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted)
  if (typeof value !== 'object' || value === null) return value
  const entries = Object.entries(value).filter(([, member]) => member !== null && member !== undefined)
  return entries.sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, member]) => [name, sorted(member)])
}

// Decodes header values as UTF-8; Node decodes them as Latin-1.

const utf8 = new TextDecoder('utf-8', { fatal: true })

/** The value of a header that may occur once, with 1 to `charactersMax` characters; null when it is absent. */
export function headerText(
  headers: NodeJS.Dict<string | string[]>,
  name: string,
  charactersMax: number,
): string | null {
  const given = headers[name.toLowerCase()]
  if (given === undefined) return null
  const raw = Array.isArray(given) ? given.join(', ') : given
  const text = decoded(raw).trim()
  if (text.length === 0 || text.length > charactersMax) {
    const message = `The header ${name} must have 1 to ${charactersMax} characters, not ${text.length}.`
    throw invalidParam(name, message)
  }
  return text
}

function decoded(raw: string): string {
  try {
    return utf8.decode(Buffer.from(raw, 'latin1'))
  } catch {
    return raw
  }
}
