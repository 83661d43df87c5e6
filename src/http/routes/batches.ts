// Lists, reads, cancels, pauses and resumes batches.
import { Type } from 'typebox'
import { Compile } from 'typebox/compile'
import { BATCH_SORTS, BATCH_STATUSES, endedAt } from '../../domain/batch.ts'
import { type BucketUse, resolveBucketUrl } from '../../domain/bucket-url.ts'
import { secondsOrNull, unixSeconds } from '../../domain/clock.ts'
import { ApiError } from '../../domain/errors.ts'
import { recordOf } from '../../domain/json-record.ts'
import { COMPLETION_PARTS, PROMPT_PARTS, usd, usdLiteral } from '../../domain/money.ts'
import { readMetadata, shownFields } from '../../intake/batch-fields.ts'
import { cancelBatch, setBatchPaused } from '../../lifecycle/batch.ts'
import { type BatchProgress, readBatchProgress } from '../../progress/waiting-reason.ts'
import { requestExport } from '../../results/export.ts'
import { batchCursor, batchName, listBatches, SHOWN_AT } from '../../store/batches.ts'
import { cursorId, type Listed } from '../../store/page.ts'
import { readOwn } from '../../store/rows.ts'
import type { BatchRow } from '../../store/schema.ts'
import type { Reader } from '../../store/store.ts'
import { spreadsheetRecord } from '../../tables/csv-writer.ts'
import { BatchObject, BatchProblem, EXPORT_BATCH_RULES, ExportBatch } from '../../wire/batch.ts'
import { listOf, maybeText, oneOf, PageQuery, time, words } from '../../wire/shape.ts'
import { authorize } from '../access/auth.ts'
import { type Caller, type View, viewOf } from '../access/caller.ts'
import { readPage } from '../object-routes.ts'
import { attachment } from '../response/send-error.ts'
import { type App, found, type RouteDependencies, route } from '../route.ts'
import { shownFileId } from './files.ts'

const ACTIONS = [
  {
    action: 'pause',
    operation: 'pauseBatch',
    summary: 'Pause a batch',
    description:
      'Nothing new is sent until it is resumed; what is in flight may finish. Its window goes on: `expires_at` stays.',
  },
  {
    action: 'resume',
    operation: 'resumeBatch',
    summary: 'Resume a paused batch',
    description: 'Its lines are sent again.',
  },
] as const

const CSV = 'text/csv'
const CSV_ROWS_PER_PAGE = 500

/** The scopes for buckets: without reading results, a key may not have them written elsewhere. */
const BUCKET_SCOPES = { read: ['files:write'], write: ['files:read', 'batches:read'] } as const

