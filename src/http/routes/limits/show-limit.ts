// A limit as the API shows it. Fields that do not apply are left out.
import { unixSeconds } from '../../../domain/clock.ts'
import type { Limit } from '../../../domain/limit.ts'
import { usd } from '../../../domain/money.ts'
import type { LimitObject } from '../../../wire/limit.ts'

export function showLimit(limit: Limit): LimitObject {
  const { id, scope, entity, entity_type, metric, amount, window, action, description, notify_at } = limit
  return {
    id,
    object: 'limit',
    scope,
    ...(entity === null ? {} : { entity }),
    ...(entity_type === null ? {} : { entity_type }),
    metric,
    amount: metric === 'cost_usd' ? usd(amount) : amount,
    window,
    action,
    ...(description === null ? {} : { description }),
    notify_at: [...notify_at],
    created: unixSeconds(limit.created),
  }
}
