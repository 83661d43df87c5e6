import assert from 'node:assert/strict'
import { createServer, type IncomingMessage } from 'node:http'
import test, { type TestContext } from 'node:test'
import { listen } from '../../../test/support/listen.ts'
import { freePort } from '../../engines/engine-access.ts'
import { listUpstreamModels, servedFacts, trafficOf } from './server-facts.ts'

/** A server that answers every request the same; `seen` is the last of them. */
async function serve(t: TestContext, status: number, body: string) {
  const seen: { request?: IncomingMessage } = {}
  const server = createServer((request, response) => {
    seen.request = request
    response.writeHead(status).end(body)
  })
  const { url, close } = await listen(server)
  t.after(close)
  return { base_url: `${url}/v1`, seen }
}

test('the IDs come in the order of the server, each once', async (t) => {
  const list = { object: 'list', data: [{ id: 'b' }, { id: 'a' }, { id: 'b' }, { name: 'no id' }] }
  const { base_url, seen } = await serve(t, 200, JSON.stringify(list))
  const listed = await listUpstreamModels(base_url, { api_key: 'sk-key' })
  assert.deepEqual(
    listed.map(({ id }) => id),
    ['b', 'a'],
  )
  assert.equal(seen.request?.url, '/v1/models')
  assert.equal(seen.request?.headers.authorization, 'Bearer sk-key')
})

test('a model serves what its server says of it, in whatever words', async (t) => {
  const generates = ['/v1/chat/completions', '/v1/completions', '/v1/responses']
  const alsoMessages = [...generates, '/v1/messages']
  const cases: [object, string[] | null][] = [
    [{}, null],
    [{ type: 'model', capabilities: ['flies'] }, null],
    [{ endpoints: ['/v1/embeddings', 'rerank', '/v2/dance'] }, ['/v1/embeddings', '/v1/rerank']],
    [{ supported_endpoints: ['/chat/completions', '/responses'] }, ['/v1/chat/completions', '/v1/responses']],
    [{ capabilities: ['embed'] }, ['/v1/embeddings']],
    [{ capabilities: { completion_chat: true, embedding: false } }, generates],
    [{ type: 'embeddings' }, ['/v1/embeddings']],
    [{ type: 'LLM' }, alsoMessages],
  ]
  for (const [said, endpoints] of cases) {
    const { base_url } = await serve(t, 200, JSON.stringify({ data: [{ id: 'm', ...said }] }))
    const [listed] = await listUpstreamModels(base_url)
    assert.deepEqual(listed?.endpoints, endpoints, JSON.stringify(said))
  }
})

test("Together's bare list of models is a list", async (t) => {
  const { base_url } = await serve(
    t,
    200,
    '[{"id":"meta-llama/Llama-3-8b","object":"model","created":0,"type":"chat","running":false,"context_length":8192}]',
  )
  assert.deepEqual(await listUpstreamModels(base_url), [
    {
      id: 'meta-llama/Llama-3-8b',
      endpoints: ['/v1/chat/completions', '/v1/completions', '/v1/responses'],
      ...{ context_window: 8192, parent: null, root: null },
    },
  ])
})

test('every way to fail says what to fix', async (t) => {
  const cases: [status: number, body: string, message: RegExp][] = [
    [401, '{"error":{"message":"bad key sk-secret-key"}}', /check the API key/],
    [404, '404 page not found', /does the base URL end in \/v1\?/],
    [500, '{"error":{"message":"broken"}}', /answered 500: broken/],
    [200, '<html></html>', /did not answer with a list of models/],
    [200, '{"models":[]}', /did not answer with a list of models/],
    [200, '{"object":"list","data":[]}', /lists no model/],
    [200, '{"object":"list","data":null}', /lists no model/],
  ]
  for (const [status, body, message] of cases) {
    const { base_url } = await serve(t, status, body)
    await assert.rejects(
      listUpstreamModels(base_url, { api_key: 'sk-secret-key' }),
      (error) =>
        error instanceof Error && message.test(error.message) && !error.message.includes('sk-secret'),
      `${status} ${body}`,
    )
  }
})

test('a list that is longer than any is not read to its end', async (t) => {
  const { base_url } = await serve(t, 200, `{"data":[]}${' '.repeat(9 * 2 ** 20)}`)
  await assert.rejects(listUpstreamModels(base_url), /the answer is larger than 8388608 bytes/)
})

test('a server that is not there is named', async () => {
  const base_url = `http://127.0.0.1:${await freePort()}/v1`
  await assert.rejects(
    listUpstreamModels(base_url),
    /GET http:\/\/127.*\/v1\/models got no answer .*ECONNREFUSED/,
  )
})

test('the context window is what a server says of it, the loaded one before that of the training', () => {
  const windowOf = (model: Record<string, unknown>) => servedFacts(model).context_window
  assert.equal(windowOf({ max_model_len: 2048 }), 2048)
  assert.equal(windowOf({ meta: { n_ctx: 1024, n_ctx_train: 8192 } }), 1024)
  assert.equal(windowOf({ meta: { n_ctx_train: 8192 } }), 8192)
  assert.equal(windowOf({ max_model_len: 'many', max_context_length: 4096 }), 4096)
  for (const absurd of [-1, 0, 1, 1e155, 2 ** 64, 2 ** 40])
    assert.equal(windowOf({ max_model_len: absurd, max_context_length: 4096 }), 4096, `${absurd}`)
})

