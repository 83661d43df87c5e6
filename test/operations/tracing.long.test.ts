// Traces of the whole service, as a collector receives them.
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { type OtlpReceiver, otlpReceiver, type ReceivedSpan } from '../fakes/otlp-receiver.ts'
import { completion, send } from '../fakes/upstream.ts'
import { CrashTest } from '../support/crash-processes.ts'

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736'
const CALLER = '00f067aa0ba902b7'
const SAMPLED = `00-${TRACE}-${CALLER}-01`
const CONTENT = 'a sentence that only the user and the model may read'
const ANSWER = 'an answer that only the user and the model may read'

const envOf = ({ url }: OtlpReceiver, more: NodeJS.ProcessEnv = {}): NodeJS.ProcessEnv => ({
  OTEL_EXPORTER_OTLP_ENDPOINT: url,
  OTEL_EXPORTER_OTLP_HEADERS: 'x-collector-key=collector-secret',
  ...more,
})

const sentTraces = (crash: CrashTest): (string | undefined)[] =>
  crash.upstream.calls.map(({ response }) => response.req.headers.traceparent as string | undefined)

/** The tree below a span as `name(children)`, children in alphabetical order and counted. */
function tree(spans: readonly ReceivedSpan[], root: ReceivedSpan): string {
  const children = spans.filter(({ parent }) => parent === root.id).map((child) => tree(spans, child))
  const counted = [...Map.groupBy(children, (text) => text)].map(([text, same]) =>
    same.length === 1 ? text : `${same.length} ${text}`,
  )
  return counted.length === 0 ? root.name : `${root.name}(${counted.sort().join(', ')})`
}

interface Record {
  traceparent?: string
}

/** An old Node's npm leaves out optional packages that this Node cannot run. */
const withoutPackages =
  !existsSync(new URL('../../node_modules/@opentelemetry/sdk-trace', import.meta.url)) &&
  "OpenTelemetry's packages are not installed: npm ci with Node 22.15 or newer installs them"

