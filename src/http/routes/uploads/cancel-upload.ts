// POST /v1/uploads/{upload_id}/cancel

import { openUpload } from '../../../intake/upload-parts.ts'
import { endUpload, lockUpload } from '../../../store/uploads.ts'
import { UploadObject } from '../../../wire/upload.ts'
import { callerOf } from '../../access/caller.ts'
import { viewOf } from '../../access/compat.ts'
import { UploadParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showUpload } from './show-upload.ts'

type Deps = Pick<RouteDependencies, 'store' | 'clock' | 'region' | 'wake'>

export function cancelUploadRoute(app: App, { store, clock, region, wake }: Deps): void {
  route(app, {
    method: 'POST',
    url: '/v1/uploads/:upload_id/cancel',
    access: ['files:write'],
    doc: {
      operation: 'cancelUpload',
      summary: 'Cancel an upload',
      description: 'Its parts are deleted. Cancelling again changes nothing.',
      answer: UploadObject,
      errors: ['upload_not_found', 'upload_not_pending'],
    },
    accepts: { params: UploadParams },
    async handler(request) {
      const { project_id } = callerOf(request)
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
