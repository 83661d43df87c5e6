// GET /v1/batches/{batch_id}/lines and …/lines/{line}: the lines of a batch, to browse and one by one.
import { Readable } from 'node:stream'
import { Type } from 'typebox'
import { listLines } from '../../../audit/list-lines.ts'
import { readLine } from '../../../audit/read-line.ts'
import { ApiError } from '../../../domain/errors.ts'
import { LINE_NUMBER_MAX } from '../../../domain/ids.ts'
import type { ReadPorts } from '../../../results/chunk-journal.ts'
import { BatchLine, LineList, LinesQuery } from '../../../wire/batch-line.ts'
import { callerOf } from '../../access/caller.ts'
import { BatchParams } from '../../request/params.ts'
import { route } from '../../route.ts'
import type { RouteDependencies } from '../../route-dependencies.ts'
import type { App } from '../../type-provider.ts'
import { visibleBatch } from './visible-batch.ts'

const LIMIT_DEFAULT = 100

const LineParams = Type.Object({ ...BatchParams.properties, line: Type.String() })

export function batchLineRoutes(
  app: App,
  { store, sealed, clock, models }: Pick<RouteDependencies, 'store' | 'sealed' | 'clock' | 'models'>,
): void {
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
    async handler(request) {
      const { after = 0, limit = LIMIT_DEFAULT, ...filters } = request.query
      const batch = await visibleBatch(store.read, callerOf(request).project_id, request.params.batch_id)
      const { lines: data, next } = await listLines(ports(), batch, { ...filters, after, limit })
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
      const batch = await visibleBatch(store.read, project_id, request.params.batch_id)
      const line = lineNumber(request.params.line)
      const names = scopes.has('operator') ? null : models
      const found =
        line === null ? undefined : await readLine(ports(), batch, line, scopes.has('files:read'), names)
      if (!found) throw new ApiError('line_not_found')
      const text = Readable.from(found.text, { objectMode: false })
      text.on('error', (error) => request.log.error({ err: error, batch_id: batch.id }, 'a line broke off'))
      return reply.type('application/json; charset=utf-8').header('content-length', found.bytes).send(text)
    },
  })
}

function lineNumber(text: string): number | null {
  const line = /^[1-9]\d*$/.test(text) ? Number(text) : Number.NaN
  return line <= LINE_NUMBER_MAX ? line : null
}
