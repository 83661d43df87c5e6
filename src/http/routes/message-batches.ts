// Anthropic's Message Batches: the batches of the endpoint `/v1/messages`, as clients of that API know them.
import { Readable } from 'node:stream'
import type { FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { endedAt, endingOf, isTerminal } from '../../domain/batch.ts'
import { defaultWindow } from '../../domain/days.ts'
import { entityOf } from '../../domain/entity.ts'
import { ApiError, ERRORS, type WireError, wireError } from '../../domain/errors.ts'
import { gathered } from '../../domain/gathered-bytes.ts'
import { orderBatch } from '../../intake/create-batch.ts'
import { MESSAGE_BODY_BYTES_MAX, MessageRequests, otherBody } from '../../intake/message-requests.ts'
import { formOfFile, receiveUpload } from '../../intake/upload.ts'
import { inBlocks } from '../../jsonl/byte-lines.ts'
import { JsonScanner, Names } from '../../jsonl/json-scan.ts'
import { cancelBatch } from '../../lifecycle/batch.ts'
import { EVERYTHING } from '../../lifecycle/fetched-results.ts'
import { removeFile, removeUnsharedInput } from '../../lifecycle/remove-file.ts'
import { readErrors } from '../../results/batch-statistics.ts'
import { readResultLines } from '../../results/finished-lines.ts'
import { listMessageBatches, readMessageBatch, setBatch } from '../../store/batches.ts'
import { findFile, readExpiries } from '../../store/files.ts'
import type { BatchRow } from '../../store/schema.ts'
import type { Reader } from '../../store/store.ts'
import {
  CreateMessageBatch,
  DeletedMessageBatch,
  MESSAGE_PAGE_DEFAULT,
  MessageBatch,
  MessageBatchList,
  MessagePageQuery,
  messagesError,
} from '../../wire/message-batch.ts'
import { authorize } from '../access/auth.ts'
import { planOf } from '../access/caller.ts'
import { hasIdempotencyKey, headerText, idempotentCall, sendOnce } from '../request/idempotency.ts'
import { whenSent } from '../response/long-calls.ts'
import { type App, found, type RouteDependencies, route } from '../route.ts'
import { type BatchCreation, CreateHeaders, ENTITY_CHARACTERS_MAX, ownerOf } from './batch-creation.ts'

const NO_RESULTS =
  'The results of this batch, or a part of them, were deleted or have expired. ' +
  '`GET /v1/batches/{batch_id}/results` reads what is left.'

export function messageBatchRoutes(app: App, deps: RouteDependencies, creation: BatchCreation): void {
  const { store, sealed, clock, wake, reads, plans } = deps
  route(app, 'GET /v1/messages/batches', {
    access: ['batches:read'],
    operation: 'listMessageBatches',
    summary: 'List message batches',
    description: 'Newest first: all batches of the endpoint `/v1/messages`, however they were created.',
    answer: MessageBatchList,
    errors: ['cursor_not_found'],
    query: MessagePageQuery,
    async handler(request, { project_id }) {
      const { limit = MESSAGE_PAGE_DEFAULT, before_id, after_id } = request.query
      const behind = after_id ?? before_id
      const order = behind === after_id ? 'desc' : 'asc'
      if (behind !== undefined && !(await readMessageBatch(store.read, project_id, behind)))
        throw new ApiError('cursor_not_found', undefined, {
          param: order === 'desc' ? 'after_id' : 'before_id',
        })
      // One row more than requested, to know whether the list continues.
      const { rows } = await listMessageBatches(store.read, project_id, { limit: limit + 1, order, behind })
      const page = rows.slice(0, limit)
      if (order === 'asc') page.reverse()
      const data = await showMessageBatches(store.read, page, request, clock.now())
      const ids = { first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null }
      return { data, has_more: rows.length > limit, ...ids }
    },
  })

  app.register(async (scope) => {
    scope.removeContentTypeParser('application/json')
    scope.addContentTypeParser('application/json', async (_request: FastifyRequest, body: Readable) => body)
    route(scope, 'POST /v1/messages/batches', {
      access: ['batches:write'],
      operation: 'createMessageBatch',
      summary: 'Create a message batch',
      description:
        'A batch of the endpoint `/v1/messages` with the longest window of the plan. The requests become a file (`requests.jsonl`) while they arrive; the key needs `files:write` as well. A request that cannot run is `errored` in the results; one that is no request, or has the `custom_id` of another, is an error of the call.',
      answer: MessageBatch,
      headers: CreateHeaders,
      rules: { body: { properties: { requests: { minItems: 1, maxItems: 100_000 } } } },
      errors: ['plan_lacks_feature', 'file_not_processed', 'usage_limit_exceeded', 'quota_exceeded'],
      body: CreateMessageBatch,
      streams: true,
      async handler(request, caller, reply) {
        const { headers, body } = request
        if (!(body instanceof Readable)) throw otherBody()
        authorize(caller, ['files:write'])
        hasIdempotencyKey(headers)
        const header_entity = headerText(headers, 'X-Service-Entity', ENTITY_CHARACTERS_MAX)
        request.entity = entityOf(null, null, header_entity)
        const owner = { ...ownerOf(request, header_entity), takesAnyFile: 'pending' as const }
        const plan = planOf(plans, caller)
        const completion_window = defaultWindow(plan.completion_windows.map(({ text }) => text))
        const order = { endpoint: '/v1/messages' as const, completion_window }
        const orderOf = (input_file_id: string) => orderBatch({ ...order, input_file_id }, owner, plan)
        orderOf('')
        const bytes = Number(headers['content-length'] ?? 0)
        if (bytes > MESSAGE_BODY_BYTES_MAX) throw new ApiError('payload_too_large')
        const requests = new MessageRequests(gathered(body), deps.line_bytes_max)
        const answer = await creation.createOfNewFile(request, {
          call: () => idempotentCall(request, 'POST /v1/messages/batches', { requests: requests.sha256() }),
          show: (batch) => showMessageBatch(batch, request),
          namesRequests: true,
          bytes,
          orderOf,
          webhook: null,
          storeFile: (upload, check, hold) => {
            const form = formOfFile('requests.jsonl', requests.lines(hold))
            return receiveUpload(deps, form, { ...upload, form_bytes: bytes }, check)
          },
        })
        return sendOnce(reply, answer)
      },
    })
  })

  route(app, 'GET /v1/messages/batches/:batch_id', {
    access: ['batches:read'],
    operation: 'getMessageBatch',
    summary: 'Read a message batch',
    answer: MessageBatch,
    async handler(request, { project_id }) {
      const batch = await visible(store.read, project_id, request.params.batch_id)
      return await show(batch, request)
    },
  })

  route(app, 'POST /v1/messages/batches/:batch_id/cancel', {
    access: ['batches:write'],
    operation: 'cancelMessageBatch',
    summary: 'Cancel a message batch',
    description: 'No further request is sent; requests in flight may finish.',
    answer: MessageBatch,
    errors: ['batch_not_cancellable'],
    async handler(request, { project_id }) {
      const batch = await store.write(async (tx) => {
        const { id } = await visible(tx, project_id, request.params.batch_id)
        return await cancelBatch(tx, project_id, id, clock.now())
      })
      wake()
      return await show(batch, request)
    },
  })

  route(app, 'DELETE /v1/messages/batches/:batch_id', {
    access: ['batches:write'],
    operation: 'deleteMessageBatch',
    summary: 'Delete a message batch',
    description:
      'Deletes its requests, unless another batch has the same input file, and its results; the key needs `files:delete` or `files:write` as well. It is no message batch any more; its counts and its cost stay at `/v1/batches`.',
    answer: DeletedMessageBatch,
    errors: ['batch_not_deletable'],
    async handler(request, caller) {
      const { project_id } = caller
      const now = clock.now()
      const { id } = await store.write(async (tx) => {
        const batch = await visible(tx, project_id, request.params.batch_id)
        authorize(caller, ['files:delete', 'files:write'])
        if (!isTerminal(batch.status)) throw new ApiError('batch_not_deletable')
        await removeUnsharedInput(tx, batch, now)
        for (const file_id of [batch.output_file_id, batch.error_file_id]) {
          const file = file_id === null ? undefined : await findFile(tx, project_id, file_id, now)
          if (file) await removeFile(tx, file, now)
        }
        await setBatch(tx, batch.id, { deleted_at: now })
        return batch
      })
      wake()
      return { id, type: 'message_batch_deleted' as const }
    },
  })

  route(app, 'GET /v1/messages/batches/:batch_id/results', {
    access: ['batches:read'],
    operation: 'getMessageBatchResults',
    summary: 'Read the results of a message batch',
    description:
      'A line of JSON for each request, in the order of the requests: `{"custom_id", "result": {"type": "succeeded", "message"}}`, or a result of the type `errored` with an `error`, `canceled` or `expired`. The batch must have ended.',
    answer: Type.String(),
    content_type: 'application/x-jsonl',
    errors: ['file_not_found', 'content_not_kept'],
    async handler(request, { project_id }, reply) {
      const read = await reads.open(project_id, reply.raw)
      const now = clock.now()
      const batch = await visible(store.read, project_id, request.params.batch_id)
      if (!isTerminal(batch.status))
        throw new ApiError('invalid_request', `The batch has no results yet: it is ${batch.status}.`)
      const [shown] = await showMessageBatches(store.read, [batch], request, now)
      if (shown?.archived_at)
        throw batch.retention === null
          ? new ApiError('file_not_found', NO_RESULTS)
          : new ApiError('content_not_kept')
      whenSent(request, reply, { store, clock }, batch, EVERYTHING)
      const results = inBlocks(messageResults({ db: store.read, sealed, now }, batch), PIECE_BYTES)
      return reply.type('application/x-jsonl').send(read.stream(results))
    },
  })

  async function show(batch: BatchRow, request: FastifyRequest): Promise<MessageBatch> {
    const [shown] = await showMessageBatches(store.read, [batch], request, clock.now())
    return found(shown, 'batch_not_found')
  }
}

async function visible(read: Reader, project_id: string, id: string): Promise<BatchRow> {
  return found(await readMessageBatch(read, project_id, id), 'batch_not_found')
}

async function showMessageBatches(
  db: Reader,
  batches: readonly BatchRow[],
  request: FastifyRequest,
  now: number,
): Promise<MessageBatch[]> {
  const ended = batches.filter(({ status }) => isTerminal(status))
  const errors = await readErrors(
    db,
    ended.filter(({ failed }) => failed > 0).map(({ id }) => id),
  )
  const files = await readExpiries(db, ended.flatMap(resultFiles))
  return batches.map((batch) => {
    const first = Math.min(...resultFiles(batch).map((id) => files.get(id) ?? now))
    // Without one of its files, the other one would be taken for all results.
    const archived_at = first <= now ? first : null
    return showMessageBatch(batch, request, errors.get(batch.id), archived_at)
  })
}

function resultFiles({ output_file_id, error_file_id }: BatchRow): string[] {
  return [output_file_id, error_file_id].filter((id) => id !== null)
}

/** Shows a batch in Anthropic's form. `errors`: the numbers of failed lines by code. */
export function showMessageBatch(
  batch: BatchRow,
  request: FastifyRequest,
  errors: ReadonlyMap<string, number> = new Map(),
  archived_at: number | null = null,
): MessageBatch {
  const { id, status, total, completed } = batch
  const isEnded = isTerminal(status)
  const ended_at = endedAt(batch)
  const counts = { processing: total, succeeded: 0, errored: 0, canceled: 0, expired: 0 }
  if (isEnded) {
    counts.processing = 0
    counts.succeeded = completed
    for (const [code, lines] of errors) counts[kindOf(code)] += lines
    // Lines that were never counted ended with their batch.
    const rest = total - completed - counts.errored - counts.canceled - counts.expired
    const kind = status === 'cancelled' ? 'canceled' : status === 'expired' ? 'expired' : 'errored'
    counts[kind] += Math.max(0, rest)
  }
  const hasResults = isEnded && archived_at === null
  return {
    id,
    type: 'message_batch',
    processing_status: isEnded ? 'ended' : status === 'cancelling' ? 'canceling' : 'in_progress',
    request_counts: counts,
    created_at: rfc3339(batch.created),
    expires_at: rfc3339(batch.expires_at),
    ended_at: isEnded && ended_at !== undefined ? rfc3339(ended_at) : null,
    cancel_initiated_at: batch.cancelling_at === null ? null : rfc3339(batch.cancelling_at),
    archived_at: archived_at === null ? null : rfc3339(archived_at),
    results_url: hasResults ? `${originOf(request)}/v1/messages/batches/${id}/results` : null,
  }
}

function rfc3339(ms: number): string {
  return new Date(ms).toISOString()
}

/** The result type of a line that failed with this code. */
function kindOf(code: string): 'errored' | 'canceled' | 'expired' {
  const ending = endingOf(code)
  return ending === null ? 'errored' : ending === 'cancelled' ? 'canceled' : ending
}

/** The origin at which the caller reached the service, from headers of a proxy or the call; empty where unknown. */
function originOf({ headers, raw }: FastifyRequest): string {
  const said = (name: string, otherwise: string | undefined): string =>
    String(headers[name] ?? otherwise ?? '')
      .split(',', 1)[0]
      ?.trim() ?? ''
  const host = said('x-forwarded-host', headers.host)
  const scheme = said('x-forwarded-proto', 'encrypted' in raw.socket ? 'https' : 'http')
  return /^[\w.:[\]-]+$/.test(host) && /^https?$/.test(scheme) ? `${scheme}://${host}` : ''
}

// Results, each made of a result line whose answer keeps its bytes.

const PIECE_BYTES = 64 * 1024
const LINE = new Names('id', 'custom_id', 'response', 'error')
const RESPONSE = new Names('body')

async function* messageResults(
  ports: Parameters<typeof readResultLines>[0],
  batch: BatchRow,
): AsyncGenerator<Buffer[]> {
  const json = new JsonScanner()
  for await (const { line } of readResultLines(ports, batch, Number.POSITIVE_INFINITY))
    yield messageResult(json, line)
}

function messageResult(json: JsonScanner, line: Buffer): Buffer[] {
  let id = ''
  let custom_id = line.subarray(0, 0)
  let message: Buffer | null = null
  let error: WireError | null = null
  const value = (): Buffer => {
    const start = json.at
    json.skipValue()
    return line.subarray(start, json.at)
  }
  json.open(line, 0, line.length)
  for (let more = json.beginObject(); more; more = json.nextMember()) {
    const key = json.key(LINE)
    if (key === 'id') id = JSON.parse(value().toString())
    else if (key === 'custom_id') custom_id = value()
    else if (key === 'error') error = JSON.parse(value().toString())
    else if (key === 'response' && json.kind() === 'object')
      for (let inner = json.beginObject(); inner; inner = json.nextMember()) {
        if (json.key(RESPONSE) === null) json.skipValue()
        else message = value()
      }
    else json.skipValue()
  }
  const begin = Buffer.concat([Buffer.from('{"custom_id":'), custom_id, Buffer.from(',"result":')])
  if (message !== null)
    return [begin, Buffer.from('{"type":"succeeded","message":'), message, Buffer.from('}}\n')]
  return [begin, Buffer.from(`${JSON.stringify(failure(error, id))}}\n`)]
}

function failure(error: WireError | null, id: string): object {
  const told = error ?? wireError('internal_error')
  const type = kindOf(told.code)
  return type === 'errored' ? { type, error: messagesError(told, ERRORS[told.code].status, id) } : { type }
}
