// Batch APIs as upstreams, before a provider's look-alike that misbehaves.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BatchServer, testEachType } from '../fakes/batch-server.ts'
import { testUpstream } from '../fakes/upstream.ts'
import { line, TestService, type WireLine } from '../service.ts'

function config(remote: BatchServer, more = '', others = ''): string {
  return `
models:
  - id: m
    price: {input_per_mtok: 0.10, output_per_mtok: 0.40}
    spill: {when_down: 50ms}
    upstreams:
      - {type: ${remote.type}, name: provider, base_url: "${remote.base_url}", timeout: 500ms, price: {input_per_mtok: 0.05, output_per_mtok: 0.20}${more}}
${others}
retry: {attempts_max: 3, backoff_min: 5ms, backoff_max: 20ms, outage_patience: 300ms}
worker: {flush_interval: 20ms, lease: 2s}`
}

function textOf(response: WireLine['response']): unknown {
  const { choices, content } = response!.body
  return content ? content[0]?.text : choices[0]?.message.content
}

interface LineRecord {
  upstream: string
  attempts: { upstream: string; remote_batch?: string }[]
  cost_usd: number
}

testEachType(
  'a chunk becomes a file and a batch at a batch API, and its results are recorded line by line',
  async (type) => {
    await using remote = await BatchServer.start({}, type)
    await using service = await TestService.start(config(remote), { endpoint: remote.endpoint })
    const batch = await service.run(remote.lines(40))
    assert.deepEqual(batch.request_counts, { total: 40, completed: 40, failed: 0 })
    // 10 tokens in, 5 out, at half the price of the model.
    assert.equal(batch.cost_usd, 0.00006)
    const lines = await service.lines(batch.output_file_id)
    assert.deepEqual(
      lines.map(({ custom_id, response }) => [custom_id, textOf(response)]),
      Array.from({ length: 40 }, (_, i) => [`l${i}`, `l${i}`]),
    )
    assert.equal(remote.batches.size, 1)
    const [there] = [...remote.batches.values()]
    const record = await service.json<LineRecord>('GET', `/v1/requests/${lines[7]?.id}`)
    assert.deepEqual([record.upstream, record.cost_usd], ['provider', 0.0000015])
    assert.equal(record.attempts[0]?.remote_batch, there?.id)
    if (type === 'openai-batch') assert.equal(remote.creates[0]?.key, there?.metadata.offpeak_remote_batch)
  },
)

testEachType('a batch whose creation lost its answer is found there, and not created again', async (type) => {
  await using remote = await BatchServer.start({ loseCreates: 1 }, type)
  await using service = await TestService.start(config(remote), { endpoint: remote.endpoint })
  const batch = await service.run(remote.lines(40))
  assert.equal(batch.request_counts.completed, 40)
  assert.deepEqual([remote.batches.size, remote.creates.length], [1, 1])
})

test('a batch that a batch API creates twice is cancelled once, and recorded once', async () => {
  await using remote = await BatchServer.start({ loseCreates: 1, createTwice: true })
  await using service = await TestService.start(config(remote), { endpoint: remote.endpoint })
  const batch = await service.run(remote.lines(40))
  assert.equal(batch.request_counts.completed, 40)
  assert.equal(batch.cost_usd, 0.00006)
  const [, second] = [...remote.batches.values()]
  assert.deepEqual([remote.batches.size, second?.status], [2, 'cancelling'])
})

testEachType(
  'lines that result files leave out are sent again by tier; doubled and unknown ones change nothing',
  async (type) => {
    await using remote = await BatchServer.start({ missingEvery: 10, doubledEvery: 3, unknown: true }, type)
    await using hosted = await testUpstream()
    const other = `      - {type: openai, name: hosted, base_url: "${hosted.base_url}", tier: 1}`
    await using service = await TestService.start(config(remote, '', other), { endpoint: remote.endpoint })
    const batch = await service.run(remote.lines(40))
    assert.equal(batch.request_counts.completed, 40)
    assert.deepEqual([remote.batches.size, hosted.calls.length], [1, 4])
    assert.equal(batch.cost_usd, (36 * 1500 + 4 * 3000) / 1e9)
  },
)

testEachType('a batch that is not among those of other lines there is created again', async (type) => {
  await using remote = await BatchServer.start({ holds: true }, type)
  await using service = await TestService.start(config(remote), { endpoint: remote.endpoint })
  const [first, second] = [await service.upload(remote.lines(40)), await service.upload(remote.lines(40))]
  const { id } = await service.create(first!.id)
  await remote.until(() => [...remote.batches.values()].find(({ looks }) => looks > 0))
  remote.faults.dropCreates = 1
  const { id: other } = await service.create(second!.id)
  await remote.until(() => (remote.batches.size === 2 ? true : undefined))
  assert.equal(remote.creates.length, 3)
  remote.faults.holds = false
  for (const batch of [await service.ended(id), await service.ended(other)])
    assert.equal(batch.request_counts.completed, 40)
})

