// Requests that come one at a time, each a line of a batch that gathers them (intake/gathered-requests.ts): POST /v1/requests, and
// /v1/responses for clients of OpenAI's Responses API, whose background responses are such requests.
import { hash } from 'node:crypto'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { acceptedAt, PENDING_LINE, readInput, responseStatus } from '../../audit/read-line.ts'
import { unixSeconds } from '../../domain/clock.ts'
import { defaultWindow, durationMs } from '../../domain/days.ts'
import { ApiError, invalidParam } from '../../domain/errors.ts'
import { lineRequestId, requestId, responseId } from '../../domain/ids.ts'
import type { CompletionWindow } from '../../domain/plan.ts'
import { retentionText } from '../../domain/retention.ts'
import { offeredWindow } from '../../intake/create-batch.ts'
import { type Gathered, GatheredRequests, RequestLines } from '../../intake/gathered-requests.ts'
import { withoutMembers } from '../../jsonl/json-members.ts'
import { Names } from '../../jsonl/json-scan.ts'
import { METADATA_PAIRS_MAX } from '../../jsonl/line-scan.ts'
import { deleteResponse, isResponseDeleted } from '../../lifecycle/batch.ts'
import { readChunkOfLine } from '../../store/chunks.ts'
import { insertRows } from '../../store/rows.ts'
import type { BatchRow } from '../../store/schema.ts'
import { CreateRequest, type Metadata } from '../../wire/batch.ts'
import { type CreateBatchWebhook, WEBHOOK_RULES } from '../../wire/event.ts'
import { LineRecord } from '../../wire/request-record.ts'
import {
  BackgroundResponse,
  CreateResponse,
  DeletedResponse,
  InputItem,
  inputItems,
} from '../../wire/response.ts'
import { listOf, PageQuery } from '../../wire/shape.ts'
import { type Caller, planOf } from '../access/caller.ts'
import { readPage } from '../object-routes.ts'
import {
  type CallKey,
  headerText,
  type IdempotentCall,
  idempotentCall,
  sendOnce,
  storeTogether,
} from '../request/idempotency.ts'
import { type App, type RouteDependencies, route } from '../route.ts'
import { CreateHeaders, ENTITY_CHARACTERS_MAX, ownerOf } from './batch-creation.ts'
import { lineReader } from './requests.ts'
import { type OwnWebhook, ownWebhook, showWebhook, withSecret } from './webhooks.ts'

/** The order of a call before its window is known. */
interface Order {
  endpoint: string
  /** The request body as JSON, without line breaks. */
  body: Buffer
  custom_id?: string | null | undefined
  metadata?: Metadata | null | undefined
  window: CompletionWindow
  webhook?: CreateBatchWebhook | null | undefined
  /** The prefix of the body's fields in the call, as errors name them. */
  prefix: 'body.' | ''
  call: IdempotentCall
  status: number
  show: (accepted: LineRecord) => object
}

interface Accepted {
  key: CallKey
  status: number
  textOf: (at: Gathered) => string
  webhook: OwnWebhook | null
}

