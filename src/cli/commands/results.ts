// results: writes the results of any batch as a table, alone or beside the rows that its requests were made of.
import { access, mkdtemp, rm } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { type Command, Option } from 'commander'
import { isTerminal } from '../../domain/batch.ts'
import { jsonLines } from '../../jsonl/byte-lines.ts'
import { type AnswerSchema, answerColumns, formOfAnswers } from '../../tables/answer-cells.ts'
import { resultColumns, type WrittenRows, writeResults } from '../../tables/result-table.ts'
import { TABLE_FORMATS, type TableFormat } from '../../tables/table.ts'
import { BatchObject } from '../../wire/batch.ts'
import { FileObject } from '../../wire/file.ts'
import { type ApiClient, pathOf, unless } from '../client/client.ts'
import { withApi } from '../client/connect.ts'
import { contentOf } from '../client/download.ts'
import { checkOutput } from '../output-file.ts'
import type { JsonFlags, Shell } from '../shell.ts'
import { joinAnswers, resultRows, type Target, targetAt } from '../tables/join-answers.ts'
import { createTable, openTable } from '../tables/open-table.ts'
import { EXIT_LINES_FAILED, Failure } from '../terminal/failure.ts'
import { examples, jsonCommand } from '../terminal/option-values.ts'
import { counted, printJson, writeLine } from '../terminal/terminal.ts'
import { lockRun, outputOf } from './run-batch.ts'
import { checkBy, readSchema, SPREADSHEET } from './table-question.ts'
import { type Files, fetchAll, lastTableRun, mergeTable, withRetries } from './table-run.ts'

interface ResultsFlags extends JsonFlags {
  format?: TableFormat
  output?: string
  rows?: string
  merge?: boolean
  schema?: string
  prefix?: string
  delimiter?: string
  spreadsheet?: boolean
}

export function addResults(program: Command, shell: Shell): void {
  examples(
    jsonCommand(program, 'results', 'write the results of a batch as a table')
      .argument('<id>', 'batch_…; or with --merge, a table that "offpeak run" has run')
      .option('-o, --output <file>', 'the table (default: ID.FORMAT; of a table, the output of its run)')
      .addOption(
        new Option(
          '--format <format>',
          'its format (default: what the name of the file says, or csv)',
        ).choices(TABLE_FORMATS),
      )
      .option(
        '--rows <table>',
        'the table that "offpeak prepare" made the requests of: keep its columns and rows',
      )
      .option('--merge', 'with the answers of the retries of the batch, or of the last run of the table')
      .option('--schema <file>', 'the JSON Schema of the answers; each property becomes a column')
      .option('--prefix <text>', 'put this before the names of the new columns')
      .option('--delimiter <character>', 'what separates the cells of the CSV file that --rows names')
      .option('--spreadsheet', SPREADSHEET)
      .action((id: string, flags: ResultsFlags) => writeTable(shell, id, flags)),
    'offpeak results batch_01k0… --format csv',
    'offpeak results batch_01k0… -o answers.parquet --schema schema.json',
    'offpeak results batch_01k0… --rows reviews.csv -o answered.csv',
    'offpeak results reviews.csv --merge',
  )
}

/** The batch whose results are written, and the output's table, columns and format. */
interface Order {
  id: string
  target: Target
  write(files: Files, batch: BatchObject, client: ApiClient): Promise<WrittenRows>
}

async function writeTable(shell: Shell, id: string, flags: ResultsFlags): Promise<void> {
  if (BATCH_ID.test(id)) return await writeResultsOf(shell, await orderOf(shell, id, flags), flags)
  if (!flags.merge)
    throw new Failure(
      `${id} is not the ID of a batch; of a table, "offpeak results ${id} --merge" writes the output anew`,
    )
  const wrong = (['rows', 'schema', 'format', 'prefix', 'delimiter', 'spreadsheet'] as const).find(
    (name) => flags[name] !== undefined,
  )
  if (wrong !== undefined)
    throw new Failure(`--${wrong} is as in the run of ${id}, whose output is written anew; leave it out`)
  await access(id)
  const path = outputOf(id, flags, true)
  using _lock = await lockRun(path)
  const last = await lastTableRun(path)
  const target = targetAt(path, last.table.terms)
  const write = (files: Files): Promise<WrittenRows> => mergeTable({ input: id, target, last }, files)
  await writeResultsOf(shell, { id: last.batch_id, target, write }, flags)
}

