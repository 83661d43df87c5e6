// GET /v1/batches/{batch_id}/lines and …/lines/{line}: the lines of a batch, to browse and one by one.
import { Type } from 'typebox'
import { listLines } from '../../audit/list-lines.ts'
import { readLine } from '../../audit/read-line.ts'
import { ApiError } from '../../domain/errors.ts'
import { LINE_NUMBER_MAX } from '../../domain/ids.ts'
import type { ReadPorts } from '../../results/chunk-journal.ts'
import { BatchLine, LineList, LinesQuery } from '../../wire/batch-line.ts'
import { callerOf } from '../access/caller.ts'
import type { HeavyReads } from '../response/heavy-reads.ts'
import { type App, type RouteDependencies, route } from '../route.ts'
import { BatchParams, visibleBatch } from './batches.ts'

const LIMIT_DEFAULT = 100

const LineParams = Type.Object({ ...BatchParams.properties, line: Type.String() })

export function batchLineRoutes(
  app: App,
  deps: Pick<RouteDependencies, 'store' | 'sealed' | 'clock' | 'models'> & { reads: HeavyReads },
): void {
  const { store, sealed, clock, models, reads } = deps
  const ports = (): ReadPorts => ({ db: store.read, sealed, now: clock.now() })

  route(app, {
    method: 'GET',
    url: '/v1/batches/:batch_id/lines',
    access: ['batches:read'],
    doc: {
      operation: 'listBatchLines',
      summary: 'Browse the lines of a batch',
      description:
        'In the order of the input, also while the batch runs. A page may hold fewer lines than `limit`, even none, and the list still go on: `has_more` says so. `after` takes any line number, so a reader can begin anywhere.',
      answer: LineList,
      errors: ['batch_not_found'],
    },
    accepts: { params: BatchParams, querystring: LinesQuery },
    async handler(request, reply) {
      const { after = 0, limit = LIMIT_DEFAULT, ...filters } = request.query
      const { project_id } = callerOf(request)
      const read = await reads.open(project_id, reply.raw)
      const batch = await visibleBatch(store.read, project_id, request.params.batch_id)
      const order = { ...filters, after, limit }
      const { lines: data, next } = await read.turn(() => listLines(ports(), batch, order))
      return {
        object: 'list',
        data,
        has_more: next !== null,
        next_cursor: next === null ? null : String(next),
        first_id: data[0]?.id ?? null,
        last_id: data.at(-1)?.id ?? null,
      }
    },
  })

  route(app, {
    method: 'GET',
    url: '/v1/batches/:batch_id/lines/:line',
    access: ['batches:read'],
    doc: {
      operation: 'getBatchLine',
      summary: 'Read one line: input, result and record',
      description:
        '`input` is shown to keys that have the scope `files:read` as well; to others it is null. The scope `operator` shows addresses of model servers, too, where others read names.',
      answer: BatchLine,
      errors: ['batch_not_found', 'line_not_found'],
    },
    accepts: { params: LineParams },
    async handler(request, reply) {
      const { project_id, scopes } = callerOf(request)
      const read = await reads.open(project_id, reply.raw)
      const batch = await visibleBatch(store.read, project_id, request.params.batch_id)
      const line = lineNumber(request.params.line)
      if (line === null) throw new ApiError('line_not_found')
      const names = scopes.has('operator') ? null : models
      const found = await read.turn(() => readLine(ports(), batch, line, scopes.has('files:read'), names))
      if (!found) throw new ApiError('line_not_found')
      const text = read.stream(found.text)
      text.on('error', (error) => request.log.error({ err: error, batch_id: batch.id }, 'a line broke off'))
      return reply.type('application/json; charset=utf-8').header('content-length', found.bytes).send(text)
    },
  })
}

function lineNumber(text: string): number | null {
  const line = /^[1-9]\d*$/.test(text) ? Number(text) : Number.NaN
  return line <= LINE_NUMBER_MAX ? line : null
}
