// A usage report as CSV (RFC 4180), streamed page by page. Names come from callers, and a spreadsheet evaluates a
// cell that begins like a formula, so such cells get a leading apostrophe.
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
  return by.map((column) => (column === 'day' ? dayText(group.day ?? 0) : csvCell(group[column] ?? '')))
}

function sumCells(sums: UsageSums): string[] {
  const { succeeded, failed, prompt_tokens, completion_tokens, total_tokens, cost_nanos } = sums
  const counts = [succeeded + failed, succeeded, failed, prompt_tokens, completion_tokens, total_tokens]
  return [...counts.map(String), usdLiteral(cost_nanos)]
}

/**
 * A formula may begin with a full-width character, and after blanks and control characters, which spreadsheets skip.
 * Some spreadsheets also separate cells at `;` or a tab, even inside quotes, so a formula after those is escaped too.
 */
export function csvCell(text: string): string {
  const harmless = text.replaceAll(FORMULA, "'")
  return /[",;\t\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless
}

/** The start of a cell, or of what a spreadsheet may take for a cell, before a formula. */
const FORMULA = /(?<=^|[,;\t\r\n"])(?=[\p{Z}\p{C}]*[=+\-@\uFF1D\uFF0B\uFF0D\uFF20\t\r])/gu

function row(cells: readonly string[]): string {
  return `${cells.join(',')}\r\n`
}
