// A batch API as an upstream, before a provider's look-alike that loses the answer to the creation of a batch and delivers
// results with missing, doubled and unknown lines. Every fault alone: remote-batches.long.test.ts.
import assert from 'node:assert/strict'
import { compareRemote } from '../../src/admin/compare-remote.ts'
import { deleteOldRemoteBatches, runMaintenance } from '../../src/maintenance/maintenance.ts'
import { BatchServer, testEachType } from '../fakes/batch-server.ts'
import { testUpstream } from '../fakes/upstream.ts'
import { TestService } from '../service.ts'
import { parsedLines } from '../support/api.ts'

testEachType('a chunk becomes one batch there, and each of its lines is recorded once', async (type) => {
  await using remote = await BatchServer.start(
    {
      loseCreates: 1,
      missingEvery: 10,
      doubledEvery: 3,
      unknown: true,
    },
    type,
  )
  await using hosted = await testUpstream()
  await using service = await TestService.start(
    `
models:
  - id: m
    price: {input_per_mtok: 0.10, output_per_mtok: 0.40}
    upstreams:
      - {type: ${type}, base_url: "${remote.base_url}", timeout: 500ms, price: {input_per_mtok: 0.05, output_per_mtok: 0.20}}
      - {type: openai, base_url: "${hosted.base_url}", tier: 1}
retry: {outage_patience: 300ms}
worker: {flush_interval: 20ms, lease: 2s}`,
    { endpoint: remote.endpoint },
  )
  const batch = await service.run(remote.lines(40))
  assert.deepEqual(batch.request_counts, { total: 40, completed: 40, failed: 0 })
  assert.deepEqual([remote.batches.size, hosted.calls.length], [1, 4])
  // 10 tokens in, 5 out; at half the price where the batch API answered.
  assert.equal(Math.round(batch.cost_usd * 1e9), 36 * 1500 + 4 * 3000)
  const { store, sealed } = service.stores
  const compared = async () => {
    const { upstreams, differences } = await compareRemote(store.read, sealed)
    assert.deepEqual(differences, [])
    const [{ answered, cost_nanos, lines, unfinished } = {}] = upstreams
    return { answered, cost_nanos, lines, unfinished }
  }
  const sums = { answered: 36, cost_nanos: 54_000, lines: 40, unfinished: 0 }
  assert.deepEqual(await compared(), sums)
  // As after a crash between the commit of the results and their count.
  const uncounted = { answered: 0, cost_nanos: 0, remote_report: '{"request_counts":{"completed":36}}' }
  await store.write((tx) => tx.updateTable('remote_batches').set(uncounted).execute())
  assert.deepEqual(await compared(), sums)

  // Its files there are deleted now, and its row with the results here.
  await remote.until(() => (remote.files.size === 0 ? true : undefined))
  await service.worker.stop()
  const states = async () =>
    (await store.read.selectFrom('remote_batches').select('state').execute()).map(({ state }) => state)
  await deleteOldRemoteBatches(store)
  assert.deepEqual(await states(), ['done'])
  const inAYear = {
    now: () => Date.now() + 400 * 86_400_000,
    steady: () => 0,
    after: () => () => {},
    soon() {},
  }
  await runMaintenance({ store, sealed, clock: inAYear })
  await deleteOldRemoteBatches(store)
  assert.deepEqual(await states(), [])
  service.tampered = true
})

testEachType('single requests are a batch there for each of their commits, and end with it', async (type) => {
  await using remote = await BatchServer.start({}, type)
  const yaml = `
models:
  - id: m
    upstreams: [{type: ${type}, base_url: "${remote.base_url}", timeout: 500ms}]
worker: {flush_interval: 20ms, lease: 2s}`
  await using service = await TestService.start(yaml)
  const sent = parsedLines<{ custom_id: string; url: string; body: object }>(remote.lines(5)).map(
    ({ custom_id, url: endpoint, body }) => ({ custom_id, endpoint, body }),
  )
  const accepted = await Promise.all(
    sent.map((order) => service.json<{ id: string }>('POST', '/v1/requests', order)),
  )
  for (const { id } of accepted) {
    const { status } = await service.json<{ status: string }>('GET', `/v1/requests/${id}?wait=30s`)
    assert.equal(status, 'completed')
  }
  const chunks = await service.stores.store.read.selectFrom('chunks').select('idx').execute()
  assert.equal(remote.batches.size, chunks.length)
})