export function batchRoutes(
  app: App,
  { store, clock, region, models, wake, buckets, reads }: RouteDependencies,
): void {
  route(app, 'GET /v1/batches', {
    access: ['batches:read'],
    operation: 'listBatches',
    summary: 'List batches',
    answer: listOf(BatchObject),
    errors: ['cursor_not_found'],
    also: { [CSV]: Type.String() },
    query: {
      ...PageQuery,
      status: Type.Optional(oneOf(BATCH_STATUSES)),
      kind: Type.Optional(
        Type.Enum(['batches', 'requests', 'all'], {
          default: 'batches',
          description: '`requests`: the batches that gather single requests, which are left out otherwise.',
        }),
      ),
      model: maybeText('Only batches with a line of this model; of batches with more than 100 models, none.'),
      retry_of: maybeText('Only batches that run failed lines of this batch again.'),
      search: words(
        'Words that all have to occur, in any case, in the ID, the name or ID of the input file, the metadata or the models.',
      ),
      sort: Type.Optional(
        Type.Enum([...BATCH_SORTS], {
          default: 'created',
          description:
            'What the list is in the `order` of, and within equal ones of the ID. `failed` counts no lines that were not run; `speed` is the mean of a batch that has ended, and of another what was measured last. `next_cursor` keeps the place also where values change meanwhile; an ID stands for where its batch is now.',
        }),
      ),
      since: time('Only batches created at this time or later.'),
      until: time('Only batches created before this time.'),
      format: Type.Optional(
        Type.Enum(['json', 'csv'], { description: 'With `csv`, all of them at once, not a page.' }),
      ),
    },
    async handler(request, { project_id }, reply) {
      const {
        status,
        kind = 'batches',
        model,
        retry_of,
        search,
        format,
        sort = 'created',
        ...page
      } = request.query
      const since = page.since === undefined ? undefined : page.since * 1000
      const until = page.until === undefined ? undefined : page.until * 1000
      const is_gathered = { batches: 0, requests: 1, all: undefined }[kind]
      const filter = { status, is_gathered, model, retry_of, search, since, until, sort }
      if (format === 'csv') {
        reply.header('content-disposition', attachment('batches.csv'))
        const list = (behind?: string) =>
          listBatches(store.read, project_id, {
            ...filter,
            order: page.order,
            behind,
            limit: CSV_ROWS_PER_PAGE,
          })
        const read = await reads.open(project_id, reply.raw)
        return reply
          .type(`${CSV}; charset=utf-8`)
          .send(read.stream(batchesCsv(list, (batch) => batchCursor(batch, sort))))
      }
      let batchProgress = new Map<string, BatchProgress>()
      return await readPage(page, {
        find: (cursor) => readOwn(store.read, 'batches', project_id, cursorId(cursor)),
        list: async (bounds) => {
          const found = await listBatches(store.read, project_id, { ...bounds, ...filter })
          batchProgress = await readBatchProgress(store, found.rows, clock.now(), models)
          return found
        },
        show: (batch) => showBatch(batch, viewOf(request, region), batchProgress.get(batch.id)),
        cursor: (batch) => batchCursor(batch, sort),
      })
    },
  })

  route(app, 'GET /v1/batches/:batch_id', {
    access: ['batches:read'],
    operation: 'getBatch',
    summary: 'Read a batch and its progress',
    answer: BatchObject,
    async handler(request, { project_id }) {
      const batch = await visibleBatch(store.read, project_id, request.params.batch_id)
      return await showBatchNow({ store, clock, models }, batch, viewOf(request, region))
    },
  })

  route(app, 'POST /v1/batches/:batch_id/cancel', {
    access: ['batches:write'],
    operation: 'cancelBatch',
    summary: 'Cancel a batch',
    description: 'No further line is sent; lines in flight may finish. Finished lines are kept and billed.',
    answer: BatchObject,
    errors: ['batch_not_cancellable'],
    async handler(request, { project_id }) {
      const { batch_id } = request.params
      const batch = await store.write((tx) => cancelBatch(tx, project_id, batch_id, clock.now()))
      wake()
      return showBatch(batch, viewOf(request, region))
    },
  })

  route(app, 'POST /v1/batches/:batch_id/export', {
    access: ['batches:write'],
    operation: 'exportBatch',
    summary: 'Write the results of a batch to a bucket',
    description:
      'Again, after it has failed or what was written is lost; or to another `output_url`; or for the first time. Of a batch that has not ended, it says where its results are written to then. The key needs `files:read` or `batches:read` as well.',
    answer: BatchObject,
    rules: { body: EXPORT_BATCH_RULES },
    errors: ['batch_not_exportable', 'bucket_not_allowed', 'file_not_found'],
    body: Type.Union([ExportBatch, Type.Null()]),
    async handler(request, caller) {
      const batch = await visibleBatch(store.read, caller.project_id, request.params.batch_id)
      const output_url = request.body?.output_url ?? batch.output_url
      if (output_url === null) throw new ApiError('batch_not_exportable')
      checkPlace(buckets, caller, 'write', output_url)
      const exported = await store.write((tx) => requestExport(tx, batch.id, output_url, clock.now()))
      wake()
      return showBatch(exported, viewOf(request, region))
    },
  })

  for (const { action, ...doc } of ACTIONS) {
    route(app, `POST /v1/batches/:batch_id/${action}`, {
      access: ['batches:write'],
      ...doc,
      answer: BatchObject,
      errors: ['batch_not_pausable'],
      async handler(request, { project_id }) {
        const which = { project_id, id: request.params.batch_id }
        const batch = await store.write((tx) => setBatchPaused(tx, which, action === 'pause', clock.now()))
        wake()
        return showBatch(batch, viewOf(request, region))
      },
    })
  }
}

