// A journal that rots takes answers with it that were billed: they are taken back, and given again.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { sql } from 'kysely'
import { reconcile } from '../../src/admin/reconcile.ts'
import type { SealedBlob } from '../../src/blobs/sealed.ts'
import { newId } from '../../src/domain/ids.ts'
import { JOURNAL_OWNER } from '../../src/results/journal.ts'
import { insertBlobs, readBlobRow } from '../../src/store/blobs.ts'
import { insertRows } from '../../src/store/rows.ts'
import { echo, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'
import { until } from '../support/offpeak-process.ts'

const COUNT = 20
const INPUT = Array.from({ length: COUNT }, (_, i) => JSON.stringify(line(`l${i}`))).join('\n')

/** As far as a batch comes of which half the lines are never answered: stopped, and its finished lines in a journal. */
async function halfDone(service: TestService, upstream: TestUpstream): Promise<{ id: string; done: number }> {
  const file = await service.upload(INPUT)
  const { id } = await service.create(file.id, { metadata: { entity: 'user:a' } })
  await upstream.arrived(COUNT)
  await service.worker.stop()
  const { completed } = (await service.get(id)).request_counts
  assert.ok(completed > 0 && completed < COUNT)
  return { id, done: completed }
}

async function journalKeys({ stores }: TestService): Promise<string[]> {
  const rows = await stores.store.read.selectFrom('journal_parts').select('journal_blob').distinct().execute()
  return rows.map(({ journal_blob }) => journal_blob)
}

const config = (upstream: TestUpstream): string =>
  configFor(upstream.base_url).replace('lease: 2s', 'lease: 2s, drain: 0ms')

for (const [how, spoil] of [
  [
    'damaged',
    (bytes: Buffer) => Buffer.from(bytes.map((byte, i) => (i === bytes.length >> 1 ? byte ^ 1 : byte))),
  ],
  ['gone', null],
] as const)
  test(`lines of a journal that is ${how} are taken back from the books, run again, and billed once`, async () => {
    await using upstream = await testUpstream((call) => {
      if (call.index < COUNT / 2) echo(call)
    })
    await using service = await TestService.start(config(upstream))
    const { blobs } = service.stores
    const { id, done } = await halfDone(service, upstream)
    for (const key of await journalKeys(service)) {
      const pieces: Buffer[] = []
      for await (const piece of blobs.read(key)) pieces.push(Buffer.from(piece))
      if (spoil) await blobs.put(key, [spoil(Buffer.concat(pieces))])
      else await blobs.delete(key)
    }
    upstream.reply = echo
    await service.restartWorker()
    const batch = await service.ended(id)
    assert.equal(batch.status, 'completed')
    assert.deepEqual(batch.request_counts, { total: COUNT, completed: COUNT, failed: 0 })
    const answers = await service.lines(batch.output_file_id)
    assert.deepEqual(
      answers.map((one) => one.custom_id),
      Array.from({ length: COUNT }, (_, i) => `l${i}`),
    )
    // Billed once, though those whose answers were lost were asked for twice.
    assert.equal(Math.round(batch.cost_usd * 1e9), COUNT * 3000)
    assert.equal(upstream.calls.length, COUNT + COUNT)
    assert.ok(done > 0)
    const usage = await service.stores.store.read.selectFrom('usage_days').selectAll().execute()
    assert.equal(
      usage.reduce((sum, row) => sum + row.succeeded, 0),
      COUNT,
    )
    assert.deepEqual(await journalKeys(service), [])
  })

test('a damaged journal does not keep the worker that needs it from everything else', async () => {
  await using upstream = await testUpstream((call) => {
    if (call.index < COUNT / 2) echo(call)
  })
  // Nothing is kept in memory: to seal a chunk, its journals have to be read.
  await using service = await TestService.start(
    config(upstream).replace('drain: 0ms', 'drain: 0ms, memory: 1'),
  )
  const file = await service.upload(INPUT)
  const { id } = await service.create(file.id)
  await upstream.arrived(COUNT)
  await until(async () => (await service.get(id)).request_counts.completed === COUNT / 2)
  const keys = await journalKeys(service)
  for (const key of keys) await service.stores.blobs.delete(key)
  const held = upstream.calls.slice(COUNT / 2)
  upstream.reply = echo
  for (const call of held) echo(call)
  const batch = await service.ended(id)
  assert.deepEqual(batch.request_counts, { total: COUNT, completed: COUNT, failed: 0 })
  assert.equal(Math.round(batch.cost_usd * 1e9), COUNT * 3000)
})

test('a journal that is there twice is taken back from the books once', async () => {
  await using upstream = await testUpstream((call) => {
    if (call.index < COUNT / 2) echo(call)
  })
  await using service = await TestService.start(config(upstream))
  const { store } = service.stores
  const { id, done } = await halfDone(service, upstream)
  await countTwice(service)
  service.timelineTampered = true
  const { mismatches } = await reconcile(service.stores)
  assert.match(
    mismatches.map(({ problem }) => problem).join(),
    /^chunk 0: .*repeats lines of another journal$/,
  )
  // Whoever asks for results meanwhile gets each line once.
  const page = await (await service.request('GET', `/v1/batches/${id}/results`)).text()
  assert.equal(page.trim().split('\n').length, done)
  upstream.reply = echo
  await service.restartWorker()
  const batch = await service.ended(id)
  assert.deepEqual(batch.request_counts, { total: COUNT, completed: COUNT, failed: 0 })
  assert.equal(Math.round(batch.cost_usd * 1e9), COUNT * 3000)
  assert.equal(upstream.calls.length, 2 * COUNT - done)
  const usage = await store.read.selectFrom('usage_days').selectAll().execute()
  assert.deepEqual(
    usage.map(({ entity, model, succeeded }) => [entity, model !== '', succeeded]),
    [['user:a', true, COUNT]],
  )
})

/** What a commit does that takes effect twice: every journal, and all that it counts for, twice. */
async function countTwice({ stores }: TestService): Promise<void> {
  const { store, sealed } = stores
  const parts = await store.read.selectFrom('journal_parts').selectAll().execute()
  const again = new Map<string, SealedBlob>()
  for (const key of new Set(parts.map((part) => part.journal_blob))) {
    const bytes = await sealed.readAll(JOURNAL_OWNER, (await readBlobRow(store.read, key))!)
    again.set(key, await sealed.put(JOURNAL_OWNER, `${key}z`, [bytes]))
  }
  await store.write(async (tx) => {
    await insertBlobs(tx, JOURNAL_OWNER, [...again.values()], 0)
    await insertRows(
      tx,
      'journal_parts',
      parts.map((part) => ({ ...part, journal_blob: again.get(part.journal_blob)!.key })),
    )
    for (const entry of await tx.selectFrom('ledger_entries').selectAll().execute())
      await insertRows(tx, 'ledger_entries', [{ ...entry, id: newId('ledger', entry.created) }])
    for (const [table, columns] of COUNTED)
      for (const column of columns)
        await sql`UPDATE ${sql.table(table)} SET ${sql.ref(column)} = 2 * ${sql.ref(column)}`.execute(tx)
  })
}

const COUNTED = [
  ['chunks', ['completed', 'cost_nanos']],
  ['batches', ['completed', 'cost_nanos']],
  ['usage_days', ['succeeded', 'prompt_tokens', 'completion_tokens', 'total_tokens', 'cost_nanos']],
  ['project_days', ['tokens', 'cost_nanos']],
] as const
