// GET /v1/models/{model}; a model's ID may contain slashes.
import { Type } from 'typebox'
import { ApiError } from '../../../domain/errors.ts'
import { ModelObject } from '../../../wire/model.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showModel } from './show-model.ts'

export function getModelRoute(
  app: App,
  { models, region }: Pick<RouteDependencies, 'models' | 'region'>,
): void {
  route(app, {
    method: 'GET',
    url: '/v1/models/*',
    access: 'any key',
    doc: {
      operation: 'getModel',
      summary: 'Read a model, its features and its price',
      answer: ModelObject,
      errors: ['model_not_found'],
    },
    accepts: { params: Type.Object({ '*': Type.String({ description: 'The ID of the model.' }) }) },
    async handler(request) {
      const model = models.get(request.params['*'])
      if (!model) throw new ApiError('model_not_found', undefined, { param: 'model' })
      return showModel(model, region)
    },
  })
}
