// The invariants that are checked after a run. Each violation is a sentence.
import { isTerminal } from '../../src/domain/batch.ts'
import { costNanos, nanosFromUsd } from '../../src/domain/money.ts'
import { readBatchRow } from '../../src/store/batches.ts'
import type { BatchRow } from '../../src/store/schema.ts'
import { ledgerViolations } from './ledger-violations.ts'
import { resultLines } from './result-lines.ts'
import { type PlannedBatch, SIM_MODEL, type SimulatedRun } from './run.ts'

export async function violations(run: SimulatedRun): Promise<string[]> {
  const found = [...run.checker.violations]
  for (const planned of run.batches) {
    const batch = await readBatchRow(run.store.read, planned.id)
    if (!batch || !isTerminal(batch.status)) found.push(`${planned.name} is still ${batch?.status}`)
    else
      found.push(
        ...(await ofBatch(run, planned, batch).catch((error) => [
          `${planned.name} cannot be read: ${error}`,
        ])),
      )
  }
  if (found.length === 0) found.push(...(await ofLedger(run)), ...(await ofStores(run)))
  return found
}

async function ofBatch(run: SimulatedRun, planned: PlannedBatch, batch: BatchRow): Promise<string[]> {
  const { name } = planned
  const found: string[] = []
  const { outputs, errors } = planned.read ?? (await resultLines(run, batch))
  if (planned.read) found.push(...(await remainingBlobs(run, planned)))
  const all = [...outputs, ...errors].map(customId)
  const seen = new Set(all)
  if (seen.size !== all.length) found.push(`${name}: a line is in the files twice`)
  const missing = planned.lines.filter((line) => !seen.has(line))
  if (missing.length > 0) found.push(`${name} ended ${batch.status} without ${missing.join(', ')}`)
  if (seen.size > planned.lines.length - missing.length) found.push(`${name} has lines of another batch`)
  for (const part of [outputs, errors]) {
    const places = part.map((line) => planned.lines.indexOf(customId(line)))
    if (places.some((place, i) => i > 0 && place <= places[i - 1]!)) found.push(`${name} is out of order`)
  }
  const { completed, failed, total, output_lines, error_lines } = batch
  if (completed !== outputs.length || failed !== errors.length || completed + failed !== total)
    found.push(
      `${name} counts ${completed} + ${failed} of ${total}; its files have ${outputs.length} + ${errors.length}`,
    )
  if (output_lines !== outputs.length || error_lines !== errors.length)
    found.push(`${name}'s files say ${output_lines} + ${error_lines} lines`)
  let cost = 0
  for (const text of outputs) {
    const nanos = nanosFromUsd(JSON.parse(text).response.body.usage.cost_usd)
    cost += nanos
    if (!isCostOfAnAnswer(run, customId(text), nanos)) found.push(`${customId(text)} costs ${nanos}`)
  }
  if (cost !== batch.cost_nanos) found.push(`${name} costs ${batch.cost_nanos}, its lines ${cost}`)
  for (const text of [...outputs, ...errors]) {
    const finished = run.checker.finished.get(customId(text))
    if (finished !== undefined && finished !== text)
      found.push(`${customId(text)} was finished as ${finished} and came back as ${text}`)
  }
  const lost = planned.lines.filter((line) => run.checker.finished.has(line) && !seen.has(line))
  if (lost.length > 0) found.push(`${name} lost ${lost.join(', ')}, which were finished`)
  const events = await run.store.read
    .selectFrom('events')
    .select('type')
    .where('data', 'like', `%${batch.id}%`)
    .where('type', 'in', ['batch.completed', 'batch.failed', 'batch.expired', 'batch.cancelled'])
    .execute()
  if (events.length !== 1 || events[0]?.type !== `batch.${batch.status}`)
    found.push(`${name} is ${batch.status}; its events: ${events.map(({ type }) => type).join(', ')}`)
  return found
}

/** An answer without token counts is priced by estimate, so its cost cannot be checked here. */
function isCostOfAnAnswer({ server }: SimulatedRun, line: string, nanos: number): boolean {
  if (server.unmetered.has(line)) return true
  const answers = server.answers.get(line) ?? []
  return answers.some((tokens) => costNanos(server.prompt_tokens, tokens, SIM_MODEL.price) === nanos)
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

async function ofLedger(run: SimulatedRun): Promise<string[]> {
  const { store, sealed, batches, caps } = run
  const found = await ledgerViolations({ store, sealed })
  const lines = batches.reduce((sum, batch) => sum + batch.lines.length, 0)
  const entries = await store.read.selectFrom('ledger_entries').selectAll().execute()
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

function customId(text: string): string {
  return String(JSON.parse(text).custom_id)
}
