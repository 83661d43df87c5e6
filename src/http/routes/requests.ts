// Shows audit records: the HTTP calls of the project, newest first, and the record of one call or one line.
import type { FastifyReply } from 'fastify'
import { Type } from 'typebox'
import { parsePosition, positionText, readAuditLog, START } from '../../audit/export-records.ts'
import { type LineRecordText, readLineRecord, readPendingRecord } from '../../audit/read-line.ts'
import { unixSeconds } from '../../domain/clock.ts'
import { DAY_MS } from '../../domain/days.ts'
import { ApiError, invalidParam } from '../../domain/errors.ts'
import { type LinePlace, parseLineRequestId } from '../../domain/ids.ts'
import { cancelLine } from '../../lifecycle/batch.ts'
import { lineWaitingReason } from '../../progress/waiting-reason.ts'
import { findLine } from '../../results/finished-lines.ts'
import { listHttpRequests } from '../../store/calls.ts'
import { readChunkOfLine, readChunksOfLines } from '../../store/chunks.ts'
import { type Identity, identitiesAmong } from '../../store/projects.ts'
import { readOwn, readRow } from '../../store/rows.ts'
import type { AnonymousRequestRow, BatchRow, HttpRequestRow } from '../../store/schema.ts'
import { HttpRequestRecord, LineRecord, RequestRecord } from '../../wire/request-record.ts'
import { between, flagText, listOf, maybeText, PageQuery, time } from '../../wire/shape.ts'
import type { Caller } from '../access/caller.ts'
import { EVERY_PROJECT, projectsOf, readPage } from '../object-routes.ts'
import { together, untilDisconnected, WaitingCalls } from '../response/long-calls.ts'
import { type App, found, type RouteDependencies, route } from '../route.ts'
import { waitMs } from './create-batch.ts'

const DEFAULT_DAYS = 30
const AUDIT_MAX = 1_000
/** The size of a line's record up to which it is no large read, of which a project has few at once. */
const SMALL_BYTES_MAX = 64 * 1024

