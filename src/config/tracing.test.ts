import assert from 'node:assert/strict'
import { test } from 'node:test'
import { tracingFromEnv } from './tracing.ts'

function read(env: NodeJS.ProcessEnv) {
  const problems: string[] = []
  return { tracing: tracingFromEnv(env, problems), problems }
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
    assert.deepEqual(read(env), { tracing: null, problems: [] })
  assert.equal(read({ OTEL_TRACES_EXPORTER: 'otlp' }).tracing?.ratio, 1)
  assert.equal(read({ OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'https://c/v1/traces' }).tracing?.ratio, 1)
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
