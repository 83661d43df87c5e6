// Input files: uploaded, listed, read and deleted. Their content is at file-content.ts.
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { unixSeconds } from '../../domain/clock.ts'
import { ApiError } from '../../domain/errors.ts'
import { FILE_PURPOSES } from '../../domain/file.ts'
import { ID_PREFIXES, isId } from '../../domain/ids.ts'
import { checkQuotas } from '../../intake/check-quota.ts'
import type { Incoming } from '../../intake/incoming.ts'
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
import { fileProblems, listFiles, readFile } from '../../store/files.ts'
import type { FileRow } from '../../store/schema.ts'
import type { Store, Writer } from '../../store/store.ts'
import { readValidation } from '../../store/tasks.ts'
import { hasWorker } from '../../store/workers.ts'
import { DeletedFile, FileObject } from '../../wire/file.ts'
import { listOf, PageQuery } from '../../wire/list.ts'
import { between, oneOf } from '../../wire/shape.ts'
import { planOf, type View, viewOf } from '../access/caller.ts'
import { announcedForm, checkFormLength, formOf } from '../request/form.ts'
import {
  hasIdempotencyKey,
  type Idempotency,
  IdempotencyHeaders,
  idempotentCall,
  sendOnce,
} from '../request/idempotency.ts'
import { readPage } from '../request/page.ts'
import { type App, found, type RouteDependencies, route } from '../route.ts'

const UploadForm = Type.Object(
  {
    purpose: Type.Literal('batch'),
    file: Type.String({
      contentMediaType: 'application/octet-stream',
      description: 'The JSONL file.',
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

/** Call this in the transaction that creates the file. */
type QuotaCheck = (tx: Writer, bytes: number) => Promise<void>

/**
 * Clients of OpenAI's API know IDs of files with a hyphen, and some look for it: `file-…` names the same file as
 * `file_…` wherever an ID is read, and is what those clients are shown.
 */
const HYPHENATED = 'file-'

export function fileRoutes(
  app: App,
  deps: Pick<
    RouteDependencies,
    'store' | 'sealed' | 'clock' | 'region' | 'plans' | 'file_bytes_max' | 'streamingValidation' | 'wake'
  > & { idempotency: Idempotency; incoming: Incoming },
): void {
  const { store, sealed, clock, region, plans, file_bytes_max, wake, idempotency, incoming } = deps
  route(app, 'POST /v1/files', {
    access: ['files:write'],
    operation: 'uploadFile',
    summary: 'Upload an input file',
    description:
      'A form (`multipart/form-data`) with the fields `purpose` (`batch`) and `file` (the JSONL), in any order. `Content-Encoding` may be `gzip` or `zstd`. The file is `pending` until it has been validated.',
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
      const announced = announcedForm(request)
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

  /** An upload under an Idempotency-Key: the same file sent again creates no second file. */
  async function receiveOnce(
    request: FastifyRequest,
    reply: FastifyReply,
    upload: Upload,
    check: QuotaCheck,
  ) {
    const received = await receiveForm(deps, formOf(request, file_bytes_max, 'file'), upload)
    const { filename, digest: sha256 } = received
    const call = idempotentCall(request, 'POST /v1/files', { filename, sha256 })
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

  const purpose = oneOf(FILE_PURPOSES)
  route(app, 'GET /v1/files', {
    access: ['files:read'],
    operation: 'listFiles',
    summary: 'List files',
    answer: listOf(FileObject, 'FileList'),
    query: {
      ...PageQuery,
      purpose: Type.Optional(purpose),
      search: Type.Optional(
        Type.String({
          maxLength: 200,
          description: 'Words that all have to occur, in any case, in the ID or the name.',
        }),
      ),
    },
    async handler(request, { project_id }) {
      const { purpose, search, ...page } = request.query
      const now = clock.now()
      if (page.starting_after !== undefined) page.starting_after = fileIdOf(page.starting_after)
      if (page.after !== undefined) page.after = fileIdOf(page.after)
      return await readPage(page, {
        find: (id) => readFile(store.read, project_id, id, now),
        list: (bounds) => listFiles(store.read, project_id, { ...bounds, purpose, search }, now),
        show: (file) => showFile(file, viewOf(request, region)),
      })
    },
  })

  route(app, 'GET /v1/files/:file_id', {
    access: ['files:read'],
    operation: 'getFile',
    summary: 'Read the metadata and status of a file',
    answer: FileObject,
    errors: ['file_not_found'],
    async handler(request, { project_id }) {
      const id = fileIdOf(request.params.file_id)
      const file = found(await readFile(store.read, project_id, id, clock.now()), 'file_not_found')
      const shown = showFile(file, viewOf(request, region))
      return file.status === 'pending'
        ? { ...shown, waiting_reason: await fileWaitingReason(store, file.id) }
        : shown
    },
  })

  route(app, 'DELETE /v1/files/:file_id', {
    access: ['files:delete', 'files:write'],
    operation: 'deleteFile',
    summary: 'Delete a file and its content',
    description:
      'The file is deleted at once. Batches keep their status, counts and cost. Lines of an unfinished batch of this file that have not been sent fail with `input_file_deleted` and are not billed.',
    answer: DeletedFile,
    errors: ['file_not_found', 'file_not_deletable'],
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
  const created = unixSeconds(file.created)
  return {
    id: shownFileId(file.id, view),
    object: 'file',
    purpose: file.purpose,
    filename: file.filename,
    bytes: file.bytes,
    line_count: file.line_count,
    // The status that OpenAI's clients know for a file that is not yet validated.
    status: view.compat === 'openai' && file.status === 'pending' ? 'uploaded' : file.status,
    ...(file.status_details === null && view.compat !== 'openai'
      ? {}
      : { status_details: file.status_details }),
    ...(file.errors === null ? {} : { errors: fileProblems(file.errors) }),
    region: view.region,
    created,
    created_at: created,
    expires_at: unixSeconds(file.expires_at),
  }
}

/** The ID that a caller means. */
export function fileIdOf(text: string): string {
  const id = text.startsWith(HYPHENATED) ? ID_PREFIXES.file + text.slice(HYPHENATED.length) : text
  return isId('file', id) ? id : text
}

export function shownFileId(id: string, { compat }: View): string {
  return compat === 'openai' && isId('file', id) ? HYPHENATED + id.slice(ID_PREFIXES.file.length) : id
}

/** Why a file is still `pending`. */
async function fileWaitingReason(
  { read, claimSql }: Pick<Store, 'read' | 'claimSql'>,
  file_id: string,
): Promise<NonNullable<FileObject['waiting_reason']>> {
  const task = await readValidation(read, file_id)
  if (task?.state === 'leased') return { code: 'validating', message: 'A worker is reading the file.' }
  if (!(await hasWorker(read, claimSql)))
    return { code: 'no_worker', message: 'No worker is running; the file is validated when one starts.' }
  if (task && task.last_error !== null)
    return {
      code: 'retrying',
      message: 'Its validation failed because of an internal error and is retried.',
    }
  return { code: 'queued', message: 'Its validation waits for a worker with a free task slot.' }
}
