// Every state of a batch, reached through the API with real parts behind it.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { completion, echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

const SECONDS = 'plans: {payg: {completion_windows: [2s], file_retention: 90d}}'

test('a batch of one line runs from validating to completed', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(JSON.stringify(line('only', 'hello')))
  assert.deepEqual([file.status, file.line_count], ['processed', 1])
  const created = await service.create(file.id)
  assert.equal(created.status, 'validating')
  assert.equal(created.output_file_id, null)
  const batch = await service.ended(created.id)
  assert.equal(batch.status, 'completed')
  assert.deepEqual(batch.request_counts, { total: 1, completed: 1, failed: 0 })
  assert.equal(batch.error_file_id, null)
  const [answer] = await service.lines(batch.output_file_id)
  assert.equal(answer?.custom_id, 'only')
  assert.equal(answer?.error, null)
  assert.equal(answer?.response?.status_code, 200)
  assert.equal(answer?.response?.body.choices[0]?.message.content, 'hello')
  // 10 × 100 + 5 × 400 nano-dollars.
  assert.equal(answer?.response?.body.usage.cost_usd, 0.000003)
  assert.equal(batch.cost_usd, 0.000003)
})

test('results come back in input order, however the lines were sent', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const ids = Array.from({ length: 1_100 }, (_, i) => `id-${i}`)
  const batch = await service.run(ids.map((id, i) => line(id, `question ${(i * 7919) % 1100}`)))
  const lines = await service.lines(batch.output_file_id)
  assert.deepEqual(
    lines.map((one) => one.custom_id),
    ids,
  )
})

test('lines of several chunks that reach the journal together are all counted, and billed once', async () => {
  const held: (() => void)[] = []
  await using upstream = await testUpstream((call) => {
    if (call.body.messages[0]?.content.startsWith('held')) held.push(() => echo(call))
    else echo(call)
  })
  const config = configFor(upstream.base_url)
    .replace('flush_interval: 20ms', 'flush_interval: 400ms')
    .replace('timeout: 5s', 'timeout: 60s')
  await using service = await TestService.start(config)
  // Each chunk has a line that keeps it open, while the others finish.
  const name = (i: number): string => (i % 1000 === 5 ? `held-${i}` : `line-${i}`)
  const ids = Array.from({ length: 1_010 }, (_, i) => name(i))
  const file = await service.upload(ids.map((id) => JSON.stringify(line(id))).join('\n'))
  const { id } = await service.create(file.id)
  await upstream.arrived(1_010)
  let counted = 0
  while (counted < 1_008) counted = (await service.get(id)).request_counts.completed
  for (const answer of held) answer()
  const batch = await service.ended(id)
  assert.deepEqual(batch.request_counts, { total: 1_010, completed: 1_010, failed: 0 })
  assert.equal(batch.cost_usd, 0.00303)
  const lines = await service.lines(batch.output_file_id)
  assert.deepEqual(
    lines.map((one) => one.custom_id),
    ids,
  )
})