/** Reads a batch in the caller's project. Throws batch_not_found. */
export async function visibleBatch(read: Reader, project_id: string, batch_id: string): Promise<BatchRow> {
  return found(await readOwn(read, 'batches', project_id, batch_id), 'batch_not_found')
}

/** Checks a URL of a bucket. Throws missing_scope, invalid_request and bucket_not_allowed. */
export function checkPlace(
  buckets: RouteDependencies['buckets'],
  caller: Caller,
  use: BucketUse,
  url: string,
): void {
  authorize(caller, BUCKET_SCOPES[use])
  resolveBucketUrl(buckets?.() ?? [], { id: caller.project_id, name: caller.project_name }, use, url)
}

// A row of batches as the API shows it. Times that are not set are left out; for clients of OpenAI's API they are null,
// like every other known field without a value.

const problems = Compile(Type.Array(BatchProblem))

const TIMES = [...Object.values(SHOWN_AT), 'paused_at'] as const

export async function showBatchNow(
  { store, clock, models }: Pick<RouteDependencies, 'store' | 'clock' | 'models'>,
  batch: BatchRow,
  view: View,
): Promise<BatchObject> {
  const batchProgress = await readBatchProgress(store, [batch], clock.now(), models)
  return showBatch(batch, view, batchProgress.get(batch.id))
}

/** Shows a batch. `batchProgress`: for unfinished batches. */
export function showBatch(batch: BatchRow, view: View, batchProgress?: BatchProgress): BatchObject {
  const created = unixSeconds(batch.created)
  const fileId = (id: string | null): string | null => (id === null ? null : shownFileId(id, view))
  const none = view.compat === 'openai' ? null : undefined
  return {
    id: batch.id,
    object: 'batch',
    name: batchName(batch),
    endpoint: batch.endpoint,
    status: batch.status,
    ...(batch.is_gathered === 1 && { kind: 'requests' }),
    input_file_id: shownFileId(batch.input_file_id, view),
    output_file_id: fileId(batch.output_file_id),
    error_file_id: fileId(batch.error_file_id),
    errors: showErrors(batch) ?? none,
    model: modelOf(batch) ?? none,
    completion_window: batch.completion_window,
    request_counts: { total: batch.total, completed: batch.completed, failed: batch.failed },
    not_run: batch.not_run,
    usage: showUsage(batch) ?? none,
    cost_usd: usd(batch.cost_nanos),
    ...(batch.cache_saved_nanos > 0 && { cache_saved_usd: usd(batch.cache_saved_nanos) }),
    region: view.region,
    created,
    created_at: created,
    ...Object.fromEntries(TIMES.map((name) => [name, secondsOrNull(batch[name]) ?? none])),
    expires_at: unixSeconds(batch.expires_at),
    ...shownFields(batch, none),
    ...(batchProgress && showProgress(batchProgress)),
    ...(view.compat === 'openai' && openaiForm(batch)),
  }
}

/**
 * The fields of a batch that differ for clients of OpenAI's API. They do not know `queued`: there, a batch is in
 * progress as soon as its input is validated.
 */
