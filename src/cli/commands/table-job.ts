// A run over a table: its requests are made before the batch, and its answers are joined to its rows after it. What lies
// between is in a folder beside the output, which is deleted at the end of the run.
import { existsSync } from 'node:fs'
import { mkdir, rm } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { answerColumns } from '../../tables/answer-cells.ts'
import type { WrittenRows } from '../../tables/result-table.ts'
import { withoutEnding } from '../../tables/table.ts'
import { checkBy } from '../tables/answer-schema.ts'
import { joinAnswers, joinedColumns, type Target } from '../tables/join-answers.ts'
import { openTable } from '../tables/open-table.ts'
import { prepareRows } from '../tables/prepare-rows.ts'
import { resultRows } from '../tables/result-rows.ts'
import { counted } from '../terminal/format.ts'
import { waitLine } from '../terminal/progress-line.ts'
import type { ProgressView } from '../terminal/progress-view.ts'
import { runStatePath } from './run-state.ts'
import { readQuestion, type TableFlags } from './table-flags.ts'

export interface TableJob {
  /** The files of the batch. */
  files: { input: string; output: string; errors: string }
  target: Target
  skipped: ReadonlyMap<number, string>
  /** Writes the table with the answers. */
  join(): Promise<WrittenRows>
  /** Deletes the folder, unless an interrupted run can be resumed from it. */
  clear(): Promise<void>
}

export interface TableOrder extends TableFlags {
  input: string
  target: Target
  prefix: string
}

export async function startTableJob(
  order: TableOrder,
  view: ProgressView,
  signal: AbortSignal,
): Promise<TableJob> {
  const { input, target, prefix } = order
  const limit = order.limit ?? Number.POSITIVE_INFINITY
  const table = await openTable(input, order)
  const { question, schema } = await readQuestion(input, table, order)
  // Refused now rather than when the answers are paid for.
  joinedColumns(table, input, answerColumns(schema, prefix))
  const folder = `${target.path}.offpeak-run`
  const files = {
    input: join(folder, `${basename(withoutEnding(input))}.jsonl`),
    output: join(folder, 'answers.jsonl'),
    errors: join(folder, 'errors.jsonl'),
  }
  const clear = async (): Promise<void> => {
    if (!existsSync(runStatePath(files.output))) await rm(folder, { recursive: true, force: true })
  }
  await mkdir(folder, { recursive: true })
  try {
    const { skipped } = await prepareRows(table, question, files.input, {
      limit,
      signal,
      onRow: showRows(view),
    })
    const join = async (): Promise<WrittenRows> => {
      const check = schema && checkBy(schema)
      const answers = {
        columns: answerColumns(schema, prefix, check),
        results: resultRows(files.output, files.errors),
        skipped,
      }
      try {
        return await joinAnswers(table, input, answers, limit, target)
      } finally {
        check?.close()
      }
    }
    return { files, target, skipped, join, clear }
  } catch (error) {
    await clear()
    throw error
  }
}

const ROWS_PER_LOOK = 1000

/** Shows how many rows have a request. */
export function showRows(view: ProgressView): (rows: number) => void {
  return (rows) => {
    if (rows % ROWS_PER_LOOK !== 0) return
    view.show('preparing', (columns, paint) => waitLine(`preparing ${counted(rows, 'row')}`, columns, paint))
  }
}
