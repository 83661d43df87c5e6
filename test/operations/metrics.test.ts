// /metrics of the service as it runs: the API's process shows what the worker's process has measured, and the
// page that explains the metrics names each of them.
import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { Gauge, Registry } from 'prom-client'
import { metricsPlace, serveMetricsPage } from '../../src/compose/metrics-page.ts'
import { serve } from '../../src/compose/serve.ts'
import { loadConfig } from '../../src/config/load.ts'
import { MetricsText } from '../../src/metrics/metrics-text.ts'
import { testClock } from '../fakes/clock.ts'
import { completion, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'
import { callApi, uploadForm } from '../support/api.ts'

interface Family {
  type: string
  /** By its labels as they are printed, `` for none. */
  samples: Map<string, number>
  labels: Set<string>
}

function parse(text: string): Map<string, Family> {
  const families = new Map<string, Family>()
  let current: Family | undefined
  for (const row of text.split('\n')) {
    const type = /^# TYPE (\S+) (\S+)$/.exec(row)
    if (type) {
      assert.ok(!families.has(type[1]!), `${type[1]} is there twice`)
      current = { type: type[2]!, samples: new Map(), labels: new Set() }
      families.set(type[1]!, current)
    }
    const sample = /^([a-z_0-9]+)(?:\{(.*)\})? (\S+)$/.exec(row)
    if (!sample || !current) continue
    const [, name = '', labels = '', value] = sample
    const suffix = /_(sum|count|bucket)$/.exec(name)?.[1]
    current.samples.set(current.type === 'histogram' ? `${suffix} ${labels}` : labels, Number(value))
    for (const [, label = ''] of labels.matchAll(/([a-z_]+)="/g))
      if (label !== 'le') current.labels.add(label)
  }
  return families
}

test('the page of a running service shows lines, money, servers, stores and what waits', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-metrics-'))
  await using upstream = await testUpstream(({ body, index, response }) => {
    const [{ content } = { content: '' }] = body.messages
    if (content === 'bad') send(response, 400, '{"error":{"message":"no"}}')
    else if (index === 0) send(response, 500, '{}')
    else send(response, 200, completion('fine'))
  })
  const env = {
    OFFPEAK_MODELS: JSON.stringify([
      {
        id: 'm',
        price: { input_per_mtok: 0.1, output_per_mtok: 0.4 },
        upstreams: [{ type: 'openai', base_url: upstream.base_url, name: 'gpu', live: { metrics: 'off' } }],
      },
    ]),
    OFFPEAK_RETRY_BACKOFF_MIN: '1ms',
    OFFPEAK_METRICS_INSTALLATION: 'test',
    OFFPEAK_LISTEN_KEEP_ALIVE: '600s',
  }
  const overrides = { data: folder, port: '0', log_level: 'silent' }
  const running = await serve(loadConfig({ env, overrides, cwd: folder }), { role: 'all' })
  try {
    const key = (await readFile(join(folder, 'api-key'), 'utf8')).trim()
    const call = async (method: string, path: string, body?: object) => {
      const answer = await callApi({ url: String(running.url), key }, method, path, body)
      return JSON.parse(answer) as { id: string; status: string }
    }
    const input = [line('a'), line('b', 'bad'), line('c', 'c', { model: 'none' })]
    let file = await call('POST', '/v1/files', uploadForm(input))
    while (file.status === 'pending') file = await call('GET', `/v1/files/${file.id}`)
    const order = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    let batch = await call('POST', '/v1/batches', order)
    while (batch.status !== 'completed') batch = await call('GET', `/v1/batches/${batch.id}`)

    const refused = await fetch(`${running.url}/metrics`)
    assert.equal(refused.status, 401, 'it names servers and costs')
    assert.equal(refused.headers.get('keep-alive'), 'timeout=600')
    await refused.text()
    const response = await fetch(`${running.url}/metrics`, { headers: { authorization: `Bearer ${key}` } })
    assert.match(response.headers.get('content-type') ?? '', /^text\/plain; version=0\.0\.4/)
    const labelled = await response.text()
    const installations = labelled.split('\n').filter((row) => /^[a-z]/.test(row))
    assert.match(installations[0] ?? '', /installation="test"/)
    assert.deepEqual(
      installations.filter((row) => !row.includes('installation="test"')),
      [],
      'each series says which installation it is of',
    )
    const families = parse(labelled.replaceAll(/\{installation="test"\}|,?installation="test"/g, ''))
    const samples = (name: string) => Object.fromEntries(families.get(name)?.samples ?? [])
    const value = (name: string, labels = '') => families.get(name)?.samples.get(labels)

    assert.deepEqual(samples('offpeak_lines_total'), {
      'model="m",outcome="ok"': 1,
      'model="m",outcome="upstream_rejected"': 1,
      'model="unknown",outcome="model_not_found"': 1,
    })
    assert.equal(value('offpeak_tokens_total', 'model="m",direction="input"'), 10)
    assert.equal(value('offpeak_tokens_total', 'model="m",direction="output"'), 5)
    assert.equal(value('offpeak_cost_usd_total', 'model="m"'), 0.000003)
    const gpu = 'model="m",upstream="gpu"'
    const results = samples('offpeak_upstream_attempts_total')
    assert.equal(results[`${gpu},result="answered"`], 1)
    assert.equal(results[`${gpu},result="refused"`], 1)
    assert.equal(results[`${gpu},result="failed"`], 1)
    assert.equal(value('offpeak_retries_total', gpu), 1)
    assert.equal(value('offpeak_upstream_duration_seconds', `count ${gpu}`), 1)
    assert.equal(value('offpeak_upstream_duration_seconds', `bucket ${gpu},le="+Inf"`), 1)
    const client = 'gen_ai_operation_name="chat",gen_ai_provider_name="openai",gen_ai_request_model="m"'
    const durations = samples('gen_ai_client_operation_duration_seconds')
    for (const error of ['', 'upstream_rejected', 'upstream_unavailable'])
      assert.equal(durations[`count ${client},error_type="${error}"`], 1, error)
    assert.equal(value('gen_ai_client_token_usage', `sum ${client},gen_ai_token_type="input"`), 10)
    assert.equal(value('gen_ai_client_token_usage', `sum ${client},gen_ai_token_type="output"`), 5)
    assert.equal(value('gen_ai_client_token_usage', `bucket ${client},gen_ai_token_type="input",le="16"`), 1)
    assert.ok(Number(value('offpeak_upstream_concurrency_limit', gpu)) >= 1)
    assert.equal(value('offpeak_upstream_in_flight', gpu), 0)
    assert.equal(value('offpeak_upstream_circuit_open', gpu), 0)
    assert.ok(Number(value('offpeak_upstream_live_share', gpu)) >= 1)
    assert.ok(Number(value('offpeak_upstream_live_backoffs_total', gpu)) >= 0)
    assert.equal(value('offpeak_upstream_live_rejected_total', gpu), 0)
    assert.equal(value('offpeak_worker_lines_waiting', 'model="m"'), 0)
    assert.equal(value('offpeak_worker_open_chunks'), 0)
    assert.equal(value('offpeak_worker_stores_failing'), 0)
    assert.equal(value('offpeak_record_duration_seconds', 'count work="seal"'), 1)
    assert.ok(Number(value('offpeak_record_duration_seconds', 'count work="commit"')) >= 1)
    assert.equal(value('offpeak_batches', 'status="in_progress"'), 0)
    assert.equal(value('offpeak_chunks', 'state="ready"'), 0)
    assert.equal(value('offpeak_deadline_slack_seconds'), Number.NaN)
    assert.equal(value('offpeak_tasks_due', 'kind="plan"'), 0)
    assert.ok(families.has('offpeak_blobs_pending_deletion'))
    assert.ok(families.get('process_resident_memory_bytes')?.samples.has('process="api"'))
    assert.ok(families.get('process_resident_memory_bytes')?.samples.has('process="worker"'))

    const page = await readFile(new URL('../../docs/operations.md', import.meta.url), 'utf8')
    const rows = page.matchAll(/^\| `(offpeak_\w+)` \| (\w+) \|([^|]*)\| [^|]+ \|$/gm)
    const described = [...rows].map(([, name, type, labels = '']) => [
      name,
      type,
      [...labels.matchAll(/`(\w+)`/g)].map(([, label]) => label).sort(),
    ])
    const shown = [...families]
      .filter(([name]) => name.startsWith('offpeak_'))
      .map(([name, { type, labels }]) => [name, type, [...labels].sort()])
    assert.deepEqual(described.sort(), shown.sort())
  } finally {
    await running.stop()
    await rm(folder, { recursive: true })
  }
})

test('the counts of what waits are those of the database', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const { workGauges } = await import('../../src/metrics/work-gauges.ts')
  const registry = new Registry()
  const now = Date.now()
  workGauges(
    registry,
    service.stores.store,
    { now: () => now, steady: () => now, after: () => () => {}, soon() {} },
    new Map(),
  )
  const file = await service.upload(JSON.stringify(line('a')))
  await service.worker.stop()
  const batch = await service.create(file.id)
  const families = parse(await registry.metrics())
  assert.equal(families.get('offpeak_batches')?.samples.get('status="validating"'), 1)
  assert.equal(families.get('offpeak_tasks_due')?.samples.get('kind="plan"'), 1)
  const slackS = Number(families.get('offpeak_deadline_slack_seconds')?.samples.get(''))
  assert.ok(Math.abs(slackS - (batch.expires_at - now / 1000)) < 1)
})

test('the page of a port of its own shows health and metrics, and nothing else', async () => {
  let reason: string | null = null
  const page = await serveMetricsPage(
    { host: '127.0.0.1', port: 0 },
    { notReadyReason: async () => reason, registry: new Registry() },
  )
  const get = async (path: string, method = 'GET') => {
    const response = await fetch(page.url + path, { method })
    assert.equal(response.headers.get('x-content-type-options'), 'nosniff')
    assert.equal(response.headers.get('cache-control'), 'no-store')
    await response.text()
    return response.status
  }
  try {
    const paths = ['/healthz', '/readyz', '/metrics', '/', '/v1/files']
    assert.deepEqual(await Promise.all(paths.map((path) => get(path))), [200, 200, 200, 404, 404])
    assert.equal(await get('/metrics', 'POST'), 405)
    reason = 'the stores are unavailable'
    assert.equal(await get('/readyz'), 503)
    reason = null
    page.setStopping()
    assert.equal(await get('/readyz'), 503)
  } finally {
    await page.close()
  }
})

test('the metrics are made once a second, however many ask for them and however long it takes', async () => {
  const clock = testClock()
  const registry = new Registry()
  let made = 0
  const arrived = Promise.withResolvers<void>()
  new Gauge({
    name: 'looks',
    help: 'How often somebody looked.',
    registers: [registry],
    async collect() {
      this.set(++made)
      await arrived.promise
    },
  })
  const metrics = new MetricsText(registry, clock)
  const twelve = Array.from({ length: 12 }, () => metrics.read())
  await clock.advance(5_000)
  twelve.push(metrics.read())
  arrived.resolve()
  const looks = async (text: Promise<string>) =>
    parse(await text)
      .get('looks')
      ?.samples.get('')
  assert.deepEqual([...new Set(await Promise.all(twelve.map(looks)))], [1])
  await clock.advance(999)
  assert.equal(await looks(metrics.read()), 1)
  await clock.advance(1)
  assert.equal(await looks(metrics.read()), 2)

  const page = await serveMetricsPage(
    { host: '127.0.0.1', port: 0 },
    { notReadyReason: async () => null, registry, clock },
  )
  const readPage = async () => await (await fetch(`${page.url}/metrics`)).text()
  try {
    for (let reads = 0; reads < 2; reads++) assert.equal(await looks(readPage()), 3)
  } finally {
    await page.close()
  }
})

test('two processes of one machine that choose for themselves get a port each', async () => {
  const of = { notReadyReason: async () => null, registry: new Registry() }
  const listen = { host: '127.0.0.1', port: 'auto' } as const
  const pages = [await serveMetricsPage(listen, of), await serveMetricsPage(listen, of)]
  try {
    assert.equal(new Set(pages.map(({ url }) => url)).size, 2)
  } finally {
    for (const page of pages) await page.close()
  }
})

test('metrics have a port of their own in api and worker, and the port of the API only where it is told so', () => {
  const place = (port: number | 'auto' | 'off', role: 'api' | 'worker' | 'all') =>
    metricsPlace({ metrics: { port }, listen: { port: 8080 } }, role)
  assert.deepEqual(
    [place('auto', 'api'), place('auto', 'worker'), place('auto', 'all')],
    ['auto', 'auto', 'api'],
  )
  assert.deepEqual([place(8080, 'api'), place(8080, 'worker'), place(8080, 'all')], ['api', 8080, 'api'])
  assert.deepEqual([place(9000, 'api'), place(9000, 'worker'), place(9000, 'all')], [9000, 9000, 9000])
  for (const role of ['api', 'worker', 'all'] as const) assert.equal(place('off', role), null)
})

test('an API alone does not show metrics to its callers, and counts their calls on a port of its own', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-metrics-'))
  // Free a moment ago; nobody else on this machine is told of it.
  const free = await serveMetricsPage(
    { host: '127.0.0.1', port: 0 },
    { notReadyReason: async () => null, registry: new Registry() },
  )
  await free.close()
  const env = { OFFPEAK_METRICS_PORT: new URL(free.url).port }
  const overrides = { data: folder, port: '0', log_level: 'silent' }
  const running = await serve(loadConfig({ env, overrides, cwd: folder }), { role: 'api' })
  try {
    // Whoever asks without a key is not told whether it is here.
    const key = (await readFile(join(folder, 'api-key'), 'utf8')).trim()
    const answer = await fetch(`${running.url}/metrics`, { headers: { authorization: `Bearer ${key}` } })
    assert.equal(answer.status, 404)
    await answer.text()
    assert.match(
      await (await fetch(`${free.url}/metrics`)).text(),
      /offpeak_http_request_duration_seconds_count\{method="GET",route="none",status="404"/,
    )
    const { status, headers } = await fetch(`${free.url}/readyz`)
    assert.deepEqual([status, headers.get('content-type')], [200, 'application/json'])
  } finally {
    await running.stop()
    await rm(folder, { recursive: true })
  }
})
