// A model that is down delays its own lines and no others.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readBlobRow } from '../../src/store/blobs.ts'
import { echo, testUpstream } from '../fakes/upstream.ts'
import { line, TestService, type WireBatch } from '../service.ts'

/** Two models on two servers; lines wait without limit for a server that is down. */
function twoModels(down: string, up: string, memory = '64MiB'): string {
  const model = (id: string, base_url: string): string =>
    `  - {id: ${id}, upstreams: [{type: openai, base_url: "${base_url}", timeout: 5s}]}`
  return `
models:
${model('down', down)}
${model('up', up)}
retry: {attempts_max: 3, backoff_min: 5ms, backoff_max: 20ms, outage_patience: 1h}
worker: {flush_interval: 20ms, lease: 5s, memory: ${memory}}`
}

function lines(count: number, model: (i: number) => string): string {
  return Array.from({ length: count }, (_, i) =>
    JSON.stringify(line(`l${i}`, `${i}`, { model: model(i) })),
  ).join('\n')
}

async function start(service: TestService, input: string): Promise<WireBatch> {
  const file = await service.upload(input)
  assert.equal(file.status, 'processed', String(file.status_details))
  return await service.create(file.id)
}

/** A server that is down, and how to start it on the same port. */
async function downServer(): Promise<{ base_url: string; back: () => ReturnType<typeof testUpstream> }> {
  const upstream = await testUpstream()
  await upstream.close()
  return {
    base_url: upstream.base_url,
    back: () => testUpstream(undefined, Number(new URL(upstream.base_url).port)),
  }
}

test('fifty chunks of a model that is down, queued first, do not delay others and are not open', async () => {
  const gone = await downServer()
  await using upstream = await testUpstream()
  await using service = await TestService.start(twoModels(gone.base_url, upstream.base_url))
  const stuck = await start(
    service,
    lines(50_000, () => 'down'),
  )
  while (!service.worker.lanes.get('down')?.upstreams[0]?.circuit.open) await service.get(stuck.id)
  const other = await start(
    service,
    lines(3_000, () => 'up'),
  )
  const batch = await service.ended(other.id)
  assert.deepEqual(batch.request_counts, { total: 3_000, completed: 3_000, failed: 0 })
  assert.equal((await service.get(stuck.id)).request_counts.completed, 0)
  assert.ok(service.worker.status.openChunks < 10, `${service.worker.status.openChunks} chunks are open`)

  // Cancelling them needs no server.
  await service.request('POST', `/v1/batches/${stuck.id}/cancel`)
  const cancelled = await service.ended(stuck.id)
  assert.deepEqual([cancelled.status, cancelled.request_counts.failed], ['cancelled', 50_000])
})

test('chunks that mix a model that is down with one that is up are parked for memory, and end when the server is back', async () => {
  const gone = await downServer()
  await using upstream = await testUpstream()
  // Less than a chunk: only one fits at a time.
  await using service = await TestService.start(twoModels(gone.base_url, upstream.base_url, '1MiB'))
  const many = Array.from({ length: 6_000 }, (_, i) =>
    JSON.stringify(line(`l${i}`, 'x'.repeat(500), { model: i % 2 ? 'up' : 'down' })),
  ).join('\n')
  const { id } = await start(service, many)
  await upstream.arrived(3_000)
  await using back = await gone.back()
  const batch = await service.ended(id)
  assert.deepEqual(batch.request_counts, { total: 6_000, completed: 6_000, failed: 0 })
  assert.deepEqual([upstream.calls.length, back.calls.length], [3_000, 3_000])
})

test('a line of a chunk that was parked in between has every attempt on its record', async () => {
  await using upstream = await testUpstream()
  await using broken = await testUpstream(({ response }) => void response.destroy())
  await using service = await TestService.start(twoModels(broken.base_url, upstream.base_url, '256KiB'))
  const many = Array.from({ length: 3_000 }, (_, i) =>
    JSON.stringify(line(`l${i}`, 'x'.repeat(500), { model: i % 2 ? 'up' : 'down' })),
  ).join('\n')
  const { id } = await start(service, many)
  // All chunks have been up in turn, so each was parked, and claimed again.
  await upstream.arrived(1_500)
  broken.reply = echo
  const batch = await service.ended(id)
  assert.deepEqual(batch.request_counts, { total: 3_000, completed: 3_000, failed: 0 })
  let attempts = 0
  for (const record of await auditRecords(service, id)) attempts += record.attempts.length
  assert.ok(broken.calls.length > 1_500)
  assert.equal(attempts, upstream.calls.length + broken.calls.length)
})

async function auditRecords(service: TestService, batch_id: string): Promise<{ attempts: object[] }[]> {
  const { store, sealed } = service.stores
  const records: { attempts: object[] }[] = []
  const chunks = store.read.selectFrom('chunks').select('audit_blob').where('batch_id', '=', batch_id)
  for (const { audit_blob } of await chunks.execute()) {
    const blob = await readBlobRow(store.read, String(audit_blob))
    assert.ok(blob)
    const rows = String(await sealed.readAll(blob.project_id, blob))
      .split('\n')
      .slice(0, -1)
    for (const row of rows) records.push(JSON.parse(row))
  }
  return records
}
