// POST /v1/uploads
import { ApiError } from '../../../domain/errors.ts'
import type { Incoming } from '../../../intake/incoming.ts'
import { createUpload } from '../../../intake/upload-parts.ts'
import { CreateUpload, UploadObject } from '../../../wire/upload.ts'
import { callerOf, planOf } from '../../access/caller.ts'
import { viewOf } from '../../access/compat.ts'
import { refuseIdempotencyKey } from '../../request/idempotency.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showUpload } from './show-upload.ts'

type Deps = Pick<RouteDependencies, 'store' | 'clock' | 'region' | 'plans' | 'file_bytes_max'> & {
  incoming: Incoming
}

export function createUploadRoute(app: App, deps: Deps): void {
  const { store, clock, region, plans, file_bytes_max, incoming } = deps
  route(app, {
    method: 'POST',
    url: '/v1/uploads',
    access: ['files:write'],
    doc: {
      operation: 'createUpload',
      summary: 'Begin an upload in parts',
      description:
        'For large files and unreliable connections: parts are sent in any order and at once, survive a restart of the service, and stay for 24 hours.',
      answer: UploadObject,
      rules: { body: { properties: { bytes: { maximum: file_bytes_max } } } },
      errors: ['quota_exceeded'],
    },
    accepts: { body: CreateUpload },
    async handler(request) {
      refuseIdempotencyKey(request.headers)
      const caller = callerOf(request)
      const { filename, mime_type, bytes, expires_after } = request.body
      if (bytes > file_bytes_max)
        throw new ApiError('payload_too_large', `A file has at most ${file_bytes_max} bytes.`, {
          param: 'bytes',
        })
      const order = {
        project_id: caller.project_id,
        quotas: planOf(plans, caller).quotas,
        filename,
        mime_type,
        bytes,
        file_expires_after_ms: expires_after ? expires_after.seconds * 1000 : null,
        running: incoming.files(caller.project_id),
      }
      const upload = await store.write((tx) => createUpload(tx, order, clock.now()))
      return showUpload(upload, viewOf(request, region))
    },
  })
}
