// results: the results of any batch as a table, on their own or beside the rows that its requests were made of.
import { access, mkdtemp, rm } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { type Command, Option } from 'commander'
import { isTerminal } from '../../domain/batch.ts'
import { type AnswerSchema, answerColumns } from '../../tables/answer-cells.ts'
import { resultColumns, type WrittenRows, writeResults } from '../../tables/result-table.ts'
import { TABLE_FORMATS, type TableFormat } from '../../tables/table.ts'
import { BatchObject } from '../../wire/batch.ts'
import { type ApiFlags, apiCommand, withApi } from '../client/connect.ts'
import { downloadResults } from '../client/download.ts'
import type { Shell } from '../shell.ts'
import { joinAnswers, resultRows, type Target } from '../tables/join-answers.ts'
import { createTable, formatOfOutput, openTable } from '../tables/open-table.ts'
import { refuseSameFile } from '../tables/partial-file.ts'
import { checkBy, readSchema } from '../tables/prompt-template.ts'
import { EXIT_LINES_FAILED } from '../terminal/failure.ts'
import { counted } from '../terminal/format.ts'
import { examples } from '../terminal/option-values.ts'
import { printJson } from '../terminal/table.ts'
import { writeLine } from '../terminal/terminal.ts'
import { SPREADSHEET } from './table-job.ts'

interface ResultsFlags extends ApiFlags {
  format?: TableFormat
  output?: string
  rows?: string
  schema?: string
  prefix: string
  delimiter?: string
  spreadsheet?: boolean
}

export function addResults(program: Command, shell: Shell): void {
  examples(
    apiCommand(program, 'results', 'write the results of a batch as a table')
      .argument('<id>', 'batch_…')
      .option('-o, --output <file>', 'the table (default: ID.FORMAT)')
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
      .option('--schema <file>', 'the JSON Schema of the answers; each property becomes a column')
      .option('--prefix <text>', 'put this before the names of the new columns', '')
      .option('--delimiter <character>', 'what separates the cells of the CSV file that --rows names')
      .option('--spreadsheet', SPREADSHEET)
      .action((id: string, flags: ResultsFlags) => writeTable(shell, id, flags)),
    'offpeak results batch_01k0… --format csv',
    'offpeak results batch_01k0… -o answers.parquet --schema schema.json',
    'offpeak results batch_01k0… --rows reviews.csv -o answered.csv',
  )
}

async function writeTable(shell: Shell, id: string, flags: ResultsFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  const target = targetFor(id, flags)
  const schema = flags.schema === undefined ? undefined : await readSchema(flags.schema)
  if (flags.rows !== undefined) {
    await access(flags.rows)
    await refuseSameFile(flags.rows, target.path)
  }
  const signal = shell.interruption()
  const folder = await mkdtemp(join(dirname(target.path), `.${basename(target.path)}-`))
  try {
    await withApi(shell, flags, async ({ client, pace }) => {
      const batch = await client.get(BatchObject, `/v1/batches/${encodeURIComponent(id)}`)
      const files = { output: join(folder, 'answers.jsonl'), errors: join(folder, 'errors.jsonl') }
      await downloadResults(client, batch, files, { pace, clock: shell.clock, signal })
      const { rows, failed } = await write(files, schema, target, flags)
      shell.exit(failed === 0 && isTerminal(batch.status) ? 0 : EXIT_LINES_FAILED)
      if (flags.json) return printJson(stdout, { id, status: batch.status, table: target.path, rows, failed })
      if (!isTerminal(batch.status))
        writeLine(stderr, `${id} is ${batch.status}; the table holds the answers that are finished so far.`)
      writeLine(stderr, `table: ${target.path} (${counted(rows, 'row')}, ${failed} without an answer)`)
    })
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

function targetFor(id: string, { format, output, spreadsheet }: ResultsFlags): Target {
  if (output !== undefined) return { path: output, format: format ?? formatOfOutput(output), spreadsheet }
  const chosen = format ?? 'csv'
  return { path: `${id}.${chosen}`, format: chosen, spreadsheet }
}

async function write(
  files: { output: string; errors: string },
  schema: AnswerSchema | undefined,
  target: Target,
  { rows, prefix, ...options }: ResultsFlags,
): Promise<WrittenRows> {
  const results = resultRows(files.output, files.errors)
  const check = schema && checkBy(schema)
  const columns = answerColumns(schema, prefix, check)
  try {
    if (rows !== undefined) {
      const table = await openTable(rows, options)
      const answers = { columns, results, skipped: new Map<number, string>() }
      return await joinAnswers(table, rows, answers, Number.POSITIVE_INFINITY, target)
    }
    const writer = await createTable(target.path, target.format, resultColumns(columns), target)
    let written: WrittenRows = { rows: 0, failed: 0 }
    for await (written of writeResults(results, columns, writer));
    return written
  } finally {
    check?.close()
  }
}
