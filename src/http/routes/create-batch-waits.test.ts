// Tests batches that are created while their file is still being validated, and calls that wait for the end of their
// batch.
import assert from 'node:assert/strict'
import { connect } from 'node:net'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { type Answer, type TestServer, testServer } from '../../../test/support/test-server.ts'
import { markInvalid } from '../../store/files.ts'

const WAIT = { wait_for_file_ms: 10_000 }

/** Advances the clock until `calls` calls wait. */
async function waiting(server: TestServer, calls = 1): Promise<void> {
  while (server.clock.waiting < calls) await setImmediate()
}

/** Advances the clock until the call is answered; returns the time that has passed. */
async function answered(server: TestServer, call: Promise<Answer>): Promise<{ answer: Answer; ms: number }> {
  let answer: Answer | undefined
  void call.then((given) => {
    answer = given
  })
  const began = server.clock.now()
  while (answer === undefined) {
    if (server.clock.waiting > 0) await server.clock.advance(10)
    else await setImmediate()
  }
  return { answer, ms: server.clock.now() - began }
}

test('creating a batch waits for the validation of its file', async () => {
  await using server = await testServer(WAIT)
  const good = await server.upload()
  const created = server.createBatch(good.id)
  await waiting(server)
  await server.process(good.id)
  const { answer } = await answered(server, created)
  assert.equal(answer.json.status, 'validating')

  const bad = await server.upload()
  const refused = server.createBatch(bad.id)
  await waiting(server)
  const verdict = { line_count: 1, status_details: 'Line 1: no.', errors: '[]' }
  await server.deps.store.write((tx) => markInvalid(tx, bad.id, verdict))
  const told = (await answered(server, refused)).answer
  assert.equal(told.outcome, '422 file_not_processed')
  assert.match(String(told.error.message), /Line 1: no\./)
})

test('the wait has a limit', async () => {
  await using server = await testServer(WAIT)
  const { id } = await server.upload()
  const { answer, ms } = await answered(server, server.createBatch(id))
  assert.equal(answer.outcome, '422 file_not_processed')
  assert.match(String(answer.error.message), /still being validated/)
  assert.ok(ms >= 10_000 && ms <= 10_100, `${ms} ms`)
})

test('a file that was validated as it came, but is not processed yet, makes a batch without lines', async () => {
  await using server = await testServer()
  const id = await server.processedFile()
  await server.deps.store.write((tx) =>
    tx.updateTable('files').set({ status: 'pending' }).where('id', '=', id).execute(),
  )
  assert.equal((await server.createBatch(id)).outcome, '422 file_not_processed')
  const { status, json } = await server.createBatch(id, { headers: { 'x-offpeak-compat': 'openai' } })
  assert.deepEqual(
    [status, json.status, json.request_counts],
    [200, 'validating', { total: 0, completed: 0, failed: 0 }],
  )
})

test('errors that waiting cannot fix are answered at once', async () => {
  await using server = await testServer(WAIT)
  const { id } = await server.upload()
  const body = { input_file_id: id, endpoint: '/v1/chat/completions', completion_window: '4h' }
  assert.equal((await server.call('POST', '/v1/batches', { body })).outcome, '403 plan_lacks_feature')
  assert.equal((await server.createBatch('file_unknown')).outcome, '404 file_not_found')
  assert.equal((await server.createBatch(id, { body: { ...body, completion_window: 'soon' } })).status, 400)
})

test('a retry with the same key is a 409 while the first call waits, and gets its answer afterwards', async () => {
  await using server = await testServer(WAIT)
  const { id } = await server.upload()
  const body = { input_file_id: id, endpoint: '/v1/chat/completions', completion_window: '24h' }
  const order = { body, headers: { 'idempotency-key': 'job' } }
  const first = server.createBatch(id, order)
  await waiting(server)
  assert.equal((await server.createBatch(id, order)).outcome, '409 idempotency_in_progress')
  await server.process(id)
  const { answer } = await answered(server, first)
  const again = await server.createBatch(id, order)
  assert.equal(again.text, answer.text)
  assert.equal(again.headers.get('idempotency-replayed'), 'true')
})