test('a batch whose lines partly fail is completed, and each line is in exactly one file', async () => {
  await using upstream = await testUpstream((call) => {
    if (call.body.messages[0]?.content.includes('bad'))
      send(call.response, 400, '{"error":{"message":"no such thing"}}')
    else echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run([
    line('a'),
    line('bad-1'),
    line('c', 'c', { model: 'unknown' }),
    line('d'),
    line('e', 'e', { messages: [] }),
  ])
  assert.equal(batch.status, 'completed')
  assert.deepEqual(batch.request_counts, { total: 5, completed: 2, failed: 3 })
  const done = await service.lines(batch.output_file_id)
  const failed = await service.lines(batch.error_file_id)
  assert.deepEqual(
    done.map((one) => one.custom_id),
    ['a', 'd'],
  )
  assert.deepEqual(
    failed.map((one) => [one.custom_id, one.response, one.error?.code, one.error?.param]),
    [
      ['bad-1', null, 'upstream_rejected', undefined],
      ['c', null, 'model_not_found', 'model'],
      ['e', null, 'invalid_request', 'messages'],
    ],
  )
})

test('a batch in which no line can run fails, names each line, and costs nothing', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run([line('a', 'a', { model: 'nope' }), line('b', 'b', { messages: 'text' })])
  assert.equal(batch.status, 'failed')
  assert.deepEqual(batch.request_counts, { total: 2, completed: 0, failed: 2 })
  assert.equal(batch.output_file_id, null)
  assert.equal(batch.cost_usd, 0)
  const failed = await service.lines(batch.error_file_id)
  assert.deepEqual(
    failed.map((one) => [one.custom_id, one.error?.code]),
    [
      ['a', 'model_not_found'],
      ['b', 'invalid_request'],
    ],
  )
  assert.equal(upstream.calls.length, 0)
  const record = await service.json<{ error: { code: string } }>('GET', `/v1/requests/${failed[0]?.id}`)
  assert.equal(record.error.code, 'model_not_found')
})

test('a cancel lets lines in flight finish, and writes off the rest', async () => {
  const held: (() => void)[] = []
  await using upstream = await testUpstream((call) => {
    held.push(() => echo(call))
  })
  await using service = await TestService.start(configFor(upstream.base_url, ''))
  const file = await service.upload(
    Array.from({ length: 200 }, (_, i) => JSON.stringify(line(`l${i}`))).join('\n'),
  )
  const { id } = await service.create(file.id)
  await upstream.arrived(32)
  const cancelling = await service.json<{ status: string }>('POST', `/v1/batches/${id}/cancel`)
  assert.equal(cancelling.status, 'cancelling')
  // A few more may be sent before the worker has read of the cancel.
  upstream.reply = echo
  for (const answer of held.splice(0)) answer()
  const batch = await service.ended(id)
  assert.equal(batch.status, 'cancelled')
  assert.ok(typeof batch.cancelled_at === 'number' && typeof batch.cancelling_at === 'number')
  const done = await service.lines(batch.output_file_id)
  const written = await service.lines(batch.error_file_id)
  assert.equal(done.length, upstream.calls.length)
  assert.equal(done.length + written.length, 200)
  assert.ok(written.every((one) => one.error?.code === 'batch_cancelled'))
  assert.equal(batch.cost_usd, Math.round(done.length * 3000) / 1e9)
  const again = await service.json<{ status: string }>('POST', `/v1/batches/${id}/cancel`)
  assert.equal(again.status, 'cancelled')
})

test('a batch that is cancelled before it is planned sends nothing', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(JSON.stringify(line('a')))
  await service.worker.stop()
  const { id } = await service.create(file.id)
  await service.json('POST', `/v1/batches/${id}/cancel`)
  await service.restartWorker()
  const batch = await service.ended(id)
  assert.equal(batch.status, 'cancelled')
  assert.deepEqual(batch.request_counts, { total: 1, completed: 0, failed: 1 })
  assert.equal(upstream.calls.length, 0)
})

test('when the window closes, lines in flight are broken off and the batch is expired', async () => {
  await using upstream = await testUpstream((call) => {
    if (call.index < 3) echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url, SECONDS))
  const batch = await service.run(Array.from({ length: 50 }, (_, i) => line(`l${i}`)))
  assert.equal(batch.status, 'expired')
  assert.equal(batch.expires_at - batch.created, 2)
  assert.deepEqual(batch.request_counts, { total: 50, completed: 3, failed: 47 })
  const written = await service.lines(batch.error_file_id)
  assert.ok(written.every((one) => one.error?.code === 'batch_expired'))
  assert.equal(batch.cost_usd, 0.000009)
})

test('a batch that nobody took up in time expires without a call', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url, SECONDS))
  const file = await service.upload(JSON.stringify(line('a')))
  await service.worker.stop()
  const { id, expires_at } = await service.create(file.id)
  await service.stores.store.write((tx) =>
    tx
      .updateTable('batches')
      .set({ expires_at: expires_at * 1000 - 10_000 })
      .where('id', '=', id)
      .execute(),
  )
  await service.restartWorker()
  const batch = await service.ended(id)
  assert.equal(batch.status, 'expired')
  assert.equal(upstream.calls.length, 0)
})

