// Creates, completes and cancels uploads in parts, which become files.
import { Type } from 'typebox'
import { unixSeconds } from '../../domain/clock.ts'
import { ApiError, invalidParam } from '../../domain/errors.ts'
import type { FormPart } from '../../intake/upload.ts'
import {
  addPart,
  type Completed,
  createUpload,
  openUpload,
  UploadCompletions,
} from '../../intake/upload-parts.ts'
import { findFile } from '../../store/files.ts'
import { readRow } from '../../store/rows.ts'
import type { FileRow, UploadPartRow, UploadRow } from '../../store/schema.ts'
import { endUpload, listUploadParts, listUploads, lockUpload, readUpload } from '../../store/uploads.ts'
import {
  CompleteUpload,
  CreateUpload,
  UploadObject,
  UploadPartObject,
  UploadStatusShape,
} from '../../wire/file.ts'
import { listOf, PageQuery } from '../../wire/shape.ts'
import { planOf, quotaHolder, type View, viewOf } from '../access/caller.ts'
import { objectRoutes, readPage } from '../object-routes.ts'
import { announcedForm, checkFormLength, formOf } from '../request/form.ts'
import { whileConnected } from '../response/long-calls.ts'
import { type App, found, type RouteDependencies, route } from '../route.ts'
import { showFile } from './files.ts'

const PartForm = Type.Object(
  {
    data: Type.String({
      contentMediaType: 'application/octet-stream',
      description: 'The bytes of the part, sent as a file.',
    }),
  },
  { title: 'AddUploadPart' },
)

