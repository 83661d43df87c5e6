// DELETE /v1/limits/{limit_id}
import { ApiError } from '../../../domain/errors.ts'
import { deleteLimit } from '../../../store/limits.ts'
import { DeletedLimit } from '../../../wire/limit.ts'
import { callerOf } from '../../access/caller.ts'
import { LimitParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'

export function deleteLimitRoute(app: App, { store, wake }: Pick<RouteDependencies, 'store' | 'wake'>): void {
  route(app, {
    method: 'DELETE',
    url: '/v1/limits/:limit_id',
    access: ['limits:write'],
    doc: {
      operation: 'deleteLimit',
      summary: 'Delete a limit',
      answer: DeletedLimit,
      errors: ['limit_not_found'],
    },
    accepts: { params: LimitParams },
    async handler(request) {
      const { project_id } = callerOf(request)
      const id = request.params.limit_id
      if (!(await store.write((tx) => deleteLimit(tx, project_id, id)))) throw new ApiError('limit_not_found')
      wake()
      return { id, object: 'limit', deleted: true }
    },
  })
}
