// Shows audit records: the HTTP calls of the project, newest first, and the record of one call or one line.
import { Type } from 'typebox'
import type { LineRecordText } from '../../audit/read-line.ts'
import { unixSeconds } from '../../domain/clock.ts'
import { parseLineRequestId } from '../../domain/ids.ts'
import { listHttpRequests } from '../../store/calls.ts'
import { type Identity, identitiesAmong } from '../../store/projects.ts'
import { readOwn, readRow } from '../../store/rows.ts'
import type { AnonymousRequestRow, HttpRequestRow } from '../../store/schema.ts'
import { HttpRequestRecord, RequestRecord } from '../../wire/request-record.ts'
import { listOf, maybeText, PageQuery, time } from '../../wire/shape.ts'
import type { Caller } from '../access/caller.ts'
import { readPage } from '../object-routes.ts'
import { type App, found, type RouteDependencies, route } from '../route.ts'

const DEFAULT_DAYS = 30
const DAY_MS = 86_400_000

const ListQuery = {
  ...PageQuery,
  method: Type.Optional(
    Type.Enum(['GET', 'POST', 'DELETE'], { description: 'Only calls with this method.' }),
  ),
  reads: Type.Optional(
    Type.Enum(['true', 'false'], { description: 'With `false`, without calls that only read and dry runs.' }),
  ),
  status: Type.Optional(
    Type.String({
      pattern: '^[1-5](\\d\\d|xx)$',
      description: 'Only calls with this status: `404`, or `4xx`.',
    }),
  ),
  path: maybeText('Only calls whose path begins so.'),
  api_key_id: maybeText('Only calls with this key.'),
  since: time(`only calls from then on; ${DEFAULT_DAYS} days ago without it.`),
  until: time('only calls before.'),
}

export function requestRoutes(
  app: App,
  { store, clock, models, readLineRecord, reads }: RouteDependencies,
): void {
  route(app, 'GET /v1/requests', {
    access: ['batches:read', 'requests:read'],
    operation: 'listRequests',
    summary: 'List the HTTP calls of the project',
    description: 'Without what was answered: that is in the record of each.',
    answer: listOf(HttpRequestRecord, 'RequestList'),
    query: ListQuery,
    async handler(request, { project_id }) {
      const { method, reads, status, path, api_key_id, since, until, ...page } = request.query
      const filter = {
        method,
        withoutReads: reads === 'false' || undefined,
        status,
        path,
        key_id: api_key_id,
        since: since === undefined ? clock.now() - DEFAULT_DAYS * DAY_MS : since * 1000,
        until: until === undefined ? undefined : until * 1000,
      }
      let identities = new Map<string, Identity>()
      return await readPage(page, {
        find: (id) => readOwn(store.read, 'http_requests', project_id, id),
        async list(bounds) {
          const listed = await listHttpRequests(store.read, project_id, { ...bounds, ...filter })
          identities = await identitiesAmong(
            store.read,
            listed.rows.map(({ key_id }) => key_id),
          )
          return listed
        },
        show: (row) => showRequest({ ...row, response: null }, identities),
      })
    },
  })

  async function readLine({ project_id, scopes }: Caller, id: string): Promise<LineRecordText | undefined> {
    const line = parseLineRequestId(id)
    const batch = line && (await readOwn(store.read, 'batches', project_id, line.batchId))
    const names = scopes.has('operator') ? null : models
    return batch ? await readLineRecord(project_id, batch.id, line.line, names) : undefined
  }

  async function readCall(
    { project_id, scopes }: Caller,
    id: string,
  ): Promise<HttpRequestRecord | undefined> {
    const call = await readOwn(store.read, 'http_requests', project_id, id)
    const shown =
      call ?? (scopes.has('operator') ? await readRow(store.read, 'anonymous_requests', { id }) : undefined)
    return shown && showRequest(shown, await identitiesAmong(store.read, [shown.key_id]))
  }

  route(app, 'GET /v1/requests/:request_id', {
    access: ['batches:read', 'requests:read', 'operator'],
    operation: 'getRequest',
    summary: 'Read the audit record of a call or of a line',
    description:
      'The scope `operator` also shows calls without a valid key, such as those that were answered with a 401, and addresses of model servers where others read names.',
    answer: RequestRecord,
    async handler(request, caller, reply) {
      const id = request.params.request_id
      if (parseLineRequestId(id) === null) return found(await readCall(caller, id), 'request_not_found')
      const read = await reads.open(caller.project_id, reply.raw)
      const record = found(await read.turn(() => readLine(caller, id)), 'request_not_found')
      reply.type('application/json; charset=utf-8').header('content-length', record.bytes)
      return reply.send(read.stream(record.text))
    },
  })
}

function showRequest(
  row: HttpRequestRow | AnonymousRequestRow,
  identities: ReadonlyMap<string, Identity>,
): HttpRequestRecord {
  const isAnonymous = 'address' in row
  const { name, issuer = null } = identities.get(row.key_id ?? '') ?? {}
  return {
    id: row.id,
    object: 'request',
    kind: 'http',
    method: row.method,
    path: row.path,
    status_code: row.status,
    api_key_id: row.key_id,
    person: issuer === null ? (name ?? undefined) : undefined,
    ...(issuer !== null && { subject: name ?? '', issuer }),
    address: isAnonymous ? row.address : undefined,
    entity: isAnonymous ? null : row.entity,
    created: unixSeconds(row.created),
    duration_ms: row.duration_ms,
    response: isAnonymous || row.response === null ? null : JSON.parse(row.response),
    traceparent: isAnonymous ? undefined : (row.traceparent ?? undefined),
  }
}
