// GET /v1/uploads/{upload_id}
import { ApiError } from '../../../domain/errors.ts'
import { readFile } from '../../../store/files.ts'
import { readUpload } from '../../../store/uploads.ts'
import { UploadObject } from '../../../wire/upload.ts'
import { callerOf } from '../../access/caller.ts'
import { viewOf } from '../../access/compat.ts'
import { UploadParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showUpload } from './show-upload.ts'

export function getUploadRoute(
  app: App,
  { store, clock, region }: Pick<RouteDependencies, 'store' | 'clock' | 'region'>,
): void {
  route(app, {
    method: 'GET',
    url: '/v1/uploads/:upload_id',
    access: ['files:read'],
    doc: {
      operation: 'getUpload',
      summary: 'Read an upload',
      answer: UploadObject,
      errors: ['upload_not_found'],
    },
    accepts: { params: UploadParams },
    async handler(request) {
      const { project_id } = callerOf(request)
      const now = clock.now()
      const upload = await readUpload(store.read, project_id, request.params.upload_id, now)
      if (!upload) throw new ApiError('upload_not_found')
      const file =
        upload.file_id === null ? undefined : await readFile(store.read, project_id, upload.file_id, now)
      return showUpload(upload, viewOf(request, region), file)
    },
  })
}
