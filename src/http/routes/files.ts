// Uploads, lists, reads, downloads and deletes files.
import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import type { ByteRange } from '../../blobs/blobs.ts'
import { unixSeconds } from '../../domain/clock.ts'
import { ApiError } from '../../domain/errors.ts'
import { FILE_PURPOSES, FOREIGN_PURPOSES, UPLOAD_PURPOSES } from '../../domain/file.ts'
import { ID_PREFIXES, isId } from '../../domain/ids.ts'
import { checkQuotas } from '../../intake/check-quota.ts'
import {
  commitOrDiscard,
  discard,
  EXPIRES_AFTER_S_MAX,
  insertUpload,
  receiveForm,
  receiveUpload,
  type Upload,
} from '../../intake/upload.ts'
import { removeFile } from '../../lifecycle/remove-file.ts'
import { readInOpenAiForm } from '../../results/openai-errors.ts'
import { readContent } from '../../results/read-content.ts'
import { fileProblems, fileSource, listFiles, readFile } from '../../store/files.ts'
import { readRow } from '../../store/rows.ts'
import type { FileRow } from '../../store/schema.ts'
import type { Store, Writer } from '../../store/store.ts'
import { readFileTask } from '../../store/tasks.ts'
import { hasWorker } from '../../store/workers.ts'
import { DeletedFile, FileObject } from '../../wire/file.ts'
import { between, maybeText, oneOf, words } from '../../wire/shape.ts'
import { planOf, quotaHolder, type View, viewOf } from '../access/caller.ts'
import { objectRoutes } from '../object-routes.ts'
import { announcedForm, checkFormLength, formOf } from '../request/form.ts'
import { hasIdempotencyKey, IdempotencyHeaders, idempotentCall, sendOnce } from '../request/idempotency.ts'
import { whenSent } from '../response/long-calls.ts'
import { attachment, RangeNotSatisfiable } from '../response/send-error.ts'
import { type App, found, type RouteDependencies, route } from '../route.ts'

const UploadForm = Type.Object(
  {
    purpose: oneOf(UPLOAD_PURPOSES, '`batch`: lines. `table`: rows, for `table` of a new batch.'),
    file: Type.String({
      contentMediaType: 'application/octet-stream',
      description:
        'The JSONL file, or the table: a name that ends with `.csv`, `.tsv`, `.jsonl` (also with `.gz` or `.zst`) or `.parquet`.',
    }),
    'expires_after[anchor]': Type.Optional(Type.Literal('created_at')),
    'expires_after[seconds]': Type.Optional(
      between(
        1,
        EXPIRES_AFTER_S_MAX,
        'Deletes the file this long after its creation, if that is before the end of its retention.',
      ),
    ),
  },
  { title: 'UploadFile' },
)

/** Checks a quota in the transaction that creates the file. */
type QuotaCheck = (tx: Writer, bytes: number) => Promise<void>

/**
 * The prefix of file IDs for clients of OpenAI's API, some of which require a hyphen: `file-…` names the same file as
 * `file_…` wherever an ID is read, and these clients get it in answers.
 */
const HYPHENATED = 'file-'

