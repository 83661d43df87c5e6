// GET /v1/files/{file_id}
import { ApiError } from '../../../domain/errors.ts'
import { readFile } from '../../../store/files.ts'
import { FileObject } from '../../../wire/file.ts'
import { callerOf } from '../../access/caller.ts'
import { viewOf } from '../../access/compat.ts'
import { FileParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { fileIdOf } from './file-id.ts'
import { fileWaitingReason } from './file-waiting-reason.ts'
import { showFile } from './show-file.ts'

export function getFileRoute(
  app: App,
  { store, clock, region }: Pick<RouteDependencies, 'store' | 'clock' | 'region'>,
): void {
  route(app, {
    method: 'GET',
    url: '/v1/files/:file_id',
    access: ['files:read'],
    doc: {
      operation: 'getFile',
      summary: 'Read the metadata and status of a file',
      answer: FileObject,
      errors: ['file_not_found'],
    },
    accepts: { params: FileParams },
    async handler(request) {
      const id = fileIdOf(request.params.file_id)
      const file = await readFile(store.read, callerOf(request).project_id, id, clock.now())
      if (!file) throw new ApiError('file_not_found')
      const shown = showFile(file, viewOf(request, region))
      return file.status === 'pending'
        ? { ...shown, waiting_reason: await fileWaitingReason(store, file.id) }
        : shown
    },
  })
}
