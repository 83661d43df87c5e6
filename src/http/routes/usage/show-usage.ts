// A usage report as the API shows it.
import { unixSeconds } from '../../../domain/clock.ts'
import { usd } from '../../../domain/money.ts'
import { dayText, startOfDay } from '../../../domain/utc-day.ts'
import type { UsageColumn, UsageFilter, UsageGroupRow, UsageSums } from '../../../store/usage-report.ts'
import type { UsageObject } from '../../../wire/usage.ts'

export function showUsage(
  { entity, entity_type, from_day, to_day }: UsageFilter,
  sums: UsageSums,
  groups: { by: readonly UsageColumn[]; rows: readonly UsageGroupRow[] } | null,
): UsageObject {
  const shown = groups && { groups: groups.rows.map((row) => ({ ...names(row, groups.by), ...totals(row) })) }
  return {
    object: 'usage',
    start: from_day === undefined ? null : unixSeconds(startOfDay(from_day)),
    end: to_day === undefined ? null : unixSeconds(startOfDay(to_day)),
    entity: entity ?? null,
    entity_type: entity_type ?? null,
    ...totals(sums),
    ...shown,
  }
}

function totals(sums: UsageSums) {
  const { succeeded, failed, prompt_tokens, completion_tokens, total_tokens, cost_nanos } = sums
  return {
    lines: succeeded + failed,
    succeeded,
    failed,
    prompt_tokens,
    completion_tokens,
    total_tokens,
    cost_usd: usd(cost_nanos),
  }
}

function names(row: UsageGroupRow, by: readonly UsageColumn[]) {
  const entries = by.map((column) => [column, column === 'day' ? dayText(row.day ?? 0) : row[column] || null])
  return Object.fromEntries(entries)
}
