// A usage report as CSV (RFC 4180), made page by page. Names come from whoever uploads files, and a
// spreadsheet runs a cell that begins like a formula: such beginnings get an apostrophe in front.
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
 * A formula may begin a cell in its full-width form too, and behind blanks and controls, which spreadsheets skip. Those
 * of regions with a decimal comma take `;` for the end of a cell, and some a tab, unless it is quoted; some split
 * at it in spite of the quotes, so that a formula behind one is kept from being one as well.
 */
export function csvCell(text: string): string {
  const harmless = text.replaceAll(FORMULA, "'")
  return /[",;\t\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless
}

/** Where a cell begins, or may be taken to: its skipped characters, then what makes it a formula. */
const FORMULA = /(?<=^|[,;\t\r\n"])(?=[\p{Z}\p{C}]*[=+\-@＝＋－＠\t\r])/gu

function row(cells: readonly string[]): string {
  return `${cells.join(',')}\r\n`
}
