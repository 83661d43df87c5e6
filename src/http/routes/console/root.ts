// GET /: leads a browser to the console. Anything else that asks is told, as ever, that there is no such endpoint.
import { ApiError } from '../../../domain/errors.ts'
import { route } from '../../route.ts'
import type { App } from '../../type-provider.ts'

export function rootRoute(app: App): void {
  route(app, {
    method: 'GET',
    url: '/',
    access: 'public',
    doc: null,
    accepts: {},
    async handler({ headers, method }, reply) {
      if (!headers.accept?.includes('text/html'))
        throw new ApiError('unknown_endpoint', `There is no ${method} /.`)
      return reply.redirect('/console')
    },
  })
}
