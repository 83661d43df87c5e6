// A batch is queued until its first line is sent. In the API's words: queued is "waiting to run", in_progress "running".
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Call, echo, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

const BATCHES = 6

function config(base_url: string): string {
  return `
models:
  - {id: m, upstreams: [{type: openai, base_url: "${base_url}", timeout: 30s, concurrency_max: 1}]}
worker: {flush_interval: 20ms, lease: 5s}`
}

test('with one place, all batches but the one whose line was sent stay queued', async () => {
  const held: Call[] = []
  await using upstream = await testUpstream((call) => void held.push(call))
  await using service = await TestService.start(config(upstream.base_url))
  const ids: string[] = []
  for (let i = 0; i < BATCHES; i++) {
    const file = await service.upload(JSON.stringify(line(`l${i}`)))
    ids.push((await service.create(file.id)).id)
  }
  await upstream.arrived(1)
  // All are at hand, and only one has been sent.
  while (service.worker.status.openChunks < BATCHES) await service.get(ids[0]!)
  const batches = async () => await Promise.all(ids.map((id) => service.get(id)))
  const running = (all: Awaited<ReturnType<typeof batches>>) => all.filter((b) => b.status === 'in_progress')
  while (running(await batches()).length === 0);
  const now = await batches()
  assert.deepEqual(
    now.filter((batch) => batch.status === 'queued').map((batch) => batch.in_progress_at),
    Array.from({ length: BATCHES - 1 }, () => undefined),
  )
  assert.equal(typeof running(now)[0]?.in_progress_at, 'number')

  upstream.reply = echo
  for (const call of held) echo(call)
  for (const id of ids) await service.ended(id)
  for (const batch of await batches()) {
    assert.equal(batch.status, 'completed')
    assert.ok(Number(batch.in_progress_at) >= batch.created, 'each has begun')
  }
})

test('a batch of which no line could be sent completes, and says when it ran', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const lines = ['a', 'b'].map((id) => JSON.stringify(line(id)))
  const file = await service.upload(lines.join('\n'))
  await service.worker.stop()
  const { id } = await service.create(file.id)
  await service.json('POST', '/v1/limits', {
    scope: 'project',
    metric: 'tokens',
    window: 'day',
    amount: 1,
    action: 'block',
  })
  await service.restartWorker()
  const { status, request_counts, in_progress_at } = await service.ended(id)
  assert.deepEqual([status, request_counts.failed, upstream.calls.length], ['completed', 2, 0])
  assert.ok(in_progress_at)
})
