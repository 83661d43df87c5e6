// The invariants that are checked after the kills: on the files of every batch, the ledger, the stores and the calls
// at the model server. Each violation is a sentence.

import { reconcile } from '../../src/admin/reconcile.ts'
import { readAuditLog, SETTLED_MS, START } from '../../src/audit/export-records.ts'
import { openStores, type Stores } from '../../src/compose/stores.ts'
import type { Config } from '../../src/config/config.ts'
import { systemClock } from '../../src/domain/clock.ts'
import { startOfDay } from '../../src/domain/days.ts'
import { parseLineRequestId } from '../../src/domain/ids.ts'
import { spenderOf, windowAt } from '../../src/domain/limit.ts'
import { costNanos, counted, nanosFromUsd, type Price } from '../../src/domain/money.ts'
import { runMaintenance } from '../../src/maintenance/maintenance.ts'
import { OrphanSweep } from '../../src/maintenance/sweep.ts'
import type { ReadPorts } from '../../src/results/finished-lines.ts'
import { readBlobRow } from '../../src/store/blobs.ts'
import type { BatchClient, KnownBatch } from './batch-client.ts'
import type { SendLog } from './send-log.ts'

interface ResultLine {
  custom_id: string
  response: { body: { usage: { cost_usd: number }; choices: { message: { content: string } }[] } } | null
  error: { code: string } | null
}

/**
 * One batch that has ended, by what its client can download. A call is on its way for `on_its_way_ms` at most
 * between the clock readings of the worker and of the recording proxy.
 */
export async function ofBatch(
  client: BatchClient,
  batch: KnownBatch,
  { sendLog, price, on_its_way_ms }: { sendLog: SendLog; price: Price; on_its_way_ms: number },
): Promise<string[]> {
  const found: string[] = []
  const tell = (problem: string): void => void found.push(`${batch.id} (${batch.status}): ${problem}`)
  const shown = await client.show(batch)
  const output = linesOf(await client.content(shown.output_file_id))
  const errors = linesOf(await client.content(shown.error_file_id))
  // Only now: what was answered last may have been written down a moment ago.
  sendLog.read()
  if (shown.status !== batch.status) tell(`it has ended, and is ${shown.status} now`)
  const place = new Map(batch.lines.map((mark, i) => [mark, i]))
  const times = new Map<string, number>()
  for (const part of [output, errors]) {
    let last = -1
    for (const { mark } of part) {
      times.set(mark, (times.get(mark) ?? 0) + 1)
      const at = place.get(mark)
      if (at === undefined) tell(`${mark} is none of its lines`)
      else if (at <= last) tell(`${mark} is out of order`)
      last = at ?? last
    }
  }
  for (const mark of batch.lines)
    if (times.get(mark) !== 1) tell(`${mark} is ${times.get(mark) ?? 0} times in its files`)
  const { total, completed, failed } = shown.request_counts
  if (total !== batch.lines.length || completed !== output.length || failed !== errors.length)
    tell(`it counts ${completed} + ${failed} of ${total}; its files have ${output.length} + ${errors.length}`)
  let cost = 0
  for (const { mark, line } of output) {
    const nanos = nanosFromUsd(line.response?.body.usage.cost_usd ?? Number.NaN)
    cost += nanos
    const content = line.response?.body.choices[0]?.message.content
    const given = (sendLog.by_mark.get(mark) ?? []).find(({ answer }) => answer?.content === content)?.answer
    if (!given) tell(`${mark} has the answer "${content}", which nobody gave`)
    else if (costNanos(given.prompt_tokens, given.completion_tokens, price) !== nanos)
      tell(`${mark} costs ${nanos}; its answer was ${JSON.stringify(given)}`)
  }
  if (cost !== nanosFromUsd(shown.cost_usd))
    tell(`it costs ${shown.cost_usd}, its lines ${cost} nano-dollars`)
  const now = new Map([...output, ...errors].map(({ mark, text }) => [mark, text]))
  for (const [mark, { text, at }] of batch.seen) {
    if (now.get(mark) !== text) tell(`${mark} was finished as ${text} and is now ${now.get(mark)}`)
    for (const call of sendLog.by_mark.get(mark) ?? [])
      if (call.at > at + on_its_way_ms)
        tell(`${mark} was called at ${call.at}, and had been finished at ${at}`)
  }
  for (const mark of batch.lines)
    for (const call of sendLog.by_mark.get(mark) ?? [])
      if (call.at >= batch.expires_at * 1000 + on_its_way_ms)
        tell(`${mark} was called ${call.at - batch.expires_at * 1000} ms after its window had closed`)
  return found
}

