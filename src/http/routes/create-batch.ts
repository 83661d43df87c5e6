// POST /v1/batches: creates a batch of a file, of lines in the call, of the rows of a table, or of a file in a bucket.
import { text as textOf } from 'node:stream/consumers'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { isTerminal } from '../../domain/batch.ts'
import { durationMs, durationText } from '../../domain/days.ts'
import { endpointPathOf } from '../../domain/endpoint.ts'
import { entityOf } from '../../domain/entity.ts'
import { type ApiError, invalidParam } from '../../domain/errors.ts'
import { orderBatch } from '../../intake/create-batch.ts'
import { insertFetchedFile } from '../../intake/fetch-input.ts'
import { checkTable, readTable } from '../../intake/table-lines.ts'
import { formOfFile, receiveUpload } from '../../intake/upload.ts'
import { EVERYTHING } from '../../lifecycle/fetched-results.ts'
import { readFinished } from '../../results/finished-lines.ts'
import { inOpenAiForm } from '../../results/openai-errors.ts'
import { findFile } from '../../store/files.ts'
import type { BatchRow } from '../../store/schema.ts'
import type { Writer } from '../../store/store.ts'
import { BatchEstimate, BatchObject, CREATE_BATCH_RULES, CreateBatch } from '../../wire/batch.ts'
import { flagText } from '../../wire/shape.ts'
import { authorize } from '../access/auth.ts'
import { callerOf, isAzurePath, planOf, viewOf } from '../access/caller.ts'
import { headerText, type IdempotentResponse, idempotentCall, sendOnce } from '../request/idempotency.ts'
import { untilDisconnected, WaitingCalls, whenSent } from '../response/long-calls.ts'
import { type App, type RouteDependencies, route } from '../route.ts'
import {
  type BatchCreation,
  type BatchOfNewFile,
  CreateHeaders,
  ENTITY_CHARACTERS_MAX,
  ownerOf,
  SILENT_MS_MAX,
} from './batch-creation.ts'
import { checkPlace, showBatchNow, visibleBatch } from './batches.ts'
import { estimateOf } from './estimate-batch.ts'
import { fileIdOf } from './files.ts'
import { ownWebhook } from './webhooks.ts'

const WAIT_MS_MAX = 60_000
/** The largest results in bytes that a waiting call returns with the batch. */
const RESULTS_BYTES_MAX = 1024 * 1024
const NO_DRY_RUN =
  'A dry run needs a file of lines. Upload them with POST /v1/files, and give its ID as `input_file_id`.'

export function createBatchRoute(app: App, deps: RouteDependencies, creation: BatchCreation): void {
  const { store, clock, reads, region, plans, buckets } = deps
  const waiting = new WaitingCalls(clock, deps.closing)
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
    query: {
      dry_run: flagText(
        '`true`: creates no batch, and returns its projected cost and the limits that apply to it.',
      ),
    },
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
        answer = await creation.create(request, { ...terms, call: callOf({}), insertInput })
      } else if (table) {
        authorize(caller, ['files:write'])
        if (isDryRun) throw invalidParam('table', NO_DRY_RUN)
        answer = await creation.createOfMadeFile(
          request,
          { ...terms, call: callOf({ input_file_id }) },
          async () => {
            const found = await readTable(store.read, caller.project_id, input_file_id, clock.now())
            return { ...found, made: { file_id: input_file_id, table } }
          },
        )
      } else if (lines) {
        authorize(caller, ['files:write'])
        if (isDryRun) throw invalidParam('requests', NO_DRY_RUN)
        const call = callOf({ requests: lines.sha256 })
        const { bytes } = lines
        const storeFile: BatchOfNewFile['storeFile'] = async (upload, check) => {
          const form = formOfFile('requests.jsonl', lines.content(body.endpoint))
          const file = await receiveUpload(deps, form, { ...upload, form_bytes: bytes }, check)
          request.freeLines()
          return file
        }
        answer = await creation.createOfNewFile(request, { ...terms, call, bytes, storeFile })
      } else if (isDryRun) {
        if (wait !== null) throw invalidParam('wait', 'A dry run has no end to wait for.')
        return await estimateOf(deps, creation, request, orderOf(input_file_id))
      } else {
        const input = async (): Promise<string> => input_file_id
        answer = await creation.create(request, { ...terms, call: callOf({ input_file_id }), input })
      }
      return await sendEnded(request, reply, answer, Math.min(wait_ms, began + SILENT_MS_MAX - clock.now()))
    },
  })

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
      await untilDisconnected(request, (signal) => waiting.wait({ project_id, ms, signal }, isOver))
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
}

/** Parses a wait to ms. Throws invalid_request. */
export function waitMs(text: string): number {
  const ms = durationMs(text)
  if (ms !== null && ms <= WAIT_MS_MAX) return ms
  const message = `\`wait\` must be a duration up to "${durationText(WAIT_MS_MAX)}", such as "30s", not ${JSON.stringify(text.slice(0, 60))}.`
  throw invalidParam('wait', message)
}

/** The error for not exactly one input. `second`: an input beside another one; null: none was given. */
function oneInput(second: string | null): ApiError {
  const message =
    second === null
      ? '`input_file_id`, `requests` or `input_url` is required.'
      : `\`${second}\` cannot be given as well: a batch has one input.`
  return invalidParam(second ?? 'input_file_id', message)
}
