// A projection as the API shows it.
import { unixSeconds } from '../../../domain/clock.ts'
import { sumOf } from '../../../domain/exact-count.ts'
import { type Limit, WHOLE_PROJECT } from '../../../domain/limit.ts'
import { usd } from '../../../domain/money.ts'
import type { LimitProjection } from '../../../ledger/admit.ts'
import type { BatchProjection } from '../../../ledger/project-batch.ts'
import type { BatchEstimate } from '../../../wire/batch-estimate.ts'
import { showLimit } from '../limits/show-limit.ts'

export function showEstimate(
  input_file_id: string,
  projection: BatchProjection,
  limitProjections: readonly LimitProjection[],
): BatchEstimate {
  const { groups, total, lines } = projection
  const unpriced = groups.flatMap(({ priced, model }) => (priced || model === null ? [] : [model]))
  return {
    object: 'batch.estimate',
    input_file_id,
    accepted: !limitProjections.some(({ exceeds, limit }) => exceeds && limit.action === 'block'),
    lines,
    input_tokens: groups.reduce((sum, group) => sumOf(sum, group.input_tokens), 0),
    output_tokens_max: groups.reduce((sum, group) => sumOf(sum, group.output_tokens_max), 0),
    cost_usd: usd(total.cost_nanos),
    groups: groups.map(({ spend, model, entity, priced, lines, ...tokens }) => ({
      model,
      entity,
      priced,
      lines,
      input_tokens: tokens.input_tokens,
      output_tokens_max: tokens.output_tokens_max,
      bytes_per_token: tokens.bytes_per_token,
      cost_usd: usd(spend.cost_nanos),
    })),
    unpriced_models: [...new Set(unpriced)],
    limits: limitProjections.map(showLimitProjection),
  }
}

function showLimitProjection(limitProjection: LimitProjection): BatchEstimate['limits'][number] {
  const { limit, spender, spent, projectedOpen: open, projected: needed, exceeds, window } = limitProjection
  return {
    limit: showLimit(limit),
    entity: spender === WHOLE_PROJECT ? null : spender,
    spent: inMetric(limit, spent),
    open: inMetric(limit, open),
    needed: inMetric(limit, needed),
    exceeds,
    resets_at: unixSeconds(window.end),
  }
}

function inMetric({ metric }: Limit, units: number): number {
  return metric === 'cost_usd' ? usd(units) : units
}