function linesOf(text: string): { mark: string; text: string; line: ResultLine }[] {
  return text
    .split('\n')
    .filter(Boolean)
    .map((text) => {
      const line: ResultLine = JSON.parse(text)
      return { mark: line.custom_id, text, line }
    })
}

/** The books and the stores, once every process has ended. `exported`: what clients have read of the audit log. */
export async function ofStores(
  config: Config,
  batches: readonly KnownBatch[],
  exported: readonly (readonly string[])[],
): Promise<string[]> {
  const found: string[] = []
  const { store, blobs, sealed } = await openStores(config)
  try {
    const books = await reconcile({ store, sealed })
    for (const { batch_id, problem } of books.mismatches)
      found.push(`the books: ${batch_id ?? ''} ${problem}`)
    const known = new Set(batches.map(({ id }) => id))
    const rows = await store.read.selectFrom('batches').selectAll().execute()
    for (const { id } of rows)
      if (!known.has(id)) found.push(`${id} was created, and nobody was told: a retry made it twice`)
    for (const id of known)
      if (!rows.some((row) => row.id === id)) found.push(`${id} was accepted, and is gone`)
    for (const row of rows) {
      const events = await store.read
        .selectFrom('events')
        .select('type')
        .where('data', 'like', `%${row.id}%`)
        .where('type', 'in', ['batch.completed', 'batch.failed', 'batch.expired', 'batch.cancelled'])
        .execute()
      if (events.length !== 1 || events[0]?.type !== `batch.${row.status}`)
        found.push(`${row.id} is ${row.status}; its ends: ${events.map(({ type }) => type).join(', ')}`)
    }
    const settled = await store.read.selectFrom('ledger_entries').select('lines').execute()
    const lines = batches.reduce((sum, batch) => sum + batch.lines.length, 0)
    const billed = settled.reduce((sum, entry) => sum + entry.lines, 0)
    if (billed !== lines) found.push(`the ledger has settled ${billed} lines of ${lines}`)
    found.push(...(await ofCaps(store)))
    found.push(
      ...(await ofExports({ db: store.read, sealed, now: Date.now() + SETTLED_MS + 1000 }, lines, exported)),
    )
    found.push(...(await ofAudit({ store, sealed })))
    await runMaintenance({ store, sealed, clock: systemClock })
    const atOnce = { orphanAgeMs: 0, everyMs: 0, askEveryMs: 0, secondLookMs: 0 }
    const sweep = new OrphanSweep({ store, blobs, clock: systemClock }, atOnce)
    // It looks twice.
    for (let look = 0; look < 2; look++) await sweep.tick()
    const blobRows = await store.read.selectFrom('blobs').select(['key', 'deletion_pending_since']).execute()
    const stored = new Set<string>()
    for await (const { key } of blobs.list('')) stored.add(key)
    for (const { key } of blobRows) if (!stored.delete(key)) found.push(`${key} has a row and no bytes`)
    for (const key of stored) found.push(`${key} is an orphan`)
    for (const table of ['reservations', 'journal_parts', 'tasks'] as const) {
      const left = await store.read.selectFrom(table).selectAll().execute()
      if (left.length > 0) found.push(`${left.length} ${table} are left: ${JSON.stringify(left.slice(0, 3))}`)
    }
  } finally {
    await store.close()
  }
  return found
}