test('a caller that disconnects gets no batch', async () => {
  await using server = await testServer(WAIT)
  const { id } = await server.upload()
  const body = JSON.stringify({
    input_file_id: id,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
  })
  const socket = connect(server.port, '127.0.0.1')
  socket.write(
    `POST /v1/batches HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${server.key.key}\r\n` +
      `content-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
  )
  await waiting(server)
  await server.process(id)
  socket.resetAndDestroy()
  while (server.clock.waiting > 0) await setImmediate()
  assert.deepEqual((await server.call('GET', '/v1/batches')).data, [])
})

test('the number of waiting calls is limited; one more is answered as if it had waited', async () => {
  await using server = await testServer(WAIT)
  const { id } = await server.upload()
  const calls = Array.from({ length: 65 }, () => server.createBatch(id))
  assert.equal((await Promise.race(calls)).outcome, '422 file_not_processed')
  await waiting(server)
  await server.process(id)
  await server.clock.advance(250)
  const answers = await Promise.all(calls)
  assert.equal(answers.filter(({ status }) => status === 200).length, 64)
})

test('a server that shuts down answers waiting calls', async () => {
  const server = await testServer(WAIT)
  const { id } = await server.upload()
  const call = server.createBatch(id)
  await waiting(server)
  await Promise.all([server[Symbol.asyncDispose](), call.then(({ status }) => assert.equal(status, 422))])
})

const CHAT = { endpoint: '/v1/chat/completions', completion_window: '24h' }

/** Creates a batch by a call that waits for its end, which no worker brings about. */
async function createAndWait(server: TestServer, wait: string, headers = {}): Promise<Answer> {
  const { id } = await server.upload()
  await server.process(id)
  return await server.call('POST', '/v1/batches', { body: { ...CHAT, input_file_id: id, wait }, headers })
}

async function end(server: TestServer, status: 'completed' | 'failed'): Promise<void> {
  await server.deps.store.write((tx) => tx.updateTable('batches').set({ status }).execute())
}

test('a call waits for the end of its batch, and answers as GET does', async () => {
  await using server = await testServer()
  const call = createAndWait(server, '30s')
  await waiting(server)
  await server.clock.advance(20_000)
  await waiting(server)
  await end(server, 'completed')
  const { answer, ms } = await answered(server, call)
  assert.equal(answer.json.status, 'completed')
  assert.ok(ms <= 1_000, `${ms} ms after the end`)
  const { results, ...batch } = answer.json
  assert.deepEqual(results, [])
  assert.deepEqual(batch, (await server.call('GET', `/v1/batches/${answer.id}`)).json)
})

test('a call that has waited long enough shows the batch as it is', async () => {
  await using server = await testServer()
  const { answer, ms } = await answered(server, createAndWait(server, '1500ms'))
  assert.equal(answer.json.status, 'validating')
  assert.ok(answer.json.progress, 'as GET does')
  assert.ok(ms >= 1_500 && ms <= 1_520, `${ms} ms`)
  for (const wait of ['0s', null]) {
    const body = { ...CHAT, input_file_id: await server.processedFile(), wait }
    assert.equal((await server.call('POST', '/v1/batches', { body })).json.status, 'validating')
  }
})

test('a wait of a minute ends before proxies end the call, whatever else the call has waited for', async () => {
  await using server = await testServer({ wait_for_file_ms: 10_000 })
  const { id } = await server.upload()
  const body = { ...CHAT, input_file_id: id, wait: '60s' }
  const call = server.call('POST', '/v1/batches', { body })
  await waiting(server)
  await server.clock.advance(5_000)
  await server.process(id)
  const { answer, ms } = await answered(server, call)
  assert.equal(answer.json.status, 'validating')
  assert.ok(ms >= 39_900 && ms <= 40_100, `${ms} ms`)
})

test('a wait is a duration up to a minute, for a batch', async () => {
  await using server = await testServer()
  const input_file_id = await server.processedFile()
  for (const wait of ['61s', '2m', '60001ms', '30', 'soon', '', '-1s', 30]) {
    const answer = await server.call('POST', '/v1/batches', { body: { ...CHAT, input_file_id, wait } })
    assert.deepEqual([answer.outcome, answer.error.param], ['400 invalid_request', 'wait'], String(wait))
  }
  const dry = await server.call('POST', '/v1/batches?dry_run=true', {
    body: { ...CHAT, input_file_id, wait: '1s' },
  })
  assert.deepEqual([dry.outcome, dry.error.param], ['400 invalid_request', 'wait'])
  assert.deepEqual((await server.call('GET', '/v1/batches')).data, [])
})

test('a repeated call waits for the batch of the first, whatever either waits', async () => {
  await using server = await testServer()
  const id = await server.processedFile()
  const headers = { 'idempotency-key': 'job' }
  const order = (wait?: string) => ({ body: { ...CHAT, input_file_id: id, wait }, headers })
  const first = await server.call('POST', '/v1/batches', order())
  const call = server.call('POST', '/v1/batches', order('10s'))
  await waiting(server)
  await end(server, 'failed')
  const { answer } = await answered(server, call)
  assert.deepEqual([answer.id, answer.json.status], [first.id, 'failed'])
  assert.equal(answer.headers.get('idempotency-replayed'), 'true')
  assert.equal((await server.call('POST', '/v1/batches', order())).text, first.text)
})

test('a caller that disconnects waits no longer, and its batch stays', async () => {
  await using server = await testServer()
  const body = JSON.stringify({ ...CHAT, input_file_id: await server.processedFile(), wait: '60s' })
  const socket = connect(server.port, '127.0.0.1')
  socket.write(
    `POST /v1/batches HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${server.key.key}\r\n` +
      `content-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
  )
  await waiting(server)
  socket.resetAndDestroy()
  while (server.clock.waiting > 0) await setImmediate()
  assert.equal((await server.call('GET', '/v1/batches')).data.length, 1)
})

