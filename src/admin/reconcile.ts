// Reconciles the books: result files, chunks, batches, ledger and usage must agree to the line and the nano-dollar.
// One transaction writes them together, so any difference is a defect.
import { isTerminal } from '../domain/batch.ts'
import { dayText } from '../domain/days.ts'
import { messageOf } from '../domain/errors.ts'
import { atMost, NANOS_PER_USD, nanosFromUsd, sumOf, usdLiteral } from '../domain/money.ts'
import { readChunkJournal } from '../results/journal.ts'
import { type Ports as ReadPorts, readRecords } from '../results/read-content.ts'
import { readBlobRow } from '../store/blobs.ts'
import { chunksOf } from '../store/chunks.ts'
import {
  type BookSum,
  type BookSums,
  batchPages,
  settledLines,
  strayReservations,
  sumsByDay,
} from '../store/ledger.ts'
import { listProjects } from '../store/projects.ts'
import type { BatchRow, ChunkRow } from '../store/schema.ts'
import type { Ports, Reader } from '../store/store.ts'

const BATCHES_AT_ONCE = 200

interface Mismatch {
  project_id: string
  /** The batch of the mismatch; null for one of the whole project. */
  batch_id: string | null
  problem: string
}

export interface Reconciled {
  projects: number
  batches: number
  /** The number of result lines that were read; deleted files are not read. */
  lines: number
  cost_nanos: number
  mismatches: Mismatch[]
}

type ReconcileDeps = Pick<Ports, 'store' | 'sealed'>

type Report = (problem: string) => void

/** Compares the books of one project or all; a running service changes them, so only repeated differences count. */
export async function reconcile(deps: ReconcileDeps, project_id?: string): Promise<Reconciled> {
  const first = await compare(deps, project_id)
  if (first.mismatches.length === 0) return first
  const second = await compare(deps, project_id)
  const before = new Set(first.mismatches.map(textOf))
  return { ...second, mismatches: second.mismatches.filter((one) => before.has(textOf(one))) }
}

function textOf({ project_id, batch_id, problem }: Mismatch): string {
  return JSON.stringify([project_id, batch_id, problem])
}

async function compare(
  { store, sealed }: ReconcileDeps,
  project_id: string | undefined,
): Promise<Reconciled> {
  const db = store.read
  const found: Reconciled = { projects: 0, batches: 0, lines: 0, cost_nanos: 0, mismatches: [] }
  for await (const batches of batchPages(db, project_id, BATCHES_AT_ONCE))
    for (const batch of batches) await compareBatch({ db, sealed }, batch, found)
  for (const { id } of await listProjects(db)) {
    if (project_id !== undefined && id !== project_id) continue
    found.projects++
    await compareProject(db, id, found)
  }
  return found
}

async function compareBatch(ports: ReadPorts, batch: BatchRow, found: Reconciled): Promise<void> {
  const { id, project_id, status } = batch
  const report: Report = (problem) => {
    found.mismatches.push({ project_id, batch_id: id, problem })
  }
  const chunks = await Array.fromAsync(chunksOf(ports.db, id))
  const settled = await settledLines(ports.db, { project_id, batch_id: id })
  const ended = batch.completed + batch.failed
  found.batches++
  found.cost_nanos = sumOf(found.cost_nanos, batch.cost_nanos)
  differ(
    report,
    'lines completed',
    ['the batch', batch.completed],
    ['its chunks', total(chunks, 'completed')],
  )
  differ(report, 'lines failed', ['the batch', batch.failed], ['its chunks', total(chunks, 'failed')])
  differ(report, 'lines', ['the batch', ended], ['the ledger', settled.lines])
  if (isTerminal(status)) differ(report, 'lines', ['its input', batch.total], ['its results', ended])
  costs(report, ['the batch', batch.cost_nanos], ['its chunks', total(chunks, 'cost_nanos')])
  costs(report, ['the batch', batch.cost_nanos], ['the ledger', settled.cost_nanos])
  for (const chunk of chunks) {
    const reportChunk: Report = (problem) => report(`chunk ${chunk.idx}: ${problem}`)
    if (chunk.state === 'sealed') found.lines += await compareChunk(ports, chunk, reportChunk)
    else await compareOpen(ports, chunk, reportChunk)
  }
}

/** Compares an unsealed chunk with its journals. */
async function compareOpen(ports: ReadPorts, chunk: ChunkRow, report: Report): Promise<void> {
  const { project_id, batch_id, idx, completed, failed } = chunk
  try {
    const lines = completed + failed > 0 ? await journalledLines(ports, chunk) : []
    const { output = [], error = [] } = Object.groupBy(lines, ({ part }) => part)
    const tokens = lines.reduce((sum, line) => sumOf(sum, line.tokens), 0)
    const cost_nanos = lines.reduce((sum, line) => sumOf(sum, line.cost_nanos), 0)
    const settled = await settledLines(ports.db, { project_id, batch_id, idx })
    differ(report, 'lines', ['its journals', output.length], ['completed', completed])
    differ(report, 'lines', ['its journals', error.length], ['failed', failed])
    differ(report, 'tokens', ['its journals', tokens], ['the ledger', settled.tokens])
    costs(report, ['its journals', cost_nanos], ['the chunk', chunk.cost_nanos])
  } catch (error) {
    report(`its journals cannot be compared: ${messageOf(error)}`)
  }
}

