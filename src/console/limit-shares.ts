// Says how much of each limit is spent, by each entity that it counts.
import { dayOf, dayText } from '../domain/days.ts'
import { recordOf } from '../domain/json-record.ts'
import { LIMIT_WINDOWS, type LimitWindow, windowAt } from '../domain/limit.ts'
import type { LimitObject } from '../wire/limit.ts'
import type { UsageObject } from '../wire/usage.ts'
import { get } from './api.ts'
import { now } from './browser-clock.ts'
import type { Tone } from './parts/notice.tsx'

export type Spent = Readonly<Record<LimitWindow, UsageObject>>

export async function readSpent(signal: AbortSignal): Promise<Spent> {
  const read = (window: LimitWindow): Promise<UsageObject> => {
    const start = dayText(dayOf(windowAt(window, now()).start))
    return get('/v1/usage/entities', { start, group_by: 'entity,entity_type' }, { signal })
  }
  const found = await Promise.all(LIMIT_WINDOWS.map(read))
  return recordOf(LIMIT_WINDOWS, (window) => found[LIMIT_WINDOWS.indexOf(window)]!)
}

/** What an entity, or the whole project where it has no name, has spent of a limit. */
export interface Cap {
  limit: LimitObject
  name: string | null
  value: number
}

export function shareOf({ value, limit }: Cap): number {
  return limit.amount === 0 ? 1 : value / limit.amount
}

/** Lines of its entity are rejected. */
export const isReached = (cap: Cap): boolean => cap.limit.action === 'block' && shareOf(cap) >= 1

const NEAR = 0.8

/** A limit that only notifies keeps nothing back. */
export function toneOf(cap: Cap): Tone {
  const share = shareOf(cap)
  return isReached(cap)
    ? 'bad'
    : [NEAR, ...cap.limit.notify_at].some((near) => share >= near)
      ? 'warn'
      : 'info'
}

/** Of all limits, the fullest first. */
export function capsOf(limits: readonly LimitObject[], spent: Spent): Cap[] {
  return limits.flatMap((limit) => capsOfOne(limit, spent)).sort((a, b) => shareOf(b) - shareOf(a))
}

function capsOfOne(limit: LimitObject, spent: Spent): Cap[] {
  const usage = spent[limit.window]
  const amountOf = (of: { cost_usd: number; total_tokens: number }): number =>
    limit.metric === 'cost_usd' ? of.cost_usd : of.total_tokens
  if (limit.scope === 'project') return [{ limit, name: null, value: amountOf(usage) }]
  const { entity, entity_type } = limit
  const groups = (usage.groups ?? []).filter((group) =>
    entity ? group.entity === entity : group.entity_type === entity_type,
  )
  if (entity) return [{ limit, name: entity, value: groups.reduce((sum, group) => sum + amountOf(group), 0) }]
  return groups.map((group) => ({ limit, name: group.entity ?? null, value: amountOf(group) }))
}
