// POST /v1/limits/{limit_id}
import { ApiError } from '../../../domain/errors.ts'
import { limitChange } from '../../../ledger/make-limit.ts'
import { readLimit, toLimit, updateLimit } from '../../../store/limits.ts'
import { LimitObject, UPDATE_LIMIT_RULES, UpdateLimit } from '../../../wire/limit.ts'
import { callerOf } from '../../access/caller.ts'
import { LimitParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showLimit } from './show-limit.ts'

export function updateLimitRoute(app: App, { store, wake }: Pick<RouteDependencies, 'store' | 'wake'>): void {
  route(app, {
    method: 'POST',
    url: '/v1/limits/:limit_id',
    access: ['limits:write'],
    doc: {
      operation: 'updateLimit',
      summary: 'Change a limit',
      description:
        'Changes the amount, the action, the description or the fractions. A lower amount applies from the next line on, also to running batches; lines in flight finish.',
      answer: LimitObject,
      rules: { body: UPDATE_LIMIT_RULES },
      errors: ['limit_not_found'],
    },
    accepts: { params: LimitParams, body: UpdateLimit },
    async handler(request) {
      const { project_id } = callerOf(request)
      const id = request.params.limit_id
      const changed = await store.write(async (tx) => {
        const limit = await readLimit(tx, project_id, id)
        if (!limit) throw new ApiError('limit_not_found')
        return await updateLimit(tx, project_id, id, limitChange(request.body ?? {}, limit.metric))
      })
      if (!changed) throw new ApiError('limit_not_found')
      wake()
      return showLimit(toLimit(changed))
    },
  })
}