const ListQuery = {
  ...PageQuery,
  method: Type.Optional(
    Type.Enum(['GET', 'POST', 'DELETE'], { description: 'Only calls with this method.' }),
  ),
  reads: flagText('With `false`, without calls that only read and dry runs.'),
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

/** Functions that find and cancel lines by their request IDs; they throw request_not_found. */
export function lineReader({ store, sealed, clock, models, wake }: RouteDependencies) {
  async function placeOf({ project_id }: Caller, id: string): Promise<{ batch: BatchRow; line: number }> {
    const place = parseLineRequestId(id)
    const batch = place && (await readOwn(store.read, 'batches', project_id, place.batchId))
    if (!batch) throw new ApiError('request_not_found')
    return { batch, line: place.line }
  }

  /** Reads the record of a line: text once it has ended, else an object. */
  async function find(caller: Caller, id: string): Promise<LineRecordText | LineRecord> {
    const { batch, line } = await placeOf(caller, id)
    const now = clock.now()
    const ports = { db: store.read, sealed, now }
    const chunk = found(await readChunkOfLine(store.read, batch.id, line), 'request_not_found')
    const ended = await readLineRecord(ports, chunk, line, caller.scopes.has('operator') ? null : models)
    if (ended) return ended
    const pending = found(await readPendingRecord(ports, batch, chunk, line), 'request_not_found')
    const waiting_reason = await lineWaitingReason(store, batch, chunk, now, models)
    return { ...pending, waiting_reason, expires_at: unixSeconds(batch.expires_at) }
  }

  return {
    find,
    placeOf,
    async readLine(caller: Caller, id: string): Promise<LineRecord> {
      const record = await find(caller, id)
      if (!('text' in record)) return record
      return JSON.parse(Buffer.concat(await Array.fromAsync(record.text)).toString('utf8'))
    },
    async cancel(caller: Caller, id: string): Promise<void> {
      const { batch, line } = await placeOf(caller, id)
      await store.write((tx) => cancelLine(tx, batch.id, line))
      wake()
    },
  }
}

export function requestRoutes(app: App, deps: RouteDependencies): void {
  const { store, sealed, clock, models, reads } = deps
  const lines = lineReader(deps)
  const waiting = new WaitingCalls(clock, deps.closing)
  const chunkOf = together((places: readonly LinePlace[]) => readChunksOfLines(store.read, places))

  /** Makes a function that reads whether a line has ended, or does not exist. */
  function ending(place: LinePlace): () => Promise<boolean> {
    return async () => {
      const chunk = await chunkOf(place)
      if (!chunk || chunk.state === 'sealed') return true
      if (chunk.completed + chunk.failed === 0) return false
      const ports = { db: store.read, sealed, now: clock.now() }
      return (await findLine(ports, chunk, place.line)) !== undefined
    }
  }

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

  async function sendLine(
    caller: Caller,
    id: string,
    reply: FastifyReply,
  ): Promise<FastifyReply | LineRecord> {
    const read = reads.begin(caller.project_id, reply.raw)
    const find = () => read.turn(() => lines.find(caller, id))
    let record = await find()
    if ('text' in record && record.bytes > SMALL_BYTES_MAX) {
      await reads.grow(read)
      // Its content may have been deleted meanwhile.
      record = await find()
    }
    if (!('text' in record)) return record
    reply.type('application/json; charset=utf-8').header('content-length', record.bytes)
    return reply.send(read.stream(record.text))
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

  route(app, 'GET /v1/audit', {
    access: ['batches:read', 'requests:read', 'operator'],
    operation: 'exportAudit',
    summary: 'Read the audit log in order',
    description:
      'Records of calls and of lines, oldest first, as JSONL. Each has a `cursor`, which `after` takes; `X-Next-After` is that of the next call, `X-Has-More` whether there is more to read now. Records appear two minutes after a call was answered, or the chunk of a line was sealed.',
    answer: Type.String(),
    content_type: 'application/x-ndjson',
    errors: ['missing_scope', 'project_not_found'],
    query: {
      after: maybeText('The `cursor` of the last record that was read; from the first one without it.'),
      limit: Type.Optional(between(1, AUDIT_MAX, 'At most so many records.', AUDIT_MAX)),
      project_id: maybeText('Another project, or `all`. Needs the scope `operator`.'),
    },
    async handler(request, caller, reply) {
      const { after: text, limit = AUDIT_MAX, project_id: asked } = request.query
      const after = text === undefined ? START : parsePosition(text)
      if (!after) throw invalidParam('after', '`after` must be the `cursor` of a record.')
      const projects = await projectsOf(store.read, caller, asked)
      const read = await reads.open(caller.project_id, reply.raw)
      const ports = { db: store.read, sealed, now: clock.now() }
      const isOperator = caller.scopes.has('operator')
      const order = { after, limit, models: isOperator ? null : models }
      const page = await read.turn(() => {
        const project_id = asked === EVERY_PROJECT ? null : (projects[0]?.id ?? caller.project_id)
        return readAuditLog(ports, { project_id, ...order })
      })
      const identities = await identitiesAmong(
        store.read,
        page.entries.map((entry) => ('call' in entry ? entry.call.key_id : null)),
      )
      const lines = page.entries.map((entry) => {
        const record =
          'call' in entry ? JSON.stringify(showRequest(entry.call, identities)) : entry.line.toString()
        const project =
          'call' in entry && asked === EVERY_PROJECT ? `,"project_id":"${entry.call.project_id}"` : ''
        return `${record.slice(0, -1)}${project},"cursor":"${positionText(entry)}"}\n`
      })
      reply.headers({ 'x-next-after': positionText(page.next), 'x-has-more': String(page.hasMore) })
      return reply.type('application/x-ndjson').send(lines.join(''))
    },
  })

  route(app, 'GET /v1/requests/:request_id', {
    access: ['batches:read', 'requests:read', 'operator'],
    operation: 'getRequest',
    summary: 'Read the audit record of a call or of a line',
    description:
      'The scope `operator` also shows calls without a valid key, such as those that were answered with a 401, and addresses of model servers where others read names.',
    answer: RequestRecord,
    query: {
      wait: maybeText(
        'How long the answer waits for the end of a line: a duration up to `60s`, such as `30s`.',
      ),
    },
    async handler(request, caller, reply) {
      const id = request.params.request_id
      const line = parseLineRequestId(id)
      if (line === null) return found(await readCall(caller, id), 'request_not_found')
      const { project_id } = caller
      const ms = request.query.wait === undefined ? 0 : waitMs(request.query.wait)
      if (ms > 0 && (await readOwn(store.read, 'batches', project_id, line.batchId)))
        await untilDisconnected(request, (signal) => waiting.wait({ project_id, ms, signal }, ending(line)))
      return await sendLine(caller, id, reply)
    },
  })

  route(app, 'POST /v1/requests/:request_id/cancel', {
    access: ['batches:write'],
    operation: 'cancelRequest',
    summary: 'Cancel one line of a batch',
    description:
      'It is not sent any more; while it is in flight, its answer may still come and is billed. A line that has ended stays as it is. The answer is its record.',
    answer: LineRecord,
    async handler(request, caller, reply) {
      await lines.cancel(caller, request.params.request_id)
      return await sendLine(caller, request.params.request_id, reply)
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