export function singleRequestRoutes(app: App, deps: RouteDependencies): void {
  const { store, sealed, clock, models, plans, idempotency, wake, line_bytes_max } = deps
  const { placeOf, readLine, cancel } = lineReader(deps)
  const lines = new RequestLines()
  const gathered = new GatheredRequests<Accepted>(
    { store, sealed, clock, models, wake, rules: deps.gather },
    async (tx, accepted, now) => {
      const calls = accepted.map(({ entry: { record }, at }) => ({ ...record, response: record.textOf(at) }))
      await storeTogether(tx, calls, now)
      const webhooks = accepted.flatMap(({ entry: { record }, at: { batch, line } }) =>
        record.webhook ? [{ ...record.webhook.row, batch_id: batch.id, line }] : [],
      )
      await insertRows(tx, 'webhooks', webhooks)
    },
  )

  /** Finds the line of a response. Throws request_not_found, also where the response was deleted. */
  async function lineOfResponse(caller: Caller, response_id: string) {
    const id = requestIdOf(response_id)
    const { batch, line } = await placeOf(caller, id)
    const chunk = await readChunkOfLine(store.read, batch.id, line)
    if (chunk && isResponseDeleted(chunk, line)) throw new ApiError('request_not_found')
    const input = await readInput({ db: store.read, sealed, now: clock.now() }, batch, line)
    const { body, metadata } = input ? JSON.parse(input.toString()) : {}
    return { id, batch, body, metadata }
  }

  async function readResponse(
    caller: Caller,
    { id, batch, metadata }: Awaited<ReturnType<typeof lineOfResponse>>,
  ) {
    const record = await readLine(caller, id)
    if (record.status === 'completed' && record.response === null) throw contentGone(batch)
    return shownResponse({ ...record, created: acceptedAt(batch, record.custom_id) }, metadata)
  }

  async function accept(request: FastifyRequest, caller: Caller, reply: FastifyReply, order: Order) {
    const { endpoint, body, window, metadata, prefix, call, status, show } = order
    const custom_id = order.custom_id ?? request.id
    const webhook = ownWebhook(deps, caller, order.webhook)
    const header_entity = headerText(request.headers, 'X-Service-Entity', ENTITY_CHARACTERS_MAX)
    const own: Metadata = { ...(header_entity !== null && { entity: header_entity }), ...metadata }
    if (Object.keys(own).length > METADATA_PAIRS_MAX)
      throw invalidParam(
        'metadata',
        `\`metadata\` and the header X-Service-Entity have more than ${METADATA_PAIRS_MAX} pairs.`,
      )
    const checked = lines.lineOf({ endpoint, custom_id, metadata: own, prefix }, body, models, line_bytes_max)
    request.entity = checked.entity
    const plan = planOf(plans, caller)
    const { retention: ofKey, header_entity: _, ...base } = ownerOf(request, header_entity)
    const owner = {
      ...base,
      ...{ window, quotas: plan.quotas, retention_ms: plan.file_retention_ms },
      retention: retentionText([plan.retention, ofKey]),
    }
    const answer = await idempotency.together(call, status, async (key) => {
      let text = ''
      const textOf = ({ batch, line }: Gathered): string => {
        text = JSON.stringify(
          show({
            ...{ id: lineRequestId(batch.id, line), batch_id: batch.id, custom_id, line },
            ...{ model: checked.model, entity: checked.entity, created: acceptedAt(batch, custom_id) },
            ...{ conversation: own.conversation ?? null, tags: own.tags ?? null, ...PENDING_LINE },
            ...{ status: 'queued', waiting_reason: null, expires_at: unixSeconds(batch.expires_at) },
            ...(webhook && { webhook: showWebhook({ ...webhook.row, batch_id: batch.id }) }),
          }),
        )
        return text
      }
      const { conversation = null } = own
      const asked = { ...checked, owner, custom_id, conversation, hasWebhook: webhook !== null }
      await gathered.add(asked, { key, status, textOf, webhook })
      return text
    })
    return sendOnce(reply, withSecret(answer, webhook))
  }

  route(app, 'POST /v1/requests', {
    access: ['batches:write'],
    operation: 'createRequest',
    summary: 'Send one request',
    description:
      'For programs that make one request at a time. It becomes a line of a batch that gathers such requests, and is sent, billed, limited and recorded as every line is. The answer (202) comes at once, without a result: `GET /v1/requests/{request_id}?wait=30s` waits for that. A mistake that would fail a line is an error of the call.',
    answer: LineRecord,
    headers: CreateHeaders,
    errors: ERROR_CODES,
    rules: { body: { properties: { webhook: WEBHOOK_RULES } } },
    body: CreateRequest,
    takesLines: 'body',
    async handler(request, caller, reply) {
      const { completion_window, ...rest } = request.body
      const body = request.bytesOfBody
      if (body === null)
        throw invalidParam('body', '`body` must be an object: the request as the endpoint takes it.')
      const plan = planOf(plans, caller)
      const offered = plan.completion_windows.map(({ text }) => text)
      const window = offeredWindow(plan, completion_window ?? defaultWindow(offered))
      const call = idempotentCall(request, 'POST /v1/requests', {
        ...request.body,
        body: hash('sha256', body),
      })
      const show = (accepted: LineRecord): object => accepted
      return await accept(request, caller, reply, {
        ...rest,
        ...{ body, window, call, status: 202, show },
        prefix: 'body.',
      })
    },
  })

  route(app, 'POST /v1/responses', {
    access: ['batches:write'],
    operation: 'createResponse',
    summary: 'Create a background response',
    description:
      'For clients of OpenAI’s Responses API, with `background: true`: a single request to `/v1/responses`, which the model has to serve. `background_options.completion_window` asks for a window: the longest of the plan that is no longer, or its shortest one; `soonest` is that. `background_options.continuation_id` is the conversation.',
    answer: BackgroundResponse,
    headers: CreateHeaders,
    errors: ERROR_CODES,
    body: CreateResponse,
    takesLines: 'whole',
    async handler(request, caller, reply) {
      const { background, background_options, metadata } = request.body
      if (background !== true)
        throw invalidParam(
          'background',
          'This service answers no request at once. Set `background` to true, and retrieve the response when it has ended.',
        )
      const { completion_window: wanted = null, continuation_id } = background_options ?? {}
      const window = windowFor(planOf(plans, caller).completion_windows, wanted)
      const body = withoutMembers(request.bytesOfBody ?? Buffer.from('{}'), OF_THIS_SERVICE)
      const own = { ...metadata, ...(continuation_id && { conversation: continuation_id }) }
      return await accept(request, caller, reply, {
        ...{ endpoint: '/v1/responses', body, window, status: 200 },
        ...{ metadata: own, prefix: '' },
        call: idempotentCall(request, 'POST /v1/responses', {
          ...{ body: hash('sha256', body), wanted, continuation_id },
        }),
        show: (accepted) => shownResponse(accepted, own),
      })
    },
  })

  route(app, 'GET /v1/responses/:response_id', {
    access: ['batches:read', 'requests:read'],
    operation: 'getResponse',
    summary: 'Retrieve a background response',
    description: 'Once it has completed, as the model server answered it, under its ID here.',
    answer: BackgroundResponse,
    errors: ['request_not_found', 'content_not_kept'],
    async handler(request, caller) {
      return await readResponse(caller, await lineOfResponse(caller, request.params.response_id))
    },
  })

  route(app, 'GET /v1/responses/:response_id/input_items', {
    access: ['files:read'],
    operation: 'listInputItems',
    summary: 'List the input of a background response',
    answer: listOf(InputItem),
    errors: ['request_not_found', 'content_not_kept'],
    query: PageQuery,
    async handler(request, caller) {
      const { response_id } = request.params
      const { body, batch } = await lineOfResponse(caller, response_id)
      if (body === undefined) throw contentGone(batch)
      // A response may have a prompt of the server, or continue a conversation, without an input of its own.
      const items = inputItems(response_id, body.input ?? [])
      return await readPage(request.query, {
        find: async (id) => items.find((item) => item.id === id),
        async list({ limit, order, behind }) {
          const sorted = order === 'asc' ? items : items.toReversed()
          const from = sorted.findIndex(({ id }) => id === behind) + 1
          return { rows: sorted.slice(from, from + limit), lookedTo: null }
        },
        show: (item) => item,
      })
    },
  })

  route(app, 'DELETE /v1/responses/:response_id', {
    access: ['batches:write'],
    operation: 'deleteResponse',
    summary: 'Delete a background response',
    description:
      'It is cancelled where it has not ended, and no longer found as a response. Its record, and its content until that of its batch is deleted, stay as those of a request.',
    answer: DeletedResponse,
    errors: ['request_not_found'],
    async handler(request, caller) {
      const id = request.params.response_id
      const { batch, line } = await placeOf(caller, requestIdOf(id))
      await store.write((tx) => deleteResponse(tx, batch.id, line))
      wake()
      return { id, object: 'response' as const, deleted: true as const }
    },
  })

  route(app, 'POST /v1/responses/:response_id/cancel', {
    access: ['batches:write'],
    operation: 'cancelResponse',
    summary: 'Cancel a background response',
    description: 'As `POST /v1/requests/{request_id}/cancel`.',
    answer: BackgroundResponse,
    errors: ['request_not_found', 'content_not_kept'],
    async handler(request, caller) {
      const response = await lineOfResponse(caller, request.params.response_id)
      await cancel(caller, response.id)
      return await readResponse(caller, response)
    },
  })
}

