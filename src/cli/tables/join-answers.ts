// Writes a table with the answers beside its rows, in the order of the rows. Both sides are read once and in step.

import { createReadStream } from 'node:fs'
import { jsonLines } from '../../jsonl/byte-lines.ts'
import { type AnswerColumns, parseResultRow, type ResultRow, withCells } from '../../tables/answer-cells.ts'
import type { WrittenRows } from '../../tables/result-table.ts'
import { type Cell, type Column, rowOfId, type TableFormat, type TableReader } from '../../tables/table.ts'
import { Failure } from '../terminal/failure.ts'
import { createTable, formatOfOutput } from './open-table.ts'

export interface Target {
  path: string
  format: TableFormat
  /** Whether a CSV file is written for spreadsheets. */
  spreadsheet?: boolean | undefined
}

/** The output at a path, in the format of its name. */
export function targetAt(path: string, { spreadsheet }: Pick<Target, 'spreadsheet'>): Target {
  return { path, format: formatOfOutput(path), spreadsheet }
}

/** The columns of the joined table. Throws when an added column has the name of a column of the table. */
export function joinedColumns(table: TableReader, path: string, answers: AnswerColumns): Column[] {
  const taken = new Set(table.columns.map(({ name }) => name))
  const twice = answers.columns.find(({ name }) => taken.has(name))
  if (twice !== undefined) {
    throw new Failure(
      `${path} has a column "${twice.name}" already; give the new columns other names with --prefix, for example --prefix new_`,
    )
  }
  return [...table.columns, ...answers.columns]
}

interface Answers {
  columns: AnswerColumns
  /** The results in the order of the rows; each has the ID that `rowId` gives its row. */
  results: AsyncIterable<readonly ResultRow[]>
  /** Returns the error for which a row without a result has no request; null where it has one. */
  whyNot?: (cells: readonly Cell[]) => Promise<string | null>
  /** Whether a row without a result was skipped as empty. */
  isEmpty?: (cells: readonly Cell[]) => boolean
}

export interface JoinedRows extends WrittenRows {
  /** The number of rows without an answer that were skipped as empty. */
  empty: number
}

/** Joins the first `limit` rows of the table with their answers. */
export async function joinAnswers(
  table: TableReader,
  tablePath: string,
  answers: Answers,
  { path, format, spreadsheet }: Target,
  limit = Number.POSITIVE_INFINITY,
): Promise<JoinedRows> {
  const { columns, whyNot, isEmpty } = answers
  const all = joinedColumns(table, tablePath, columns)
  const writer = await createTable(path, format, all, { spreadsheet, style: table.csv })
  const results = oneByOne(withCells(answers.results, columns))
  let next = await results.next()
  const joined: JoinedRows = { rows: 0, failed: 0, empty: 0 }
  try {
    for await (const row of table.rows()) {
      if (joined.rows === limit) break
      joined.rows++
      const cells = (await resultOf(joined.rows)) ?? (await withoutResult(row.cells))
      if (cells.at(-1) !== null) joined.failed++
      await writer.write({ ...row, cells: [...row.cells, ...cells] })
    }
    if (next.done !== true) throw mismatch(next.value.result)
    await writer.end()
    return joined
  } catch (error) {
    await writer.abort()
    throw error
  }

  async function resultOf(row: number): Promise<Cell[] | undefined> {
    if (next.done === true) return undefined
    const { result, cells } = next.value
    const found = rowOfId(result.custom_id)
    if (found === null || found < row) throw mismatch(result)
    if (found > row) return undefined
    next = await results.next()
    return cells
  }

  async function withoutResult(cells: readonly Cell[]): Promise<Cell[]> {
    if (isEmpty?.(cells)) {
      joined.empty++
      return columns.failed(null)
    }
    const reason = (await whyNot?.(cells)) ?? null
    return columns.failed(
      reason === null ? 'no_result: the batch has no result for this row' : `not_sent: ${reason}`,
    )
  }

  function mismatch({ custom_id }: ResultRow): Failure {
    return new Failure(
      `the results do not belong to ${tablePath}: it has no row for the line ${custom_id}; has the table changed since its requests were made?`,
    )
  }
}

async function* oneByOne<T>(batches: AsyncIterable<readonly T[]>): AsyncGenerator<T, undefined> {
  for await (const batch of batches) yield* batch
}

// The lines of both result files of a batch in the order of its input: each file is in that order already, and the
// request ID of a line sorts by its number. Retries of the batch have some of its lines, in that order too.

export interface ResultFiles {
  output: string
  errors: string
}

/** The rows whose answers are checked together; fewer if their results exceed BATCH_BYTES. */
const BATCH_ROWS = 100
const BATCH_BYTES = 256 * 1024

/** The results of a batch, each with the last answer among the batch and its `retries`, else with the last error. */
export async function* resultRows(
  ...[batch, ...retries]: [ResultFiles, ...ResultFiles[]]
): AsyncGenerator<ResultRow[]> {
  let rows: ResultRow[] = []
  let size = 0
  const all = retries.length === 0 ? inOrder(batch) : merged([batch, ...retries].map(inOrder))
  for await (const { row, bytes } of all) {
    rows.push(row)
    size += bytes
    if (rows.length < BATCH_ROWS && size < BATCH_BYTES) continue
    yield rows
    rows = []
    size = 0
  }
  if (rows.length > 0) yield rows
}

interface ReadRow {
  row: ResultRow
  bytes: number
}

async function* merged(streams: AsyncGenerator<ReadRow, undefined>[]): AsyncGenerator<ReadRow> {
  const heads = await Promise.all(streams.map((stream) => stream.next()))
  for (;;) {
    const first = firstOf(heads.map(({ value }) => value))
    if (first === undefined) return
    let kept = first
    for (const [i, stream] of streams.entries()) {
      const found = heads[i]?.value
      if (found?.row.custom_id !== first.row.custom_id) continue
      if (!found.row.error || kept.row.error) kept = found
      heads[i] = await stream.next()
    }
    yield kept
  }
}

/** The next result of the batch, unless a retry has an earlier row, which had no request in the batch. */
function firstOf([head, ...retries]: (ReadRow | undefined)[]): ReadRow | undefined {
  let first = head
  for (const one of retries) {
    if (one === undefined) continue
    const row = rowOfId(one.row.custom_id)
    const before = first && rowOfId(first.row.custom_id)
    if (first === undefined && row === null)
      throw new Failure(
        `a retry has the line ${one.row.custom_id}, which its batch does not have in this place`,
      )
    if (row !== null && (before === undefined || (before !== null && row < before))) first = one
  }
  return first
}

async function* inOrder({ output, errors }: ResultFiles): AsyncGenerator<ReadRow, undefined> {
  const answered = linesOf(output)
  const failed = linesOf(errors)
  let [a, b] = [await answered.next(), await failed.next()]
  while (a.done !== true || b.done !== true) {
    if (b.done === true || (a.done !== true && a.value.row.id < b.value.row.id)) {
      if (a.done !== true) yield a.value
      a = await answered.next()
    } else {
      yield b.value
      b = await failed.next()
    }
  }
}

async function* linesOf(path: string): AsyncGenerator<ReadRow, undefined> {
  const blocks: AsyncIterable<Buffer> = createReadStream(path, { highWaterMark: 256 * 1024 })
  for await (const { line } of jsonLines(blocks)) {
    const row = parseResultRow(line)
    if (row === null) throw new Failure(`${path} has a line that is not a result line`)
    yield { row, bytes: line.length }
  }
}
