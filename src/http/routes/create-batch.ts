// POST /v1/batches, POST /v1/messages/batches and POST /v1/batches/{batch_id}/retry: create a batch from a file, or
// from lines that become a file first: the lines in the call, or the failed lines of a batch.
import { Readable } from 'node:stream'
import { text as textOf } from 'node:stream/consumers'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { isTerminal } from '../../domain/batch.ts'
import { secondsOrNull, unixSeconds } from '../../domain/clock.ts'
import { defaultWindow, durationMs, durationText } from '../../domain/days.ts'
import { endpointPathOf } from '../../domain/endpoint.ts'
import { entityOf } from '../../domain/entity.ts'
import { ApiError, invalidParam, isErrorCode } from '../../domain/errors.ts'
import { gathered } from '../../domain/gathered-bytes.ts'
import { WHOLE_PROJECT } from '../../domain/limit.ts'
import type { Model } from '../../domain/model.ts'
import { inMetric, sumOf, usd } from '../../domain/money.ts'
import { ProjectQueue } from '../../domain/project-queue.ts'
import { RETRIED_FIELDS, retriedFields } from '../../intake/batch-fields.ts'
import { checkQuotas } from '../../intake/check-quota.ts'
import { type BatchOrder, createBatch, orderBatch, usableInput } from '../../intake/create-batch.ts'
import { insertFetchedFile, insertMadeFile } from '../../intake/fetch-input.ts'
import { readProjection } from '../../intake/file-index.ts'
import type { HoldBytes } from '../../intake/incoming.ts'
import { MESSAGE_BODY_BYTES_MAX, MessageRequests, otherBody } from '../../intake/message-requests.ts'
import { checkRetry, retryFilename } from '../../intake/retry-lines.ts'
import { checkTable, readTable } from '../../intake/table-lines.ts'
import { commitOrDiscard, formOfFile, receiveUpload, retainAs, type Upload } from '../../intake/upload.ts'
import {
  type BatchProjection,
  type LimitProjection,
  type ProjectionTerms,
  projectLimits,
} from '../../ledger/check-limits.ts'
import { negotiateLanguage } from '../../ledger/limit-error.ts'
import { EVERYTHING } from '../../lifecycle/fetched-results.ts'
import { removeFile } from '../../lifecycle/remove-file.ts'
import { expectedCompletion } from '../../progress/completion.ts'
import { readFinished } from '../../results/finished-lines.ts'
import { inOpenAiForm } from '../../results/openai-errors.ts'
import {
  fileProblems,
  findFile,
  lockFileRow,
  type MadeOf,
  readFile,
  readIndexBytes,
} from '../../store/files.ts'
import { insertRow } from '../../store/rows.ts'
import type { BatchRow, FileRow } from '../../store/schema.ts'
import type { Writer } from '../../store/store.ts'
import {
  BatchEstimate,
  BatchObject,
  CREATE_BATCH_RULES,
  CreateBatch,
  RETRY_BATCH_RULES,
  RetryBatch,
} from '../../wire/batch.ts'
import type { FileProblem } from '../../wire/file.ts'
import { CreateMessageBatch, MessageBatch } from '../../wire/message-batch.ts'
import { maybeText } from '../../wire/shape.ts'
import { authorize } from '../access/auth.ts'
import { callerOf, isAzurePath, planOf, viewOf } from '../access/caller.ts'
import {
  hasIdempotencyKey,
  headerText,
  IdempotencyHeaders,
  type IdempotentCall,
  type IdempotentResponse,
  idempotentCall,
  sendOnce,
} from '../request/idempotency.ts'
import { untilDisconnected, WaitingCalls, whenSent, whileConnected } from '../response/long-calls.ts'
import { type App, type RouteDependencies, route } from '../route.ts'
import { checkPlace, showBatch, showBatchNow, visibleBatch } from './batches.ts'
import { fileIdOf, shownFileId } from './files.ts'
import { showLimit } from './limits.ts'
import { showMessageBatch } from './message-batches.ts'
import { type OwnWebhook, ownWebhook, showWebhook, withSecret } from './webhooks.ts'