export function fileRoutes(app: App, deps: RouteDependencies): void {
  const { store, sealed, clock, region, plans, file_bytes_max, wake, idempotency, incoming } = deps
  route(app, 'POST /v1/files', {
    access: ['files:write'],
    operation: 'uploadFile',
    summary: 'Upload an input file',
    description:
      'A form (`multipart/form-data`) with the fields `purpose` and `file`, in any order. `Content-Encoding` may be `gzip` or `zstd`. The file is `pending` until it has been validated; a table is `processed` at once.',
    answer: FileObject,
    form: UploadForm,
    headers: IdempotencyHeaders,
    errors: ['invalid_multipart', 'quota_exceeded'],
    async handler(request, caller, reply) {
      if (!request.isMultipart())
        throw new ApiError('unsupported_media_type', 'Send the file as `multipart/form-data`.')
      checkFormLength(request, file_bytes_max, 'file')
      const { project_id } = caller
      const { quotas, file_retention_ms } = planOf(plans, caller)
      const isOnce = hasIdempotencyKey(request.headers)
      const earlier = await idempotency.earlierAnswer({ project_id, headers: request.headers })
      // A repeated upload is stored until its content is known to be that of the first.
      const countedBytes = earlier === null ? 0 : Number(JSON.parse(earlier).bytes ?? 0)
      const announced = { ...announcedForm(request), countedBytes }
      const order = {
        project_id,
        now: clock.now(),
        retention_ms: file_retention_ms,
        file_bytes_max,
        form_bytes: announced.bytes,
        ...(isOnce ? { digest: 'sha256' as const } : {}),
      }
      return await incoming.receive({ project_id, quotas }, announced, async (take) => {
        const upload = { ...order, take }
        const check: QuotaCheck = (tx, bytes) =>
          checkQuotas(tx, { project_id, quotas }, { stored_bytes: bytes })
        if (isOnce) return await receiveOnce(request, reply, upload, check)
        const file = await receiveUpload(deps, formOf(request, file_bytes_max, 'file'), upload, check)
        wake()
        return showFile(file, viewOf(request, region))
      })
    },
  })

  /** Receives an upload with an Idempotency-Key: the same file sent again creates no second file. */
  async function receiveOnce(
    request: FastifyRequest,
    reply: FastifyReply,
    upload: Upload,
    check: QuotaCheck,
  ) {
    const received = await receiveForm(deps, formOf(request, file_bytes_max, 'file'), upload)
    const { filename, purpose, digest: sha256, expires_at } = received
    const keptMs = expires_at - upload.now
    const call = idempotentCall(request, 'POST /v1/files', {
      ...{ filename, sha256 },
      ...(purpose !== 'batch' && { purpose }),
      ...(keptMs < upload.retention_ms && { keptMs }),
    })
    const commit = () =>
      idempotency.once(call, async (tx) => {
        await check(tx, received.content.bytes)
        return JSON.stringify(showFile(await insertUpload(tx, received, upload), viewOf(request, region)))
      })
    const answer = await commitOrDiscard(commit, () => discard(sealed, received))
    if (answer.replayed) await discard(sealed, received)
    else wake()
    return sendOnce(reply, answer)
  }

  objectRoutes(app, '/v1/files/:file_id', {
    access: ['files:read'],
    shape: FileObject,
    list: { summary: 'List files' },
    one: { summary: 'Read the metadata and status of a file' },
    query: {
      purpose: Type.Optional(
        oneOf(
          [...FILE_PURPOSES, ...FOREIGN_PURPOSES],
          "No file has one of the other purposes of OpenAI's API.",
        ),
      ),
      search: words('Words that all have to occur, in any case, in the ID or the name.'),
    },
    idOf: fileIdOf,
    find: ({ project_id }, id) => readFile(store.read, project_id, id, clock.now()),
    rows: ({ project_id }, page) => listFiles(store.read, project_id, page, clock.now()),
    show: (file, request) => showFile(file, viewOf(request, region)),
    async showOne(file, request) {
      const shown = showFile(file, viewOf(request, region))
      if (file.status !== 'pending') return shown
      return { ...shown, waiting_reason: await fileWaitingReason(store, file.id) }
    },
  })

  route(app, 'DELETE /v1/files/:file_id', {
    access: ['files:delete', 'files:write'],
    operation: 'deleteFile',
    summary: 'Delete a file and its content',
    description:
      'The file is deleted at once. Batches keep their status, counts and cost. Lines of an unfinished batch of this file that have not been sent fail with `input_file_deleted` and are not billed.',
    answer: DeletedFile,
    errors: ['file_not_deletable'],
    async handler(request, { project_id }) {
      const id = fileIdOf(request.params.file_id)
      const now = clock.now()
      await store.write(async (tx) => {
        const file = found(await readFile(tx, project_id, id, now), 'file_not_found')
        await removeFile(tx, file, now)
      })
      wake()
      return { id: shownFileId(id, viewOf(request, region)), object: 'file' as const, deleted: true as const }
    },
  })
}

export function showFile(file: FileRow, view: View): FileObject {
  const source = fileSource(file)
  const created = unixSeconds(file.created)
  return {
    id: shownFileId(file.id, view),
    object: 'file',
    purpose: file.purpose,
    filename: file.filename,
    bytes: file.bytes,
    line_count: file.line_count,
    // OpenAI's status for a file that is not yet validated.
    status: view.compat === 'openai' && file.status === 'pending' ? 'uploaded' : file.status,
    status_details: file.status_details ?? (view.compat === 'openai' ? null : undefined),
    errors: file.errors === null ? undefined : fileProblems(file.errors),
    source: source && !source.made ? { url: source.url, etag: source.etag } : undefined,
    region: view.region,
    created,
    created_at: created,
    expires_at: unixSeconds(file.expires_at),
  }
}

/** The stored ID of a file's ID in a request. */
export function fileIdOf(text: string): string {
  const id = text.startsWith(HYPHENATED) ? ID_PREFIXES.file + text.slice(HYPHENATED.length) : text
  return isId('file', id) ? id : text
}

export function shownFileId(id: string, { compat }: View): string {
  return compat === 'openai' && isId('file', id) ? HYPHENATED + id.slice(ID_PREFIXES.file.length) : id
}

