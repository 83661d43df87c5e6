// prepare: makes the input file of a batch from a table, without creating the batch.
import { access } from 'node:fs/promises'
import type { Command } from 'commander'
import { withoutEnding } from '../../tables/table.ts'
import { checkOutput } from '../output-file.ts'
import type { Shell } from '../shell.ts'
import { openTable } from '../tables/open-table.ts'
import { counted } from '../terminal/format.ts'
import { examples, withJson } from '../terminal/option-values.ts'
import { progressView } from '../terminal/progress-view.ts'
import { printJson, writeLine } from '../terminal/terminal.ts'
import { askedOf, isTable, prepareRows, type TableFlags, tableTerms, withTable } from './table-question.ts'
import { showRows } from './table-run.ts'

interface PrepareFlags extends TableFlags {
  output?: string
  json?: boolean
}

export function addPrepare(program: Command, shell: Shell): void {
  const prepare = program
    .command('prepare')
    .description('make a JSONL file of requests from a table, one request for each row')
    .argument('<table>', 'CSV, TSV, JSONL or Parquet file')
    .option('-o, --output <file>', 'requests (default: TABLE.requests.jsonl)')
  examples(
    withTable(withJson(prepare)).action((input: string, flags: PrepareFlags) =>
      prepareTable(shell, input, flags),
    ),
    `offpeak prepare reviews.csv --model sim-1 --prompt 'Classify: {{text}}' -o requests.jsonl`,
    'offpeak run requests.jsonl',
    'offpeak results batch_01k0… --rows reviews.csv -o answered.csv',
  )
}

async function prepareTable(shell: Shell, input: string, flags: PrepareFlags): Promise<void> {
  const { stdout, stderr } = shell.terminal
  await access(input)
  // Names the prompt as missing, or requests as what the file holds already.
  await isTable(input, flags)
  const output = flags.output ?? `${withoutEnding(input)}.requests.jsonl`
  await checkOutput(output, { 'the input': input })
  const signal = shell.interruption()
  const view = progressView(stderr, shell.clock)
  try {
    const terms = await tableTerms(flags)
    const table = await openTable(input, terms)
    const { question } = await askedOf(input, table, terms)
    const { rows, empty, skipped } = await prepareRows(table, question, output, {
      limit: flags.limit,
      signal,
      onRow: showRows(view),
    })
    view.stop()
    const requests = rows - empty - skipped.size
    if (flags.json) return printJson(stdout, { output, requests, empty, skipped: skipped.size })
    for (const [row, reason] of [...skipped].slice(0, SHOWN_MAX))
      writeLine(stderr, `row ${row} is left out: ${reason}`)
    if (skipped.size > SHOWN_MAX)
      writeLine(stderr, `${counted(skipped.size - SHOWN_MAX, 'more row')} left out`)
    if (empty > 0) writeLine(stderr, `${counted(empty, 'empty row')} left out`)
    writeLine(stderr, `requests: ${output} (${counted(requests, 'line')})`)
  } finally {
    view.stop()
  }
}

const SHOWN_MAX = 10
