// The event of a threshold that spend has reached: a warning before the cap, or the cap itself.
import { unixSeconds } from '../domain/clock.ts'
import { type LimitMetric, REACHED, WHOLE_PROJECT } from '../domain/limit.ts'
import { usd } from '../domain/money.ts'
import type { Crossing } from '../ledger/crossings.ts'
import type { NewEvent } from './record-event.ts'

/** Amounts in the limit's metric: USD or tokens. */
export function limitCrossed({ limit, spender, window, threshold, spent }: Crossing): NewEvent {
  const shown = (units: number): number => inMetric(limit.metric, units)
  return {
    project_id: limit.project_id,
    type: threshold === REACHED ? 'limit.reached' : 'limit.threshold_reached',
    data: {
      limit_id: limit.id,
      scope: limit.scope,
      entity: spender === WHOLE_PROJECT ? null : spender,
      entity_type: limit.entity_type,
      metric: limit.metric,
      window: limit.window,
      action: limit.action,
      description: limit.description,
      amount: shown(limit.amount),
      threshold,
      spent: shown(spent),
      window_start: unixSeconds(window.start),
      resets_at: unixSeconds(window.end),
    },
  }
}

function inMetric(metric: LimitMetric, units: number): number {
  return metric === 'cost_usd' ? usd(units) : units
}
