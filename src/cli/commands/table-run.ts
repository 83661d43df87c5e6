// A run over a table: its requests are made before the batch, and its answers are joined to its rows after it. The files
// of the batch are in a folder beside the output, which is deleted at the end of the run.
import { createReadStream } from 'node:fs'
import { rm, stat, utimes } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { makeFolder } from '../../blobs/folders.ts'
import { isTerminal } from '../../domain/batch.ts'
import { byteLines, LINE_BREAK } from '../../jsonl/byte-lines.ts'
import { type AnswerSchema, answerColumns, withCells } from '../../tables/answer-cells.ts'
import { ColumnOrder, type OrderAdvice } from '../../tables/column-order.ts'
import type { Question } from '../../tables/row-requests.ts'
import { rowOfId, type TableReader, withoutEnding } from '../../tables/table.ts'
import { BatchObject } from '../../wire/batch.ts'
import { type ApiClient, pathOf, unless } from '../client/client.ts'
import type { Connection } from '../client/connect.ts'
import { contentOf, downloadResults } from '../client/download.ts'
import { hashFile } from '../client/upload.ts'
import type { Watch } from '../client/watch-batch.ts'
import { writeWhole } from '../output-file.ts'
import {
  type JoinedRows,
  joinAnswers,
  joinedColumns,
  type ResultFiles,
  resultRows,
  type Target,
} from '../tables/join-answers.ts'
import { openTable } from '../tables/open-table.ts'
import { EXIT_NOT_SENT, Failure } from '../terminal/failure.ts'
import { type ProgressView, waitLine } from '../terminal/progress-view.ts'
import { counted } from '../terminal/terminal.ts'
import { type RunOrder, type RunState, readRunState, runStatePath } from './run-batch.ts'
import {
  askedOf,
  checkBy,
  prepareRows,
  retriedTerms,
  type TableFlags,
  type TableTerms,
} from './table-question.ts'

export interface TableJob {
  /** The parts of the order that differ from those of a run over a file of requests. */
  order: Pick<RunOrder, 'input' | 'output' | 'errors' | 'state' | 'table' | 'model'>
  target: Target
  columns: readonly string[]
  /** A better order of the columns in the prompt; null or absent without one. */
  orderAdvice?: OrderAdvice | null
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
  // Rejects conflicting column names before answers are paid for.
  joinedColumns(table, input, answerColumns(schema, terms.prefix ?? ''))
  const files = jobFiles(input, target)
  const state = runStatePath(target.path)
  const clear = (): Promise<void> => clearFolder(target, state)
  makeFolder(tableFolder(target.path), 0o777)
  try {
    const columns = table.columns.map(({ name }) => name)
    const order = new ColumnOrder(terms.prompt, columns, terms.system)
    const { rows } = await prepareRows(table, question, files.input, {
      limit: terms.limit,
      signal,
      onRow: showRows(view),
      order,
    })
    const asked = { input, table, terms, question, schema, target }
    return {
      order: { ...files, state, table: { terms, rows }, model: terms.model },
      target,
      columns,
      orderAdvice: terms.embeds ? null : order.advice(),
      join: () => joinTable(asked, [files]),
      clear,
    }
  } catch (error) {
    await clear()
    throw error
  }
}

function jobFiles(input: string, { path }: Target): ResultFiles & { input: string } {
  const folder = tableFolder(path)
  return {
    input: join(folder, `${basename(withoutEnding(input))}.jsonl`),
    output: join(folder, 'answers.jsonl'),
    errors: join(folder, 'errors.jsonl'),
  }
}

async function clearFolder({ path }: Target, statePath: string): Promise<void> {
  const state = await readRunState(statePath)
  if (state === undefined || state.finished) await removeTableFolder(path)
}

interface AskedTable {
  input: string
  table: TableReader
  terms: TableTerms
  question: Question
  schema: AnswerSchema | undefined
  target: Target
}

/** Writes the table with the answers of a batch and of its retries. */
async function joinTable(
  { input, table, terms, question, schema, target }: AskedTable,
  files: [ResultFiles, ...ResultFiles[]],
): Promise<JoinedRows> {
  using check = checkBy(schema)
  const answers = {
    columns: answerColumns(schema, terms.prefix ?? '', check),
    results: resultRows(...files),
    whyNot: (cells: readonly unknown[]) => question.whyNot(cells),
    isEmpty: (cells: readonly unknown[]) => question.leavesOut(cells),
  }
  const joined = await joinAnswers(table, input, answers, target, terms.limit)
  // The run has also written this output, though its state is that of its first batch.
  const { mtime } = await stat(target.path)
  await utimes(runStatePath(target.path), mtime, mtime).catch(() => {})
  return joined
}

const ROWS_PER_LOOK = 1000

/** Makes a function that shows the number of rows with a request. */
export function showRows(view: ProgressView): (rows: number) => void {
  return (rows) => {
    if (rows % ROWS_PER_LOOK !== 0) return
    view.show('preparing', (columns, paint) => waitLine(`preparing ${counted(rows, 'row')}`, columns, paint))
  }
}

