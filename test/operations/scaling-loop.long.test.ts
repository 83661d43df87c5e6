// The loop of docs/scaling.md: an autoscaler reads GET /v1/demand and starts and stops replicas of a model server. Over a
// simulated week the API and its database are real, and replicas answer tokens at their rate, the nearest deadline first; for
// some seconds everything is real, and processes and a replica are killed.
import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { setTimeout } from 'node:timers/promises'
import { randomOf } from '../../src/backends/sim/seeded-random.ts'
import { keys } from '../../src/compose/keys.ts'
import { loadConfig } from '../../src/config/load.ts'
import { SCOPES } from '../../src/domain/api-key.ts'
import { DAY_MS, HOUR_MS } from '../../src/domain/days.ts'
import { freePort } from '../../src/engines/engine-access.ts'
import { deleteProjectedSpend, insertProjectedSpend } from '../../src/store/ledger.ts'
import { updateRows } from '../../src/store/rows.ts'
import { echo, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { billed } from '../kill/batch-client.ts'
import { askApi, parsedLines } from '../support/api.ts'
import { OffpeakProcess } from '../support/offpeak-process.ts'
import { testServer } from '../support/test-server.ts'

const STEP_MS = 10 * 60_000
/** Tokens per second of one replica. */
const RATE = 4_000
const TOKENS_PER_LINE = 2_000
const REPLICAS_MAX = 8
/** A replica is paid for while it starts, and the last one for so long after its last line (`cooldownPeriod` of KEDA). */
const START_MS = STEP_MS
const COOLDOWN_MS = STEP_MS

interface Batch {
  id: string
  deadline: number
  tokens: number
}

interface Arrival {
  at: number
  windowMs: number
  tokens: number
}

/** On five days a large batch in the evening, and some by day that are wanted in four hours; then a weekend. */
function week(start: number, seed: string): Arrival[] {
  const random = randomOf(Buffer.from(seed))
  const between = (low: number, high: number): number => low + random.fraction() * (high - low)
  const arrivals: Arrival[] = []
  for (let day = 0; day < 5; day++) {
    const at = start + day * DAY_MS
    arrivals.push({ at: at + 20 * HOUR_MS, windowMs: 24 * HOUR_MS, tokens: between(100e6, 250e6) })
    for (let i = 0; i < 6; i++)
      arrivals.push({
        at: at + between(7, 18) * HOUR_MS,
        windowMs: 4 * HOUR_MS,
        tokens: between(5e6, 60e6),
      })
  }
  return arrivals.sort((a, b) => a.at - b.at)
}

function replicasOf(demand: { [name: string]: unknown }, model = 'sim-1'): number {
  const data = demand.data as { model: string; replicas: number }[]
  return data.find((one) => one.model === model)?.replicas ?? 0
}

test('replicas that follow the demand finish every batch in time, and idle for little', async () => {
  await using server = await testServer()
  const { store, clock } = { ...server.deps, clock: server.clock }
  const { key } = await server.issue({ scopes: ['operator'] })
  const file = await server.processedFile()
  const { project_id, id: key_id } = server.key
  const spend = async ({ id: batch_id, tokens }: Batch): Promise<void> =>
    await store.write(async (tx) => {
      await deleteProjectedSpend(tx, batch_id)
      const of = { batch_id, project_id, key_id, model: 'sim-1', entity: '', cost_nanos: 0 }
      const requests = Math.ceil(tokens / TOKENS_PER_LINE)
      if (tokens > 0) await insertProjectedSpend(tx, [{ ...of, tokens: Math.ceil(tokens), requests }])
      else await updateRows(tx, 'batches', { id: batch_id }).set({ status: 'completed' }).execute()
    })

  const start = clock.now()
  const arrivals = week(start, 'one')
  const best = arrivals.reduce((sum, { tokens }) => sum + tokens, 0) / RATE / 3600
  let open: Batch[] = []
  /** When each replica is ready. */
  let replicas: number[] = []
  let neededAt = Number.NEGATIVE_INFINITY
  let hours = 0
  let starts = 0
  for (; clock.now() < start + 7 * DAY_MS; await clock.advance(STEP_MS)) {
    const now = clock.now()
    // Nothing happens before the next batch comes.
    if (open.length === 0 && replicas.length === 0 && (arrivals[0]?.at ?? Number.POSITIVE_INFINITY) > now)
      continue
    for (let next = arrivals[0]; next !== undefined && next.at <= now; next = arrivals[0]) {
      arrivals.shift()
      const { id } = await server.createBatch(file)
      const batch = { id, deadline: next.at + next.windowMs, tokens: next.tokens }
      await store.write((tx) =>
        updateRows(tx, 'batches', { id }).set({ expires_at: batch.deadline }).execute(),
      )
      await spend(batch)
      open.push(batch)
    }
    const { json } = await server.call('GET', `/v1/demand?tokens_per_s=${RATE}`, { key })
    const wanted = replicasOf(json)
    if (wanted > 0) neededAt = now
    const kept = wanted === 0 && now - neededAt <= COOLDOWN_MS ? Math.min(1, replicas.length) : wanted
    const count = Math.min(REPLICAS_MAX, kept)
    if (replicas.length === 0 && count > 0) starts++
    replicas = replicas.slice(0, count)
    while (replicas.length < count) replicas.push(now + START_MS)
    hours += (replicas.length * STEP_MS) / HOUR_MS

    const rate = replicas.filter((ready) => ready <= now).length * RATE
    let left = (rate * STEP_MS) / 1000
    for (const batch of open.sort((a, b) => a.deadline - b.deadline)) {
      const done = Math.min(left, batch.tokens)
      if (done === 0) continue
      left -= done
      batch.tokens -= done
      await spend(batch)
      const at = now + STEP_MS - (left / rate) * 1000
      if (batch.tokens === 0)
        assert.ok(at <= batch.deadline, `${batch.id} is late by ${at - batch.deadline} ms`)
    }
    open = open.filter(({ tokens }) => tokens > 0)
  }
  assert.deepEqual(
    [open, arrivals, replicas],
    [[], [], []],
    'all is done, and no replica runs at the weekend',
  )
  assert.ok(starts > 1, 'they went to zero and came back')
  assert.ok(hours <= 1.15 * best, `${hours.toFixed(1)} replica-hours where ${best.toFixed(1)} do`)
})

const LINES = 120
/** At the rate that one replica is said to have, the lines want all of them before their window ends. */
const CONFIG = `
plans: {short: {completion_windows: [60s]}}
retry: {attempts_max: 50, backoff_min: 20ms, backoff_max: 200ms}
worker: {flush_interval: 50ms, lease: 2s}
listen: {stop_delay: 0s}
log: {level: warn}
models:
  - id: m
    price: {input_per_mtok: 1, output_per_mtok: 2}
    upstreams:`
const PORTS = 3

test('the loop and an export go on beside kills, and no batch is late', { timeout: 60_000 }, async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-scaling-'))
  const ports = await Promise.all(Array.from({ length: PORTS + 1 }, freePort))
  const [port, ...free] = ports
  const file = join(folder, 'offpeak.yaml')
  const servers = free.map(
    (one) => `\n      - {type: openai, base_url: "http://127.0.0.1:${one}/v1", concurrency_max: 4}`,
  )
  await writeFile(file, CONFIG + servers.join(''))
  const config = loadConfig({ file, env: {}, overrides: { data: join(folder, 'data') } })
  await using ring = await keys(config, true)
  const { key } = await ring.create({ project: 'a', plan: 'short', scopes: [...SCOPES], name: undefined })
  const launch = (): OffpeakProcess =>
    new OffpeakProcess(['serve', '--config', file, '--data', join(folder, 'data'), '--port', String(port)])
  let service = launch()
  await service.ready
  const at = { url: `http://127.0.0.1:${port}`, key }
  const ask = async (path: string, body?: object): Promise<string> =>
    await (await askApi(at, body ? 'POST' : 'GET', path, body)).text()

  const replicas: TestUpstream[] = []
  const reply: TestUpstream['reply'] = async (call) => {
    await setTimeout(100)
    echo(call)
  }
  const scale = async (count: number): Promise<void> => {
    while (replicas.length > count) await replicas.pop()?.close()
    while (replicas.length < count) replicas.push(await testUpstream(reply, free[replicas.length]))
  }
  const messages = [{ role: 'user', content: 'hi' }]
  const requests = Array.from({ length: LINES / 2 }, (_, i) => ({
    custom_id: `l${i}`,
    body: { model: 'm', messages, max_tokens: 20 },
  }))
  const order = { endpoint: '/v1/chat/completions', completion_window: '60s', requests }
  const ids: string[] = []
  for (let i = 0; i < 2; i++) ids.push(JSON.parse(await ask('/v1/batches', order)).id)

  const seen: number[] = []
  let charged = 0
  for (let kills = 0; seen.at(-1) !== 0 || kills === 0; ) {
    // A call of a service that is killed meanwhile is made again, as KEDA does.
    const read = await Promise.all([
      ask('/v1/demand?tokens_per_s=20'),
      ask('/v1/usage/entities?format=focus'),
    ]).catch(() => null)
    if (read) {
      const [demand, csv] = read
      const sum = billed(csv)
      assert.ok(sum >= charged, `${charged} were charged, and now ${sum}`)
      charged = sum
      seen.push(Math.min(PORTS, replicasOf(JSON.parse(demand), 'm')))
      await scale(seen.at(-1)!)
    }
    if (charged > 0 && kills === 0) {
      kills++
      await service.endGroup('SIGKILL')
      await replicas.pop()?.close()
      service = launch()
      await service.ready
    }
    await setTimeout(20)
  }
  assert.ok(Math.max(...seen) > 1, `${seen} replicas were wanted`)
  for (const id of ids) {
    const batch = JSON.parse(await ask(`/v1/batches/${id}`))
    assert.deepEqual([batch.status, batch.request_counts.completed], ['completed', LINES / 2])
    const lines = parsedLines<{ custom_id: string }>(await ask(`/v1/files/${batch.output_file_id}/content`))
    assert.equal(new Set(lines.map(({ custom_id }) => custom_id)).size, LINES / 2)
  }
  assert.equal(charged, LINES * (10 * 1_000 + 5 * 2_000), 'each line was charged once')
  assert.equal(await service.end('SIGTERM'), 0)
  await rm(folder, { recursive: true })
})
