// GET /v1/limits/{limit_id}
import { ApiError } from '../../../domain/errors.ts'
import { readLimit, toLimit } from '../../../store/limits.ts'
import { LimitObject } from '../../../wire/limit.ts'
import { callerOf } from '../../access/caller.ts'
import { LimitParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showLimit } from './show-limit.ts'

export function getLimitRoute(app: App, { store }: Pick<RouteDependencies, 'store'>): void {
  route(app, {
    method: 'GET',
    url: '/v1/limits/:limit_id',
    access: ['limits:read'],
    doc: {
      operation: 'getLimit',
      summary: 'Read a limit',
      description: 'The spend under the limit is at `GET /v1/usage/entities`.',
      answer: LimitObject,
      errors: ['limit_not_found'],
    },
    accepts: { params: LimitParams },
    async handler(request) {
      const limit = await readLimit(store.read, callerOf(request).project_id, request.params.limit_id)
      if (!limit) throw new ApiError('limit_not_found')
      return showLimit(toLimit(limit))
    },
  })
}