testEachType('lines that an expired batch left are finished by another upstream', async (type) => {
  await using remote = await BatchServer.start({ end: { status: 'expired', share: 0.75 } }, type)
  await using hosted = await testUpstream()
  const other = `      - {type: openai, name: hosted, base_url: "${hosted.base_url}", tier: 1}`
  await using service = await TestService.start(config(remote, '', other), { endpoint: remote.endpoint })
  const batch = await service.run(remote.lines(40))
  assert.equal(batch.request_counts.completed, 40)
  assert.deepEqual([remote.batches.size, hosted.calls.length], [1, 10])
})

test('lines that a batch API takes and refuses, each alone, too, fail with its words when its outage has lasted too long', async () => {
  await using remote = await BatchServer.start({
    fail: { code: 'model_not_found', message: 'no batches of it' },
  })
  await using service = await TestService.start(config(remote), { endpoint: remote.endpoint })
  const batch = await service.run(remote.lines(2))
  assert.deepEqual(batch.request_counts, { total: 2, completed: 0, failed: 2 })
  assert.ok(remote.batches.size < 60, `${remote.batches.size} batches`)
  const [first] = await service.lines(batch.error_file_id)
  assert.match(first?.error?.message ?? '', /ended as failed .*: model_not_found: no batches of it \(after/)
})

testEachType('a cancel goes through to the batch API, and what it had finished is recorded', async (type) => {
  await using remote = await BatchServer.start(
    { holds: true, end: { status: 'completed', share: 0.5 } },
    type,
  )
  await using service = await TestService.start(config(remote), { endpoint: remote.endpoint })
  const file = await service.upload(remote.lines(40))
  const { id } = await service.create(file.id)
  await remote.until(() => [...remote.batches.values()].find(({ looks }) => looks > 0))
  await service.json('POST', `/v1/batches/${id}/cancel`)
  const batch = await service.ended(id)
  assert.equal(batch.status, 'cancelled')
  assert.deepEqual(batch.request_counts, { total: 40, completed: 20, failed: 20 })
  assert.ok(remote.calls.some((call) => call.endsWith('/cancel')))
})

testEachType(
  'lines at a batch API take no place in a worker, and another worker records them',
  async (type) => {
    await using remote = await BatchServer.start({ holds: true }, type)
    await using service = await TestService.start(config(remote), { endpoint: remote.endpoint })
    const file = await service.upload(remote.lines(40))
    const { id } = await service.create(file.id)
    await remote.until(() => [...remote.batches.values()].find(({ looks }) => looks > 0))
    const [chunk] = await service.stores.store.read.selectFrom('chunks').selectAll().execute()
    assert.deepEqual([chunk?.state, chunk?.parked_reason, chunk?.worker_id], ['parked', 'remote_batch', null])
    await service.worker.stop()
    remote.faults.holds = false
    await service.restartWorker()
    const batch = await service.ended(id)
    assert.equal(batch.request_counts.completed, 40)
    assert.equal(remote.batches.size, 1)
    // Its files are deleted there.
    await remote.until(() => (remote.files.size === 0 ? true : undefined))
  },
)

testEachType('what lines at a batch API may cost stays reserved while they are there', async (type) => {
  await using remote = await BatchServer.start({ holds: true }, type)
  await using service = await TestService.start(config(remote), { endpoint: remote.endpoint })
  await service.json('POST', '/v1/limits', { scope: 'project', metric: 'cost_usd', amount: 1, window: 'day' })
  const file = await service.upload(remote.lines(40, 100))
  const { id } = await service.create(file.id)
  await remote.until(() => [...remote.batches.values()].find(({ looks }) => looks > 0))
  const reserved = () => service.stores.store.read.selectFrom('reservations').selectAll().execute()
  const [kept, ...others] = await reserved()
  assert.ok(kept && kept.cost_nanos > 0 && kept.tokens > 40 * 100)
  assert.deepEqual(others, [])
  remote.faults.holds = false
  const batch = await service.ended(id)
  assert.equal(batch.request_counts.completed, 40)
  assert.deepEqual(await reserved(), [])
})

testEachType(
  'what a batch API has answered is recorded though its batch is paused, when it can be read',
  async (type) => {
    await using remote = await BatchServer.start({ unreadable: true }, type)
    await using service = await TestService.start(config(remote), { endpoint: remote.endpoint })
    const file = await service.upload(remote.lines(40))
    const { id } = await service.create(file.id)
    const reads = () => remote.calls.filter((call) => /\/(content|results)$/.test(call)).length
    await remote.until(() => reads() > 0 || undefined)
    const first = performance.now()
    await service.json('POST', `/v1/batches/${id}/pause`)
    await remote.until(() => reads() > 1 || undefined)
    assert.ok(performance.now() - first > 500, 'it is left alone for a while')
    remote.faults.unreadable = false
    const batch = await service.ended(id)
    assert.deepEqual([batch.status, batch.request_counts.completed], ['completed', 40])
  },
)

const CAP = { scope: 'project', metric: 'cost_usd', amount: 1, window: 'day' }
const LOWERED = { amount: 0 }

testEachType(
  'a cap that is lowered while lines are at a batch API holds those that come back unanswered',
  async (type) => {
    await using remote = await BatchServer.start({ holds: true, missingEvery: 10 }, type)
    await using hosted = await testUpstream()
    await using service = await TestService.start(
      config(remote, '', `      - {type: openai, base_url: "${hosted.base_url}", tier: 1}`),
      { endpoint: remote.endpoint },
    )
    const limit = await service.json<{ id: string }>('POST', '/v1/limits', CAP)
    const file = await service.upload(remote.lines(40))
    const { id } = await service.create(file.id)
    await remote.until(() => [...remote.batches.values()].find(({ looks }) => looks > 0))
    await service.json('POST', `/v1/limits/${limit.id}`, LOWERED)
    remote.faults.holds = false
    const batch = await service.ended(id)
    assert.deepEqual(batch.request_counts, { total: 40, completed: 36, failed: 4 })
    assert.deepEqual([remote.batches.size, hosted.calls.length], [1, 0])
    const errors = await service.lines(batch.error_file_id)
    assert.deepEqual(new Set(errors.map(({ error }) => error?.code)), new Set(['usage_limit_exceeded']))
  },
)

testEachType(
  'a cap that is lowered while nobody knows whether a batch was created keeps it from being created',
  async (type) => {
    await using remote = await BatchServer.start({ dropCreates: 1 }, type)
    await using service = await TestService.start(config(remote), { endpoint: remote.endpoint })
    const limit = await service.json<{ id: string }>('POST', '/v1/limits', CAP)
    const file = await service.upload(remote.lines(40))
    const { id } = await service.create(file.id)
    await remote.until(() => remote.creates.length > 0 || undefined)
    remote.faults.status = 503
    await service.json('POST', `/v1/limits/${limit.id}`, LOWERED)
    remote.faults.status = null
    const batch = await service.ended(id)
    assert.deepEqual(batch.request_counts, { total: 40, completed: 0, failed: 40 })
    assert.deepEqual([remote.creates.length, remote.batches.size], [1, 0])
    await remote.until(() => (remote.files.size === 0 ? true : undefined))
  },
)

testEachType(
  'lines at a batch API that does not answer any more are finished elsewhere and billed once',
  async (type) => {
    const remote = await BatchServer.start({ holds: true }, type)
    await using hosted = await testUpstream()
    const other = `      - {type: openai, name: hosted, base_url: "${hosted.base_url}", tier: 1}`
    await using service = await TestService.start(config(remote, '', other), { endpoint: remote.endpoint })
    const file = await service.upload(remote.lines(40))
    const { id } = await service.create(file.id)
    await remote.until(() => [...remote.batches.values()].find(({ looks }) => looks > 0))
    await remote.close()
    const batch = await service.ended(id)
    assert.equal(batch.request_counts.completed, 40)
    assert.equal(hosted.calls.length, 40)
    assert.equal(batch.cost_usd, (40 * 3000) / 1e9)
  },
)

testEachType('chunks go to the batch API that has the fewest lines', async (type) => {
  await using first = await BatchServer.start({ holds: true }, type)
  await using second = await BatchServer.start({ holds: true }, type)
  const other = `      - {type: ${type}, name: second, base_url: "${second.base_url}"}`
  await using service = await TestService.start(config(first, '', other), { endpoint: first.endpoint })
  const seen = (): number =>
    [...first.batches.values(), ...second.batches.values()].filter(({ looks }) => looks > 0).length
  const batchOf = async (lines: number): Promise<void> => {
    const before = seen()
    const file = await service.upload(first.lines(lines))
    await service.create(file.id)
    await Promise.race([first, second].map((one) => one.until(() => seen() > before || undefined)))
  }
  for (const lines of [30, 10, 10, 20]) await batchOf(lines)
  // 30; 10, 10 and 20.
  assert.deepEqual([first.batches.size, second.batches.size], [1, 3])
})

test('an Offpeak takes lines from another one as from a client of Message Batches', async () => {
  await using server = await testUpstream()
  const models = (upstream: string): string => `
models:
  - id: m
    price: {input_per_mtok: 0.10, output_per_mtok: 0.40}
    endpoints: [/v1/messages]
    upstreams: [${upstream}]
worker: {flush_interval: 20ms, lease: 2s}`
  await using cell = await TestService.start(models(`{type: openai, base_url: "${server.base_url}"}`))
  const headers = `headers: {X-Api-Key: ${cell.key}}`
  await using front = await TestService.start(
    models(`{type: anthropic-batch, base_url: "${cell.url}/v1", ${headers}}`),
    { endpoint: '/v1/messages' },
  )
  const batch = await front.run(
    Array.from({ length: 40 }, (_, i) => ({
      ...line(`l${i}`, `l${i}`, { max_tokens: 16 }),
      url: '/v1/messages',
    })),
  )
  assert.deepEqual(batch.request_counts, { total: 40, completed: 40, failed: 0 })
  assert.equal(Math.round(batch.cost_usd * 1e9), 40 * 3000)
  const lines = await front.lines(batch.output_file_id)
  assert.deepEqual(
    lines.map(({ response }) => textOf(response)),
    Array.from({ length: 40 }, (_, i) => `l${i}`),
  )
  assert.equal(server.calls.length, 40)
})
