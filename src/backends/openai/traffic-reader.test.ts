import assert from 'node:assert/strict'
import test from 'node:test'
import LLAMACPP from '../../../test/fixtures/llamacpp.json' with { type: 'json' }
import { trafficOf } from './traffic-reader.ts'

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
