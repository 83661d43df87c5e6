// GET /v1/models
import { Type } from 'typebox'
import { listOf, PageQuery } from '../../../wire/list.ts'
import { ModelObject } from '../../../wire/model.ts'
import { readPage } from '../../request/page.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showModel } from './show-model.ts'

export function listModelsRoute(
  app: App,
  { models, region }: Pick<RouteDependencies, 'models' | 'region'>,
): void {
  route(app, {
    method: 'GET',
    url: '/v1/models',
    access: 'any key',
    doc: {
      operation: 'listModels',
      summary: 'List models',
      answer: listOf(ModelObject, 'ModelList'),
      errors: ['cursor_not_found'],
    },
    accepts: { querystring: Type.Object(PageQuery) },
    async handler(request) {
      // Sorting is stable: models of the same age stay in the order of the configuration.
      const newestFirst = [...models.values()].sort((a, b) => b.created - a.created)
      return await readPage(request.query, {
        exists: async (id) => models.has(id),
        list: async ({ limit, order, behind }) => {
          const models = order === 'asc' ? newestFirst.toReversed() : newestFirst
          const start = models.findIndex((model) => model.id === behind) + 1
          return { rows: models.slice(start, start + limit), lookedTo: null }
        },
        show: (model) => showModel(model, region),
      })
    },
  })
}
