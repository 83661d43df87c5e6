// The spend under each limit in its current window. A limit object has no spend; it is read from the usage of the
// same entities on the same days.

import { dayOf, dayText } from '../../domain/days.ts'
import { windowAt } from '../../domain/limit.ts'
import type { LimitObject } from '../../wire/limit.ts'
import type { UsageObject } from '../../wire/usage.ts'
import type { Call } from '../client/client.ts'

const BAR_WIDTH = 20
/** For a limit of an entity type, the entities with the highest spend are shown. */
const SPENDERS_MAX = 10

export interface LimitSpend {
  limit: LimitObject
  /** The entity, or `the project`. */
  entity: string
  /** In the limit's metric: USD or tokens. */
  spent: number
}

type Spent = Pick<UsageObject, 'cost_usd' | 'total_tokens'>

/** Reads usage with `read`. In the order of `limits`; within a limit, the highest spend comes first. */
export async function spendByLimit(
  limits: readonly LimitObject[],
  now: number,
  read: (query: NonNullable<Call['query']>) => Promise<UsageObject>,
): Promise<LimitSpend[]> {
  const spends: LimitSpend[] = []
  for (const limit of limits) {
    const { entity, entity_type } = limit
    const start = dayText(dayOf(windowAt(limit.window, now).start))
    const spent = (sums: Spent): number => (limit.metric === 'cost_usd' ? sums.cost_usd : sums.total_tokens)
    if (entity_type === undefined) {
      const usage = await read({ start, entity })
      spends.push({ limit, entity: entity ?? 'the project', spent: spent(usage) })
      continue
    }
    const { groups = [] } = await read({ start, entity_type, group_by: 'entity' })
    const spenders = groups.map((group) => ({ limit, entity: group.entity ?? '-', spent: spent(group) }))
    spenders.sort((a, b) => b.spent - a.spent)
    spends.push(...spenders.slice(0, SPENDERS_MAX))
    if (spenders.length === 0) spends.push({ limit, entity: `each ${entity_type}`, spent: 0 })
  }
  return spends
}

/** `██████████░░░░░░░░░░`; any spend fills at least one cell, and only a share of 1 fills all. */
export function bar(share: number): string {
  const bounded = Math.min(1, Math.max(0, share))
  const exact = bounded * BAR_WIDTH
  const filled = bounded === 0 ? 0 : Math.max(1, Math.floor(exact))
  return '█'.repeat(filled) + '░'.repeat(BAR_WIDTH - filled)
}
