// The invariants that are checked after a run. Each violation is a sentence.
import { isNotRun, isTerminal } from '../../src/domain/batch.ts'
import { EVENT_TYPES } from '../../src/domain/event.ts'
import { nanosFromUsd } from '../../src/domain/money.ts'
import { findFile } from '../../src/store/files.ts'
import { readRow } from '../../src/store/rows.ts'
import type { BatchRow } from '../../src/store/schema.ts'
import { ledgerViolations } from './ledger-violations.ts'
import type { PlannedBatch, PlannedLine } from './plans.ts'
import { remoteViolations } from './remote-violations.ts'
import { type CheckedLine, checkLine } from './result-checks.ts'
import { auditRecords, resultLines } from './result-lines.ts'
import type { SimulatedRun } from './run.ts'

export async function violations(run: SimulatedRun): Promise<string[]> {
  const found = [...run.checker.violations]
  let total = 0
  const books: Books = new Map()
  for (const planned of run.plans.batches) {
    const batch = await readRow(run.store.read, 'batches', { id: planned.id })
    total += batch?.total ?? 0
    if (!batch || !isTerminal(batch.status)) found.push(`${planned.name} is still ${batch?.status}`)
    else
      found.push(
        ...(await ofBatch(run, planned, batch, books).catch((error) => [
          `${planned.name} cannot be read: ${error.stack}`,
        ])),
      )
  }
  if (found.length === 0)
    found.push(
      ...(await ofLedger(run, total, books)),
      ...(await ofStores(run)),
      ...(await remoteViolations(run)),
    )
  return found
}

/** By project and entity, what the lines of all batches cost, and the tokens of their audit records. */
type Books = Map<string, { cost_nanos: number; tokens: number }>

async function ofBatch(
  run: SimulatedRun,
  planned: PlannedBatch,
  row: BatchRow,
  books: Books,
): Promise<string[]> {
  const { name } = planned
  const found: string[] = []
  const { outputs, errors } = planned.read ?? (await resultLines(run, row))
  if (planned.read) found.push(...(await remainingBlobs(run, planned)))
  if (row.retention !== null) found.push(...(await keptContent(run, planned, row)))
  const { completed, failed, total, output_lines, error_lines } = row
  if (completed !== outputs.length || failed !== errors.length || completed + failed !== total)
    found.push(
      `${name} counts ${completed} + ${failed} of ${total}; its files have ${outputs.length} + ${errors.length}`,
    )
  if (output_lines !== outputs.length || error_lines !== errors.length)
    found.push(`${name}'s files say ${output_lines} + ${error_lines} lines`)
  // A batch that ended before its file was validated has none.
  if (total > 0 || planned.lines.length === 0) {
    const checked = checkedLines(run, planned, row, { outputs, errors }, found)
    found.push(...(await ofRecords(run, planned, row, checked, books)))
  }
  const events = await run.store.read
    .selectFrom('events')
    .select('type')
    .where('data', 'like', `%${row.id}%`)
    .where('type', 'in', ['batch.completed', 'batch.failed', 'batch.expired', 'batch.cancelled'])
    .execute()
  if (row.has_line_events === 1) {
    const ends = await run.store.read
      .selectFrom('events')
      .select('data')
      .where('data', 'like', `%"batch_id":"${row.id}"%`)
      .where(
        'type',
        'in',
        EVENT_TYPES.filter((type) => type.startsWith('request.')),
      )
      .execute()
    const lines = new Set(ends.map(({ data }) => JSON.parse(data).id))
    if (ends.length !== total || lines.size !== total)
      found.push(`${name} has ${total} single requests, and ${ends.length} events of ${lines.size} of them`)
  }
  if (events.length !== 1 || events[0]?.type !== `batch.${row.status}`)
    found.push(`${name} is ${row.status}; its events: ${events.map(({ type }) => type).join(', ')}`)
  return found
}

