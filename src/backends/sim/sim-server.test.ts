import assert from 'node:assert/strict'
import { hash } from 'node:crypto'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test, { type TestContext } from 'node:test'
import OpenAI from 'openai'
import { request } from 'undici'
import { sendTo } from '../../../test/fakes/scripted-backend.ts'
import { ENDPOINT_PATHS } from '../../domain/endpoint.ts'
import { listUpstreamModels } from '../openai/server-facts.ts'
import { simBackend } from './sim-backend.ts'
import { type SimServerOptions, simServer } from './sim-server.ts'

const body = JSON.stringify({
  model: 'sim-1',
  messages: [{ role: 'user', content: 'héllo' }],
  user: 'line-1',
})

async function serve(t: TestContext, options: Partial<SimServerOptions> = {}) {
  const server = await simServer({ port: 0, ...options })
  t.after(() => server.close())
  return server
}

async function post(base_url: string, text = body) {
  const answer = await request(`${base_url}/chat/completions`, { method: 'POST', body: text })
  return { status: answer.statusCode, headers: answer.headers, text: await answer.body.text() }
}

test('over the wire comes what the backend in the process says, to the byte', async (t) => {
  const { base_url } = await serve(t)
  const { status, text } = await post(base_url)
  assert.equal(status, 200)
  const inProcess = await sendTo(simBackend({ name: 'sim' }), {
    endpoint: '/v1/chat/completions',
    project_id: 'p',
    body: Buffer.from(body),
  })
  assert.equal(inProcess.kind === 'answered' ? inProcess.body.toString() : '', text)
})

test('the OpenAI SDK works with it', async (t) => {
  const { base_url } = await serve(t, { models: ['a', 'b'] })
  const client = new OpenAI({ baseURL: base_url, apiKey: 'any' })
  const completion = await client.chat.completions.create({
    model: 'a',
    messages: [{ role: 'user', content: 'hi' }],
    max_tokens: 5,
  })
  assert.equal(completion.choices[0]?.finish_reason, 'length')
  const models = []
  for await (const model of client.models.list()) models.push(model.id)
  assert.deepEqual(models, ['a', 'b'])
  assert.deepEqual(
    (await listUpstreamModels(base_url)).map(({ id, endpoints }) => ({ id, endpoints })),
    ['a', 'b'].map((id) => ({ id, endpoints: [...ENDPOINT_PATHS] })),
  )
})

test('a schema that needs characters beyond ASCII is answered whole', async (t) => {
  const { base_url } = await serve(t)
  const schema = { const: 'grüße 🚀' }
  const format = { type: 'json_schema', json_schema: { name: 's', schema } }
  const text = JSON.stringify({
    model: 'm',
    messages: [{ role: 'user', content: 'x' }],
    response_format: format,
  })
  const answer = JSON.parse((await post(base_url, text)).text)
  assert.equal(answer.choices[0].message.content, '"grüße 🚀"')
})

test('the wait it asks for is told in both headers', async (t) => {
  const { base_url } = await serve(t, { faults: { 429: 1 }, retry_after_ms: 1200 })
  const { status, headers } = await post(base_url)
  assert.equal(status, 429)
  assert.deepEqual([headers['retry-after'], headers['retry-after-ms']], ['2', '1200'])
})

test('it counts what it did', async (t) => {
  const server = await serve(t, { models: ['sim-1'] })
  const { text } = await post(server.base_url)
  await post(server.base_url)
  await post(server.base_url, '{')
  const stats = server.stats()
  assert.deepEqual([stats.requests, stats.answered, stats.refused, stats.in_flight], [3, 2, 1, 0])
  assert.equal(stats.completion_tokens, 2 * JSON.parse(text).usage.completion_tokens)
  const root = server.base_url.replace('/v1', '')
  const told = await request(`${root}/stats`)
  assert.deepEqual(await told.body.json(), stats)
  for (const path of ['/healthz', '/health']) {
    const health = await request(`${root}${path}`)
    assert.equal(health.statusCode, 200)
    await health.body.dump()
  }
  const unknown = await request(`${root}/v2/anything`)
  assert.equal(unknown.statusCode, 404)
  await unknown.body.dump()
})

test('the log has one line for each call, whatever became of it', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-sim-'))
  t.after(() => rm(folder, { recursive: true }))
  const log_file = join(folder, 'calls.jsonl')
  const first = await simServer({ port: 0, log_file })
  await post(first.base_url)
  await post(first.base_url, '{')
  await first.close()
  const second = await simServer({ port: 0, log_file, faults: { reset: 1 } })
  await assert.rejects(post(second.base_url))
  await second.close()
  const lines = (await readFile(log_file, 'utf8')).trimEnd().split('\n')
  const calls = lines.map((line) => JSON.parse(line))
  assert.deepEqual(
    calls.map(({ at: _, ...call }) => call),
    [
      { sha256: hash('sha256', body), fate: 'answer', user: 'line-1' },
      { sha256: hash('sha256', '{'), fate: 'refused' },
      { sha256: hash('sha256', body), fate: 'reset', user: 'line-1' },
    ],
  )
})

test('a log that cannot be written is reported', async () => {
  const server = await simServer({ port: 0, log_file: join(tmpdir(), 'no', 'such', 'folder', 'calls.jsonl') })
  await post(server.base_url)
  await assert.rejects(server.close(), /ENOENT/)
})

test('a port that is taken is an error of the start', async (t) => {
  const { port } = await serve(t)
  await assert.rejects(simServer({ port }), /EADDRINUSE/)
})
