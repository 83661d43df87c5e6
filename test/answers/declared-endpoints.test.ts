// Endpoints that the configuration declares: whole service, real HTTP.
import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { send, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { TestService, type WireBatch } from '../service.ts'

const ENDPOINTS = `
endpoints:
  - path: /v1/classify
    prompt: [input]
    answer: data
    usage: {input: usage.prompt_tokens}
  - path: audio/transcriptions
    prompt: [url]
    answer: text
    usage: {input: usage.seconds}
    unit: seconds
    projection: {input: 3600}
  - {path: /v1/pooling, prompt: [input], answer: data, unit: requests}
  - path: /v1/translate
    prompt: [text, target]
    answer: translation
    usage: {input: usage.read, output: usage.written}
    projection: {output_limit: max_written}
`
const PATHS = '[classify, /v1/audio/transcriptions, pooling, translate]'

const config = (upstream: TestUpstream, endpoints = ENDPOINTS, paths = PATHS): string => `
${endpoints}
models:
  - id: m
    price: {input_per_mtok: 1000, output_per_mtok: 2000}
    endpoints: ${paths}
    upstreams: [{type: openai, base_url: "${upstream.base_url}", timeout: 5s}]
retry: {attempts_max: 2, backoff_min: 5ms, backoff_max: 20ms, outage_patience: 0ms}
worker: {flush_interval: 20ms, lease: 2s}`

const ANSWERS: Readonly<Record<string, string>> = {
  '/v1/classify': '{"data":[{"index":0,"label":"spam"}],"usage":{"prompt_tokens":5,"total_tokens":5}}',
  '/v1/audio/transcriptions': '{"text":"hello","usage":{"type":"duration","seconds":12.4}}',
  '/v1/pooling': '{"data":[{"data":[0.1]}], "usage":{"prompt_tokens":99,"total_tokens":99}}',
  '/v1/translate': '{"translation":"salut","usage":{"read":7,"written":3}}',
}

const BODIES: Readonly<Record<string, string>> = {
  '/v1/classify': '{"model":"m", "input":"buy now"}',
  '/v1/audio/transcriptions': '{"model":"m","url":"https://files.example/a.mp3","language":"en"}',
  '/v1/pooling': '{"model":"m","input":["a"]}',
  '/v1/translate': '{"model":"m","text":"hello","target":"fr","max_written":10}',
}

const lineOf = (endpoint: string, id = 'a', body = BODIES[endpoint]): string =>
  `{"custom_id":"${id}","method":"POST","url":"${endpoint}","body":${body}}`

async function testing(
  act: (service: TestService, upstream: TestUpstream) => Promise<void>,
  answers: (path: string) => [number, string] = (path) => [200, ANSWERS[path] ?? ''],
): Promise<void> {
  await using upstream = await testUpstream(({ path, response }) => send(response, ...answers(path)))
  await using service = await TestService.start(config(upstream))
  await act(service, upstream)
}

test('a declared endpoint is answered by URL, with its bytes, and billed by what its answers count', async () => {
  await testing(async (service, upstream) => {
    const found: unknown[] = []
    for (const endpoint of Object.keys(BODIES)) {
      const batch = await service.run(lineOf(endpoint), { endpoint })
      assert.deepEqual(batch.request_counts, { total: 1, completed: 1, failed: 0 }, endpoint)
      const call = upstream.calls.at(-1)
      assert.deepEqual([call?.path, String(call?.bytes)], [endpoint, BODIES[endpoint]])
      const { input_tokens, output_tokens } = Object(batch.usage)
      found.push([endpoint, input_tokens, output_tokens, batch.cost_usd])
      const [line] = await service.lines(batch.output_file_id)
      const { usage, ...answer } = Object(line?.response?.body)
      const { usage: sent, ...rest } = JSON.parse(ANSWERS[endpoint] ?? '')
      assert.deepEqual(answer, rest)
      assert.deepEqual(usage, { ...sent, cost_usd: batch.cost_usd })
    }
    assert.deepEqual(found, [
      ['/v1/classify', 5, 0, 0.005],
      ['/v1/audio/transcriptions', 13, 0, 0.013],
      ['/v1/pooling', 1, 0, 0.001],
      ['/v1/translate', 7, 3, 0.013],
    ])
  })
})

test('seconds are counted as the server reports them, whatever window and tokens the model has', async () => {
  const path = '/v1/audio/transcriptions'
  const usage = '{"type":"duration","seconds":3599.2,"total_tokens":20000}'
  await using upstream = await testUpstream(({ response }) =>
    send(response, 200, `{"text":"hello","usage":${usage}}`),
  )
  const withWindow = config(upstream).replace('- id: m\n', '- id: m\n    context_window: 448\n')
  await using service = await TestService.start(withWindow)
  const batch = await service.run(lineOf(path), { endpoint: path })
  assert.equal(batch.cost_usd, 3.6)
  const used = await service.json<{ total_tokens: number }>('GET', '/v1/usage/entities')
  assert.equal(used.total_tokens, 3_600)
})

test('its lines are projected as declared, held back by caps, and shared by dedupe', async () => {
  await testing(async (service, upstream) => {
    const projected: [string, number, number][] = []
    for (const endpoint of Object.keys(BODIES)) {
      const file = await service.upload(lineOf(endpoint))
      const order = { input_file_id: file.id, endpoint, completion_window: '24h' }
      const estimate = await service.json<{ input_tokens: number; output_tokens_max: number }>(
        'POST',
        '/v1/batches?dry_run=true',
        order,
      )
      projected.push([endpoint, estimate.input_tokens, estimate.output_tokens_max])
    }
    const [classified, ...others] = projected
    assert.ok(classified && classified[1] > 0 && classified[1] < 10, String(classified))
    assert.deepEqual(others.slice(0, 2), [
      ['/v1/audio/transcriptions', 3600, 0],
      ['/v1/pooling', 1, 0],
    ])
    assert.equal(others[2]?.[2], 10)

    const endpoint = '/v1/classify'
    const twice = await service.run([lineOf(endpoint, 'a'), lineOf(endpoint, 'b')].join('\n'), {
      endpoint,
      dedupe: true,
    })
    assert.equal(twice.request_counts.completed, 2)
    assert.equal(Object(twice.dedupe_counts).shared, 1, 'nothing is generated: the answer repeats')
    assert.equal(upstream.calls.length, 1)

    const cap = { scope: 'project', metric: 'cost_usd', amount: 1, window: 'day' }
    await service.json('POST', '/v1/limits', cap)
    const audio = '/v1/audio/transcriptions'
    const file = await service.upload(lineOf(audio))
    const order = { input_file_id: file.id, endpoint: audio, completion_window: '24h' }
    const held = await service.request('POST', '/v1/batches', order)
    assert.equal(Object(await held.json()).error?.code, 'usage_limit_exceeded', '3,600 seconds cost 3.60')
  })
})

test('what is no answer, and what the server or a line lacks, is explained', async () => {
  const messages: string[] = []
  const run = async (body: string, answer: [number, string], endpoint = '/v1/classify'): Promise<void> =>
    testing(
      async (service) => {
        const batch = await service.run(lineOf(endpoint, 'a', body), { endpoint })
        const [line] = await service.lines(batch.error_file_id)
        const [problem] = Object(batch.errors).data ?? []
        const { code, message } = line?.error ?? problem
        messages.push(`${code}: ${message}`)
      },
      () => answer,
    )
  const body = BODIES['/v1/classify'] ?? ''
  await run(body, [200, '{"labels":[]}'])
  await run(body, [404, '{"error":{"message":"no such route"}}'])
  await run('{"model":"m"}', [200, '{}'])
  assert.match(messages[0] ?? '', /^upstream_invalid_response: .*the answer has no data/)
  assert.match(messages[1] ?? '', /^endpoint_not_supported: .*does not offer \/v1\/classify/)
  assert.match(messages[2] ?? '', /^invalid_request: `input` is missing/)
})

test('lines that are queued when the configuration no longer declares their endpoint fail with the reason', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-declared-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  await using upstream = await testUpstream(({ path, response }) => send(response, 200, ANSWERS[path] ?? ''))
  const order = { endpoint: '/v1/classify', completion_window: '24h' }
  let key = ''
  let id = ''
  {
    await using before = await TestService.start(config(upstream), { folder })
    key = before.key
    const file = await before.upload(lineOf('/v1/classify'))
    await before.worker.stop()
    id = (await before.json<WireBatch>('POST', '/v1/batches', { ...order, input_file_id: file.id })).id
  }
  const plain = config(upstream, '', '[chat/completions]')
  await using after = await TestService.start(plain, { folder })
  after.key = key
  const batch = await after.ended(id)
  const [problem] = Object(batch.errors).data
  assert.equal(problem.code, 'endpoint_not_supported')
  assert.match(problem.message, /no longer declares the endpoint \/v1\/classify\. When its operator declares/)
  assert.equal(upstream.calls.length, 0)
  const refused = await after.upload(lineOf('/v1/classify'))
  assert.match(refused.status_details ?? '', /`url` must be "\/v1\/chat\/completions"/)
  const again = await after.request('POST', '/v1/batches', { ...order, input_file_id: refused.id })
  assert.match(await again.text(), /`endpoint` must be one of .*not .{1,2}\/v1\/classify/)
})