/** The reason why a file is still `pending`. */
async function fileWaitingReason(
  { read, failing }: Pick<Store, 'read' | 'failing'>,
  file_id: string,
): Promise<NonNullable<FileObject['waiting_reason']>> {
  const task = await readFileTask(read, file_id)
  const isFetched = task?.kind === 'fetch'
  if (task?.state === 'leased')
    return isFetched
      ? { code: 'fetching', message: 'A worker is fetching the file from its bucket.' }
      : {
          code: 'validating',
          message: `A worker is ${task.kind === 'make' ? 'making' : 'reading'} the file.`,
        }
  if (!(await hasWorker(read)))
    return {
      code: 'no_worker',
      message:
        failing === null
          ? 'No worker is running; the file is validated when one starts.'
          : 'The storage of the service is full or fails; the file is validated when its operator has fixed that.',
    }
  if (task && task.last_error !== null)
    return {
      code: 'retrying',
      message: isFetched
        ? 'It could not be fetched from its bucket; that is retried.'
        : 'Its validation failed because of an internal error and is retried.',
    }
  return { code: 'queued', message: 'It waits for a worker with a free task slot.' }
}

// GET and HEAD /v1/files/{file_id}/content.

/** The content type of lines; `application/jsonl` begins with "application/json", which some clients would parse. */
const JSONL = 'application/x-ndjson'

export function fileContentRoute(
  app: App,
  { store, sealed, clock, plans, downloads }: RouteDependencies,
): void {
  route(app, 'GET|HEAD /v1/files/:file_id/content', {
    access: ['files:read'],
    operation: 'getFileContent',
    summary: 'Download a file',
    description:
      'The content as JSONL. `Range` selects one range of bytes, so that an interrupted download can be resumed.',
    answer: Type.String(),
    content_type: JSONL,
    partial: true,
    headers: Type.Object({
      Range: Type.Optional(Type.String({ examples: ['bytes=0-1023'] })),
      'If-None-Match': maybeText('The `ETag` of a copy that the caller has: 304 if the content is the same.'),
    }),
    errors: ['content_not_kept', 'file_not_processed', 'range_not_satisfiable', 'quota_exceeded'],
    async handler(request, { project_id }, reply) {
      const id = fileIdOf(request.params.file_id)
      const file = found(await readFile(store.read, project_id, id, clock.now()), 'file_not_found')
      const { 'if-range': condition, range: wanted } = request.headers
      if (file.content_blob === null && file.part === null)
        throw new ApiError('file_not_processed', 'The file has not been fetched from its bucket.')
      const isRendered = request.compat === 'openai' && file.part === 'error'
      // Lines in OpenAI's form differ from the stored bytes.
      const etag = isRendered ? `"${file.id}-openai"` : `"${file.id}"`
      if (isNamed(etag, request.headers['if-none-match'])) return reply.code(304).header('etag', etag).send()
      reply.headers({
        'accept-ranges': 'bytes',
        'content-disposition': attachment(file.filename),
        etag,
      })
      const asked = condition === undefined || condition === etag ? parseRange(wanted, file.bytes) : null
      if (asked === 'unsatisfiable') throw new RangeNotSatisfiable(file.bytes)
      const range = asked ?? { start: 0, end: file.bytes }
      if (asked)
        reply.code(206).header('content-range', `bytes ${range.start}-${range.end - 1}/${file.bytes}`)
      reply.type(JSONL).header('content-length', range.end - range.start)
      if (request.method === 'HEAD') return reply.send()
      downloads.take(quotaHolder(request, plans), reply.raw)
      const { batch_id, part } = file
      const batch = batch_id === null ? undefined : await readRow(store.read, 'batches', { id: batch_id })
      if (batch && part !== null)
        whenSent(request, reply, { store, clock }, batch, {
          ...{ part, unit: 'bytes' as const },
          range: [range.start, range.end],
        })
      const read = isRendered ? readInOpenAiForm : readContent
      return reply.send(Readable.from(read({ db: store.read, sealed }, file, range), { objectMode: false }))
    },
  })
}

/** Whether `If-None-Match` names this content (RFC 9110 §13.1.2). */
function isNamed(etag: string, header: string | undefined): boolean {
  const tags = (header ?? '').split(',').map((tag) => tag.trim().replace(/^W\//, ''))
  return tags.includes('*') || tags.includes(etag)
}

// The Range header (RFC 9110 §14): one range of bytes. Several ranges and other units are ignored, as the RFC
// allows; the whole content is then sent.
function parseRange(header: string | undefined, bytes: number): ByteRange | 'unsatisfiable' | null {
  const [, first = '', last = ''] = /^bytes=(\d*)-(\d*)$/.exec(header?.replaceAll(' ', '') ?? '') ?? []
  if (first === '' && last === '') return null
  if (first === '') {
    const suffix = Math.min(Number(last), bytes)
    return suffix === 0 ? 'unsatisfiable' : { start: bytes - suffix, end: bytes }
  }
  const start = Number(first)
  const end = last === '' ? bytes : Math.min(Number(last) + 1, bytes)
  if (last !== '' && Number(last) < start) return null
  return start >= bytes ? 'unsatisfiable' : { start, end }
}
