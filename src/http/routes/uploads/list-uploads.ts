// GET /v1/uploads
import { Type } from 'typebox'
import { listUploads, readUpload } from '../../../store/uploads.ts'
import { listOf, PageQuery } from '../../../wire/list.ts'
import { UploadObject, UploadStatusShape } from '../../../wire/upload.ts'
import { callerOf } from '../../access/caller.ts'
import { viewOf } from '../../access/compat.ts'
import { readPage } from '../../request/page.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showUpload } from './show-upload.ts'

export function listUploadsRoute(
  app: App,
  { store, clock, region }: Pick<RouteDependencies, 'store' | 'clock' | 'region'>,
): void {
  route(app, {
    method: 'GET',
    url: '/v1/uploads',
    access: ['files:read'],
    doc: {
      operation: 'listUploads',
      summary: 'List uploads in parts',
      description: 'Those that are completed come without their file.',
      answer: listOf(UploadObject, 'UploadList'),
      errors: ['cursor_not_found'],
    },
    accepts: { querystring: Type.Object({ ...PageQuery, status: Type.Optional(UploadStatusShape) }) },
    async handler(request) {
      const { project_id } = callerOf(request)
      const { status, ...page } = request.query
      const now = clock.now()
      return await readPage(page, {
        exists: async (id) => (await readUpload(store.read, project_id, id, now)) !== undefined,
        list: (bounds) => listUploads(store.read, project_id, { ...bounds, status }, now),
        show: (upload) => {
          const { file: _, ...shown } = showUpload(upload, viewOf(request, region))
          return shown
        },
      })
    },
  })
}