describe('traces', { timeout: 120_000, skip: withoutPackages }, () => {
  test('a batch is one tree, from the call of its creator to the requests of its lines', async () => {
    await using collector = await otlpReceiver()
    await using crash = await CrashTest.begin()
    let failures = 1
    crash.upstream.reply = ({ response }) => {
      if (failures-- > 0) send(response, 500, JSON.stringify({ error: { message: ANSWER } }))
      else {
        const usage = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 }
        const prompt_tokens_details = { cached_tokens: 4, cache_write_tokens: 3 }
        const answer = JSON.parse(completion(ANSWER, { ...usage, prompt_tokens_details }))
        send(response, 200, JSON.stringify({ ...answer, model: 'm-2026', service_tier: 'flex' }))
      }
    }
    const service = await crash.start('serve', envOf(collector, { OTEL_SERVICE_NAME: 'team-a' }))
    const { id } = await crash.batchOf(3, CONTENT, { traceparent: SAMPLED })
    await crash.completed(id)
    const { data } = await crash.json<{ data: Record[] }>('GET', '/v1/requests?path=/v1/batches&method=POST')
    assert.deepEqual(
      data.map(({ traceparent }) => traceparent),
      [SAMPLED],
    )
    const lines = await crash.json<{ data: { id: string }[] }>('GET', `/v1/batches/${id}/lines`)
    const line = await crash.json<Record>('GET', `/v1/requests/${lines.data[0]!.id}`)
    assert.match(line.traceparent ?? '', new RegExp(`^00-${TRACE}-`))
    assert.equal(await service.end('SIGTERM'), 0, service.log)

    const { spans } = collector
    const own = spans.filter(({ trace }) => trace === TRACE)
    const [root, ...others] = own.filter(({ parent }) => parent === CALLER)
    assert.deepEqual(others, [], 'every span is below the call')
    assert.ok(root)
    assert.equal(
      tree(own, root),
      'POST /v1/batches(batch, chunk(chunk.claim, chunk.commit, chunk.open, chunk.seal, chunk.send(4 chat m)))',
    )
    assert.equal(own.length, 12)
    for (const span of own) {
      const parent = own.find((one) => one.id === span.parent)
      assert.ok(span.startMs <= span.endMs, span.name)
      if (parent && span.name !== 'chunk' && span.name !== 'batch') {
        assert.ok(parent.startMs <= span.startMs, `${parent.name} ${span.name}`)
        assert.ok(span.endMs <= parent.endMs, `${span.name} ${parent.name}`)
      }
    }
    const requests = own.filter(({ name }) => name === 'chat m')
    const [failed, ...answered] = requests.sort((a, b) => Number(b.isError) - Number(a.isError))
    assert.equal(failed?.attributes['error.type'], 'upstream_unavailable')
    assert.equal(failed?.attributes['http.response.status_code'], 500)
    for (const { attributes, kind, isError } of answered) {
      assert.equal(isError, false)
      assert.equal(kind, 3)
      assert.equal(attributes['gen_ai.operation.name'], 'chat')
      assert.equal(attributes['gen_ai.request.model'], 'm')
      assert.equal(attributes['gen_ai.usage.input_tokens'], 10)
      assert.equal(attributes['gen_ai.usage.output_tokens'], 5)
      assert.equal(attributes['gen_ai.provider.name'], 'openai')
      assert.equal(attributes['gen_ai.response.model'], 'm-2026')
      assert.equal(attributes['openai.response.service_tier'], 'flex')
      assert.equal(attributes['gen_ai.usage.cache_read.input_tokens'], 4)
      assert.equal(attributes['gen_ai.usage.cache_creation.input_tokens'], 3)
      assert.deepEqual(attributes['gen_ai.response.finish_reasons'], ['stop'])
      assert.equal(attributes['offpeak.batch.id'], id)
    }
    assert.deepEqual(
      sentTraces(crash).sort(),
      requests.map((span) => `00-${TRACE}-${span.id}-01`).sort(),
      'each request carries its span',
    )
    const calls = spans.filter(({ kind }) => kind === 2)
    assert.ok(calls.some(({ name, parent }) => name === 'POST /v1/files' && parent === null))
    assert.deepEqual(
      [
        ...new Set(spans.map(({ resource }) => `${resource['service.name']} ${resource['offpeak.role']}`)),
      ].sort(),
      ['team-a api', 'team-a worker'],
    )
    const key = (await readFile(join(crash.folder, 'data/api-key'), 'utf8')).trim()
    for (const secret of [CONTENT, ANSWER, key, 'collector-secret', 'l0', 'input.jsonl'])
      assert.ok(!collector.bodies.some((body) => body.includes(secret)), secret)

    const logged = collector.logs.filter(({ event }) => event === 'offpeak.line')
    assert.deepEqual(
      logged.map(({ attributes }) => attributes['offpeak.request.id']).sort(),
      lines.data.map((one) => one.id).sort(),
    )
    const [first] = logged
    assert.deepEqual(
      [first?.trace, first?.severity, first?.resource['service.name']],
      [TRACE, 'INFO', 'team-a'],
    )
    assert.equal(first?.attributes['offpeak.batch.id'], id)
    assert.equal(first?.attributes['gen_ai.usage.output_tokens'], 5)
    const created = collector.logs.find(
      ({ event, trace }) => event === 'offpeak.call' && trace === TRACE,
    )?.attributes
    assert.deepEqual(
      [created?.['http.request.method'], created?.['url.path'], created?.['http.response.status_code']],
      ['POST', '/v1/batches', 200],
    )
    assert.match(String(created?.['offpeak.key.id']), /^key_/)
  })

  test('lines that are not sampled stay in the trace of the caller, unsampled', async () => {
    await using collector = await otlpReceiver()
    await using crash = await CrashTest.begin()
    const env = envOf(collector, {
      OTEL_TRACES_SAMPLER: 'parentbased_traceidratio',
      OTEL_TRACES_SAMPLER_ARG: '0',
    })
    const service = await crash.start('serve', env)
    await crash.completed((await crash.batchOf(3, CONTENT, { traceparent: SAMPLED })).id)
    const traces = sentTraces(crash)
    await crash.completed((await crash.batchOf(1)).id)
    assert.equal(await service.end('SIGTERM'), 0, service.log)
    const { spans } = collector
    const [sending] = spans.filter(({ name }) => name === 'chunk.send')
    assert.deepEqual(new Set(traces), new Set([`00-${TRACE}-${sending?.id}-00`]))
    assert.ok(spans.every(({ trace, name }) => trace === TRACE && name !== 'chat m'))
  })

  test('without a collector the context of the caller is kept and sent on as it came', async () => {
    await using crash = await CrashTest.begin()
    const service = await crash.start('serve', { OTEL_EXPORTER_OTLP_ENDPOINT: undefined })
    const { id } = await crash.batchOf(2, CONTENT, { traceparent: SAMPLED })
    await crash.completed(id)
    assert.deepEqual(sentTraces(crash), [SAMPLED, SAMPLED])
    await crash.completed((await crash.batchOf(1, CONTENT, { traceparent: 'nonsense' })).id)
    assert.equal(sentTraces(crash).at(-1), undefined)
    assert.equal(await service.end('SIGTERM'), 0, service.log)
  })

  test('a collector that fails costs a warning and nothing else', async () => {
    await using collector = await otlpReceiver()
    collector.status = 400
    await using crash = await CrashTest.begin()
    const service = await crash.start(
      'serve',
      envOf(collector, { OTEL_BSP_SCHEDULE_DELAY: '10', OTEL_BLRP_MAX_QUEUE_SIZE: '1' }),
    )
    await crash.checkResults(await crash.completed((await crash.batchOf(3)).id), 3)
    assert.equal(await service.end('SIGTERM'), 0, service.log)
    assert.match(service.log, /traces or logs could not be exported/)
    assert.match(service.log, /calls and lines were not logged: the collector is too slow, or down/)
    assert.ok(!service.log.includes('collector-secret'))
  })

  test('variables that cannot be followed end the start with their names', async () => {
    await using crash = await CrashTest.begin()
    const env = {
      OTEL_TRACES_EXPORTER: 'zipkin',
      OTEL_TRACES_SAMPLER: 'jaeger_remote',
      OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc',
    }
    await assert.rejects(crash.start('serve', env), (error: Error) => {
      for (const name of Object.keys(env)) assert.ok(error.message.includes(`${name}: `), error.message)
      return true
    })
  })

  test('without the optional packages, the start ends with what to do', async () => {
    await using collector = await otlpReceiver()
    await using crash = await CrashTest.begin()
    const hide = encodeURIComponent(
      `import { registerHooks } from 'node:module'
       registerHooks({
         resolve: (name, context, next) => next(name.replace('@opentelemetry/sdk-trace', '@not/installed'), context),
       })`,
    )
    await assert.rejects(
      crash.start('serve', envOf(collector, { NODE_OPTIONS: `--import=data:text/javascript,${hide}` })),
      /ended before it was ready: offpeak: traces or logs are asked for .* not installed: .*OTEL_SDK_DISABLED=true\s*$/,
    )
  })
})