/** The lines of a chunk's journals by their audit records. Throws if a journal is damaged or repeats another one. */
async function journalledLines(
  ports: ReadPorts,
  chunk: ChunkRow,
): Promise<{ part: 'output' | 'error'; tokens: number; cost_nanos: number }[]> {
  const { written, unusable } = await readChunkJournal(ports, chunk)
  const [first] = unusable
  if (first)
    throw new Error(`${first.part.journal_blob} is damaged, missing or repeats lines of another journal`)
  const audits = written.map(({ audit }) => audit)
  const records = await readRecords(ports.sealed, audits)
  return written.map(({ part }, i) => {
    const { usage, cost_usd } = JSON.parse(records[i] ?? '')
    return { part, tokens: usage?.total_tokens ?? 0, cost_nanos: nanosFromUsd(cost_usd) }
  })
}

/** Compares a sealed chunk with its result lines, unless they were deleted; returns the number of lines read. */
async function compareChunk(ports: ReadPorts, chunk: ChunkRow, report: Report): Promise<number> {
  let lines = 0
  try {
    const output = await readLines(ports, chunk, 'output')
    if (output) {
      lines += output.length
      differ(report, 'lines', ['the output file', output.length], ['completed', chunk.completed])
      const sum = output.reduce((nanos, line) => sumOf(nanos, costOf(line)), 0)
      costs(report, ['the lines of the output file', sum], ['the chunk', chunk.cost_nanos])
    }
    const errors = await readLines(ports, chunk, 'error')
    if (errors) {
      lines += errors.length
      differ(report, 'lines', ['the error file', errors.length], ['failed', chunk.failed])
    }
  } catch (error) {
    report(`its results cannot be read (${messageOf(error)}); see "offpeak doctor"`)
  }
  return lines
}

/** The result lines of a chunk; null if they were deleted. */
async function readLines(
  { db, sealed }: ReadPorts,
  chunk: ChunkRow,
  part: 'output' | 'error',
): Promise<string[] | null> {
  const key = part === 'output' ? chunk.output_blob : chunk.error_blob
  if (key === null) return []
  const blob = await readBlobRow(db, key)
  if (!blob) return null
  const bytes = await sealed.readAll(chunk.project_id, blob)
  return bytes.toString('utf8').split('\n').filter(Boolean)
}

/** The cost in a result line, in nano-dollars. */
function costOf(line: string): number {
  const cost: unknown = JSON.parse(line).response?.body?.usage?.cost_usd
  if (typeof cost !== 'number') throw new Error('a line of the output file has no usage.cost_usd')
  return atMost(Math.round(cost * NANOS_PER_USD))
}

async function compareProject(db: Reader, project_id: string, found: Reconciled): Promise<void> {
  const report: Report = (problem) => {
    found.mismatches.push({ project_id, batch_id: null, problem })
  }
  const books = async (table: Parameters<typeof sumsByDay>[1], isByEntity: boolean): Promise<BookSums> =>
    await sumsByDay(db, table, project_id, isByEntity)
  const settled = await books('ledger_entries', true)
  compareSums(report, ['the ledger', settled], ['usage', await books('usage_days', true)], true)
  const ofProject = await books('project_days', false)
  compareSums(report, ['the ledger', await books('ledger_entries', false)], ['the project', ofProject], false)
  for (const { batch_id, idx } of await strayReservations(db, project_id))
    report(`chunk ${idx} of ${batch_id} has reservations, but no worker has leased it`)
}

function compareSums(
  report: Report,
  [left, ones]: [string, BookSums],
  [right, others]: [string, BookSums],
  with_lines: boolean,
): void {
  for (const key of new Set([...ones.keys(), ...others.keys()])) {
    const [day = '', ...entity] = key.split(' ')
    const where = `${dayText(Number(day))}${entity.join(' ') === '' ? '' : `, ${entity.join(' ')}`}: `
    const say: Report = (problem) => report(where + problem)
    const one = ones.get(key) ?? NOTHING
    const other = others.get(key) ?? NOTHING
    if (with_lines) differ(say, 'lines', [left, one.lines], [right, other.lines])
    differ(say, 'tokens', [left, one.tokens], [right, other.tokens])
    costs(say, [left, one.cost_nanos], [right, other.cost_nanos])
  }
}

const NOTHING: BookSum = { lines: 0, tokens: 0, cost_nanos: 0 }

function total(chunks: readonly ChunkRow[], column: 'completed' | 'failed' | 'cost_nanos'): number {
  return chunks.reduce((sum, chunk) => sumOf(sum, chunk[column]), 0)
}

type Side = readonly [name: string, amount: number]

function differ(report: Report, what: string, [a, one]: Side, [b, other]: Side): void {
  if (one !== other) report(`${what}: ${a} says ${one}, ${b} ${other}`)
}

function costs(report: Report, [a, one]: Side, [b, other]: Side): void {
  if (one !== other) report(`cost: ${a} says ${usdLiteral(one)} USD, ${b} ${usdLiteral(other)} USD`)
}
