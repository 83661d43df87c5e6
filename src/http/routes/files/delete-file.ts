// DELETE /v1/files/{file_id}
import { ApiError } from '../../../domain/errors.ts'
import { removeFile } from '../../../lifecycle/remove-file.ts'
import { readFile } from '../../../store/files.ts'
import { DeletedFile } from '../../../wire/file.ts'
import { callerOf } from '../../access/caller.ts'
import { viewOf } from '../../access/compat.ts'
import { FileParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { fileIdOf, shownFileId } from './file-id.ts'

export function deleteFileRoute(
  app: App,
  { store, clock, region, wake }: Pick<RouteDependencies, 'store' | 'clock' | 'region' | 'wake'>,
): void {
  route(app, {
    method: 'DELETE',
    url: '/v1/files/:file_id',
    access: ['files:delete', 'files:write'],
    doc: {
      operation: 'deleteFile',
      summary: 'Delete a file and its content',
      description:
        'The file is deleted at once. Batches keep their status, counts and cost. Lines of an unfinished batch of this file that have not been sent fail with `input_file_deleted` and are not billed.',
      answer: DeletedFile,
      errors: ['file_not_found', 'file_not_deletable'],
    },
    accepts: { params: FileParams },
    async handler(request) {
      const { project_id } = callerOf(request)
      const id = fileIdOf(request.params.file_id)
      const now = clock.now()
      await store.write(async (tx) => {
        const file = await readFile(tx, project_id, id, now)
        if (!file) throw new ApiError('file_not_found')
        await removeFile(tx, file, now)
      })
      wake()
      return { id: shownFileId(id, viewOf(request, region)), object: 'file', deleted: true }
    },
  })
}