// The table of a run and of the retries of it: each row has its last answer. --retry-failed asks again about the rows
// that have none. The results are read from the service, so that only the state of the run has to be kept.

export type Files = [ResultFiles, ...ResultFiles[]]

export interface TableRun {
  state: RunState
  table: NonNullable<RunState['table']>
  batch_id: string
}

/** Reads the run that wrote the output, or should have. Throws when it is unknown. */
export async function lastTableRun(output: string): Promise<TableRun> {
  const state = await readRunState(runStatePath(output))
  if (state === undefined || state.batch_id === null)
    throw new Failure(
      `there is no run before with the output ${output}: ${runStatePath(output)} would name it. ` +
        'Run the table first, or name its output with -o',
    )
  const { table, batch_id } = state
  if (table === undefined)
    throw new Failure(
      `the last run with the output ${output} was not over a table; ` +
        `to ask again: offpeak retry ${batch_id}`,
    )
  return { state, table, batch_id }
}

/** The batch that `id`, or the ID of a retry of it, names; and all its retries in order. */
export async function withRetries(client: ApiClient, id: string): Promise<[BatchObject, ...BatchObject[]]> {
  let batch = await client.get(BatchObject, pathOf('batches', id))
  for (let above = batch.metadata.retry_of; above !== undefined; above = batch.metadata.retry_of) {
    const retried = await unless([404], client.get(BatchObject, pathOf('batches', above)), null)
    if (retried === null) break
    batch = retried
  }
  const found = [batch]
  for (const { id: retry_of } of found)
    found.push(...(await client.list(BatchObject, '/v1/batches', Number.POSITIVE_INFINITY, { retry_of })))
  return [batch, ...found.slice(1).sort((a, b) => (a.id < b.id ? -1 : 1))]
}

/** Downloads the results of each batch into files in the folder. */
export async function fetchAll(
  client: ApiClient,
  [batch, ...retries]: readonly [BatchObject, ...BatchObject[]],
  folder: string,
  watch: Watch,
): Promise<Files> {
  const fetch = async (one: BatchObject): Promise<ResultFiles> => {
    const files = { output: join(folder, `${one.id}.output`), errors: join(folder, `${one.id}.errors`) }
    await downloadResults(client, one, files, watch)
    return files
  }
  const files: Files = [await fetch(batch)]
  for (const one of retries) files.push(await fetch(one))
  return files
}

interface MergedTable {
  input: string
  target: Target
  last: TableRun
}

/** Writes the output of a run again, with the answers of its retries. */
export async function mergeTable({ input, target, last }: MergedTable, files: Files): Promise<JoinedRows> {
  const { terms } = last.table
  const table = await openTable(input, terms)
  return await joinTable({ input, table, terms, ...(await askedOf(input, table, terms)), target }, files)
}

/** The path of a retry's state, in the table's folder: the run's state is not changed. */
export function retryStatePath(output: string): string {
  return join(tableFolder(output), 'retry.json')
}

export interface RetryJob extends TableJob {
  rows: number
  /** The number of rows without an answer, and of their requests: some rows have none. */
  unanswered: number
  lines: number
  /** Whether the output may lack answers of earlier retries. */
  isBehind: boolean
}

/** Prepares the requests of the rows without an answer. */
export async function startRetry(
  { client, target: service, watch }: Connection,
  { input, target, last, flags }: MergedTable & { flags: TableFlags },
): Promise<RetryJob> {
  const {
    table: { terms: before },
    state,
  } = last
  if (state.target !== service)
    throw new Failure(`the last run used ${state.target}, and this command uses ${service}`)
  const terms = await retriedTerms(before, flags)
  const statePath = retryStatePath(target.path)
  const clear = (): Promise<void> => clearFolder(target, statePath)
  await clear()
  const own = await readRunState(statePath)
  const folder = tableFolder(target.path)
  makeFolder(folder, 0o777)
  try {
    const batches = await withRetries(client, last.batch_id)
    const [first, ...retries] = batches
    const earlier: typeof batches = [first, ...retries.filter((one) => one.input_file_id !== own?.file_id)]
    refuseOpen(earlier)
    const files = await fetchAll(client, earlier, folder, watch)
    const table = await openTable(input, terms)
    const prepare = { limit: terms.limit, signal: watch.signal, onRow: showRows(watch.view) }
    const same = join(folder, 'same.jsonl')
    const asBefore = await askedOf(input, table, before)
    let prepared = await prepareRows(table, asBefore.question, same, prepare)
    await refuseChanged(client, { input, last, batch: first, path: same, rows: prepared.rows })
    const asked = await askedOf(input, table, terms)
    const other = join(folder, 'other.jsonl')
    const isSame = isDeepStrictEqual(terms, before)
    if (!isSame) prepared = await prepareRows(table, asked.question, other, prepare)
    const { rows, empty } = prepared
    const hasAnswer = await answeredRows(files, rows, asked.schema, terms.prefix)
    const ownFiles = jobFiles(input, target)
    const lines = await writeUnanswered(isSame ? same : other, hasAnswer, ownFiles.input)
    const all: Files = lines === 0 ? files : [...files, ownFiles]
    return {
      order: { ...ownFiles, state: statePath, model: terms.model },
      target,
      columns: table.columns.map(({ name }) => name),
      join: () => joinTable({ input, table, terms, ...asked, target }, all),
      clear,
      rows,
      lines,
      unanswered: rows - empty - hasAnswer.reduce((sum, one) => sum + one, 0),
      isBehind: earlier.length > 1,
    }
  } catch (error) {
    await clear()
    throw error
  }
}

