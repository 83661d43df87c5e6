// A table in and out without a service: rows/s of making requests and of joining answers, and peak memory of the
// process, at a tenth of the rows and at all of them. Prints; asserts nothing.
//
//   node bench/tables.ts [--rows 1000000] [--formats csv,jsonl,parquet]
import { spawnSync } from 'node:child_process'
import { createReadStream } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { byteLines } from '../src/cli/client/byte-lines.ts'
import { joinAnswers } from '../src/cli/tables/join-answers.ts'
import { createTable, openTable } from '../src/cli/tables/open-table.ts'
import { PartialFile } from '../src/cli/tables/partial-file.ts'
import { prepareRows } from '../src/cli/tables/prepare-rows.ts'
import { compileTemplate } from '../src/cli/tables/prompt-template.ts'
import { resultRows } from '../src/cli/tables/result-rows.ts'
import { lineRequestId } from '../src/domain/ids.ts'
import { answerColumns } from '../src/tables/answer-cells.ts'
import { TABLE_FORMATS, type TableFormat } from '../src/tables/table.ts'

interface Measured {
  format: TableFormat
  rows: number
  prepare_rows_per_s: number
  join_rows_per_s: number
  peak_mib: number
}

const { values } = parseArgs({
  options: {
    rows: { type: 'string', default: '1000000' },
    formats: { type: 'string', default: TABLE_FORMATS.filter((format) => format !== 'tsv').join() },
    one: { type: 'boolean', default: false },
    folder: { type: 'string', default: '' },
    make: { type: 'boolean', default: false },
  },
})
const rows = Number(values.rows)
const formats = TABLE_FORMATS.filter((format) => values.formats.split(',').includes(format))

if (values.make) for (const format of formats) await makeTable(values.folder, format)
else if (values.one)
  for (const format of formats) console.log(JSON.stringify(await measure(values.folder, format)))
else await compare()

/** Each in a process of its own, for its memory; the table is made in another. */
async function compare(): Promise<void> {
  console.log('format    rows       prepare rows/s  join rows/s  peak MiB')
  const found: Measured[] = []
  for (const format of formats) {
    for (const count of [rows / 10, rows]) {
      const folder = await mkdtemp(join(tmpdir(), 'offpeak-tables-'))
      try {
        child('--make', format, count, folder)
        const one: Measured = JSON.parse(child('--one', format, count, folder))
        found.push(one)
        const shown = [one.prepare_rows_per_s, one.join_rows_per_s, one.peak_mib]
        console.log(
          `${format.padEnd(9)} ${String(count).padEnd(10)} ${shown.map((value, i) => String(Math.round(value)).padEnd([15, 12, 0][i] ?? 0)).join(' ')}`,
        )
      } finally {
        await rm(folder, { recursive: true })
      }
    }
  }
  console.log(JSON.stringify({ scenario: 'tables', found }))
}

function child(task: string, format: TableFormat, count: number, folder: string): string {
  const args = [task, '--formats', format, '--rows', String(count), '--folder', folder]
  const { stdout, stderr, status } = spawnSync(process.execPath, [fileURLToPath(import.meta.url), ...args])
  if (status !== 0) throw new Error(String(stderr))
  return String(stdout)
}

async function makeTable(folder: string, format: TableFormat): Promise<void> {
  const columns = [
    { name: 'id', type: 'integer' as const },
    { name: 'text', type: 'string' as const },
    { name: 'stars', type: 'integer' as const },
  ]
  const table = await createTable(join(folder, `in.${format}`), format, columns)
  for (let id = 1; id <= rows; id++) {
    const text = `Review ${id}, "quoted": ${'it does what it should and more '.repeat(6)}${id * 7919}`
    await table.write({ cells: [id, text, id % 5] })
  }
  await table.end()
  await writeFile(join(folder, 'errors.jsonl'), '')
}

async function measure(folder: string, format: TableFormat): Promise<Measured> {
  const input = join(folder, `in.${format}`)
  const requests = join(folder, 'requests.jsonl')
  const results = join(folder, 'answers.jsonl')
  const begun = performance.now()
  const table = await openTable(input)
  const prompt = compileTemplate('Classify: {{text}}', table.columns, '--prompt', input)
  const question = { model: 'm', prompt, parameters: {}, images: [], folder }
  const options = { limit: Number.POSITIVE_INFINITY, signal: new AbortController().signal, onRow: () => {} }
  await prepareRows(table, question, requests, options)
  const prepared = performance.now()
  await writeResults(requests, results)
  const answered = performance.now()
  const answers = {
    columns: answerColumns(undefined, ''),
    results: resultRows(results, join(folder, 'errors.jsonl')),
    skipped: new Map<number, string>(),
  }
  const target = { path: join(folder, `out.${format}`), format }
  await joinAnswers(await openTable(input), input, answers, Number.POSITIVE_INFINITY, target)
  const joined = performance.now()
  return {
    format,
    rows,
    prepare_rows_per_s: (rows / (prepared - begun)) * 1000,
    join_rows_per_s: (rows / (joined - answered)) * 1000,
    peak_mib: process.resourceUsage().maxRSS / 1024,
  }
}

/** A result line for each request, as a service would have it. */
async function writeResults(requests: string, path: string): Promise<void> {
  const file = await PartialFile.create(path)
  const batch = `batch_${'0'.repeat(26)}`
  let line = 0
  for await (const _ of byteLines(createReadStream(requests))) {
    line++
    const id = lineRequestId(batch, line)
    const body = `{"choices":[{"index":0,"message":{"role":"assistant","content":"positive, as answer ${line} says"},"finish_reason":"stop"}],"usage":{"prompt_tokens":60,"completion_tokens":9}}`
    await file.append(
      `{"id":"${id}","custom_id":"row-${line}","response":{"status_code":200,"request_id":"${id}","body":${body}},"error":null}\n`,
    )
  }
  await file.end()
}
