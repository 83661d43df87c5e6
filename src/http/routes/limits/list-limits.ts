// GET /v1/limits
import { Type } from 'typebox'
import { listLimits, readLimit, toLimit } from '../../../store/limits.ts'
import { LimitObject, Scope } from '../../../wire/limit.ts'
import { listOf, PageQuery } from '../../../wire/list.ts'
import { callerOf } from '../../access/caller.ts'
import { readPage } from '../../request/page.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showLimit } from './show-limit.ts'

const Query = Type.Object({
  ...PageQuery,
  scope: Type.Optional(Scope),
  entity: Type.Optional(Type.String({ description: 'Only limits of this entity itself.' })),
})

export function listLimitsRoute(app: App, { store }: Pick<RouteDependencies, 'store'>): void {
  route(app, {
    method: 'GET',
    url: '/v1/limits',
    access: ['limits:read'],
    doc: {
      operation: 'listLimits',
      summary: 'List limits',
      answer: listOf(LimitObject, 'LimitList'),
      errors: ['cursor_not_found'],
    },
    accepts: { querystring: Query },
    async handler(request) {
      const { project_id } = callerOf(request)
      const { scope, entity, ...page } = request.query
      return await readPage(page, {
        exists: async (id) => (await readLimit(store.read, project_id, id)) !== undefined,
        list: (bounds) => listLimits(store.read, project_id, { ...bounds, scope, entity: entity?.trim() }),
        show: (row) => showLimit(toLimit(row)),
      })
    },
  })
}
