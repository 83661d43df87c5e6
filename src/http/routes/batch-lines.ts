// GET /v1/batches/{batch_id}/lines and …/lines/{line}: the lines of a batch, to browse and one by one.
import { findLines, listLines } from '../../audit/list-lines.ts'
import { readLine } from '../../audit/read-line.ts'
import { unixSeconds } from '../../domain/clock.ts'
import { ApiError, ERRORS, type ErrorRow } from '../../domain/errors.ts'
import { LINE_NUMBER_MAX } from '../../domain/ids.ts'
import { usd } from '../../domain/money.ts'
import { readStatistics } from '../../results/batch-statistics.ts'
import type { ReadPorts } from '../../results/finished-lines.ts'
import { SHOWN_AT } from '../../store/batches.ts'
import {
  BatchErrors,
  BatchLine,
  BatchTimeline,
  FindLinesQuery,
  FoundLineList,
  LineList,
  LinesQuery,
} from '../../wire/batch-line.ts'
import { pageOf } from '../object-routes.ts'
import { type App, found, type RouteDependencies, route } from '../route.ts'
import { visibleBatch } from './batches.ts'

const LIMIT_DEFAULT = 100
const FOUND_DEFAULT = 20

export function batchLineRoutes(app: App, { store, sealed, clock, models, reads }: RouteDependencies): void {
  const ports = (): ReadPorts => ({ db: store.read, sealed, now: clock.now() })

  route(app, 'GET /v1/batches/:batch_id/lines', {
    access: ['batches:read'],
    operation: 'listBatchLines',
    summary: 'Browse the lines of a batch',
    description:
      'In the order of the input, also while the batch runs. A page may hold fewer lines than `limit`, even none, and the list still go on: `has_more` says so. `after` takes any line number, so a reader can begin anywhere.',
    answer: LineList,
    query: LinesQuery.properties,
    async handler(request, { project_id }, reply) {
      const { after = 0, limit = LIMIT_DEFAULT, ...filters } = request.query
      const read = await reads.open(project_id, reply.raw)
      const batch = await visibleBatch(store.read, project_id, request.params.batch_id)
      const order = { ...filters, after, limit }
      const { lines: data, next } = await read.turn(() => listLines(ports(), batch, order))
      return pageOf(data, next === null ? null : String(next))
    },
  })

  route(app, 'GET /v1/lines', {
    access: ['batches:read'],
    operation: 'findLines',
    summary: 'List lines of all batches, or find them by their custom_id',
    description:
      'The newest batch first, within a batch in the order of the input. A page may hold fewer lines than `limit`, even none, and the list still go on: `has_more` says so.',
    answer: FoundLineList,
    errors: ['cursor_not_found'],
    query: FindLinesQuery.properties,
    async handler(request, { project_id }, reply) {
      const { limit = FOUND_DEFAULT, starting_after: behind, ...filter } = request.query
      const read = await reads.open(project_id, reply.raw)
      const order = { ...filter, limit, behind }
      const { lines, next } = await read.turn(() => findLines(ports(), project_id, order))
      return pageOf(lines, next)
    },
  })

  route(app, 'GET /v1/batches/:batch_id/lines/:line', {
    access: ['batches:read'],
    operation: 'getBatchLine',
    summary: 'Read one line: input, result and record',
    description:
      '`input` is shown to keys that have the scope `files:read` as well; to others it is null. The scope `operator` shows addresses of model servers, too, where others read names.',
    answer: BatchLine,
    async handler(request, { project_id, scopes }, reply) {
      const read = await reads.open(project_id, reply.raw)
      const batch = await visibleBatch(store.read, project_id, request.params.batch_id)
      const number = lineNumber(request.params.line)
      if (number === null) throw new ApiError('line_not_found')
      const names = scopes.has('operator') ? null : models
      const line = found(
        await read.turn(() => readLine(ports(), batch, number, scopes.has('files:read'), names)),
        'line_not_found',
      )
      reply.type('application/json; charset=utf-8').header('content-length', line.bytes)
      return reply.send(read.stream(line.text))
    },
  })
}

function lineNumber(text: string): number | null {
  const line = /^[1-9]\d*$/.test(text) ? Number(text) : Number.NaN
  return line <= LINE_NUMBER_MAX ? line : null
}

// GET /v1/batches/{batch_id}/errors and …/timeline: failed lines by error, and finished lines over time.

const BEGAN_AT = { validating: 'created', ...SHOWN_AT } as const

export function batchStatisticsRoutes(app: App, { store }: RouteDependencies): void {
  route(app, 'GET /v1/batches/:batch_id/errors', {
    access: ['batches:read'],
    operation: 'getBatchErrors',
    summary: 'Count the failed lines of a batch by code and message',
    description: 'Also while it runs; the counts are those of its commits.',
    answer: BatchErrors,
    async handler(request, { project_id }): Promise<BatchErrors> {
      const batch = await visibleBatch(store.read, project_id, request.params.batch_id)
      const { errors } = await readStatistics(store.read, batch.id)
      const groups = errors.map((group) => ({ ...group, ...adviceOn(group.code) }))
      groups.sort((a, b) => b.lines - a.lines)
      const known = errors.reduce((sum, { lines }) => sum + lines, 0)
      return {
        object: 'batch_errors',
        batch_id: batch.id,
        failed: Math.max(batch.failed, known),
        not_run: batch.not_run,
        groups,
        other: Math.max(0, batch.failed - known),
      }
    },
  })

  route(app, 'GET /v1/batches/:batch_id/timeline', {
    access: ['batches:read'],
    operation: 'getBatchTimeline',
    summary: 'Read what of a batch finished when',
    description: 'At most 200 points, however long the batch runs.',
    answer: BatchTimeline,
    async handler(request, { project_id }): Promise<BatchTimeline> {
      const batch = await visibleBatch(store.read, project_id, request.params.batch_id)
      const { interval_ms, points } = (await readStatistics(store.read, batch.id)).timeline
      return {
        object: 'batch_timeline',
        batch_id: batch.id,
        interval_s: interval_ms / 1000,
        points: points.map(({ at, cost_nanos, ...counts }) => {
          return { at: unixSeconds(at), ...counts, cost_usd: usd(cost_nanos) }
        }),
        states: Object.entries(BEGAN_AT).flatMap(([status, column]) => {
          const at = batch[column]
          return at === null ? [] : [{ status, at: unixSeconds(at) }]
        }),
      }
    },
  })
}

const CODES: ReadonlyMap<string, ErrorRow> = new Map(Object.entries(ERRORS))

function adviceOn(code: string): { retryable: boolean; advice: string } {
  const { retryable = false, advice = '' } = CODES.get(code) ?? {}
  return { retryable, advice }
}
