// GET /v1/status: what waits and why, and for operators how workers, model servers and stores do.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createKey } from '../../src/admin/create-key.ts'
import type { Scope } from '../../src/domain/api-key.ts'
import type { ServiceStatus } from '../../src/wire/status.ts'
import { echo, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

async function keyOf(service: TestService, project: string, scopes?: Scope[]): Promise<string> {
  const { store } = service.stores
  return (await createKey(store, store.clock, 'local', { project, plan: 'payg', scopes })).key
}

async function statusOf(service: TestService, key = service.key, query = ''): Promise<ServiceStatus> {
  const headers = { authorization: `Bearer ${key}` }
  const response = await fetch(`${service.url}/v1/status${query}`, { headers })
  assert.equal(response.status, 200)
  return JSON.parse(await response.text())
}

test('operators see workers, model servers and stores; tenants see what of theirs waits', async () => {
  const held: (() => void)[] = []
  await using upstream = await testUpstream((call) => {
    if (call.body.messages[0]!.content === 'held') held.push(() => echo(call))
    else echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const operator = await keyOf(service, 'ops', ['operator'])
  const file = await service.upload(
    [line('a'), line('b', 'held')].map((one) => JSON.stringify(one)).join('\n'),
  )
  const { id } = await service.create(file.id)
  await upstream.arrived(2)

  let status = await statusOf(service, operator)
  while (status.service?.workers[0]?.upstreams[0]?.in_flight !== 1) status = await statusOf(service, operator)
  const [worker] = status.service.workers
  assert.equal(status.service.workers.length, 1)
  assert.deepEqual([worker?.open_chunks, worker?.stores_failing], [1, false])
  const [server] = worker?.upstreams ?? []
  assert.deepEqual([server?.model, server?.circuit, server?.last_error], ['m', 'closed', null])
  assert.deepEqual([server?.tier, server?.hours], [0, null])
  assert.ok((server?.concurrency ?? 0) >= 1)
  assert.deepEqual(
    status.service.stores.map(({ name, kind, ok }) => [name, kind, ok]),
    [
      ['database', 'sqlite', true],
      ['blobs', 'disk', true],
    ],
  )
  assert.deepEqual(status.service.queue.chunks, { ready: 0, leased: 1, parked: 0 })
  assert.deepEqual(status.batches, [], 'none of the project of the operator')

  const { history } = (await statusOf(service, operator, '?history=true')).service!
  const did = history?.map(({ model, answered, missed }) => [model, answered, missed])
  assert.deepEqual([status.service.history, did], [undefined, [['m', 1, 0]]])
  assert.ok(history?.[0]?.latency_ms != null && history[0].concurrency >= 0)

  const tenant = await statusOf(service, service.key, '?history=true')
  assert.equal(tenant.service, undefined)
  assert.deepEqual(tenant.batches, [{ status: 'in_progress', count: 1 }])
  assert.equal(tenant.workers_alive, true)
  for (const answer of held) answer()
  await service.ended(id)
})

test('batches are counted by what they wait for, and a worker that has gone is gone', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(JSON.stringify(line('a')))
  await service.worker.stop()
  const [first, second] = [await service.create(file.id), await service.create(file.id)]
  const status = await statusOf(service)
  assert.equal(status.workers_alive, false)
  assert.deepEqual(
    status.waiting.map(({ code, batches, example }) => [code, batches, example]),
    [['no_worker', 2, second.id]],
  )
  const other = await statusOf(service, await keyOf(service, 'other'))
  assert.deepEqual([other.batches, other.waiting], [[], []])
  const operator = await statusOf(service, await keyOf(service, 'ops', ['operator']))
  assert.deepEqual(operator.service?.workers, [])
  const reports = await service.stores.store.read.selectFrom('worker_reports').selectAll().execute()
  assert.deepEqual(reports, [])
  await service.restartWorker()
  await service.ended(first.id)
  await service.ended(second.id)
})

test('a store that does not answer is said to', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url), { worker: false })
  const { blobs } = service.stores
  blobs.size = async () => {
    throw new Error('no route to the bucket')
  }
  const { service: all } = await statusOf(service, await keyOf(service, 'ops', ['operator']))
  assert.deepEqual(all?.stores[1], {
    name: 'blobs',
    kind: 'disk',
    ok: false,
    latency_ms: null,
    error: 'no route to the bucket',
  })
})
