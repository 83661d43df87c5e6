// GET /v1/batches/{batch_id}/errors and …/timeline: what failed and why, and what finished when.
import { unixSeconds } from '../../domain/clock.ts'
import { ERRORS, type ErrorRow } from '../../domain/errors.ts'
import { usd } from '../../domain/money.ts'
import { readStatistics } from '../../results/batch-statistics.ts'
import { BatchErrors, BatchTimeline } from '../../wire/batch-line.ts'
import { callerOf } from '../access/caller.ts'
import { type App, type RouteDependencies, route } from '../route.ts'
import { BatchParams, visibleBatch } from './batches.ts'

const TIMES = [
  ['validating', 'created'],
  ['in_progress', 'in_progress_at'],
  ['cancelling', 'cancelling_at'],
  ['completed', 'completed_at'],
  ['failed', 'failed_at'],
  ['expired', 'expired_at'],
  ['cancelled', 'cancelled_at'],
] as const

export function batchStatisticsRoutes(app: App, { store }: Pick<RouteDependencies, 'store'>): void {
  route(app, {
    method: 'GET',
    url: '/v1/batches/:batch_id/errors',
    access: ['batches:read'],
    doc: {
      operation: 'getBatchErrors',
      summary: 'Count the failed lines of a batch by code and message',
      description: 'Also while it runs; the counts are those of its commits.',
      answer: BatchErrors,
      errors: ['batch_not_found'],
    },
    accepts: { params: BatchParams },
    async handler(request): Promise<BatchErrors> {
      const batch = await visibleBatch(store.read, callerOf(request).project_id, request.params.batch_id)
      const { errors } = await readStatistics(store.read, batch.id)
      const groups = errors.map((group) => ({ ...group, ...adviceOn(group.code) }))
      groups.sort((a, b) => b.lines - a.lines)
      const known = errors.reduce((sum, { lines }) => sum + lines, 0)
      return {
        object: 'batch_errors',
        batch_id: batch.id,
        failed: Math.max(batch.failed, known),
        groups,
        other: Math.max(0, batch.failed - known),
      }
    },
  })

  route(app, {
    method: 'GET',
    url: '/v1/batches/:batch_id/timeline',
    access: ['batches:read'],
    doc: {
      operation: 'getBatchTimeline',
      summary: 'Read what of a batch finished when',
      description: 'At most 200 points, however long the batch runs.',
      answer: BatchTimeline,
      errors: ['batch_not_found'],
    },
    accepts: { params: BatchParams },
    async handler(request): Promise<BatchTimeline> {
      const batch = await visibleBatch(store.read, callerOf(request).project_id, request.params.batch_id)
      const { interval_ms, points } = (await readStatistics(store.read, batch.id)).timeline
      return {
        object: 'batch_timeline',
        batch_id: batch.id,
        interval_s: interval_ms / 1000,
        points: points.map(({ at, cost_nanos, ...counts }) => {
          return { at: unixSeconds(at), ...counts, cost_usd: usd(cost_nanos) }
        }),
        states: TIMES.flatMap(([status, column]) => {
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