test('the number of calls that wait for a batch is limited; others wait for files all the same', async () => {
  await using server = await testServer(WAIT)
  const id = await server.processedFile()
  const order = { body: { ...CHAT, input_file_id: id, wait: '60s' } }
  const calls = Array.from({ length: 65 }, () => server.call('POST', '/v1/batches', order))
  assert.equal((await Promise.race(calls)).json.status, 'validating')
  await waiting(server)
  const late = await server.upload()
  const ofFile = server.createBatch(late.id)
  await waiting(server, 2)
  await server.process(late.id)
  await end(server, 'completed')
  await server.clock.advance(250)
  const answers = await Promise.all(calls)
  assert.equal(answers.filter(({ json }) => json.status === 'completed').length, 64)
  assert.equal((await ofFile).status, 200)
})

test('a server that shuts down answers calls that wait for a batch', async () => {
  const server = await testServer()
  const call = createAndWait(server, '60s')
  await waiting(server)
  const told = call.then(({ json }) => assert.equal(json.status, 'validating'))
  await Promise.all([server[Symbol.asyncDispose](), told])
})

test('large lines take no memory while their call waits', async () => {
  await using server = await testServer({ file_bytes_max: 64 * 1024 * 1024 })
  const large = { body: { text: 'x'.repeat(24 * 1024 * 1024) } }
  const order = { body: { ...CHAT, requests: [large], wait: '60s' } }
  const calls: Promise<Answer>[] = []
  // Two files would not fit.
  for (const count of [1, 2]) {
    calls.push(server.call('POST', '/v1/batches', order))
    while ((await server.call('GET', '/v1/batches')).data.length < count);
  }
  await end(server, 'failed')
  for (const call of calls) assert.equal((await answered(server, call)).answer.json.status, 'failed')
})
