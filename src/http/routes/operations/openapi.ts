// GET /openapi.json
import { Type } from 'typebox'
import { route } from '../../route.ts'
import type { App } from '../../type-provider.ts'
import { openapiDocument } from './openapi-document.ts'

export function openapiRoute(app: App): void {
  let text: string | undefined
  route(app, {
    method: 'GET',
    url: '/openapi.json',
    access: 'public',
    doc: { operation: 'getOpenapi', summary: 'The OpenAPI document', answer: Type.Unknown() },
    accepts: {},
    async handler(_request, reply) {
      // Built at the first call: by then every endpoint is declared.
      text ??= JSON.stringify(openapiDocument(app.routeTable.all))
      return reply.type('application/json; charset=utf-8').send(text)
    },
  })
}
