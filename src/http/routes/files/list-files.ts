// GET /v1/files
import { Type } from 'typebox'
import { FILE_PURPOSES, type FilePurpose } from '../../../domain/file.ts'
import { listFiles, readFile } from '../../../store/files.ts'
import { FileObject } from '../../../wire/file.ts'
import { listOf, PageQuery } from '../../../wire/list.ts'
import { callerOf } from '../../access/caller.ts'
import { viewOf } from '../../access/compat.ts'
import { readPage } from '../../request/page.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { fileIdOf } from './file-id.ts'
import { showFile } from './show-file.ts'

export function listFilesRoute(
  app: App,
  { store, clock, region }: Pick<RouteDependencies, 'store' | 'clock' | 'region'>,
): void {
  const purpose = Type.Unsafe<FilePurpose>({ type: 'string', enum: [...FILE_PURPOSES] })
  route(app, {
    method: 'GET',
    url: '/v1/files',
    access: ['files:read'],
    doc: {
      operation: 'listFiles',
      summary: 'List files',
      answer: listOf(FileObject, 'FileList'),
      errors: ['cursor_not_found'],
    },
    accepts: { querystring: Type.Object({ ...PageQuery, purpose: Type.Optional(purpose) }) },
    async handler(request) {
      const { project_id } = callerOf(request)
      const { purpose, ...page } = request.query
      const now = clock.now()
      if (page.starting_after !== undefined) page.starting_after = fileIdOf(page.starting_after)
      if (page.after !== undefined) page.after = fileIdOf(page.after)
      return await readPage(page, {
        exists: async (id) => (await readFile(store.read, project_id, id, now)) !== undefined,
        list: (bounds) => listFiles(store.read, project_id, { ...bounds, purpose }, now),
        show: (file) => showFile(file, viewOf(request, region)),
      })
    },
  })
}