function refuseOpen(batches: readonly BatchObject[]): void {
  const open = batches.find(({ status }) => !isTerminal(status))
  if (open === undefined) return
  throw new Failure(
    `${open.id}, which asks about rows of this table, is ${open.status}; nothing was sent. ` +
      `To wait for it: offpeak batches wait ${open.id}. To end it: offpeak batches cancel ${open.id}`,
    EXIT_NOT_SENT,
  )
}

/** A 1 for each row, counted from 1, with an answer; unchecked answers count, since they are paid for. */
async function answeredRows(
  files: Files,
  rows: number,
  schema: AnswerSchema | undefined,
  prefix = '',
): Promise<Uint8Array> {
  const answered = new Uint8Array(rows + 1)
  using check = checkBy(schema)
  const columns = answerColumns(schema, prefix, check)
  for await (const batch of withCells(resultRows(...files), columns))
    for (const { result, cells } of batch)
      if (cells.at(-1) === null || isUnchecked(cells)) answered[rowOfId(result.custom_id) ?? 0] = 1
  return answered
}

function isUnchecked(cells: readonly unknown[]): boolean {
  const error = cells.at(-1)
  return typeof error === 'string' && error.startsWith('not_checked: ')
}

interface RowLine {
  row: number
  bytes: Buffer
}

/** The request lines of a file, with the numbers of their rows. */
async function* rowLines(blocks: AsyncIterable<Buffer>): AsyncGenerator<RowLine, undefined> {
  for await (const { line: bytes } of byteLines(blocks)) {
    const row = rowOfId(/^\{"custom_id":"([^"]*)"/.exec(bytes.toString('latin1', 0, ID_BYTES_MAX))?.[1] ?? '')
    if (row !== null) yield { row, bytes }
  }
}

const ID_BYTES_MAX = 64

/** Writes the requests of unanswered rows; returns their number. */
async function writeUnanswered(from: string, answered: Uint8Array, to: string): Promise<number> {
  let lines = 0
  async function* unanswered(): AsyncGenerator<Buffer> {
    for await (const { row, bytes } of rowLines(createReadStream(from))) {
      if (answered[row] === 1) continue
      yield Buffer.concat([bytes, LINE_BREAK])
      lines++
    }
  }
  await writeWhole(to, unanswered())
  return lines
}

interface Compared {
  input: string
  last: TableRun
  batch: BatchObject
  /** The file with the requests that the last run would make now, and the number of its rows. */
  path: string
  rows: number
}

/** Throws when the rows are not those of the last run, whose answers would be joined to other rows. */
async function refuseChanged(client: ApiClient, { input, last, batch, path, rows }: Compared): Promise<void> {
  const { state, table } = last
  const isSame = rows === table.rows && (await hashFile(path)) === state.input_sha256
  if (isSame) return
  const changed: number[] = []
  await using then = rowLines(contentOf(client, batch.input_file_id))
  let old = await then.next()
  for await (const { row, bytes } of rowLines(createReadStream(path))) {
    while (old.done !== true && old.value.row < row) old = await then.next()
    if (old.done !== true && old.value.row === row && !old.value.bytes.equals(bytes)) changed.push(row)
  }
  const [shorter, longer] = [Math.min(rows, table.rows), Math.max(rows, table.rows)]
  const what = [
    changed.length > 0 && `${rowList(changed)} changed`,
    longer > shorter && `${rowRange(shorter + 1, longer)} ${rows > table.rows ? 'added' : 'removed'}`,
  ].filter((one) => one !== false)
  // The only changes are rows that had no request, and now have one.
  if (what.length === 0) return
  throw new Failure(
    `${input} has changed since the last run: ${what.join(', ')}. Nothing was sent. ` +
      'Take it back to what it was, or run it without --retry-failed, which asks about every row',
    EXIT_NOT_SENT,
  )
}

const NAMED_MAX = 10

function rowList(rows: readonly number[]): string {
  if (rows.length === 1) return `row ${rows[0]}`
  const more = rows.length - NAMED_MAX
  return `rows ${rows.slice(0, NAMED_MAX).join(', ')}${more > 0 ? ` and ${more} more` : ''}`
}

function rowRange(from: number, to: number): string {
  return from === to ? `row ${from}` : `rows ${from} to ${to}`
}