test("LiteLLM's proxy tells input and output apart, of which the window has room for both", () => {
  assert.equal(servedFacts({ max_input_tokens: 777 }).context_window, 777)
  assert.equal(servedFacts({ max_input_tokens: 777, max_output_tokens: 2 ** 50 }).context_window, null)
  assert.equal(servedFacts({ max_input_tokens: 128_000, max_output_tokens: 16_384 }).context_window, 144_384)
})

import LLAMACPP from '../../../test/fixtures/llamacpp.json' with { type: 'json' }

test("vLLM's metrics are read, the cache's usage under either of its names", () => {
  const text = (cache: string): string =>
    [
      '# HELP vllm:num_requests_running Number of requests in model execution batches.',
      '# TYPE vllm:num_requests_running gauge',
      'vllm:num_requests_running{engine="0",model_name="a b} c"} 12.0',
      'vllm:num_requests_waiting{engine="0",model_name="m"} 3.0',
      `vllm:${cache}{engine="0",model_name="m"} 0.25`,
      'vllm:generation_tokens_total{engine="0",model_name="m"} 7.5e+06',
      'vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09',
    ].join('\n')
  const traffic = { running: 12, waiting: 3, cache: 0.25, tokens: 7_500_000, steps: null }
  assert.deepEqual(trafficOf(text('kv_cache_usage_perc')), traffic)
  assert.deepEqual(trafficOf(text('gpu_cache_usage_perc')), traffic)
})

test('engines behind one address are added up, and the fullest cache counts', () => {
  const text = [0, 1]
    .map(
      (n) =>
        `vllm:num_requests_running{engine="${n}"} ${n + 1}\nvllm:num_requests_waiting{engine="${n}"} ${n}\n` +
        `vllm:kv_cache_usage_perc{engine="${n}"} 0.${n + 1}\n`,
    )
    .join('')
  assert.deepEqual(trafficOf(text), { running: 3, waiting: 1, cache: 0.2, tokens: null, steps: null })
})

test("SGLang's and llama.cpp's metrics are read", () => {
  const sglang =
    'sglang:num_running_reqs{model_name="m"} 4.0\nsglang:num_queue_reqs{model_name="m"} 1.0\nsglang:token_usage{model_name="m"} 0.28\nsglang:generation_tokens_total{model_name="m"} 10.0\n'
  assert.deepEqual(trafficOf(sglang), { running: 4, waiting: 1, cache: 0.28, tokens: 10, steps: null })
  const llamacpp =
    'llamacpp:requests_processing 2\nllamacpp:requests_deferred 0\nllamacpp:kv_cache_usage_ratio 0.5\n'
  assert.deepEqual(trafficOf(llamacpp), { running: 2, waiting: 0, cache: 0.5, tokens: null, steps: null })
})

test("SGLang's sum over priorities counts alone, and ranks of one engine count once", () => {
  const gauge = (name: string, values: Record<string, number>, more = ''): string =>
    Object.entries(values)
      .map(
        ([priority, value]) =>
          `sglang:${name}{engine_type="unified",model_name="m",priority="${priority}"${more}} ${value}\n`,
      )
      .join('')
  const one = (more = ''): string =>
    gauge('num_running_reqs', { '': 157, '1': 100, '-5': 57 }, more) +
    gauge('num_queue_reqs', { '1': 2, '': 3, '-5': 1 }, more)
  const tokens =
    'sglang:realtime_tokens_total{mode="decode",model_name="m",priority=""} 900\n' +
    'sglang:realtime_tokens_total{mode="prefill_compute",model_name="m"} 5000\n' +
    'sglang:generation_tokens_total{model_name="m"} 40\n'
  const expected = { running: 157, waiting: 3, cache: null, tokens: 900, steps: null }
  assert.deepEqual(trafficOf(one() + tokens), expected)
  const ranks = one(',tp_rank="0",dp_rank="0"') + one(',tp_rank="1",dp_rank="0"')
  assert.deepEqual(trafficOf(ranks + tokens), expected)
  const engines = ranks + one(',tp_rank="2",dp_rank="1"')
  assert.deepEqual(trafficOf(engines + tokens), { ...expected, running: 314, waiting: 6 })
})

test("vLLM's requests that wait for a grammar or an adapter do not wait for room", () => {
  const text =
    'vllm:num_requests_running{engine="0",model_name="m"} 8\nvllm:num_requests_waiting{engine="0",model_name="m"} 5\n' +
    'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 1\n' +
    'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 4\n'
  const expected = { running: 8, waiting: 1, deferred: 4, cache: null, tokens: null, steps: null }
  assert.deepEqual(trafficOf(text), expected)
})

test('a page of a real llama.cpp server is read: its requests, and tokens as well as steps', () => {
  assert.deepEqual(trafficOf(LLAMACPP.metrics), {
    running: 4,
    waiting: 2,
    cache: null,
    tokens: 1264,
    steps: 491,
  })
})

test('what shows no such metrics, or values that are none, says nothing', () => {
  assert.equal(trafficOf('<html>not found</html>'), null)
  assert.equal(trafficOf('process_cpu_seconds_total 3\n'), null)
  assert.equal(trafficOf('vllm:num_requests_running{engine="0"} NaN\n'), null)
})
