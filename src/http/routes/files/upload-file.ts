// POST /v1/files
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from 'typebox'
import { ApiError } from '../../../domain/errors.ts'
import { checkQuotas } from '../../../intake/check-quota.ts'
import { EXPIRES_AFTER_S_MAX } from '../../../intake/expires-after.ts'
import type { Incoming } from '../../../intake/incoming.ts'
import { discard, insertUpload, receiveForm, receiveUpload, type Upload } from '../../../intake/upload.ts'
import type { Writer } from '../../../store/store.ts'
import { FileObject } from '../../../wire/file.ts'
import { callerOf, planOf } from '../../access/caller.ts'
import { viewOf } from '../../access/compat.ts'
import { announcedForm, checkFormLength, formOf } from '../../request/form.ts'
import { hasIdempotencyKey, type Idempotency, IdempotencyHeaders } from '../../request/idempotency.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showFile } from './show-file.ts'

const UploadForm = Type.Object(
  {
    purpose: Type.Literal('batch'),
    file: Type.String({
      contentMediaType: 'application/octet-stream',
      description: 'The JSONL file.',
    }),
    'expires_after[anchor]': Type.Optional(Type.Literal('created_at')),
    'expires_after[seconds]': Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: EXPIRES_AFTER_S_MAX,
        description:
          'Deletes the file this long after its creation, if that is before the end of its retention.',
      }),
    ),
  },
  { title: 'UploadFile' },
)

type Deps = Pick<
  RouteDependencies,
  'store' | 'sealed' | 'clock' | 'region' | 'plans' | 'file_bytes_max' | 'streamingValidation' | 'wake'
> & { idempotency: Idempotency; incoming: Incoming }

/** Call this in the transaction that creates the file. */
type QuotaCheck = (tx: Writer, bytes: number) => Promise<void>

export function uploadFileRoute(app: App, deps: Deps): void {
  const { sealed, clock, region, plans, file_bytes_max, wake, idempotency, incoming } = deps
  route(app, {
    method: 'POST',
    url: '/v1/files',
    access: ['files:write'],
    doc: {
      operation: 'uploadFile',
      summary: 'Upload an input file',
      description:
        'A form (`multipart/form-data`) with the fields `purpose` (`batch`) and `file` (the JSONL), in any order. `Content-Encoding` may be `gzip` or `zstd`. The file is `pending` until it has been validated.',
      answer: FileObject,
      form: UploadForm,
      headers: IdempotencyHeaders,
      errors: [
        'invalid_multipart',
        'quota_exceeded',
        'idempotency_key_reused',
        'idempotency_in_progress',
        'idempotency_cache_not_requested',
      ],
    },
    accepts: {},
    async handler(request, reply) {
      const caller = callerOf(request)
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
    const call = {
      project_id: upload.project_id,
      request_id: request.id,
      route: 'POST /v1/files' as const,
      headers: request.headers,
      request: { filename: received.filename, sha256: received.digest },
    }
    try {
      const answer = await idempotency.once(call, async (tx) => {
        await check(tx, received.content.bytes)
        return JSON.stringify(showFile(await insertUpload(tx, received, upload), viewOf(request, region)))
      })
      if (answer.replayed) {
        await discard(sealed, received)
        reply.header('idempotency-replayed', 'true')
      } else wake()
      return reply.code(answer.status).type('application/json; charset=utf-8').send(answer.text)
    } catch (error) {
      // After another error the commit may have taken effect all the same; if not, the sweep deletes the content.
      if (error instanceof ApiError) await discard(sealed, received)
      throw error
    }
  }
}
