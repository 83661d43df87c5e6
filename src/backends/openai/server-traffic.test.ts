import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import test, { type TestContext } from 'node:test'
import LLAMACPP from '../../../test/fixtures/llamacpp.json' with { type: 'json' }
import { listen } from '../../../test/support/listen.ts'
import { openaiBackend } from './openai-backend.ts'
import { trafficOf } from './server-traffic.ts'

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

/** The query API of a Prometheus with a given answer; with a status of 0, it does not answer. */
async function prometheus(t: TestContext, stale_after_ms = 60_000) {
  const asked: URL[] = []
  const says = { status: 200, body: {} as object }
  const server = createServer((request, response) => {
    asked.push(new URL(request.url ?? '', 'http://prometheus'))
    if (says.status > 0) response.writeHead(says.status).end(JSON.stringify(says.body))
  })
  const { url, close } = await listen(server)
  const query = { selector: '{namespace="llm"}', timeout_ms: 200, stale_after_ms }
  const base_url = 'http://127.0.0.1:1/v1'
  const backend = openaiBackend({
    ...{ name: 'router', base_url, api_key: 'sk-secret', timeout_ms: 1_000, connections_max: 1 },
    ...{ metrics_url: `${url}/select/0/`, query },
  })
  t.after(async () => {
    await backend.close()
    await close()
  })
  const read = async () => {
    const problems: string[] = []
    const traffic = await backend.readTraffic?.((problem) => problems.push(problem))
    return { traffic, problem: problems.join() }
  }
  return { read, asked, says }
}

function series(name: string, pod: string, ...values: [number, string][]): object {
  return { metric: { __name__: name, pod, namespace: 'llm' }, values }
}

function vector(...result: object[]): object {
  return { status: 'success', data: { resultType: 'matrix', result } }
}

test('the replicas behind a router are added up from what a Prometheus last saw of each', async (t) => {
  const { read, asked, says } = await prometheus(t)
  const now = Date.now() / 1000
  says.body = vector(
    series('vllm:num_requests_running', 'a', [now - 20, '9'], [now - 5, '3']),
    series('vllm:num_requests_running', 'b', [now - 12, '4']),
    series('vllm:num_requests_waiting', 'a', [now - 5, '1']),
    series('vllm:kv_cache_usage_perc', 'b', [now - 12, '0.5']),
    series('vllm:generation_tokens_total', 'a', [now - 5, '1000']),
    series('vllm:generation_tokens_total', 'b', [now - 12, '500']),
    series('kube_pod_info', 'a', [now, '1']),
  )
  const { traffic, problem } = await read()
  const at = Math.round((now - 5) * 1000)
  assert.deepEqual(traffic, { running: 7, waiting: 1, cache: 0.5, tokens: 1500, steps: null, at })
  assert.equal(problem, '')
  const [{ pathname, searchParams } = assert.fail()] = asked
  assert.equal(pathname, '/select/0/api/v1/query')
  const query = searchParams.get('query') ?? ''
  assert.match(query, /^\{__name__=~"vllm:num_requests_running\|.*",namespace="llm"\}\[60000ms\]$/)
})

test('a Prometheus that fails leaves its last reading until that is stale, and says what to fix', async (t) => {
  const { read, says } = await prometheus(t, 1_000)
  const reading = (age_s: number): void => {
    says.status = 200
    says.body = vector(series('vllm:num_requests_running', 'a', [Date.now() / 1000 - age_s, '3']))
  }
  reading(0)
  assert.equal((await read()).traffic?.running, 3)
  says.status = 0
  const late = await read()
  assert.equal(late.traffic?.running, 3)
  assert.match(late.problem, /no complete answer within 200 ms/)
  reading(2)
  await read()
  says.status = 422
  says.body = { status: 'error', errorType: 'execution', error: 'too many samples' }
  const stale = await read()
  assert.equal(stale.traffic, null)
  assert.match(stale.problem, /answers with 422: too many samples/)
})

test('an answer without series of a model server is no reading, however recent the last one is', async (t) => {
  const { read, says } = await prometheus(t)
  const absurd = [
    vector(),
    vector(series('up', 'a', [1, '1'])),
    vector(series('vllm:num_requests_running', 'a', [1, 'NaN'])),
    { data: { result: [{ metric: { __name__: 'vllm:num_requests_running' }, values: 'many' }, null] } },
    { data: { result: [{ metric: { __name__: 'vllm:num_requests_running' }, values: [5] }] } },
    {},
  ]
  for (const body of absurd) {
    says.body = vector(series('vllm:num_requests_running', 'a', [Date.now() / 1000, '3']))
    assert.equal((await read()).traffic?.running, 3)
    says.body = body
    const { traffic, problem } = await read()
    assert.equal(traffic, null)
    assert.match(problem, /no series of vLLM, SGLang or llama.cpp for \{namespace="llm"\} in the last 1m/)
  }
})

test('metrics are read in a time that grows with their text', () => {
  const begun = performance.now()
  for (const piece of ['a', 'a="', 'a="\\"', '} '])
    trafficOf(`vllm:num_requests_running{${piece.repeat(2 ** 18 / piece.length)}} 1\n`)
  assert.ok(performance.now() - begun < 5_000)
})
