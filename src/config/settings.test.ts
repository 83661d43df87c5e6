import assert from 'node:assert/strict'
import { test } from 'node:test'
import { proxyFromEnv, telemetryFromEnv } from './settings.ts'

const PROXY = 'http://proxy:3128'

test('the variables for the protocol name the proxy, in either case', () => {
  assert.equal(proxyFromEnv('https://api.example.com/v1', { HTTPS_PROXY: PROXY }), PROXY)
  assert.equal(proxyFromEnv('http://api.example.com/v1', { HTTPS_PROXY: PROXY }), null)
  assert.equal(proxyFromEnv('http://api.example.com/v1', { http_proxy: 'proxy:3128' }), PROXY)
})

test('NO_PROXY excepts names, what is below them, and ports; loopback is excepted always', () => {
  const through = (url: string, NO_PROXY: string): boolean =>
    proxyFromEnv(url, { HTTP_PROXY: PROXY, NO_PROXY }) !== null
  assert.equal(through('http://gpu.internal/v1', 'other.internal, .internal'), false)
  assert.equal(through('http://gpu.internal/v1', 'internal'), false)
  assert.equal(through('http://gpuinternal/v1', 'internal'), true)
  assert.equal(through('http://gpu:8000/v1', 'gpu:8001'), true)
  assert.equal(through('http://gpu:8000/v1', 'gpu:8000'), false)
  assert.equal(through('http://gpu:8000/v1', '*'), false)
  assert.equal(through('http://127.0.0.1:8000/v1', ''), false)
})

function read(env: NodeJS.ProcessEnv) {
  const problems: string[] = []
  return { ...telemetryFromEnv(env, problems), problems }
}

const ENDPOINT = { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:4318' }

test('there are no traces unless a collector or an exporter is named', () => {
  for (const env of [
    {},
    { OTEL_SERVICE_NAME: 'a', OTEL_TRACES_SAMPLER: 'always_on' },
    { ...ENDPOINT, OTEL_SDK_DISABLED: 'TRUE' },
    { ...ENDPOINT, OTEL_TRACES_EXPORTER: 'none' },
    { OTEL_EXPORTER_OTLP_ENDPOINT: ' ' },
  ])
    assert.equal(read(env).tracing, null)
  assert.deepEqual(read({ OTEL_SDK_DISABLED: 'true', ...ENDPOINT }), {
    tracing: null,
    audit_log: null,
    problems: [],
  })
  assert.equal(read({ OTEL_TRACES_EXPORTER: 'otlp' }).tracing?.ratio, 1)
  assert.equal(read({ OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'https://c/v1/traces' }).tracing?.ratio, 1)
})

test('audit logs go where traces go, unless their own variables say something else', () => {
  assert.equal(read({}).audit_log, null)
  assert.equal(read({ ...ENDPOINT, OTEL_LOGS_EXPORTER: 'none' }).audit_log, null)
  const only = { OTEL_EXPORTER_OTLP_LOGS_ENDPOINT: 'http://c', OTEL_BLRP_MAX_QUEUE_SIZE: '100' }
  const { tracing, audit_log, problems } = read(only)
  assert.deepEqual([tracing, problems], [null, []])
  const queue = { delay_ms: 1_000, timeout_ms: 30_000, queue_max: 100, batch_max: 100 }
  assert.deepEqual(audit_log, { service_name: 'offpeak', export: queue })
  const wrong = read({ ...ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc', OTEL_LOGS_EXPORTER: 'console' })
  assert.equal(wrong.problems.length, 2)
})

test('samplers are those of the specification', () => {
  const sampler = (OTEL_TRACES_SAMPLER: string, OTEL_TRACES_SAMPLER_ARG?: string) => {
    const { tracing, problems } = read({ ...ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG })
    assert.deepEqual(problems, [])
    return [tracing?.parent_based, tracing?.ratio]
  }
  assert.deepEqual(sampler('always_on'), [false, 1])
  assert.deepEqual(sampler('parentbased_always_off'), [true, 0])
  assert.deepEqual(sampler('traceidratio', '0.25'), [false, 0.25])
  assert.deepEqual(sampler('parentbased_traceidratio', '0.01'), [true, 0.01])
  assert.deepEqual(sampler('parentbased_traceidratio'), [true, 1])
})

test('what cannot be followed is named', () => {
  const wrong = {
    OTEL_TRACES_EXPORTER: 'console',
    OTEL_EXPORTER_OTLP_ENDPOINT: 'collector:4318',
    OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc',
    OTEL_BSP_MAX_QUEUE_SIZE: '-1',
    OTEL_TRACES_SAMPLER_ARG: '2',
    OTEL_TRACES_SAMPLER: 'traceidratio',
  }
  const { problems } = read(wrong)
  assert.deepEqual(
    problems.map((problem) => problem.split(':', 1)[0]).sort(),
    Object.keys(wrong)
      .filter((name) => name !== 'OTEL_TRACES_SAMPLER')
      .sort(),
  )
})
