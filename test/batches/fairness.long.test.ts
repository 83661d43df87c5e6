// Who gets on while the servers are full: nobody waits behind a giant batch of somebody else, whether that is
// another project or another entity of the same one, and whichever of several workers holds the places.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createKey } from '../../src/admin/create-key.ts'
import { makeReloadable } from '../../src/compose/worker.ts'
import { systemClock } from '../../src/domain/clock.ts'
import { type Call, echo, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { line, TestService, type WireBatch } from '../service.ts'

const LINES = 6_000
/** Places at the server. */
const PLACES = 4

function config(base_url: string): string {
  return `
models:
  - {id: m, upstreams: [{type: openai, base_url: "${base_url}", timeout: 60s, concurrency_max: ${PLACES}}]}
retry: {attempts_max: 3, backoff_min: 5ms, backoff_max: 20ms, outage_patience: 0ms}
worker: {flush_interval: 20ms, lease: 5s}`
}

/** A server that answers what it holds only when it is told to. */
class BlockingUpstream implements AsyncDisposable {
  readonly upstream: TestUpstream
  #held: Call[] = []

  private constructor(upstream: TestUpstream) {
    this.upstream = upstream
  }

  static async start(): Promise<BlockingUpstream> {
    const held = new BlockingUpstream(await testUpstream())
    held.upstream.reply = (call) => {
      held.#held.push(call)
    }
    return held
  }

  answer(): void {
    for (const call of this.#held.splice(0)) echo(call)
  }

  /** Of the calls from one on, how many are of lines whose text begins like this. */
  share(prefix: string, from: number): number {
    const calls = this.upstream.calls.slice(from)
    return calls.filter(({ body }) => body.messages[0]?.content.startsWith(prefix)).length / calls.length
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.upstream.close()
  }
}

async function start(service: TestService, name: string, count: number, entity?: string): Promise<WireBatch> {
  const lines = Array.from({ length: count }, (_, i) => JSON.stringify(line(`${name}${i}`)))
  const file = await service.upload(lines.join('\n'))
  return await service.create(file.id, entity === undefined ? {} : { metadata: { entity } })
}

/** Answers what is held, again and again, until the batch has ended. */
async function untilEnded(service: TestService, held: BlockingUpstream, id: string): Promise<WireBatch> {
  for (;;) {
    held.answer()
    const batch = await service.get(id)
    if (batch.status === 'completed') return batch
  }
}

async function cancel(service: TestService, held: BlockingUpstream, id: string): Promise<void> {
  await service.request('POST', `/v1/batches/${id}/cancel`)
  held.upstream.reply = echo
  held.answer()
  await service.ended(id)
}

test('three lines of one entity do not wait behind the thousands of another in the same project', async () => {
  await using held = await BlockingUpstream.start()
  await using service = await TestService.start(config(held.upstream.base_url))
  const giant = await start(service, 'giant', LINES, 'team:a')
  await held.upstream.arrived(PLACES)
  const small = await start(service, 'small', 3, 'team:b')
  const { request_counts } = await untilEnded(service, held, small.id)
  assert.equal(request_counts.completed, 3)
  const { completed } = (await service.get(giant.id)).request_counts
  assert.ok(completed < LINES / 2, `${completed} of the giant were done by then`)
  await cancel(service, held, giant.id)
})

test('entities that share a project share its places', async () => {
  await using held = await BlockingUpstream.start()
  await using service = await TestService.start(config(held.upstream.base_url))
  const batches = []
  for (const entity of ['a', 'b', 'c']) batches.push(await start(service, entity, LINES / 2, entity))
  const last = batches.at(-1)!
  while ((await service.get(last.id)).status !== 'in_progress') held.answer()
  const from = held.upstream.calls.length
  while (held.upstream.calls.length < from + 300) {
    held.answer()
    await service.get(last.id)
  }
  for (const entity of ['a', 'b', 'c']) {
    const share = held.share(entity, from + 60)
    assert.ok(share > 0.2 && share < 0.47, `${entity} got ${share}`)
  }
  for (const { id } of batches) await cancel(service, held, id)
})

test('a batch that may miss its window gets most of the places', async () => {
  await using held = await BlockingUpstream.start()
  await using service = await TestService.start(config(held.upstream.base_url))
  const owner = service.key
  const giant = await start(service, 'giant', 2 * LINES)
  const { key } = await createKey(service.stores.store, systemClock, service.config.region, {
    project: 'late',
    plan: service.config.plans.keys().next().value!,
  })
  service.key = key
  const late = await start(service, 'late', 2 * LINES)
  while ((await service.get(late.id)).status !== 'in_progress') held.answer()
  // As if it had crawled for an hour. The rate is sampled again every other second, which must not end that.
  const crawl = async (): Promise<void> => {
    const now = systemClock.now()
    await service.stores.store.write((tx) =>
      tx
        .updateTable('batches')
        .set({ in_progress_at: now - 3_600_000, rate_sampled_at: now, rate_lines: 1, lines_per_s: 0.01 })
        .where('id', '=', late.id)
        .execute(),
    )
  }
  // Until the worker has looked, which it does every second, both have as much.
  let share = 0
  while (share < 0.65) {
    await crawl()
    held.answer()
    await service.get(late.id)
    share = held.share('late', Math.max(0, held.upstream.calls.length - 200))
  }
  const from = held.upstream.calls.length
  assert.ok(held.share('giant', from - 200) > 0.1, 'the other gets on nevertheless')
  await cancel(service, held, late.id)
  service.key = owner
  await cancel(service, held, giant.id)
})

test('with several workers, three lines of another project get on at once as well', async () => {
  await using held = await BlockingUpstream.start()
  await using service = await TestService.start(config(held.upstream.base_url))
  const owner = service.key
  const silent = { info() {}, warn() {}, error() {} }
  const others = [0, 1].map(() => makeReloadable(service.config, service.stores, silent).worker)
  for (const worker of others) await worker.start()
  const giant = await start(service, 'giant', 2 * LINES)
  await held.upstream.arrived(3 * PLACES)
  const { key } = await createKey(service.stores.store, systemClock, service.config.region, {
    project: 'small',
    plan: service.config.plans.keys().next().value!,
  })
  service.key = key
  const small = await start(service, 'small', 3)
  await untilEnded(service, held, small.id)
  service.key = owner
  const { completed } = (await service.get(giant.id)).request_counts
  assert.ok(completed < LINES, `${completed} of the giant were done by then`)
  await service.request('POST', `/v1/batches/${giant.id}/cancel`)
  held.upstream.reply = echo
  held.answer()
  while ((await service.get(giant.id)).status !== 'cancelled') held.answer()
  for (const worker of others) await worker.stop()
})

test('a slow model that is full of one-line batches keeps nobody from another model, nor others from itself', async () => {
  await using held = await BlockingUpstream.start()
  await using quick = await testUpstream()
  await using service = await TestService.start(`
models:
  - {id: m, upstreams: [{type: openai, base_url: "${held.upstream.base_url}", timeout: 60s, concurrency_max: 512}]}
  - {id: quick, upstreams: [{type: openai, base_url: "${quick.base_url}", timeout: 5s}]}
worker: {flush_interval: 20ms, lease: 5s}`)
  const one = await service.upload(JSON.stringify(line('slow')))
  const batches = 100
  for (let i = 0; i < batches; i++) await service.create(one.id)
  while (service.worker.status.openChunks < 64) await service.request('GET', '/v1/models')
  // The same project on a model that is idle, another project there, and another one on the slow model.
  const own = await service.upload(JSON.stringify(line('own', 'own', { model: 'quick' })))
  assert.equal((await service.ended((await service.create(own.id)).id)).request_counts.completed, 1)
  const { key } = await createKey(service.stores.store, systemClock, service.config.region, {
    project: 'other',
    plan: service.config.plans.keys().next().value!,
  })
  service.key = key
  const file = await service.upload(JSON.stringify(line('other', 'other', { model: 'quick' })))
  assert.equal((await service.ended((await service.create(file.id)).id)).request_counts.completed, 1)
  const slow = await service.upload(JSON.stringify(line('others')))
  const { id } = await service.create(slow.id)
  const open = service.stores.store.read.selectFrom('chunks').select('batch_id').where('state', '=', 'leased')
  while ((await open.where('batch_id', '=', id).execute()).length === 0) await service.get(id)
  assert.ok((await open.execute()).length < batches, 'the slow model has no place for all of them')
  held.upstream.reply = echo
  held.answer()
  await service.ended(id)
})