function openaiForm({ status, queued_at, in_progress_at, completed_at }: BatchRow): Partial<BatchObject> {
  const begun = queued_at ?? in_progress_at
  return {
    status: status !== 'queued' ? status : begun === null ? 'validating' : 'in_progress',
    in_progress_at: secondsOrNull(begun),
    // The results are in their files as soon as the last line has ended.
    finalizing_at: secondsOrNull(completed_at),
  }
}

/** The errors of a batch: problems of its first lines if none can run, or why lines of an expired one waited. */
function showErrors({ status, errors }: BatchRow): BatchObject['errors'] {
  if ((status !== 'failed' && status !== 'expired') || errors === null) return undefined
  const data: unknown = JSON.parse(errors)
  return { object: 'list', data: problems.Check(data) ? data : [] }
}

/** The model of a batch whose lines all name the same one. */
function modelOf({ models }: BatchRow): string | undefined {
  const named: unknown = JSON.parse(models ?? '[]')
  return Array.isArray(named) && named.length === 1 ? String(named[0]) : undefined
}

function showUsage(batch: BatchRow): BatchObject['usage'] {
  return {
    input_tokens: batch.prompt_tokens,
    input_tokens_details: recordOf(PROMPT_PARTS, (name) => batch[name]),
    output_tokens: batch.completion_tokens,
    output_tokens_details: recordOf(COMPLETION_PARTS, (name) => batch[name]),
    total_tokens: batch.total_tokens,
  }
}

function showProgress({ progress, waiting_reason }: BatchProgress) {
  const { lines_per_s, estimated_completion, at_risk } = progress
  const { since = null, until = null } = waiting_reason ?? {}
  return {
    progress: {
      lines_per_s: lines_per_s && Math.round(lines_per_s * 100) / 100,
      estimated_completion: secondsOrNull(estimated_completion),
      at_risk,
    },
    waiting_reason: waiting_reason && {
      ...waiting_reason,
      since: secondsOrNull(since) ?? undefined,
      until: secondsOrNull(until) ?? undefined,
    },
  }
}

// The list of batches as CSV.

const COLUMNS: Readonly<Record<string, (batch: BatchRow) => string | number | null>> = {
  id: ({ id }) => id,
  name: batchName,
  status: ({ status }) => status,
  endpoint: ({ endpoint }) => endpoint,
  model: (batch) => modelOf(batch) ?? null,
  entity: ({ metadata, header_entity }) => readMetadata(metadata).entity ?? header_entity,
  created: ({ created }) => new Date(created).toISOString(),
  expires_at: ({ expires_at }) => new Date(expires_at).toISOString(),
  ended_at: (batch) => {
    const at = endedAt(batch)
    return at === undefined ? null : new Date(at).toISOString()
  },
  lines: ({ total }) => total,
  completed: ({ completed }) => completed,
  failed: ({ failed }) => failed,
  not_run: ({ not_run }) => not_run,
  prompt_tokens: ({ prompt_tokens }) => prompt_tokens,
  completion_tokens: ({ completion_tokens }) => completion_tokens,
  cost_usd: ({ cost_nanos }) => usdLiteral(cost_nanos),
}

/** The rows of the list as CSV, a header first. `list` reads a page of batches. */
async function* batchesCsv(
  list: (behind?: string) => Promise<Listed<BatchRow>>,
  cursorOf: (batch: BatchRow) => string,
): AsyncGenerator<Buffer> {
  yield Buffer.from(spreadsheetRecord(Object.keys(COLUMNS)))
  let behind: string | undefined
  do {
    const { rows, lookedTo } = await list(behind)
    const cells = Object.values(COLUMNS)
    const text = rows.map((row) => spreadsheetRecord(cells.map((cell) => cell(row)))).join('')
    if (text !== '') yield Buffer.from(text)
    const last = rows.at(-1)
    behind = last && rows.length === CSV_ROWS_PER_PAGE ? cursorOf(last) : (lookedTo ?? undefined)
  } while (behind !== undefined)
}