export const ENTITY_CHARACTERS_MAX = 512
/** The size of a file's index in bytes above which calls of one project create batches one after the other. */
const INDEX_BYTES_AT_ONCE_MAX = 64 * 1024
const WAIT_MS_MAX = 60_000
/** The longest wait in ms: common proxies end silent calls after 50 or 60 s, and the caller gets no ID. */
const SILENT_MS_MAX = 45_000
/** The largest results in bytes that a waiting call returns with the batch. */
const RESULTS_BYTES_MAX = 1024 * 1024
const NO_DRY_RUN =
  'A dry run needs a file of lines. Upload them with POST /v1/files, and give its ID as `input_file_id`.'

export const CreateHeaders = Type.Object({
  ...IdempotencyHeaders.properties,
  'X-Service-Entity': Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: ENTITY_CHARACTERS_MAX,
      description:
        'The entity to attribute usage to, where neither a line nor the batch names one in its metadata.',
    }),
  ),
  'Accept-Language': maybeText('The language of limit errors, also in results.'),
})

const Query = {
  dry_run: Type.Optional(
    Type.Enum(['true', 'false'], {
      description:
        '`true`: creates no batch, and returns its projected cost and the limits that apply to it.',
    }),
  ),
}

interface Made {
  call: IdempotentCall
  /** Shows the batch in the answer; absent: in the form of this API. */
  show?: (batch: BatchRow) => object
  orderOf: (input_file_id: string) => BatchOrder
  webhook: OwnWebhook | null
  /** Creates the input file and returns its ID; called once, and not for a repeated call. */
  input?: () => Promise<string>
  /** Creates the file in the transaction of the batch, which then waits for it; in place of `input`. */
  insertInput?: (tx: Writer, now: number) => Promise<string>
}

/** A batch whose lines are not in a file yet. */
interface OfNewFile extends Omit<Made, 'input' | 'call'> {
  /** The call; a function where the lines must be stored before a repeated call can be recognized. */
  call: IdempotentCall | (() => IdempotentCall)
  /** Whether the problem of a line is shown as one of a request in the call. */
  namesRequests?: true
  /** The size of the file in bytes, as far as it is known. */
  bytes: number
  storeFile: (
    upload: Omit<Upload, 'form_bytes'>,
    check: (tx: Writer, bytes: number) => Promise<void>,
    hold: HoldBytes,
  ) => Promise<FileRow>
}

