// POST /v1/uploads/{upload_id}/parts
import { Type } from 'typebox'
import { ApiError } from '../../../domain/errors.ts'
import type { Incoming } from '../../../intake/incoming.ts'
import type { FormPart } from '../../../intake/upload.ts'
import { addPart, openUpload } from '../../../intake/upload-parts.ts'
import type { UploadPartRow } from '../../../store/schema.ts'
import { readUpload } from '../../../store/uploads.ts'
import { UploadPartObject } from '../../../wire/upload.ts'
import { callerOf, planOf } from '../../access/caller.ts'
import { announcedForm, checkFormLength, formOf } from '../../request/form.ts'
import { refuseIdempotencyKey } from '../../request/idempotency.ts'
import { UploadParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showUploadPart } from './show-upload.ts'

const PartForm = Type.Object(
  {
    data: Type.String({
      contentMediaType: 'application/octet-stream',
      description: 'The bytes of the part, sent as a file.',
    }),
  },
  { title: 'AddUploadPart' },
)

type Deps = Pick<RouteDependencies, 'store' | 'sealed' | 'clock' | 'plans'> & { incoming: Incoming }

export function addUploadPartRoute(app: App, deps: Deps): void {
  const { store, sealed, clock, plans, incoming } = deps
  route(app, {
    method: 'POST',
    url: '/v1/uploads/:upload_id/parts',
    access: ['files:write'],
    doc: {
      operation: 'addUploadPart',
      summary: 'Send a part of an upload',
      description:
        'A form with the field `data`, a file. Parts may be sent at once and in any order, and again if an answer was lost: `sha256` tells them apart.',
      answer: UploadPartObject,
      form: PartForm,
      errors: ['invalid_multipart', 'upload_not_found', 'upload_not_pending', 'quota_exceeded'],
    },
    accepts: { params: UploadParams },
    async handler(request) {
      refuseIdempotencyKey(request.headers)
      const caller = callerOf(request)
      const owner = { project_id: caller.project_id, quotas: planOf(plans, caller).quotas }
      const now = (): number => clock.now()
      const found = await readUpload(store.read, caller.project_id, request.params.upload_id, now())
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
        if (!added) throw new ApiError('invalid_request', '`data` is required.', { param: 'data' })
        return showUploadPart(added)
      })
    },
  })
}

function refuse({ fieldname }: FormPart, why: string): ApiError {
  const param = fieldname.slice(0, 60)
  return new ApiError('invalid_request', `\`${param}\` ${why}`, { param })
}
