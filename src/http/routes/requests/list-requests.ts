// GET /v1/requests: the HTTP calls of the project, newest first.
import { Type } from 'typebox'
import { listHttpRequests, readHttpRequest } from '../../../store/http-requests.ts'
import { listOf, PageQuery } from '../../../wire/list.ts'
import { HttpRequestRecord } from '../../../wire/request-record.ts'
import { callerOf } from '../../access/caller.ts'
import { readPage } from '../../request/page.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { showHttpRequest } from './show-request.ts'

const DEFAULT_DAYS = 30
const DAY_MS = 86_400_000

const SECONDS = { minimum: 0, maximum: 10 ** 11 }

const ListQuery = Type.Object({
  ...PageQuery,
  method: Type.Optional(
    Type.Enum(['GET', 'POST', 'DELETE'], { description: 'Only calls with this method.' }),
  ),
  status: Type.Optional(
    Type.String({
      pattern: '^[1-5](\\d\\d|xx)$',
      description: 'Only calls with this status: `404`, or `4xx`.',
    }),
  ),
  path: Type.Optional(Type.String({ description: 'Only calls whose path begins so.' })),
  api_key_id: Type.Optional(Type.String({ description: 'Only calls with this key.' })),
  since: Type.Optional(
    Type.Integer({
      ...SECONDS,
      description: `Unix seconds: only calls from then on; ${DEFAULT_DAYS} days ago without it.`,
    }),
  ),
  until: Type.Optional(Type.Integer({ ...SECONDS, description: 'Unix seconds: only calls before.' })),
})

export function listRequestsRoute(
  app: App,
  { store, clock }: Pick<RouteDependencies, 'store' | 'clock'>,
): void {
  route(app, {
    method: 'GET',
    url: '/v1/requests',
    access: ['batches:read', 'requests:read'],
    doc: {
      operation: 'listRequests',
      summary: 'List the HTTP calls of the project',
      description: 'Without what was answered: that is in the record of each.',
      answer: listOf(HttpRequestRecord, 'RequestList'),
      errors: ['cursor_not_found'],
    },
    accepts: { querystring: ListQuery },
    async handler(request) {
      const { project_id } = callerOf(request)
      const { method, status, path, api_key_id, since, until, ...page } = request.query
      const filter = {
        method,
        status,
        path,
        key_id: api_key_id,
        since: since === undefined ? clock.now() - DEFAULT_DAYS * DAY_MS : since * 1000,
        until: until === undefined ? undefined : until * 1000,
      }
      return await readPage(page, {
        exists: async (id) => (await readHttpRequest(store.read, project_id, id)) !== undefined,
        list: (bounds) => listHttpRequests(store.read, project_id, { ...bounds, ...filter }),
        show: (row) => showHttpRequest({ ...row, response: null }),
      })
    },
  })
}