/** No spender of a limit has spent more than its amount in any window. */
async function ofCaps(store: Stores['store']): Promise<string[]> {
  const limits = await store.read.selectFrom('limits').selectAll().execute()
  const usage = await store.read.selectFrom('usage_days').selectAll().execute()
  return limits.flatMap((limit) => {
    const spent = new Map<string, number>()
    for (const { day, entity, model, key_id, ...sums } of usage) {
      const spender = spenderOf(limit, { entity: entity || null, model, key_id })
      if (sums.project_id !== limit.project_id || spender === null) continue
      const which = `${spender} in the ${limit.window} of ${windowAt(limit.window, startOfDay(day)).start}`
      const { cost_nanos, total_tokens: tokens, requests } = sums
      spent.set(which, (spent.get(which) ?? 0) + counted({ cost_nanos, tokens, requests }, limit.metric))
    }
    return [...spent]
      .filter(([, sum]) => sum > limit.amount)
      .map(([which, sum]) => `${which} has ${sum} of the limit ${JSON.stringify(limit)}`)
  })
}

/** The audit log has every line once, and what was read of it while processes were killed is its beginning. */
async function ofExports(
  ports: ReadPorts,
  lines: number,
  exported: readonly (readonly string[])[],
): Promise<string[]> {
  const ids: string[] = []
  let after = START
  for (let hasMore = true; hasMore; ) {
    const page = await readAuditLog(ports, { project_id: null, after, limit: 1000, models: null })
    ids.push(...page.entries.map(({ id }) => id))
    after = page.next
    hasMore = page.hasMore
  }
  const found: string[] = []
  const place = new Map(ids.map((id, i) => [id, i]))
  if (place.size !== ids.length) found.push(`${ids.length - place.size} records are exported twice`)
  const ofLines = ids.filter((id) => parseLineRequestId(id) !== null).length
  if (ofLines !== lines) found.push(`${ofLines} lines of ${lines} are exported`)
  for (const read of exported)
    if (read.some((id, i) => i > 0 && (place.get(id) ?? -1) <= (place.get(read[i - 1]!) ?? -1)))
      found.push('a client has read records that are missing or in another order now')
  return found
}

/** Every line has one record, and none of its attempts began after the window had closed. */
async function ofAudit({ store, sealed }: Pick<Stores, 'store' | 'sealed'>): Promise<string[]> {
  const found: string[] = []
  const chunks = await store.read.selectFrom('chunks').selectAll().execute()
  for (const { batch_id, idx, audit_blob, line_count, deadline, cost_nanos } of chunks) {
    const row = audit_blob === null ? undefined : await readBlobRow(store.read, audit_blob)
    if (!row) {
      found.push(`chunk ${idx} of ${batch_id} has no audit records`)
      continue
    }
    const texts = String(await sealed.readAll(row.project_id, row))
      .split('\n')
      // Behind the last line break stands the index.
      .slice(0, -1)
    const records: { id: string; cost_usd: number; attempts: { at: number }[] }[] = texts.map((text) =>
      JSON.parse(text),
    )
    const where = `the audit records of chunk ${idx} of ${batch_id}`
    if (new Set(records.map(({ id }) => id)).size !== line_count || records.length !== line_count)
      found.push(`${where} are ${records.length} for ${line_count} lines`)
    const cost = records.reduce((sum, record) => sum + nanosFromUsd(record.cost_usd), 0)
    if (cost !== cost_nanos) found.push(`${where} cost ${cost}, the chunk ${cost_nanos}`)
    for (const { id, attempts } of records)
      for (const { at } of attempts)
        if (at * 1000 >= deadline) found.push(`${id} was sent ${at * 1000 - deadline} ms after its window`)
  }
  return found
}