export function uploadRoutes(app: App, deps: RouteDependencies): void {
  const { store, clock, region, plans, file_bytes_max, sealed, wake, incoming } = deps
  route(app, 'POST /v1/uploads', {
    access: ['files:write'],
    operation: 'createUpload',
    summary: 'Begin an upload in parts',
    description:
      'For large files and unreliable connections: parts are sent in any order and at once, survive a restart of the service, and stay for 24 hours.',
    answer: UploadObject,
    rules: { body: { properties: { bytes: { maximum: file_bytes_max } } } },
    errors: ['quota_exceeded'],
    body: CreateUpload,
    takesNoKey: true,
    async handler(request) {
      const owner = quotaHolder(request, plans)
      const { filename, mime_type, bytes, expires_after } = request.body
      if (bytes > file_bytes_max)
        throw new ApiError('payload_too_large', `A file has at most ${file_bytes_max} bytes.`, {
          param: 'bytes',
        })
      const order = {
        ...owner,
        ...{ filename, mime_type, bytes },
        file_expires_after_ms: expires_after ? expires_after.seconds * 1000 : null,
        running: incoming.files(owner.project_id),
      }
      const upload = await store.write((tx) => createUpload(tx, order, clock.now()))
      return showUpload(upload, viewOf(request, region))
    },
  })

  objectRoutes(app, '/v1/uploads/:upload_id', {
    access: ['files:read'],
    shape: UploadObject,
    list: {
      summary: 'List uploads in parts',
      description: 'Those that are completed come without their file.',
    },
    one: { summary: 'Read an upload' },
    query: { status: Type.Optional(UploadStatusShape) },
    find: ({ project_id }, id) => readUpload(store.read, project_id, id, clock.now()),
    rows: ({ project_id }, page) => listUploads(store.read, project_id, page, clock.now()),
    show(upload, request) {
      const { file: _, ...shown } = showUpload(upload, viewOf(request, region))
      return shown
    },
    async showOne(upload, request) {
      const { project_id, file_id } = upload
      const file = file_id === null ? undefined : await findFile(store.read, project_id, file_id, clock.now())
      return showUpload(upload, viewOf(request, region), file)
    },
  })

  route(app, 'POST /v1/uploads/:upload_id/parts', {
    access: ['files:write'],
    operation: 'addUploadPart',
    summary: 'Send a part of an upload',
    description:
      'A form with the field `data`, a file. Parts may be sent at once and in any order, and again if an answer was lost: `sha256` tells them apart.',
    answer: UploadPartObject,
    form: PartForm,
    errors: ['invalid_multipart', 'upload_not_pending', 'quota_exceeded'],
    takesNoKey: true,
    async handler(request) {
      const owner = quotaHolder(request, plans)
      const now = (): number => clock.now()
      const found = await readUpload(store.read, owner.project_id, request.params.upload_id, now())
      const upload = openUpload(found)
      checkFormLength(request, upload.bytes, 'data')
      const partOf = { id: upload.id, left: upload.bytes - upload.part_bytes }
      return await incoming.receive(owner, { ...announcedForm(request), partOf }, async (take) => {
        let added: UploadPartRow | null = null
        for await (const part of formOf(request, upload.bytes, 'data')) {
          if (added) throw refuse(part, 'comes after the part. Send the field `data` alone.')
          if (part.fieldname !== 'data')
            throw refuse(part, 'is no field of this form. It has the field `data`.')
          if (part.type !== 'file') throw refuse(part, 'must be sent as a file, with a filename.')
          added = await addPart({ store, sealed }, owner, upload, part.file, take, now)
        }
        if (!added) throw invalidParam('data', '`data` is required.')
        return showUploadPart(added)
      })
    },
  })

  route(app, 'GET /v1/uploads/:upload_id/parts', {
    access: ['files:read'],
    operation: 'listUploadParts',
    summary: 'List the parts that have arrived',
    description: 'What an upload goes on with after a broken connection. Empty once the upload has ended.',
    answer: listOf(UploadPartObject),
    query: PageQuery,
    async handler(request, { project_id }) {
      const upload = found(
        await readUpload(store.read, project_id, request.params.upload_id, clock.now()),
        'upload_not_found',
      )
      return await readPage(request.query, {
        find: (id) => readRow(store.read, 'upload_parts', { upload_id: upload.id, id }),
        list: (bounds) => listUploadParts(store.read, upload, bounds),
        show: showUploadPart,
      })
    },
  })

  const completions = new UploadCompletions(deps)
  route(app, 'POST /v1/uploads/:upload_id/complete', {
    access: ['files:write'],
    operation: 'completeUpload',
    summary: 'Make a file of an upload',
    description:
      'Of its parts in the given order. The file is validated like any other. A call that is repeated is answered with the same file; while one runs, a call that asks for something else is rejected.',
    answer: UploadObject,
    errors: ['upload_not_pending', 'upload_completing', 'upload_mismatch', 'quota_exceeded'],
    body: CompleteUpload,
    async handler(request, caller) {
      const { project_id } = caller
      const { quotas, file_retention_ms: retention_ms } = planOf(plans, caller)
      const { part_ids, md5 = null } = request.body
      const { upload, file } = await whileConnected(
        request,
        (signal): Promise<Completed> =>
          completions.complete(
            { project_id, quotas },
            request.params.upload_id,
            { part_ids, md5 },
            { retention_ms, file_bytes_max },
            signal,
          ),
      )
      wake()
      return showUpload(upload, viewOf(request, region), file)
    },
  })

  route(app, 'POST /v1/uploads/:upload_id/cancel', {
    access: ['files:write'],
    operation: 'cancelUpload',
    summary: 'Cancel an upload',
    description: 'Its parts are deleted. Cancelling again changes nothing.',
    answer: UploadObject,
    errors: ['upload_not_pending'],
    async handler(request, { project_id }) {
      const now = clock.now()
      const cancelled = await store.write(async (tx) => {
        const upload = await lockUpload(tx, project_id, request.params.upload_id, now)
        if (upload?.status === 'cancelled') return upload
        const open = openUpload(upload)
        await endUpload(tx, open.id, { status: 'cancelled', file_id: null }, now)
        return { ...open, status: 'cancelled' as const }
      })
      wake()
      return showUpload(cancelled, viewOf(request, region))
    },
  })
}

function refuse({ fieldname }: FormPart, why: string): ApiError {
  const param = fieldname.slice(0, 60)
  return invalidParam(param, `\`${param}\` ${why}`)
}

/** Shows an upload. `file`: that of a completed upload, while it exists. */
function showUpload(upload: UploadRow, view: View, file?: FileRow): UploadObject {
  return {
    id: upload.id,
    object: 'upload',
    status: upload.status,
    filename: upload.filename,
    purpose: 'batch',
    mime_type: upload.mime_type,
    bytes: upload.bytes,
    part_bytes: upload.part_bytes,
    created_at: unixSeconds(upload.created),
    expires_at: unixSeconds(upload.expires_at),
    ...((upload.status === 'completed' || view.compat === 'openai') && {
      file: file ? showFile(file, view) : null,
    }),
  }
}

function showUploadPart(part: UploadPartRow): UploadPartObject {
  return {
    id: part.id,
    object: 'upload.part',
    upload_id: part.upload_id,
    bytes: part.bytes,
    sha256: part.sha256,
    created_at: unixSeconds(part.created),
  }
}
