// GET /v1/uploads/{upload_id}/parts
import { Type } from 'typebox'
import { ApiError } from '../../../domain/errors.ts'
import { listUploadParts, readUpload, readUploadPart } from '../../../store/uploads.ts'
import { listOf, PageQuery } from '../../../wire/list.ts'
import { UploadPartObject } from '../../../wire/upload.ts'
import { callerOf } from '../../access/caller.ts'
import { readPage } from '../../request/page.ts'
import { UploadParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showUploadPart } from './show-upload.ts'

export function listUploadPartsRoute(
  app: App,
  { store, clock }: Pick<RouteDependencies, 'store' | 'clock'>,
): void {
  route(app, {
    method: 'GET',
    url: '/v1/uploads/:upload_id/parts',
    access: ['files:read'],
    doc: {
      operation: 'listUploadParts',
      summary: 'List the parts that have arrived',
      description: 'What an upload goes on with after a broken connection. Empty once the upload has ended.',
      answer: listOf(UploadPartObject, 'UploadPartList'),
      errors: ['upload_not_found', 'cursor_not_found'],
    },
    accepts: { params: UploadParams, querystring: Type.Object(PageQuery) },
    async handler(request) {
      const { project_id } = callerOf(request)
      const upload = await readUpload(store.read, project_id, request.params.upload_id, clock.now())
      if (!upload) throw new ApiError('upload_not_found')
      return await readPage(request.query, {
        exists: async (id) => (await readUploadPart(store.read, upload.id, id)) !== undefined,
        list: (bounds) => listUploadParts(store.read, upload, bounds),
        show: showUploadPart,
      })
    },
  })
}
