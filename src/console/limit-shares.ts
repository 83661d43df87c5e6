// Says how much of each limit is spent, by each entity that it counts.
import { dayOf, dayText } from '../domain/days.ts'
import { recordOf } from '../domain/json-record.ts'
import { LIMIT_WINDOWS, type LimitWindow, windowAt } from '../domain/limit.ts'
import type { LimitObject } from '../wire/limit.ts'
import type { UsageObject } from '../wire/usage.ts'
import { get } from './api.ts'
import { now } from './browser-clock.ts'
import type { Tone } from './parts/notice.tsx'

/** The usage in each window and, in `of`, the usage for limits of one key or one model, by the limit's ID. */
export type Spent = Readonly<Record<LimitWindow, UsageObject>> & {
  readonly of: ReadonlyMap<string, UsageObject>
}

export async function readSpent(limits: readonly LimitObject[], signal: AbortSignal): Promise<Spent> {
  const read = (window: LimitWindow, only = {}): Promise<UsageObject> => {
    const start = dayText(dayOf(windowAt(window, now()).start))
    return get('/v1/usage/entities', { start, group_by: 'entity,entity_type', ...only }, { signal })
  }
  const narrow = limits.filter(({ key, model }) => key !== undefined || model !== undefined)
  const [found, own] = await Promise.all([
    Promise.all(LIMIT_WINDOWS.map((window) => read(window))),
    Promise.all(narrow.map(({ window, key, model }) => read(window, { key, model }))),
  ])
  return {
    ...recordOf(LIMIT_WINDOWS, (window) => found[LIMIT_WINDOWS.indexOf(window)]!),
    of: new Map(narrow.map(({ id }, i) => [id, own[i]!])),
  }
}

/** The entity, key or model that a limit counts; null for the whole project. */
export function ownerOf({ entity, entity_type, key, scope, model }: LimitObject): string | null {
  return entity ?? entity_type ?? key ?? (scope === 'model' ? model : undefined) ?? null
}

/** The spend under a limit by one entity, key or model; `name` null: by the whole project. */
export type Cap = { limit: LimitObject; name: string | null; value: number }

export const shareOf = ({ value, limit }: Cap): number => (limit.amount === 0 ? 1 : value / limit.amount)

/** Whether a limit is used up, so that it rejects lines. */
export const isReached = (cap: Cap): boolean => cap.limit.action === 'block' && shareOf(cap) >= 1

/** The tone of a limit's gauge; a limit that only notifies never rejects. */
export function toneOf(cap: Cap): Tone {
  const share = shareOf(cap)
  return isReached(cap)
    ? 'bad'
    : [0.8, ...cap.limit.notify_at].some((near) => share >= near)
      ? 'warn'
      : 'info'
}

/** The spend under all limits, the fullest first. */
export function capsOf(limits: readonly LimitObject[], spent: Spent): Cap[] {
  return limits.flatMap((limit) => capsOfOne(limit, spent)).sort((a, b) => shareOf(b) - shareOf(a))
}

function capsOfOne(limit: LimitObject, spent: Spent): Cap[] {
  const usage = spent.of.get(limit.id) ?? spent[limit.window]
  const amountOf = (of: Pick<UsageObject, 'cost_usd' | 'total_tokens' | 'requests'>): number =>
    ({ cost_usd: of.cost_usd, tokens: of.total_tokens, requests: of.requests })[limit.metric]
  const { entity, entity_type } = limit
  if (!entity && !entity_type) return [{ limit, name: ownerOf(limit), value: amountOf(usage) }]
  const groups = (usage.groups ?? []).filter((group) =>
    entity ? group.entity === entity : group.entity_type === entity_type,
  )
  if (entity) return [{ limit, name: entity, value: groups.reduce((sum, group) => sum + amountOf(group), 0) }]
  return groups.map((group) => ({ limit, name: group.entity ?? null, value: amountOf(group) }))
}