export function createBatchRoutes(app: App, deps: RouteDependencies): void {
  const { store, clock, idempotency, incoming, reads, region, plans, wake, buckets, file_bytes_max } = deps
  const projectQueue = new ProjectQueue({ atOnce: Number.POSITIVE_INFINITY, perProject: 1 })
  const waitingForFiles = new WaitingCalls(clock)
  const waitingForBatches = new WaitingCalls(clock)
  app.addHook('preClose', async () => {
    waitingForFiles.stop()
    waitingForBatches.stop()
  })
  route(app, 'POST /v1/batches', {
    access: ['batches:write'],
    operation: 'createBatch',
    summary: 'Create a batch',
    description:
      'Of a file, of the lines in `requests`, of what `table` asks about the rows of an uploaded table, or of a file in a bucket (`input_url`), which is fetched after the answer; for what is not a file yet the key needs `files:write` as well. Lines that do not validate make a batch that fails. With `wait`, the answer comes when the batch has ended, with its `results`, or when the time is over, after 45 s at the latest. With an `Idempotency-Key`, a repeated call creates no second batch: it gets the first answer again (`Idempotency-Replayed: true`), or a 409 under `Idempotency-Mode: implicit`.',
    answer: Type.Union([BatchObject, BatchEstimate]),
    headers: CreateHeaders,
    rules: { body: CREATE_BATCH_RULES },
    errors: [
      'plan_lacks_feature',
      'bucket_not_allowed',
      'file_not_found',
      'file_not_processed',
      'usage_limit_exceeded',
      'quota_exceeded',
    ],
    body: CreateBatch,
    query: Query,
    takesLines: true,
    async handler(request, caller, reply) {
      const { wait = null, ...body } = request.body
      // Azure's names of endpoints have no version.
      if (isAzurePath(request.originalUrl) && body.endpoint.startsWith('/'))
        body.endpoint = endpointPathOf(body.endpoint) ?? body.endpoint
      const { headers, lines } = request
      const began = clock.now()
      const wait_ms = wait === null ? 0 : waitMs(wait)
      const { input_url, output_url, table } = body
      const given = { input_file_id: body.input_file_id, requests: lines ?? undefined, input_url }
      const inputs = Object.entries(given).filter(([, input]) => input !== undefined)
      if (inputs.length !== 1) throw oneInput(inputs.at(-1)?.[0] ?? null)
      if (table && body.input_file_id === undefined)
        throw invalidParam('table', '`table` needs an `input_file_id`, that of a table.')
      if (table) checkTable(table, body.endpoint)
      const header_entity = headerText(headers, 'X-Service-Entity', ENTITY_CHARACTERS_MAX)
      request.entity = entityOf(null, body.metadata, header_entity)
      // After an error in one line, a client does not send a body again that is not a file yet.
      const takesAnyFile =
        body.input_file_id === undefined || table !== undefined || request.compat === 'openai'
      const owner = { ...ownerOf(request, header_entity), takesAnyFile }
      const plan = planOf(plans, caller)
      const isDryRun = request.query.dry_run === 'true'
      const input_file_id = fileIdOf(body.input_file_id ?? '')
      const orderOf = (id: string) => orderBatch({ ...body, input_file_id: id }, owner, plan)
      const terms = { orderOf, webhook: ownWebhook(deps, caller, body.webhook) }
      const callOf = (what: object) => idempotentCall(request, 'POST /v1/batches', { ...body, ...what })
      let answer: IdempotentResponse
      orderOf(input_file_id)
      if (output_url !== undefined) checkPlace(buckets, caller, 'write', output_url)
      if (input_url !== undefined) {
        checkPlace(buckets, caller, 'read', input_url)
        if (isDryRun) throw invalidParam('input_url', NO_DRY_RUN)
        const { project_id } = caller
        const file = { project_id, url: input_url, retention_ms: plan.file_retention_ms }
        const insertInput = (tx: Writer, now: number) => insertFetchedFile(tx, file, now)
        answer = await createOf(request, { ...terms, call: callOf({}), insertInput })
      } else if (table) {
        authorize(caller, ['files:write'])
        if (isDryRun) throw invalidParam('table', NO_DRY_RUN)
        answer = await createOfMadeFile(request, { ...terms, call: callOf({ input_file_id }) }, async () => {
          const found = await readTable(store.read, caller.project_id, input_file_id, clock.now())
          return { ...found, made: { file_id: input_file_id, table } }
        })
      } else if (lines) {
        authorize(caller, ['files:write'])
        if (isDryRun) throw invalidParam('requests', NO_DRY_RUN)
        const call = callOf({ requests: lines.sha256 })
        const { bytes } = lines
        const storeFile: OfNewFile['storeFile'] = async (upload, check) => {
          const form = formOfFile('requests.jsonl', lines.content(body.endpoint))
          const file = await receiveUpload(deps, form, { ...upload, form_bytes: bytes }, check)
          request.freeLines()
          return file
        }
        answer = await createOfNewFile(request, { ...terms, call, bytes, storeFile })
      } else if (isDryRun) {
        if (wait !== null) throw invalidParam('wait', 'A dry run has no end to wait for.')
        return await estimateOf(request, orderOf(input_file_id))
      } else {
        const input = async (): Promise<string> => input_file_id
        answer = await createOf(request, { ...terms, call: callOf({ input_file_id }), input })
      }
      return await sendEnded(request, reply, answer, Math.min(wait_ms, began + SILENT_MS_MAX - clock.now()))
    },
  })

  /** Estimates the cost of a batch of a file. Throws file_not_found and file_not_processed. */
  async function estimateOf(
    request: FastifyRequest,
    order: Pick<BatchOrder, 'project_id' | 'input_file_id' | 'start_after' | keyof ProjectionTerms>,
  ): Promise<BatchEstimate> {
    const { project_id, input_file_id, start_after = null } = order
    await validated(request, input_file_id)
    const projection = await oneAtATime(project_id, input_file_id, () => readProjection(deps, order))
    usableInput(await readFile(store.read, project_id, input_file_id, clock.now()))
    if (!projection) throw new ApiError('file_not_processed')
    const limitProjections = await projectLimits(store.read, project_id, projection, clock.now())
    const lines = new Map<string, number>()
    for (const { model, lines: some } of projection.groups)
      if (model !== null) lines.set(model, (lines.get(model) ?? 0) + some)
    const done = await expectedCompletion(store, { project_id, start_after, lines }, clock.now(), deps.models)
    const shownId = shownFileId(input_file_id, viewOf(request, region))
    return {
      ...showEstimate(shownId, projection, limitProjections, deps.models),
      estimated_completion: secondsOrNull(done),
    }
  }

  route(app, 'GET /v1/batches/:batch_id/estimate', {
    access: ['batches:write'],
    operation: 'estimateBatch',
    summary: 'Read what all lines of a batch may cost',
    description:
      'As a dry run of its creation would tell now: at most, by model and entity, with the limits that count its lines. Its input file must still exist.',
    answer: BatchEstimate,
    errors: ['file_not_found', 'file_not_processed'],
    async handler(request, { project_id }) {
      const batch = await visibleBatch(store.read, project_id, request.params.batch_id)
      return await estimateOf(request, { ...batch, start_after: null })
    },
  })

  route(app, 'POST /v1/batches/:batch_id/retry', {
    access: ['batches:write'],
    operation: 'retryBatch',
    summary: 'Run the failed lines of a batch again',
    description: `Makes a new file of the failed lines, byte for byte, and a new batch that names the old one in \`metadata.retry_of\` and has its ${RETRIED_FIELDS.map((name) => `\`${name}\``).join(', ')}, but not its webhook: \`webhook\` gives it one. Where there are very many lines, the answer does not wait for the file: the batch is then \`validating\`, without lines, and what would be an error of the call is in its \`errors\`. The batch that is retried must have ended, and its input file must still exist.`,
    answer: BatchObject,
    rules: { body: RETRY_BATCH_RULES },
    headers: IdempotencyHeaders,
    errors: [
      'batch_not_retryable',
      'plan_lacks_feature',
      'bucket_not_allowed',
      'file_not_processed',
      'usage_limit_exceeded',
      'quota_exceeded',
    ],
    body: Type.Union([RetryBatch, Type.Null()]),
    async handler(request, caller, reply) {
      const { project_id } = caller
      const plan = planOf(plans, caller)
      const { completion_window, webhook, output_url: place, ...which } = request.body ?? {}
      const old = await visibleBatch(store.read, project_id, request.params.batch_id)
      const output_url = place === undefined ? old.output_url : place
      if (output_url !== null) checkPlace(buckets, caller, 'write', output_url)
      const owner = { ...ownerOf(request, old.header_entity), takesAnyFile: 'pending' as const }
      const orderOf = (input_file_id: string) =>
        orderBatch(
          {
            input_file_id,
            endpoint: old.endpoint,
            completion_window: completion_window ?? old.completion_window,
            ...retriedFields(old),
            output_url: output_url ?? undefined,
          },
          owner,
          plan,
        )
      // Errors that show at once are thrown before anything is stored.
      orderOf(old.input_file_id)
      const terms = {
        call: idempotentCall(request, 'POST /v1/batches/{batch_id}/retry', {
          batch_id: old.id,
          ...request.body,
          // A call without results in a bucket is another call.
          ...(place === null && { output_url: false }),
        }),
        orderOf,
        webhook: ownWebhook(deps, caller, webhook),
      }
      const answer = await createOfMadeFile(request, terms, async () => {
        const { input } = await checkRetry(store.read, old, which, clock.now())
        return { file: input, filename: retryFilename(old), made: { batch_id: old.id, which } }
      })
      return sendOnce(reply, answer)
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
        const answer = await createOfNewFile(request, {
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

  async function validated(request: FastifyRequest, file_id: string): Promise<void> {
    const { project_id } = callerOf(request)
    const isOver = async (): Promise<boolean> =>
      (await readFile(store.read, project_id, file_id, clock.now()))?.status !== 'pending'
    await whileConnected(request, (signal) =>
      waitingForFiles.wait(
        { project_id, ms: Math.min(deps.wait_for_file_ms, SILENT_MS_MAX), signal },
        isOver,
      ),
    )
  }

  /** Answers with the batch when it has ended, or when the wait is over. */
  async function sendEnded(
    request: FastifyRequest,
    reply: FastifyReply,
    created: IdempotentResponse,
    ms: number,
  ): Promise<FastifyReply> {
    if (ms <= 0) return sendOnce(reply, created)
    const { project_id } = callerOf(request)
    const { id, webhook }: BatchObject = JSON.parse(created.text)
    const isOver = async (): Promise<boolean> =>
      isTerminal((await visibleBatch(store.read, project_id, id)).status)
    try {
      await untilDisconnected(request, (signal) => waitingForBatches.wait({ project_id, ms, signal }, isOver))
      const batch = await visibleBatch(store.read, project_id, id)
      const now = await showBatchNow(deps, batch, viewOf(request, region))
      const shown = JSON.stringify({ ...now, ...(webhook && { webhook }) })
      const results = isTerminal(batch.status) ? await readResults(request, reply, batch) : null
      if (results !== null) whenSent(request, reply, deps, batch, EVERYTHING)
      request.recorded = shown
      const text = results === null ? shown : `${shown.slice(0, -1)},"results":[${results}]}`
      return sendOnce(reply, { ...created, text })
    } catch (error) {
      // The batch has been created nevertheless.
      request.log.warn({ err: error, batch_id: id }, 'a batch could not be read while a call waited for it')
      return sendOnce(reply, created)
    }
  }

  async function oneAtATime<T>(project_id: string, file_id: string, act: () => Promise<T>): Promise<T> {
    const indexBytes = await readIndexBytes(store.read, project_id, file_id, clock.now())
    return indexBytes > INDEX_BYTES_AT_ONCE_MAX ? await projectQueue.run(project_id, act) : await act()
  }

  /** Reads the result lines of an ended batch; null where they are too many, gone, or not for the caller. */
  async function readResults(
    request: FastifyRequest,
    reply: FastifyReply,
    batch: BatchRow,
  ): Promise<string | null> {
    const { project_id, scopes } = callerOf(request)
    if (!scopes.has('batches:read')) return null
    const now = clock.now()
    let bytes = 0
    // The files of a call that is repeated later may have been deleted.
    for (const id of [batch.output_file_id, batch.error_file_id])
      if (id !== null)
        bytes += (await findFile(store.read, project_id, id, now))?.bytes ?? Number.POSITIVE_INFINITY
    if (bytes > RESULTS_BYTES_MAX) return null
    const order = {
      after: 0,
      limit: Number.POSITIVE_INFINITY,
      part: 'all',
      contiguous: false,
      gone: [],
    } as const
    const read = await reads.open(project_id, reply.raw)
    const page = await read.turn(() =>
      readFinished({ db: store.read, sealed: deps.sealed, now }, batch.id, order),
    )
    const lines = request.compat === 'openai' ? inOpenAiForm(page.text) : page.text
    return (await textOf(read.inTurns(lines))).trimEnd().replaceAll('\n', ',')
  }

  async function createOf(request: FastifyRequest, made: Made): Promise<IdempotentResponse> {
    const { project_id } = callerOf(request)
    const { call, orderOf, webhook, input, insertInput } = made
    let id = ''
    let projection: BatchProjection | null = null
    const answer = await idempotency.once(
      call,
      async (tx, now) => {
        if (insertInput) id = await insertInput(tx, now)
        const batch = await createBatch(tx, orderOf(id), projection, now)
        const shown = made.show?.(batch) ?? showBatch(batch, viewOf(request, region))
        if (webhook === null) return JSON.stringify(shown)
        const row = { ...webhook.row, batch_id: batch.id }
        await insertRow(tx, 'webhooks', row)
        return JSON.stringify({ ...shown, webhook: showWebhook(row) })
      },
      async (write) => {
        if (!input) return await write()
        id = await input()
        await validated(request, id)
        return await oneAtATime(project_id, id, async () => {
          projection = await readProjection(deps, orderOf(id))
          return await write()
        })
      },
    )
    if (answer.replayed) return answer
    wake()
    return withSecret(answer, webhook)
  }

  /**
   * Creates a batch whose file a worker makes from `source`; `file` is the stored form. The batch waits for lines that
   * are not made in time.
   */
  async function createOfMadeFile(
    request: FastifyRequest,
    made: Omit<Made, 'input'>,
    source: () => Promise<{ file: FileRow; filename: string; made: MadeOf }>,
  ): Promise<IdempotentResponse> {
    const caller = callerOf(request)
    const { project_id } = caller
    let id: string | null = null
    const input = async (): Promise<string> => {
      const { file, filename, made } = await source()
      const { retention_ms } = retainAs(file, { retention_ms: planOf(plans, caller).file_retention_ms })
      const pending = { project_id, filename, retention_ms }
      id = await store.write((tx) => insertMadeFile(tx, pending, made, clock.now()))
      wake()
      await validated(request, id)
      const after = await readFile(store.read, project_id, id, clock.now())
      const [problem] =
        after?.status === 'error' && after.content_blob === null ? fileProblems(after.errors ?? '[]') : []
      if (problem && isErrorCode(problem.code)) {
        const { code, message, line: _, ...details } = problem
        throw new ApiError(problem.code, message, details)
      }
      return id
    }
    const discard = async (): Promise<void> => {
      if (id === null) return
      const made_id = id
      await store.write(async (tx) => {
        const file = await lockFileRow(tx, made_id)
        if (file) await removeFile(tx, file, clock.now())
      })
    }
    const answer = await commitOrDiscard(() => createOf(request, { ...made, input }), discard)
    if (answer.replayed) await discard()
    return answer
  }

  /** Stores the lines as a file and creates its batch. The file is deleted if its batch is not created. */
  async function createOfNewFile(request: FastifyRequest, made: OfNewFile): Promise<IdempotentResponse> {
    const caller = callerOf(request)
    const { project_id } = caller
    const { quotas, file_retention_ms: retention_ms } = planOf(plans, caller)
    const holder = { project_id, quotas }
    let file: FileRow | undefined
    const discard = async (): Promise<void> => {
      const stored = file
      if (stored) await store.write((tx) => removeFile(tx, stored, clock.now()))
    }
    // The lines of a repeated call are stored until they are known to equal those of the first.
    const isRepeated =
      typeof made.call === 'function' &&
      (await idempotency.earlierAnswer({ project_id, headers: request.headers })) !== null
    const countedBytes = isRepeated ? MESSAGE_BODY_BYTES_MAX : 0
    const input = async (): Promise<string> => {
      const upload = { project_id, now: clock.now(), retention_ms, file_bytes_max }
      const announced = { bytes: made.bytes, zstd: false, countedBytes }
      const check = async (tx: Writer, bytes: number): Promise<void> => {
        const stored_bytes = bytes - countedBytes
        if (stored_bytes > 0) await checkQuotas(tx, holder, { stored_bytes })
      }
      const { id } = await incoming.receive(holder, announced, async (take, hold) => {
        file = await made.storeFile({ ...upload, take }, check, hold)
        return file
      })
      wake()
      return id
    }
    const { call } = made
    const create = async (): Promise<IdempotentResponse> => {
      if (typeof call !== 'function') return await createOf(request, { ...made, call, input })
      const id = await input()
      return await createOf(request, { ...made, call: call(), input: async () => id })
    }
    const named = async (error: unknown): Promise<never> => {
      if (!made.namesRequests || !(error instanceof ApiError) || error.code !== 'file_not_processed')
        throw error
      const row = file && (await readFile(store.read, project_id, file.id, clock.now()))
      const [problem] = fileProblems(row?.errors ?? '[]')
      throw problem ? requestProblem(problem) : error
    }
    const answer = await commitOrDiscard(() => create().catch(named), discard)
    if (answer.replayed) await discard()
    return answer
  }
}

/** Parses a wait to ms. Throws invalid_request. */
export function waitMs(text: string): number {
  const ms = durationMs(text)
  if (ms !== null && ms <= WAIT_MS_MAX) return ms
  const message = `\`wait\` must be a duration up to "${durationText(WAIT_MS_MAX)}", such as "30s", not ${JSON.stringify(text.slice(0, 60))}.`
  throw invalidParam('wait', message)
}

/** The error for a line that was a request of the call. The numbers of requests begin with 0. */
function requestProblem({ line, message, param }: FileProblem): ApiError {
  const request = line === 0 ? 'requests' : `requests[${line - 1}]`
  const field = param?.replace(/^body\b/, 'params')
  const said = message.replace(/\bon line (\d+)\b/g, (_, other) => `in \`requests[${other - 1}]\``)
  return new ApiError('file_not_processed', `\`${request}\`: ${said}`, {
    param: field === undefined ? request : `${request}.${field}`,
  })
}

/** The error for not exactly one input. `second`: an input beside another one; null: none was given. */
function oneInput(second: string | null): ApiError {
  const message =
    second === null
      ? '`input_file_id`, `requests` or `input_url` is required.'
      : `\`${second}\` cannot be given as well: a batch has one input.`
  return invalidParam(second ?? 'input_file_id', message)
}

/** The owner of a batch. `retention`: that of the key. */
export function ownerOf(request: FastifyRequest, header_entity: string | null) {
  const { project_id, key_id, retention } = callerOf(request)
  const language = negotiateLanguage(request.headers['accept-language'])
  return { project_id, key_id, retention, header_entity, language, traceparent: request.traceContext }
}

/** Shows a projection of a batch's cost. */
function showEstimate(
  input_file_id: string,
  projection: BatchProjection,
  limitProjections: readonly LimitProjection[],
  models: ReadonlyMap<string, Model>,
): BatchEstimate {
  const { groups, total, lines, sharing } = projection
  const unpriced = new Set(groups.flatMap(({ priced, model }) => (priced || model === null ? [] : [model])))
  return {
    object: 'batch.estimate',
    input_file_id,
    accepted: !limitProjections.some(({ exceeds, limit }) => exceeds && limit.action === 'block'),
    lines,
    input_tokens: groups.reduce((sum, group) => sumOf(sum, group.input_tokens), 0),
    output_tokens_max: groups.reduce((sum, group) => sumOf(sum, group.output_tokens_max), 0),
    cost_usd: usd(total.cost_nanos),
    ...(sharing && {
      prompt_cache: {
        shared: shareOf(sharing.shared_bytes, sharing.prompt_bytes),
        as_written: shareOf(sharing.near_bytes, sharing.prompt_bytes),
      },
    }),
    groups: groups.map(({ spend, model, entity, priced, lines, ...tokens }) => ({
      model,
      entity,
      priced,
      lines,
      input_tokens: tokens.input_tokens,
      output_tokens_max: tokens.output_tokens_max,
      bytes_per_token: tokens.bytes_per_token,
      cost_usd: usd(spend.cost_nanos),
    })),
    unpriced_models: [...unpriced].filter((model) => models.has(model)),
    unknown_models: [...unpriced].filter((model) => !models.has(model)),
    limits: limitProjections.map(showLimitProjection),
  }
}

function shareOf(part: number, all: number): number {
  return all === 0 ? 0 : Math.round((1000 * part) / all) / 1000
}

function showLimitProjection(limitProjection: LimitProjection): BatchEstimate['limits'][number] {
  const { limit, spender, spent, projectedOpen: open, projected: needed, exceeds, window } = limitProjection
  return {
    limit: showLimit(limit),
    entity: spender === WHOLE_PROJECT ? null : spender,
    spent: inMetric(limit.metric, spent),
    open: inMetric(limit.metric, open),
    needed: inMetric(limit.metric, needed),
    exceeds,
    resets_at: unixSeconds(window.end),
  }
}
