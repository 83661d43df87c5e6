// A usage report as CSV (RFC 4180), made page by page. Names come from whoever uploads files, and a
// spreadsheet runs a cell that begins like a formula: such cells get an apostrophe in front.
import { usdLiteral } from '../domain/money.ts'
import { dayText } from '../domain/utc-day.ts'
import type { Reader } from '../store/store.ts'
import {
  listUsageGroups,
  sumUsage,
  type UsageColumn,
  type UsageFilter,
  type UsageGroupRow,
  type UsageSums,
} from '../store/usage-report.ts'

const GROUPS_PER_PAGE = 1000
const SUMS = [
  'lines',
  'succeeded',
  'failed',
  'prompt_tokens',
  'completion_tokens',
  'total_tokens',
  'cost_usd',
]

/** Rows with their line breaks, a header first; without groups one row of totals. */
export async function* usageCsv(
  db: Reader,
  filter: UsageFilter,
  by: readonly UsageColumn[],
): AsyncGenerator<string> {
  yield row([...by, ...SUMS])
  if (by.length === 0) {
    yield row(sumCells(await sumUsage(db, filter)))
    return
  }
  let after: UsageGroupRow | undefined
  do {
    const groups = await listUsageGroups(db, filter, by, GROUPS_PER_PAGE, after)
    if (groups.length > 0)
      yield groups.map((group) => row([...nameCells(group, by), ...sumCells(group)])).join('')
    after = groups.length < GROUPS_PER_PAGE ? undefined : groups.at(-1)
  } while (after)
}

function nameCells(group: UsageGroupRow, by: readonly UsageColumn[]): string[] {
  return by.map((column) => (column === 'day' ? dayText(group.day ?? 0) : cell(group[column] ?? '')))
}

function sumCells(sums: UsageSums): string[] {
  const { succeeded, failed, prompt_tokens, completion_tokens, total_tokens, cost_nanos } = sums
  const counts = [succeeded + failed, succeeded, failed, prompt_tokens, completion_tokens, total_tokens]
  return [...counts.map(String), usdLiteral(cost_nanos)]
}

function cell(text: string): string {
  const harmless = /^[=+\-@\t\r\n]/.test(text) ? `'${text}` : text
  return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless
}

function row(cells: readonly string[]): string {
  return `${cells.join(',')}\r\n`
}
