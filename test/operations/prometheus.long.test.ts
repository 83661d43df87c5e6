// The alert rules and the dashboard against the real Prometheus: rules are tested by promtool, and a Prometheus that
// scrapes a running service evaluates every query of the dashboard.
import assert from 'node:assert/strict'
import { execFile, spawnSync } from 'node:child_process'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { openaiBackend } from '../../src/backends/openai/openai-backend.ts'
import { serve } from '../../src/compose/serve.ts'
import { loadConfig } from '../../src/config/load.ts'
import { startPrometheus, withoutPrometheus } from '../fakes/prometheus.ts'
import { line } from '../service.ts'
import { callApi, uploadForm } from '../support/api.ts'
import { listen } from '../support/listen.ts'

const run = promisify(execFile)
const deploy = fileURLToPath(new URL('../../deploy/', import.meta.url))
const skip = withoutPrometheus

test('the rules are valid, and each alert fires and stays silent when it should', { skip }, async () => {
  await run('promtool', ['check', 'rules', join(deploy, 'prometheus/rules.yaml')])
  await run('promtool', ['test', 'rules', join(deploy, 'prometheus/rules.test.yaml')])
})

test('a Prometheus that scrapes the service has a result for every query of the dashboard', {
  skip,
}, async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-prometheus-'))
  const data = join(folder, 'data')
  const env = { OFFPEAK_METRICS_INSTALLATION: 'test' }
  const config = loadConfig({ env, overrides: { data, port: '0', log_level: 'silent' }, cwd: folder })
  const service = await serve(config, { role: 'all' })
  const prometheus = await startPrometheus(folder, [new URL(service.url ?? '').host], join(data, 'api-key'))
  try {
    const key = (await readFile(join(data, 'api-key'), 'utf8')).trim()
    await assertMetricsAreClean(service.url ?? '', key)
    await runBatch(service.url ?? '', key)
    const queries = await dashboardQueries()
    assert.ok(queries.length > 20)
    for (const query of queries) {
      // Counters of what has not happened yet are absent.
      const mayBeEmpty = /retries_total|deadline_slack|chunks_parked/.test(query)
      for (;;) {
        const rows = await prometheus.query(query)
        if (mayBeEmpty || rows.length > 0) break
        await setTimeout(200)
      }
    }
    const alerts = await prometheus.query('ALERTS{alertstate="firing"}')
    assert.deepEqual(alerts, [], 'nothing is wrong')
  } finally {
    await prometheus.stop()
    await service.stop()
    await rm(folder, { recursive: true, force: true })
  }
})

async function assertMetricsAreClean(url: string, key: string): Promise<void> {
  const headers = { authorization: `Bearer ${key}` }
  const page = await (await fetch(`${url}/metrics`, { headers })).text()
  const own = page
    .split('\n')
    .filter((row) => /offpeak_/.test(row))
    .join('\n')
  const { status, stderr, stdout } = spawnSync('promtool', ['check', 'metrics'], { input: `${own}\n` })
  assert.equal(status, 0, `${stdout}${stderr}`)
}

async function runBatch(url: string, key: string): Promise<void> {
  const call = async (method: string, path: string, body?: object): Promise<Record<string, string>> =>
    JSON.parse(await callApi({ url, key }, method, path, body))
  const lines = Array.from({ length: 20 }, (_, i) => line(`l${i}`, 'hi', { model: 'sim-1' }))
  const file = await call('POST', '/v1/files', uploadForm(lines))
  const order = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
  const { id } = await call('POST', '/v1/batches', order)
  while ((await call('GET', `/v1/batches/${id}`)).status !== 'completed') await setTimeout(50)
}

async function dashboardQueries(): Promise<string[]> {
  const { panels } = JSON.parse(await readFile(join(deploy, 'grafana/offpeak.json'), 'utf8')) as {
    panels: { targets?: { expr: string }[] }[]
  }
  return panels
    .flatMap(({ targets = [] }) => targets)
    .map(({ expr }) => expr.replaceAll('$__rate_interval', '1m').replaceAll('$installation', 'test'))
}

test('the replicas of a model server are read from a Prometheus until their samples are stale', {
  skip,
}, async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-prometheus-'))
  const replicas = await Promise.all(
    [3, 4].map((running) =>
      listen(
        createServer((_, response) =>
          response
            .writeHead(200, { 'content-type': 'text/plain' })
            .end(
              `# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} ${running}\n`,
            ),
        ),
      ),
    ),
  )
  const prometheus = await startPrometheus(
    folder,
    replicas.map(({ url }) => new URL(url).host),
  )
  const query = { selector: '{job="offpeak"}', timeout_ms: 2_000, stale_after_ms: 3_000 }
  const backend = openaiBackend({
    ...{ name: 'router', base_url: 'http://127.0.0.1:1/v1', timeout_ms: 1_000, connections_max: 1 },
    ...{ metrics_url: prometheus.url, query },
  })
  const running = async () => (await backend.readTraffic?.())?.running
  try {
    while ((await running()) !== 7) await setTimeout(100)
    for (const { close } of replicas) await close()
    while ((await running()) !== undefined) await setTimeout(100)
  } finally {
    await backend.close()
    await prometheus.stop()
    await rm(folder, { recursive: true, force: true })
  }
})
