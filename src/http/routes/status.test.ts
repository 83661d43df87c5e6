import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testServer } from '../../../test/support/test-server.ts'
import { deleteProjectedSpend, insertProjectedSpend } from '../../store/ledger.ts'
import { updateRows } from '../../store/rows.ts'
import { openSession, setWorkerReport } from '../../store/workers.ts'

test('operators alone read the configuration', async () => {
  await using server = await testServer({ settings: () => ({ region: 'local' }) })
  assert.equal((await server.call('GET', '/v1/settings')).outcome, '403 missing_scope')
  const { key } = await server.issue({ scopes: ['operator'] })
  const answer = await server.call('GET', '/v1/settings', { key })
  assert.deepEqual(answer.json, {
    object: 'settings',
    version: '0.0.0-test',
    configuration: { region: 'local' },
  })
})

test('demand is what open batches need by their deadlines, and the servers that meets them; paused ones need none', async () => {
  await using server = await testServer()
  const { key } = await server.issue({ scopes: ['operator'] })
  const read = async (query = '') => {
    const { json } = await server.call('GET', `/v1/demand${query}`, { key })
    return (json.data as { model: string; [name: string]: unknown }[]).find(({ model }) => model === 'sim-1')
  }
  assert.equal((await server.call('GET', '/v1/demand')).outcome, '403 missing_scope')
  const idle = { object: 'demand', model: 'sim-1', lines: 0, tokens: 0, tokens_per_s: 0 }
  const none = {
    tokens_per_s_next_hour: 0,
    tokens_per_s_next_day: 0,
    answered_tokens_per_s: 0,
    by_deadline: [],
  }
  assert.deepEqual(await read('?tokens_per_s=10'), { ...idle, ...none, replicas: 0 })
  const { id } = await server.createBatch(await server.processedFile())
  const now = server.clock.now()
  const row = { batch_id: id, project_id: server.key.project_id, key_id: server.key.id, model: 'sim-1' }
  await server.deps.store.write(async (tx) => {
    await deleteProjectedSpend(tx, id)
    await insertProjectedSpend(tx, [
      { ...row, entity: '', cost_nanos: 0, tokens: 36_000, requests: 12 },
      { ...row, entity: 'user:a', cost_nanos: 0, tokens: 36_000, requests: 12 },
    ])
    await updateRows(tx, 'batches', { id })
      .set({ expires_at: now + 3_600_000 })
      .execute()
  })
  assert.deepEqual(await read('?tokens_per_s=4'), {
    ...{ object: 'demand', model: 'sim-1', lines: 12, tokens: 36_000, tokens_per_s: 10, replicas: 3 },
    ...{ tokens_per_s_next_hour: 10, tokens_per_s_next_day: 10, answered_tokens_per_s: 0 },
    by_deadline: [{ deadline: Math.floor(now / 1000) + 3600, lines: 12, tokens: 36_000 }],
  })
  const how = { circuit: 'closed' as const, latency_ms: null, errors_per_s: 0, last_error: null }
  const load = { in_flight: 1, concurrency: 8, concurrency_max: 8, ...how }
  const upstreams = [1, 2].map((n) => ({
    model: 'sim-1',
    upstream: `gpu-${n}`,
    lines_per_s: n / 500,
    ...load,
  }))
  await server.deps.store.write(async (tx) => {
    const worker = await openSession(tx, 20_000, now)
    await setWorkerReport(tx, worker, { open_chunks: 1, stores_failing: false, upstreams }, now)
  })
  assert.equal((await read())?.answered_tokens_per_s, (3 / 500) * 3_000)
  // Another 36,000 tokens that may begin in two hours, and have to end half an hour after that.
  const later = await server.createBatch(await server.processedFile())
  await server.deps.store.write(async (tx) => {
    await deleteProjectedSpend(tx, later.id)
    await insertProjectedSpend(tx, [
      { ...row, batch_id: later.id, entity: '', cost_nanos: 0, tokens: 36_000, requests: 12 },
    ])
    await updateRows(tx, 'batches', { id: later.id })
      .set({ start_after: now + 7_200_000, expires_at: now + 9_000_000 })
      .execute()
  })
  const ahead = await read()
  assert.deepEqual([ahead?.lines, ahead?.tokens_per_s, ahead?.tokens_per_s_next_hour], [12, 10, 10])
  assert.equal(ahead?.tokens_per_s_next_day, 20)
  await server.deps.store.write((tx) =>
    updateRows(tx, 'batches', { id: later.id }).set({ paused_at: now }).execute(),
  )
  await server.deps.store.write((tx) => updateRows(tx, 'batches', { id }).set({ paused_at: now }).execute())
  assert.deepEqual(await read(), { ...idle, ...none })
})

test('demand has the models of running workers, also those that this process does not know', async () => {
  await using server = await testServer()
  const { key } = await server.issue({ scopes: ['operator'] })
  const { store, clock } = server.deps
  const how = { circuit: 'closed' as const, latency_ms: null, errors_per_s: 0, last_error: null }
  const load = { in_flight: 1, concurrency: 8, concurrency_max: 8, lines_per_s: 0, ...how }
  const upstreams = [{ model: 'newer', upstream: 'gpu', ...load }]
  await store.write(async (tx) => {
    const worker = await openSession(tx, 20_000, clock.now())
    await setWorkerReport(tx, worker, { open_chunks: 0, stores_failing: false, upstreams }, clock.now())
  })
  const { json } = await server.call('GET', '/v1/demand', { key })
  const models = (json.data as { model: string }[]).map(({ model }) => model)
  assert.deepEqual(models, [...server.deps.models.keys(), 'newer'])
})