const BATCH_ID = /^batch_[^./\\]*$/

async function orderOf(shell: Shell, id: string, flags: ResultsFlags): Promise<Order> {
  const target = targetFor(id, flags)
  const schema = flags.schema === undefined ? undefined : await readSchema(flags.schema)
  if (flags.rows !== undefined) {
    await access(flags.rows)
    await checkOutput(target.path, { 'the input': flags.rows })
  }
  return {
    id,
    target,
    async write(files, batch, client) {
      if (flags.rows !== undefined) await noteOtherTable(shell, client, batch, flags.rows)
      return write(files, schema ?? (await formOf(client, batch)), target, flags)
    },
  }
}

/** Warns about a table of another name: rows are joined by number, so any table with as many rows would fit. */
async function noteOtherTable(
  { terminal }: Shell,
  client: ApiClient,
  { id, input_file_id }: BatchObject,
  rows: string,
): Promise<void> {
  const stem = (path: string): string => basename(path).replace(/\..*$/, '')
  const file = await client.get(FileObject, pathOf('files', input_file_id)).catch(() => null)
  if (file !== null && stem(file.filename) !== stem(rows))
    writeLine(
      terminal.stderr,
      `note: the requests of ${id} came in ${file.filename}, and the rows are those of ${rows}; make sure that they belong together`,
    )
}

async function formOf(
  client: ApiClient,
  { endpoint, input_file_id }: BatchObject,
): Promise<AnswerSchema | undefined> {
  const first = async (): Promise<Buffer | null> => {
    for await (const { line } of jsonLines(contentOf(client, input_file_id))) return line
    return null
  }
  return formOfAnswers(endpoint, await unless([404], first(), null))
}

async function writeResultsOf(
  shell: Shell,
  { id, target, write }: Order,
  flags: ResultsFlags,
): Promise<void> {
  const { stdout, stderr } = shell.terminal
  const folder = await mkdtemp(join(dirname(target.path), `.${basename(target.path)}-`))
  try {
    await withApi(shell, flags, async ({ client, watch }) => {
      const batches = flags.merge
        ? await withRetries(client, id)
        : ([await client.get(BatchObject, pathOf('batches', id))] as const)
      const files = await fetchAll(client, batches, folder, watch)
      const { rows, failed } = await write(files, batches[0], client)
      const open = batches.find(({ status }) => !isTerminal(status))
      shell.exit(failed === 0 && open === undefined ? 0 : EXIT_LINES_FAILED)
      const { status } = open ?? batches[0]
      const retries = flags.merge ? { retries: batches.slice(1).map((one) => one.id) } : {}
      if (flags.json) return printJson(stdout, { id, status, ...retries, table: target.path, rows, failed })
      if (open)
        writeLine(stderr, `${open.id} is ${status}; the table holds the answers that are finished so far.`)
      if (batches.length > 1) writeLine(stderr, `merged: ${batches.map((one) => one.id).join(', ')}`)
      writeLine(stderr, `table: ${target.path} (${counted(rows, 'row')}, ${failed} without an answer)`)
    })
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

function targetFor(id: string, { format, output, spreadsheet }: ResultsFlags): Target {
  if (output !== undefined && format === undefined) return targetAt(output, { spreadsheet })
  const chosen = format ?? 'csv'
  return { path: output ?? `${id}.${chosen}`, format: chosen, spreadsheet }
}

async function write(
  files: Files,
  schema: AnswerSchema | undefined,
  target: Target,
  { rows, prefix, ...options }: ResultsFlags,
): Promise<WrittenRows> {
  const results = resultRows(...files)
  using check = checkBy(schema)
  const columns = answerColumns(schema, prefix ?? '', check)
  if (rows !== undefined) {
    const table = await openTable(rows, options)
    return await joinAnswers(table, rows, { columns, results }, target)
  }
  const writer = await createTable(target.path, target.format, resultColumns(columns), target)
  let written: WrittenRows = { rows: 0, failed: 0 }
  for await (written of writeResults(results, columns, writer));
  return written
}