const ERROR_CODES = [
  'plan_lacks_feature',
  'model_not_found',
  'endpoint_not_supported',
  'usage_limit_exceeded',
  'quota_exceeded',
] as const

// Background responses.

/** The fields of a call that are not sent to model servers. */
const OF_THIS_SERVICE = new Names('background', 'background_options', 'store')

/** The error of a response whose content was destroyed, deleted, or has expired. */
function contentGone({ retention }: BatchRow): ApiError {
  return retention === null
    ? new ApiError(
        'request_not_found',
        'The files with the content of this response were deleted, or have expired.',
      )
    : new ApiError('content_not_kept')
}

function requestIdOf(response_id: string): string {
  const id = requestId(response_id)
  if (id === null) throw new ApiError('request_not_found')
  return id
}

/** The longest window within `wanted`, else the shortest one; null: the longest of all. */
function windowFor(offered: readonly CompletionWindow[], wanted: string | null): CompletionWindow {
  const sorted = offered.toSorted((a, b) => a.ms - b.ms)
  const most = wanted === null ? Number.POSITIVE_INFINITY : wanted === 'soonest' ? 0 : durationMs(wanted)
  if (most === null)
    throw invalidParam(
      'background_options.completion_window',
      '`background_options.completion_window` must be "soonest" or a duration such as "8h".',
    )
  return sorted.findLast(({ ms }) => ms <= most) ?? sorted[0]!
}

/** Shows a response. `metadata`: of the request; absent where its input is gone, and then what the record has of it. */
function shownResponse(record: LineRecord, metadata?: Metadata): BackgroundResponse {
  const { id, created, model, entity, conversation, tags } = record
  const { body = {} } = { ...(record.response as { body?: object } | null) }
  const { code, message } = { ...(record.error as { code?: string; message?: string } | null) }
  const status = responseStatus(record)
  const given = Object.entries({ entity, conversation, tags })
  const kept = given.flatMap(([name, value]) => (value === null ? [] : [[name, value] as const]))
  return {
    ...{ model, output: [], parallel_tool_calls: true, tool_choice: 'auto', tools: [] },
    ...{ instructions: null, temperature: null, top_p: null, incomplete_details: null, usage: null },
    ...body,
    id: responseId(id),
    created_at: created,
    metadata: { ...Object.fromEntries(kept), ...metadata },
    object: 'response',
    background: true,
    status,
    error:
      code === undefined || status === 'cancelled'
        ? null
        : { code: 'server_error', message: `${code}: ${message}` },
  }
}