/** Each line has one audit record, which says what its result costs. Adds both to the books. */
async function ofRecords(
  run: SimulatedRun,
  planned: PlannedBatch,
  row: BatchRow,
  checked: readonly CheckedLine[],
  books: Books,
): Promise<string[]> {
  const found: string[] = []
  const all = await auditRecords(run, planned)
  const notRun = all.filter(({ error, attempts, attempts_omitted = 0 }) =>
    isNotRun(error?.code, attempts.length + attempts_omitted),
  ).length
  if (notRun !== row.not_run)
    found.push(`${planned.name} counts ${row.not_run} lines that were not sent, its records ${notRun}`)
  const records = Map.groupBy(all, ({ custom_id }) => custom_id)
  for (const { line, cost_nanos } of checked) {
    const [record, ...others] = records.get(line.custom_id) ?? []
    if (!record || others.length > 0)
      found.push(`${line.name} has ${record ? 1 + others.length : 0} audit records`)
    else if (nanosFromUsd(record.cost_usd ?? 0) !== cost_nanos)
      found.push(`${line.name} costs ${cost_nanos}, and by its audit record ${record.cost_usd} USD`)
    const key = `${planned.project_id} ${line.entity}`
    const sums = books.get(key) ?? { cost_nanos: 0, tokens: 0 }
    const tokens = sums.tokens + (record?.usage?.total_tokens ?? 0)
    books.set(key, { cost_nanos: sums.cost_nanos + cost_nanos, tokens })
  }
  return found
}

/** Adds what is wrong with the result lines to `found`. */
function checkedLines(
  run: SimulatedRun,
  planned: PlannedBatch,
  row: BatchRow,
  { outputs, errors }: { outputs: readonly string[]; errors: readonly string[] },
  found: string[],
): CheckedLine[] {
  const { name } = planned
  const places = new Map(planned.lines.map((line, place) => [line, place]))
  const checked: CheckedLine[] = []
  for (const part of [outputs, errors]) {
    let last = -1
    for (const text of part) {
      const line = run.plans.line(planned.id, customId(text))
      if (!line) {
        found.push(`${name} has a line of another batch: ${text}`)
        continue
      }
      const place = places.get(line) ?? -1
      if (place <= last) found.push(`${name} is out of order`)
      last = place
      checked.push(checkLine(run, { planned, row }, line, text, found))
      const finished = run.checker.finished.get(line.name)
      if (finished !== undefined && finished !== text)
        found.push(`${line.name} was finished as ${finished} and came back as ${text}`)
    }
  }
  const seen = new Set(checked.map(({ line }) => line))
  if (seen.size !== checked.length) found.push(`${name}: a line is in the files twice`)
  const missing = planned.lines.filter((line) => !seen.has(line))
  if (missing.length > 0) found.push(`${name} ended ${row.status} without ${namesOf(missing)}`)
  const lost = missing.filter((line) => run.checker.finished.has(line.name))
  if (lost.length > 0) found.push(`${name} lost ${namesOf(lost)}, which were finished`)
  const cost = checked.reduce((sum, { cost_nanos }) => sum + cost_nanos, 0)
  if (cost !== row.cost_nanos) found.push(`${name} costs ${row.cost_nanos}, its lines ${cost}`)
  const shared = checked.filter(({ isAnswered, isShared }) => isAnswered && isShared).length
  if (shared !== row.shared_lines)
    found.push(`${name} counts ${row.shared_lines} shared lines, and has ${shared}`)
  found.push(...unbilled(run, checked))
  return checked
}

/**
 * Each request that has an answer is billed at least once. The line that was sent for the others may end unanswered after
 * that: its own result was not committed when its worker crashed, and its batch ended before it was sent again.
 */
function unbilled({ tally }: SimulatedRun, checked: readonly CheckedLine[]): string[] {
  const found: string[] = []
  for (const [request, of] of Map.groupBy(checked, ({ line }) => line.request)) {
    const answered = of.filter(({ isAnswered }) => isAnswered)
    if (answered.length === 0 || answered.some(({ isShared }) => !isShared)) continue
    const unanswered = of.filter(({ isAnswered }) => !isAnswered)
    if (unanswered.length === 0) found.push(`${request} was answered and never billed`)
    else tally.count('dedupe: answered, but the line that was sent ended otherwise')
  }
  return found
}

