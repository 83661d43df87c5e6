// An operator who has nothing but the alerts learns of each fault within a minute: real processes with real faults, and
// a real Prometheus.
import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { setTimeout } from 'node:timers/promises'
import { freePort } from '../../src/engines/engine-access.ts'
import { type Prometheus, startPrometheus, withoutPrometheus } from '../fakes/prometheus.ts'
import { SmallDisk, withoutDisk } from '../fakes/small-disk.ts'
import { completion, send, testUpstream } from '../fakes/upstream.ts'
import type { WireBatch, WireFile } from '../service.ts'
import { line } from '../service.ts'
import { uploadForm } from '../support/api.ts'
import { CrashTest } from '../support/crash-processes.ts'
import { until } from '../support/offpeak-process.ts'

const FOUND_WITHIN_MS = 60_000

test('each fault fires its alert within a minute', {
  skip: withoutPrometheus || withoutDisk,
  timeout: 175_000,
}, async (t) => {
  await using crash = await CrashTest.begin()
  using disk = new SmallDisk(join(crash.folder, 'data'))
  await using locked = await testUpstream(({ response }) => send(response, 401, REJECTED))
  await using strict = await testUpstream(({ response }) => send(response, 400, REJECTED))
  crash.upstream.reply = async ({ response }) => {
    await setTimeout(200)
    send(response, 200, completion('x'))
  }
  const upstreams = {
    slow: `base_url: "${crash.upstream.base_url}", concurrency_max: 4`,
    capped: `base_url: "${crash.upstream.base_url}", concurrency_max: 4`,
    refusing: 'base_url: "http://127.0.0.1:1/v1"',
    locked: `base_url: "${locked.base_url}"`,
    strict: `base_url: "${strict.base_url}", concurrency_max: 1`,
  }
  const models = Object.entries(upstreams).map(
    ([id, upstream]) => `  - {id: ${id}, upstreams: [{type: openai, ${upstream}}]}`,
  )
  await writeFile(
    join(crash.folder, 'offpeak.yaml'),
    `plans: {payg: {completion_windows: [3m, 24h], file_retention: 1d}}\nmodels:\n${models.join('\n')}\n`,
  )
  const ports = [await freePort(), await freePort(), await freePort()]
  const metricsAt = (i: number) => ({ OFFPEAK_METRICS_PORT: String(ports[i]) })
  await crash.start('api', metricsAt(0))
  await crash.start('worker', metricsAt(1))
  // The worker that is not killed has it: what the other one has counted since the last scrape is lost.
  const capped = await batch(crash, 'capped', 1_000, '24h', 'team:capped')
  await until(async () => (await crash.batch(capped.id)).request_counts.completed >= 8)
  const second = await crash.start('worker', metricsAt(2))
  const prometheus = await startPrometheus(
    crash.folder,
    ports.map((port) => `127.0.0.1:${port}`),
  )
  try {
    await until(async () => (await prometheus.query('max(offpeak_workers) == 2')).length > 0)
    assert.deepEqual(await firing(prometheus), [])

    const since = performance.now()
    // More is spent already; a single line would fit.
    const limit = { scope: 'entity', entity: 'team:capped', metric: 'tokens', window: 'day', action: 'block' }
    await crash.json('POST', '/v1/limits', { ...limit, amount: 60 })
    await batch(crash, 'slow', 3_000, '3m')
    await batch(crash, 'refusing', 5)
    await batch(crash, 'locked', 20)
    await batch(crash, 'strict', 400)
    await second.end('SIGKILL')
    const alerts = [
      'OffpeakWorkerLost',
      'OffpeakUpstreamDown refusing',
      'OffpeakUpstreamDown locked',
      'OffpeakUpstreamRejects strict',
      'OffpeakLimitBlocks',
      'OffpeakDeadlineAtRisk',
    ]
    await Promise.all(alerts.map((alert) => fires(t, prometheus, alert, since)))
    disk.fill()
    await fires(t, prometheus, 'OffpeakStoresFailing', performance.now())
    disk.empty()
  } finally {
    await prometheus.stop()
  }
})

const REJECTED = '{"error":{"message":"this is refused"}}'

async function batch(
  crash: CrashTest,
  model: string,
  count: number,
  completion_window = '24h',
  entity = 'team:other',
): Promise<WireBatch> {
  const lines = Array.from({ length: count }, (_, i) => line(`l${i}`, 'hi', { model, max_tokens: 5 }))
  const { id } = await crash.json<WireFile>('POST', '/v1/files', uploadForm(lines))
  const endpoint = '/v1/chat/completions'
  const order = { input_file_id: id, endpoint, completion_window, metadata: { entity } }
  return await crash.json<WireBatch>('POST', '/v1/batches', order)
}

/** Their names, with the model that they are about. */
async function firing(prometheus: Prometheus): Promise<string[]> {
  const rows = await prometheus.query('ALERTS{alertstate="firing"}')
  return rows.map(({ metric }) => [metric.alertname, metric.model].filter(Boolean).join(' '))
}

async function fires(
  t: { diagnostic(message: string): void },
  prometheus: Prometheus,
  alert: string,
  since: number,
): Promise<void> {
  for (;;) {
    const passed = performance.now() - since
    if ((await firing(prometheus)).includes(alert)) {
      t.diagnostic(`${alert} after ${Math.round(passed / 1000)} s`)
      return
    }
    assert.ok(passed < FOUND_WITHIN_MS, `${alert} does not fire; firing: ${await firing(prometheus)}`)
    await setTimeout(500)
  }
}
