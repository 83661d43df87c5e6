// The projected cost of a batch: that of a dry run, and GET /v1/batches/{batch_id}/estimate.
import type { FastifyRequest } from 'fastify'
import { secondsOrNull, unixSeconds } from '../../domain/clock.ts'
import { ApiError } from '../../domain/errors.ts'
import { WHOLE_PROJECT } from '../../domain/limit.ts'
import type { Model } from '../../domain/model.ts'
import { inMetric, sumOf, usd } from '../../domain/money.ts'
import { type BatchOrder, usableInput } from '../../intake/create-batch.ts'
import { readProjection } from '../../intake/file-index.ts'
import {
  type BatchProjection,
  type LimitProjection,
  type ProjectionTerms,
  projectLimits,
} from '../../ledger/check-limits.ts'
import { expectedCompletion } from '../../progress/completion.ts'
import { readFile } from '../../store/files.ts'
import { BatchEstimate } from '../../wire/batch.ts'
import { viewOf } from '../access/caller.ts'
import { type App, type RouteDependencies, route } from '../route.ts'
import type { BatchCreation } from './batch-creation.ts'
import { visibleBatch } from './batches.ts'
import { shownFileId } from './files.ts'
import { showLimit } from './limits.ts'

export function estimateRoute(app: App, deps: RouteDependencies, creation: BatchCreation): void {
  route(app, 'GET /v1/batches/:batch_id/estimate', {
    access: ['batches:write'],
    operation: 'estimateBatch',
    summary: 'Read what all lines of a batch may cost',
    description:
      'As a dry run of its creation would tell now: at most, by model and entity, with the limits that count its lines. Its input file must still exist.',
    answer: BatchEstimate,
    errors: ['file_not_found', 'file_not_processed'],
    async handler(request, { project_id }) {
      const batch = await visibleBatch(deps.store.read, project_id, request.params.batch_id)
      return await estimateOf(deps, creation, request, { ...batch, start_after: null })
    },
  })
}

/** Estimates the cost of a batch of a file. Throws file_not_found and file_not_processed. */
export async function estimateOf(
  deps: RouteDependencies,
  creation: BatchCreation,
  request: FastifyRequest,
  order: Pick<BatchOrder, 'project_id' | 'input_file_id' | 'start_after' | keyof ProjectionTerms>,
): Promise<BatchEstimate> {
  const { store, clock, region } = deps
  const { project_id, input_file_id, start_after = null } = order
  await creation.validated(request, input_file_id)
  const projection = await creation.oneAtATime(project_id, input_file_id, () => readProjection(deps, order))
  usableInput(await readFile(store.read, project_id, input_file_id, clock.now()))
  if (!projection) throw new ApiError('file_not_processed')
  const limitProjections = await projectLimits(store.read, project_id, projection, clock.now())
  const lines = new Map<string, number>()
  for (const { model, lines: some } of projection.groups)
    if (model !== null) lines.set(model, (lines.get(model) ?? 0) + some)
  const done = await expectedCompletion(store, { project_id, start_after, lines }, clock.now(), deps.models)
  const shownId = shownFileId(input_file_id, viewOf(request, region))
  return {
    ...showEstimate(shownId, projection, limitProjections, deps.models),
    estimated_completion: secondsOrNull(done),
  }
}

/** Shows a projection of a batch's cost. */
function showEstimate(
  input_file_id: string,
  projection: BatchProjection,
  limitProjections: readonly LimitProjection[],
  models: ReadonlyMap<string, Model>,
): BatchEstimate {
  const { groups, total, lines, sharing } = projection
  const unpriced = new Set(groups.flatMap(({ priced, model }) => (priced || model === null ? [] : [model])))
  return {
    object: 'batch.estimate',
    input_file_id,
    accepted: !limitProjections.some(({ exceeds, limit }) => exceeds && limit.action === 'block'),
    lines,
    input_tokens: groups.reduce((sum, group) => sumOf(sum, group.input_tokens), 0),
    output_tokens_max: groups.reduce((sum, group) => sumOf(sum, group.output_tokens_max), 0),
    cost_usd: usd(total.cost_nanos),
    ...(sharing && {
      prompt_cache: {
        shared: shareOf(sharing.shared_bytes, sharing.prompt_bytes),
        as_written: shareOf(sharing.near_bytes, sharing.prompt_bytes),
      },
    }),
    groups: groups.map(({ spend, ...group }) => ({ ...group, cost_usd: usd(spend.cost_nanos) })),
    unpriced_models: [...unpriced].filter((model) => models.has(model)),
    unknown_models: [...unpriced].filter((model) => !models.has(model)),
    limits: limitProjections.map(showLimitProjection),
  }
}

function shareOf(part: number, all: number): number {
  return all === 0 ? 0 : Math.round((1000 * part) / all) / 1000
}

function showLimitProjection(limitProjection: LimitProjection): BatchEstimate['limits'][number] {
  const { limit, spender, spent, projectedOpen: open, projected: needed, exceeds, window } = limitProjection
  return {
    limit: showLimit(limit),
    entity: spender === WHOLE_PROJECT ? null : spender,
    spent: inMetric(limit.metric, spent),
    open: inMetric(limit.metric, open),
    needed: inMetric(limit.metric, needed),
    exceeds,
    resets_at: unixSeconds(window.end),
  }
}
