// How lines travel: retries, failover, throttling, journals, and who goes first.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import type { Socket } from 'node:net'
import { test } from 'node:test'
import { createKey } from '../../src/admin/create-key.ts'
import { openaiBackend } from '../../src/backends/openai/openai-backend.ts'
import { systemClock } from '../../src/domain/clock.ts'
import { modelsOfWorkers } from '../../src/store/workers.ts'
import { sendTo } from '../fakes/scripted-backend.ts'
import { completion, echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService, type WireBatch } from '../service.ts'
import { until } from '../support/offpeak-process.ts'

interface Record {
  attempts: { upstream: string; status: number | null; reason?: string }[]
  attempts_omitted?: number
  error: { code: string; message: string } | null
  cost_usd: number
}

test('a line whose server stumbles is tried again, and its record tells every attempt', async () => {
  await using upstream = await testUpstream((call) => {
    if (call.index === 0) send(call.response, 500, 'oops')
    else if (call.index === 1) send(call.response, 429, '{}')
    else echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run([line('a')])
  assert.deepEqual(batch.request_counts, { total: 1, completed: 1, failed: 0 })
  const [answer] = await service.lines(batch.output_file_id)
  const record = await service.json<Record>('GET', `/v1/requests/${answer?.id}`)
  assert.deepEqual(
    record.attempts.map((attempt) => attempt.status),
    [500, 429, 200],
  )
})

test('a line that fails as often as the policy allows goes to the error file, unbilled', async () => {
  await using upstream = await testUpstream(({ response }) => send(response, 500, 'broken'))
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run([line('a')])
  assert.deepEqual([batch.status, batch.cost_usd], ['completed', 0])
  const [failure] = await service.lines(batch.error_file_id)
  assert.equal(failure?.error?.code, 'upstream_unavailable')
  assert.match(failure?.error?.message ?? '', /after 3 attempts/)
  assert.equal(upstream.calls.length, 3)
})

/** Waits as long for a server that takes no line as for one that is down. */
const patient = (base_url: string): string =>
  configFor(base_url).replace('outage_patience: 0ms', 'outage_patience: 10m')

test('a batch waits while its server finds fault with the key, says so, and goes on when the key is right', async () => {
  await using upstream = await testUpstream(({ response }) =>
    send(
      response,
      400,
      '{"code":"Client specified an invalid argument","error":"Incorrect API key provided: sk***A."}',
    ),
  )
  await using service = await TestService.start(patient(upstream.base_url))
  const { id: input } = await service.upload([line('a'), line('b')])
  const { id } = await service.create(input)
  let message = ''
  await until(async () => {
    const { waiting_reason } = await service.get(id)
    message = (waiting_reason as { message: string } | null)?.message ?? ''
    return message.includes('the server does not admit this service (400)')
  })
  upstream.reply = echo
  const batch = await service.ended(id)
  assert.deepEqual(batch.request_counts, { total: 2, completed: 2, failed: 0 })
})

test('a line that alone is refused while others are answered fails alone', async () => {
  await using upstream = await testUpstream((call) => {
    if (call.body.messages[0]?.content === 'bad') send(call.response, 403, '<h1>403 Forbidden</h1>')
    else echo(call)
  })
  await using service = await TestService.start(
    patient(upstream.base_url).replace('timeout: 5s', 'timeout: 5s, concurrency_max: 1'),
  )
  const batch = await service.run([line('bad'), ...Array.from({ length: 400 }, (_, i) => line(`l${i}`))])
  assert.deepEqual(batch.request_counts, { total: 401, completed: 400, failed: 1 })
})

test('a connection that breaks off is another attempt', async () => {
  await using upstream = await testUpstream((call) => {
    if (call.index === 0) call.response.destroy()
    else echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run([line('a')])
  assert.equal(batch.request_counts.completed, 1)
})

test('a worker that has stopped has closed its connections to the model servers, idle or not', async () => {
  const sockets = new Set<Socket>()
  await using upstream = await testUpstream((call) => {
    const { socket } = call.response
    assert.ok(socket)
    sockets.add(socket)
    // The last one is still under way when the worker stops.
    if (call.body.messages[0]?.content !== 'slow') echo(call)
  })
  await using service = await TestService.start(
    configFor(upstream.base_url).replace('lease: 2s', 'drain: 10ms'),
  )
  await service.run(Array.from({ length: 8 }, (_, i) => line(`l${i}`)))
  const { id } = await service.upload(JSON.stringify(line('slow')))
  await service.create(id)
  await upstream.arrived(9)
  const closed = [...sockets].filter((socket) => !socket.closed).map((socket) => once(socket, 'close'))
  assert.ok(closed.length > 0)
  // Idle connections are closed by themselves after some seconds: one of another pool, idle since then, still is open.
  const other = openaiBackend({
    name: 'other',
    base_url: upstream.base_url,
    timeout_ms: 60_000,
    connections_max: 1,
  })
  const body = Buffer.from(JSON.stringify({ messages: [{ role: 'user', content: 'other' }] }))
  const before = new Set(sockets)
  await sendTo(other, { endpoint: '/v1/chat/completions', project_id: 'p', body })
  const [idle] = [...sockets].filter((socket) => !before.has(socket))
  await service.worker.stop()
  await Promise.all(closed)
  assert.equal(idle?.closed, false)
  other.close()
})

test('an answer that is no chat completion is not taken for one', async () => {
  await using upstream = await testUpstream(({ response }) => send(response, 200, '<html>it works</html>'))
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run([line('a')])
  const [failure] = await service.lines(batch.error_file_id)
  assert.equal(failure?.error?.code, 'upstream_invalid_response')
})

test('what fails on one server is tried on another', async () => {
  await using bad = await testUpstream(({ response }) => send(response, 502, ''))
  await using good = await testUpstream()
  await using service = await TestService.start(`
models:
  - id: m
    upstreams:
      - {type: openai, base_url: "${bad.base_url}"}
      - {type: openai, base_url: "${good.base_url}"}
retry: {attempts_max: 3, backoff_min: 5ms, backoff_max: 10ms}
worker: {flush_interval: 20ms}`)
  const batch = await service.run(Array.from({ length: 200 }, (_, i) => line(`l${i}`)))
  assert.deepEqual(batch.request_counts, { total: 200, completed: 200, failed: 0 })
})

test('a server that knows the model by another name gets that name, and every other byte as it was', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(`
models:
  - id: m
    upstreams: [{type: openai, base_url: "${upstream.base_url}", model: "org/Model \\"7B\\""}]
worker: {flush_interval: 20ms}`)
  const body = '{ "messages":[{"role":"user","content":"x"}], "model" : "m" ,"seed":1.0}'
  await service.run(`{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":${body}}`)
  assert.equal(upstream.calls[0]?.bytes.toString(), body.replace('"m"', '"org/Model \\"7B\\""'))
})

test('a chunk that takes many flushes is journalled, and read back when memory was too small for it', async () => {
  await using upstream = await testUpstream((call) => {
    setImmediate(() => send(call.response, 200, completion('y'.repeat(2_000))))
  })
  await using service = await TestService.start(
    configFor(upstream.base_url).replace('flush_interval: 20ms', 'flush_interval: 5ms, memory: 64KiB'),
  )
  const ids = Array.from({ length: 600 }, (_, i) => `l${i}`)
  const batch = await service.run(ids.map((id) => line(id)))
  const lines = await service.lines(batch.output_file_id)
  assert.deepEqual(
    lines.map((one) => one.custom_id),
    ids,
  )
  assert.equal(batch.cost_usd, 0.0018)
  const left = await service.stores.store.read.selectFrom('journal_parts').selectAll().execute()
  assert.deepEqual(left, [])
})

test('three lines of one project do not wait behind the thousands of another', async () => {
  const held: (() => void)[] = []
  await using upstream = await testUpstream((call) => {
    if (call.body.messages[0]?.content.startsWith('small')) echo(call)
    else held.push(() => echo(call))
  })
  await using service = await TestService.start(`
models:
  - id: m
    upstreams: [{type: openai, base_url: "${upstream.base_url}", concurrency_max: 8}]
worker: {flush_interval: 20ms}`)
  const big = await service.upload(
    Array.from({ length: 5_000 }, (_, i) => JSON.stringify(line(`big${i}`))).join('\n'),
  )
  const giant = await service.create(big.id)
  await upstream.arrived(8)
  const { key } = await createKey(service.stores.store, systemClock, 'local', {
    project: 'other',
    plan: 'payg',
  })
  const first = service.key
  service.key = key
  const file = await service.upload([1, 2, 3].map((i) => JSON.stringify(line(`small${i}`))).join('\n'))
  const small = await service.create(file.id)
  const ended = service.ended(small.id)
  let done = false
  void ended.then(() => {
    done = true
  })
  // Slots come free a few at a time; the small lines get the next ones as soon as they are there.
  while (!done) {
    const sent = upstream.calls.length
    for (const answer of held.splice(0)) answer()
    await Promise.race([ended, upstream.arrived(sent + 1)])
  }
  const batch = await ended
  assert.equal(batch.request_counts.completed, 3)
  assert.ok(upstream.calls.length < 2_500, `${upstream.calls.length} lines went before`)
  service.key = first
  await service.json('POST', `/v1/batches/${giant.id}/cancel`)
  upstream.reply = echo
  for (const answer of held.splice(0)) answer()
  assert.equal((await service.ended(giant.id)).status, 'cancelled')
})

test('graceful shutdown: lines in flight finish, the rest is requeued, and another worker finishes it', async () => {
  const held: (() => void)[] = []
  await using upstream = await testUpstream((call) => {
    held.push(() => echo(call))
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(
    Array.from({ length: 100 }, (_, i) => JSON.stringify(line(`l${i}`))).join('\n'),
  )
  const { id } = await service.create(file.id)
  await upstream.arrived(32)
  const stopped = service.worker.stop()
  for (const answer of held.splice(0)) answer()
  await stopped
  assert.equal(upstream.calls.length, 32)
  const counts = (await service.get(id)).request_counts
  assert.deepEqual(counts, { total: 100, completed: 32, failed: 0 })
  upstream.reply = echo
  await service.restartWorker()
  const batch = await service.ended(id)
  assert.equal(batch.request_counts.completed, 100)
  assert.equal(upstream.calls.length, 100, 'no line was sent twice')
  assert.equal(new Set((await service.lines(batch.output_file_id)).map((one) => one.custom_id)).size, 100)
})

test('a line that was tried before a graceful shutdown has only its remaining attempts after it', async () => {
  await using upstream = await testUpstream(({ index, response }) => {
    if (index !== 2) send(response, 500, 'broken')
  })
  const config = configFor(upstream.base_url).replace('lease: 2s', 'lease: 2s, drain: 0ms')
  await using service = await TestService.start(config)
  const file = await service.upload(JSON.stringify(line('a')))
  const { id } = await service.create(file.id)
  await upstream.arrived(3)
  await service.worker.stop()
  await service.restartWorker()
  const batch = await service.ended(id)
  const [failure] = await service.lines(batch.error_file_id)
  assert.equal(upstream.calls.length, 4, 'the call that was aborted does not count')
  assert.match(failure?.error?.message ?? '', /after 3 attempts/)
  const record = await service.json<Record>('GET', `/v1/requests/${failure?.id}`)
  assert.deepEqual([record.attempts.length, record.attempts_omitted], [1, 2])
})

const ofModels = (some: readonly string[]) => some.map((model, i) => line(`l${i}`, 'x', { model }))

test('lines of a model that one worker does not know are left to the one that knows it', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const models = service.config.models.map((one) => ({ ...one, model: { ...one.model, id: 'n' } }))
  const other = await service.addWorker({ ...service.config, models })
  const { store } = service.stores
  const isKnown = (known: ReadonlyMap<string, unknown>): boolean => known.has('n')
  await until(async () => (await modelsOfWorkers(store.read)).some(isKnown))
  try {
    for (const [some, failed] of [
      [['n', 'n', 'none'], 1],
      [['none'], 1],
      [['m', 'm'], 0],
    ] as const) {
      const { request_counts } = await service.run(ofModels(some))
      const { length: total } = some
      assert.deepEqual(request_counts, { total, completed: total - failed, failed })
    }
  } finally {
    await other.stop()
  }
})

const anyNew = { batch: { id: 'new', created: 0 }, now: 0 }

test('lines of a model that only the worker of a command knows are left to it if it answers their batch', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const models = service.config.models.map((one) => ({ ...one, model: { ...one.model, id: 'n' } }))
  const onlyBatches = new Set<string>()
  const other = await service.addWorker({ ...service.config, models }, onlyBatches)
  const { store } = service.stores
  await until(async () => (await modelsOfWorkers(store.read, anyNew)).some((known) => known.has('n')))
  const { id: file } = await service.upload(ofModels(['n']))
  try {
    for (const [isOwn, failed] of [
      [true, 0],
      [false, 1],
    ] as const) {
      const { id, created } = await service.create(file)
      if (isOwn) onlyBatches.add(id)
      else
        await store.write((tx) =>
          tx
            .updateTable('batches')
            .set({ created: created * 1000 - 60_000 })
            .where('id', '=', id)
            .execute(),
        )
      assert.equal((await service.ended(id)).request_counts.failed, failed)
    }
  } finally {
    await other.stop()
  }
})

test('lines wait while other requests wait at a server, and then go with the priority and no other byte changed', async () => {
  let waiting = 1
  let sentTooEarly = false
  await using upstream = await testUpstream((call) => {
    if (call.path !== '/metrics') {
      sentTooEarly ||= waiting > 0
      echo(call)
    } else {
      const text = `vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_waiting{engine="0"} ${waiting}\n`
      send(call.response, 200, text, { 'content-type': 'text/plain' })
    }
  })
  upstream.hasMetrics = true
  const config = configFor(upstream.base_url).replace('timeout: 5s', 'timeout: 5s, live: {priority: 10}')
  await using service = await TestService.start(config)
  const body =
    '{ "messages":[{"role":"user","content":"\u00e9"}], "seed":12345678901234567890, "model" : "m" }'
  const sent = `{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":${body}}`
  const { id } = await service.upload(sent)
  const batch = await service.create(id)
  await upstream.arrived(2)
  waiting = 0
  const ended = await service.ended(batch.id)
  assert.equal(ended.request_counts.completed, 1)
  assert.equal(sentTooEarly, false)
  const call = upstream.calls.find(({ path }) => path !== '/metrics')
  assert.equal(call?.bytes.toString(), `${body.slice(0, -1)},"priority":10}`)
})

test('an upstream sets priority and service tier, again at a retry, and leaves every other byte of a line', async () => {
  await using upstream = await testUpstream((call) => {
    if (call.index === 0) send(call.response, 503, 'busy')
    else echo(call)
  })
  const set =
    'timeout: 5s, model: served, priority: deadline, service_tier: flex, fairness_header: X-Fairness-ID'
  await using service = await TestService.start(configFor(upstream.base_url).replace('timeout: 5s', set))
  const messages = '"messages":[{"role":"user","content":"\u00e9","priority":7}], "temperature":0'
  const bodies = [
    `{ ${messages}, "seed":12345678901234567890, "model" : "m" }`,
    `{"prior\\u0069ty": -9,${messages},"priority" : {"a":[1]},"model":"m","service_tier":"priority"}`,
  ]
  const lines = [0, 1, 1].map(
    (of, i) => `{"custom_id":"${i}","method":"POST","url":"/v1/chat/completions","body":${bodies[of]}}`,
  )
  const batch = await service.run(lines.join('\n'), { dedupe: true })
  assert.equal(batch.request_counts.completed, 3)
  assert.equal(upstream.calls.length, 3)
  assert.deepEqual([...new Set(upstream.calls.map(({ bytes }) => bytes.toString()))].sort(), [
    `{ ${messages}, "seed":12345678901234567890, "model" : "served" ,"priority":5,"service_tier":"flex"}`,
    `{"prior\\u0069ty": 5,${messages},"priority" : 5,"model":"served","service_tier":"flex"}`,
  ])
  const { project } = await service.json<{ project: { id: string } }>('GET', '/console/session')
  const named = upstream.calls.map(({ response }) => response.req.headers['x-fairness-id'])
  assert.deepEqual([...new Set(named)], [project.id])
})

test('lines that begin alike follow each other, unless the batch or the one that it retries has the order of the file', async () => {
  await using upstream = await testUpstream(({ response }) =>
    send(response, 400, '{"error":{"message":"no"}}'),
  )
  const config = configFor(upstream.base_url).replace('timeout: 5s', 'timeout: 5s, concurrency_max: 1')
  await using service = await TestService.start(config)
  const about = (document: string): string => `${document} ${'says what is to be done. '.repeat(40)}`
  const file = await service.upload(
    [0, 1, 2].flatMap((question) =>
      ['B', 'A'].map((document) => line(`${document}${question}`, `${about(document)}${question}?`)),
    ),
  )
  const arrived = (): string[] =>
    upstream.calls
      .splice(0)
      .map(({ body }) => body.messages[0]!.content)
      .map((content) => `${content[0]}${content.at(-2)}`)
  const terms = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
  const estimate = await service.json<{ prompt_cache: { shared: number; as_written: number } }>(
    ...(['POST', '/v1/batches?dry_run=true', terms] as const),
  )
  assert.deepEqual(estimate.prompt_cache, { shared: 0.66, as_written: 0.66 })
  await service.ended((await service.create(file.id)).id)
  assert.deepEqual(arrived(), ['A0', 'A1', 'A2', 'B0', 'B1', 'B2'])
  const asWritten = ['B0', 'A0', 'B1', 'A1', 'B2', 'A2']
  const batch = await service.ended((await service.create(file.id, { order: 'file' })).id)
  assert.equal(batch.order, 'file')
  assert.deepEqual(arrived(), asWritten)
  const again = await service.json<WireBatch>('POST', `/v1/batches/${batch.id}/retry`)
  assert.equal((await service.ended(again.id)).order, 'file')
  assert.deepEqual(arrived(), asWritten)
})