/** Blobs of deleted files that still exist. */
async function remainingBlobs({ store }: SimulatedRun, { id, name }: PlannedBatch): Promise<string[]> {
  const left = await store.read
    .selectFrom('blobs')
    .select('key')
    .where('key', 'like', `batches/${id}/%`)
    .where((eb) => eb.or([eb('key', 'like', '%-output'), eb('key', 'like', '%-error')]))
    .execute()
  return left.map(({ key }) => `the files of ${name} were deleted, and ${key} still exists`)
}

/** Content of a batch with `retention` that users still see: its input after its end, and results that were fetched. */
async function keptContent(
  run: SimulatedRun,
  { name, read }: PlannedBatch,
  row: BatchRow,
): Promise<string[]> {
  const { input_file_id, output_file_id, error_file_id, project_id } = row
  const results = [output_file_id, error_file_id].filter((id) => id !== null)
  run.tally.count(`not kept: ${read ? 'fetched' : 'not fetched'}`)
  const found: string[] = []
  for (const id of [input_file_id, ...results]) {
    const isSeen = (await findFile(run.store.read, project_id, id, run.now())) !== undefined
    const isKept = results.includes(id) && !read
    if (isSeen !== isKept) found.push(`${name} is not kept, and ${id} is ${isSeen ? 'seen' : 'gone'}`)
  }
  return found
}

async function ofLedger(run: SimulatedRun, lines: number, books: Books): Promise<string[]> {
  const { store, caps } = run
  const found = await ledgerViolations(run)
  const entries = await store.read.selectFrom('ledger_entries').selectAll().execute()
  for (const [key, own] of Map.groupBy(entries, ({ project_id, entity }) => `${project_id} ${entity}`)) {
    const { cost_nanos, tokens } = books.get(key) ?? { cost_nanos: 0, tokens: 0 }
    const settledNanos = own.reduce((sum, entry) => sum + entry.cost_nanos, 0)
    const settledTokens = own.reduce((sum, entry) => sum + entry.tokens, 0)
    if (settledNanos !== cost_nanos || settledTokens !== tokens)
      found.push(
        `the ledger has ${settledNanos} and ${settledTokens} tokens of ${key}, its lines ${cost_nanos} and ${tokens}`,
      )
  }
  const usage = await store.read.selectFrom('usage_days').selectAll().execute()
  const settled = entries.reduce((sum, entry) => sum + entry.lines, 0)
  const used = usage.reduce((sum, row) => sum + row.succeeded + row.failed, 0)
  if (settled !== lines) found.push(`the ledger has settled ${settled} lines of ${lines}`)
  if (used !== lines) found.push(`usage counts ${used} lines of ${lines}`)
  found.push(...(await caps.violations(run)))
  const reservations = await store.read.selectFrom('reservations').selectAll().execute()
  if (reservations.length > 0) found.push(`${reservations.length} reservations remain`)
  return found
}

/** Every blob has a row and every row a blob; no journal and no task outlives its batch. */
async function ofStores({ store, blobs }: SimulatedRun): Promise<string[]> {
  const found: string[] = []
  const rows = await store.read.selectFrom('blobs').select(['key', 'deletion_pending_since']).execute()
  const known = new Set(rows.map(({ key }) => key))
  const stored = new Set<string>()
  for await (const { key } of blobs.list('')) stored.add(key)
  for (const key of stored) if (!known.has(key)) found.push(`${key} is an orphan`)
  for (const { key, deletion_pending_since } of rows) {
    if (deletion_pending_since !== null) found.push(`${key} is pending deletion and still exists`)
    else if (!stored.has(key)) found.push(`${key} has a row and no blob`)
  }
  const parts = await store.read.selectFrom('journal_parts').selectAll().execute()
  if (parts.length > 0) found.push(`${parts.length} journal parts remain`)
  const tasks = await store.read.selectFrom('tasks').select(['kind', 'state']).execute()
  if (tasks.length > 0) found.push(`tasks remain: ${JSON.stringify(tasks)}`)
  return found
}

function namesOf(lines: readonly PlannedLine[]): string {
  return lines.map(({ name }) => name).join(', ')
}

function customId(text: string): string {
  return String(JSON.parse(text).custom_id)
}
