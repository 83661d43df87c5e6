// A usage report as CSV, streamed page by page. Names come from callers, and the report is opened in spreadsheets.

import { dayText } from '../domain/days.ts'
import { usdLiteral } from '../domain/money.ts'
import type { Reader } from '../store/store.ts'
import {
  listUsageGroups,
  sumUsage,
  type UsageColumn,
  type UsageFilter,
  type UsageGroupRow,
  type UsageSums,
} from '../store/usage.ts'
import { csvRecords } from '../tables/csv-writer.ts'

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

const record = csvRecords({ delimiter: ',', newline: '\r\n', bom: false, spreadsheet: true })

/** Rows with their line breaks, a header first; without groups one row of totals. */
export async function* usageCsv(
  db: Reader,
  filter: UsageFilter,
  by: readonly UsageColumn[],
): AsyncGenerator<string> {
  yield record([...by, ...SUMS])
  if (by.length === 0) {
    yield record(sumCells(await sumUsage(db, filter)))
    return
  }
  let after: UsageGroupRow | undefined
  do {
    const groups = await listUsageGroups(db, filter, by, GROUPS_PER_PAGE, after)
    if (groups.length > 0)
      yield groups.map((group) => record([...nameCells(group, by), ...sumCells(group)])).join('')
    after = groups.length < GROUPS_PER_PAGE ? undefined : groups.at(-1)
  } while (after)
}

function nameCells(group: UsageGroupRow, by: readonly UsageColumn[]): (string | null)[] {
  // Lines without a name have an empty cell.
  return by.map((column) => (column === 'day' ? dayText(group.day ?? 0) : group[column] || null))
}

function sumCells(sums: UsageSums): string[] {
  const { succeeded, failed, prompt_tokens, completion_tokens, total_tokens, cost_nanos } = sums
  const counts = [succeeded + failed, succeeded, failed, prompt_tokens, completion_tokens, total_tokens]
  return [...counts.map(String), usdLiteral(cost_nanos)]
}