test('the input may be deleted while the batch runs: the rest is written off, the content destroyed', async () => {
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
  await service.json('DELETE', `/v1/files/${file.id}`)
  assert.equal((await service.request('GET', `/v1/files/${file.id}`)).status, 404)
  upstream.reply = echo
  for (const answer of held.splice(0)) answer()
  const batch = await service.ended(id)
  assert.equal(batch.status, 'completed')
  const written = await service.lines(batch.error_file_id)
  assert.ok(written.length > 0 && written.every((one) => one.error?.code === 'input_file_deleted'))
  assert.equal(batch.request_counts.completed + written.length, 100)
  const blob = await service.stores.store.read
    .selectFrom('blobs')
    .selectAll()
    .where('key', 'like', `files/${file.id}/%`)
    .where('deletion_pending_since', 'is', null)
    .execute()
  assert.deepEqual(blob, [])
})

test('the body reaches the model server as the very bytes of the uploaded line', async () => {
  await using upstream = await testUpstream(({ response }) => send(response, 200, completion('ok')))
  await using service = await TestService.start(configFor(upstream.base_url))
  const bodies = [
    '{"z":1, "model":"m","messages":[{"role":"user","content":"a"}],"a":2}',
    '{"messages":[{"content":"b","role":"user"}],"temperature":1.0,"top_p":1e2,"seed":9007199254740993,"model":"m"}',
    '{ "model" : "m", "messages" : [ {"role":"user","content":"\\ud800 \\u00e9 é 😀 \\/"} ] , "x":{"k":1,"k":2},"x":[] }',
    '{"mod\\u0065l":"m","messages":[{"role":"user","content":"d"}],"big":123456789012345678901234567890,"neg":-0.0}',
  ]
  const input = bodies
    .map((body, i) => `{"body":${body},"url":"/v1/chat/completions","custom_id":"c${i}","method":"POST"}`)
    .join('\r\n')
  const batch = await service.run(input)
  assert.equal(batch.status, 'completed')
  const arrived = upstream.calls.map((call) => call.bytes.toString()).sort()
  assert.deepEqual(arrived, [...bodies].sort())
})

test('the answer is kept as it came, with its cost set in', async () => {
  const answer =
    '{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"\\u00e9"},"logprob":-1.0e-2,"finish_reason":"stop"}],"seed":9007199254740993,"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
  await using upstream = await testUpstream(({ response }) => send(response, 200, answer))
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run([line('a')])
  const text = await service.content(batch.output_file_id)
  assert.ok(
    text.includes(answer.replace('"total_tokens":2}', '"total_tokens":2,"cost_usd":0.0000005}')),
    text,
  )
})

test('a usage that cannot be is replaced by the estimate, and the record keeps what was reported', async () => {
  const usage = { prompt_tokens: -5, completion_tokens: 1e300, total_tokens: 'many' }
  await using upstream = await testUpstream(({ response }) =>
    send(
      response,
      200,
      `{"choices":[{"message":{"content":"hi"}}],\n"usage":\n${JSON.stringify(usage, null, 1)}}`,
    ),
  )
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run([line('a')])
  const [answer] = await service.lines(batch.output_file_id)
  const billed = answer?.response?.body.usage
  assert.ok((billed?.cost_usd ?? 0) > 0)
  const record = await service.json<Record<string, unknown>>('GET', `/v1/requests/${answer?.id}`)
  assert.equal(record.usage_estimated, true)
  assert.deepEqual(record.usage_reported, usage)
  assert.deepEqual({ ...(record.usage as object), cost_usd: record.cost_usd }, billed)
})

test('an answer without usage is priced by estimate, and its record says so', async () => {
  await using upstream = await testUpstream(({ response }) =>
    send(response, 200, completion('12345678', null)),
  )
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run([line('a')])
  const [answer] = await service.lines(batch.output_file_id)
  assert.ok((answer?.response?.body.usage.cost_usd ?? 0) > 0)
  assert.equal(answer?.response?.body.usage.cost_usd, batch.cost_usd)
  const record = await service.json<{ usage_estimated: boolean; attempts: object[]; response: object }>(
    'GET',
    `/v1/requests/${answer?.id}`,
  )
  assert.equal(record.usage_estimated, true)
  assert.equal(record.attempts.length, 1)
  assert.deepEqual(record.response, answer?.response)
})
