// A run over a table: its requests are made before the batch, and its answers are joined to its rows after it. What lies
// between is in a folder beside the output, which is deleted at the end of the run.
import { mkdir, rm } from 'node:fs/promises'
import { basename, join } from 'node:path'
import type { AnswerSchema } from '../../tables/answer-cells.ts'
import { answerColumns } from '../../tables/answer-cells.ts'
import { type TableReader, withoutEnding } from '../../tables/table.ts'
import {
  type JoinedRows,
  joinAnswers,
  joinedColumns,
  type ResultFiles,
  resultRows,
  type Target,
} from '../tables/join-answers.ts'
import { openTable } from '../tables/open-table.ts'
import { checkBy } from '../tables/prompt-template.ts'
import { isLeftOut, prepareRows, type Question } from '../tables/row-request.ts'
import { counted } from '../terminal/format.ts'
import { type ProgressView, waitLine } from '../terminal/progress-view.ts'
import { type RunOrder, readRunState, runStatePath } from './run-batch.ts'
import { askedOf, type TableTerms } from './table-question.ts'

export interface TableJob {
  /** What differs from the order of a run over a file of requests. */
  order: Pick<RunOrder, 'input' | 'output' | 'errors' | 'state' | 'table' | 'model'>
  target: Target
  /** Writes the table with the answers. */
  join(): Promise<JoinedRows>
  /** Deletes the folder, unless an interrupted run can be resumed from it. */
  clear(): Promise<void>
}

export function tableFolder(output: string): string {
  return `${output}.offpeak-run`
}

export async function removeTableFolder(output: string): Promise<void> {
  await rm(tableFolder(output), { recursive: true, force: true })
}

export async function startTableJob(
  { input, target, terms }: { input: string; target: Target; terms: TableTerms },
  view: ProgressView,
  signal: AbortSignal,
): Promise<TableJob> {
  const table = await openTable(input, terms)
  const { question, schema } = await askedOf(input, table, terms)
  // Refused now rather than when the answers are paid for.
  joinedColumns(table, input, answerColumns(schema, terms.prefix ?? ''))
  const files = jobFiles(input, target)
  const state = runStatePath(target.path)
  const clear = (): Promise<void> => clearFolder(target, state)
  await mkdir(tableFolder(target.path), { recursive: true })
  try {
    const { rows, skipped } = await prepareRows(table, question, files.input, {
      limit: terms.limit,
      signal,
      onRow: showRows(view),
    })
    const asked = { input, table, terms, question, schema, skipped, target }
    return {
      order: { ...files, state, table: { terms, rows }, model: terms.model },
      target,
      join: () => joinTable(asked, [files]),
      clear,
    }
  } catch (error) {
    await clear()
    throw error
  }
}

/** The files of the batch. */
export function jobFiles(input: string, { path }: Target): ResultFiles & { input: string } {
  const folder = tableFolder(path)
  return {
    input: join(folder, `${basename(withoutEnding(input))}.jsonl`),
    output: join(folder, 'answers.jsonl'),
    errors: join(folder, 'errors.jsonl'),
  }
}

export async function clearFolder({ path }: Target, statePath: string): Promise<void> {
  const state = await readRunState(statePath)
  if (state === undefined || state.finished) await removeTableFolder(path)
}

interface AskedTable {
  input: string
  table: TableReader
  terms: TableTerms
  question: Question
  schema: AnswerSchema | undefined
  skipped?: ReadonlyMap<number, string>
  target: Target
}

/** Writes the table with the answers of a batch and of its retries. */
export async function joinTable(
  { input, table, terms, question, schema, skipped, target }: AskedTable,
  files: [ResultFiles, ...ResultFiles[]],
): Promise<JoinedRows> {
  const check = schema && checkBy(schema)
  const answers = {
    columns: answerColumns(schema, terms.prefix ?? '', check),
    results: resultRows(...files),
    ...(skipped && { skipped }),
    isEmpty: (cells: readonly unknown[]) => isLeftOut(cells, question),
  }
  try {
    return await joinAnswers(table, input, answers, target, terms.limit)
  } finally {
    check?.close()
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
