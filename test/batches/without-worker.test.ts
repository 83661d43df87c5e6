// While no worker runs, the API ends what is over: time does not stand still.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ApiMaintenance } from '../../src/compose/api-maintenance.ts'
import { type OpenStore, register } from '../../src/compose/stores.ts'
import { modelsById } from '../../src/compose/upstreams.ts'
import { finishRules } from '../../src/compose/worker.ts'
import { testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService, type WireBatch, type WireLine } from '../service.ts'
import { parsedLines } from '../support/api.ts'

const silent = { info() {}, warn() {}, error() {} }
const LINES = 1_500

/** An API whose only worker has stopped, after it had judged a file. `through`: on the way to its store. */
async function start(through = (store: OpenStore): OpenStore => store) {
  const upstream = await testUpstream()
  const service = await TestService.start(configFor(upstream.base_url))
  const lines = Array.from({ length: LINES }, (_, i) => JSON.stringify(line(`l${i}`)))
  const file = await service.upload(lines.join('\n'))
  await service.worker.stop()
  const { stores, config } = service
  const registration = await register(stores, config, silent)
  const ended = Promise.withResolvers<void>()
  const maintenance = new ApiMaintenance({
    ...stores,
    store: through(stores.store),
    log: silent,
    models: modelsById(config.models),
    plans: config.plans,
    rules: finishRules(config),
    session: registration,
    onEnded: () => ended.resolve(),
  })
  maintenance.start()
  return {
    service,
    upstream,
    file,
    ended: ended.promise,
    maintenance,
    async [Symbol.asyncDispose]() {
      await maintenance.stop()
      await registration.close()
      await service[Symbol.asyncDispose]()
      await upstream.close()
    },
  }
}

async function errorCodes(service: TestService, batch: WireBatch): Promise<(string | undefined)[]> {
  const text = await (await service.request('GET', `/v1/files/${batch.error_file_id}/content`)).text()
  const rows = parsedLines<WireLine>(text)
  assert.equal(new Set(rows.map((row) => row.custom_id)).size, LINES)
  return [...new Set(rows.map((row) => row.error?.code))]
}

test('a batch that nobody planned expires with its window', async () => {
  await using at = await start()
  const { service, file } = at
  const { id } = await service.create(file.id)
  const batch = await service.get(id)
  assert.equal(batch.status, 'validating')
  assert.equal((batch.waiting_reason as { code: string } | null)?.code, 'no_worker', 'an API is no worker')
  const { store } = service.stores
  await store.write((tx) => tx.updateTable('batches').set({ expires_at: store.clock.now() }).execute())
  await at.ended
  const ended = await service.get(id)
  assert.deepEqual([ended.status, ended.request_counts.failed], ['expired', LINES])
  assert.deepEqual(await errorCodes(service, ended), ['batch_expired'])
  assert.match(JSON.stringify(ended.errors), / Until then: No worker is running/)
  assert.equal(at.upstream.calls.length, 0)
})

test('a claim of the API whose answer was lost holds no chunk back', async () => {
  let lost = 0
  await using at = await start((store) => ({
    ...store,
    async write(change) {
      const value = await store.write(change)
      const leased = await store.read
        .selectFrom('chunks')
        .select('idx')
        .where('state', '=', 'leased')
        .execute()
      if (leased.length > 0 && lost++ === 0) throw new Error('the connection broke before the answer came')
      return value
    },
  }))
  const { service, file } = at
  const { id } = await service.create(file.id)
  await service.request('POST', `/v1/batches/${id}/cancel`)
  await at.ended
  assert.equal((await service.get(id)).status, 'cancelled')
  assert.ok(lost > 0)
})

test('a batch that is cancelled ends, and its deleted input is destroyed', async () => {
  await using at = await start()
  const { service, file } = at
  const { id } = await service.create(file.id)
  await service.request('POST', `/v1/batches/${id}/cancel`)
  await service.request('DELETE', `/v1/files/${file.id}`)
  await at.ended
  const ended = await service.get(id)
  assert.deepEqual([ended.status, ended.request_counts.failed], ['cancelled', LINES])
  assert.deepEqual(await errorCodes(service, ended), ['batch_cancelled'])
  const left = await service.stores.store.read
    .selectFrom('blobs')
    .select('key')
    .where('key', 'like', 'files/%')
    .where('deletion_pending_since', 'is', null)
    .execute()
  assert.deepEqual(left, [])
})

test('a worker that comes back goes on where another stopped, beside an API that keeps house', async () => {
  await using at = await start()
  const { service, file } = at
  const { id } = await service.create(file.id)
  await service.restartWorker()
  const ended = await service.ended(id)
  assert.deepEqual([ended.status, ended.request_counts.completed], ['completed', LINES])
  assert.equal(at.maintenance.noWorkerSince, null)
})
