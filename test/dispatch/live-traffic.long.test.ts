// Lines beside live requests on one server, over real HTTP in real time: the simulated engine, read and used through a
// proxy that notes what the worker was told and what it sent. Events are compared with each other, never with a time.

import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { buffer } from 'node:stream/consumers'
import { type TestContext, test } from 'node:test'
import type { EngineOptions } from '../../bench/engine/engine.ts'
import { engineServer } from '../../bench/engine/served-engine.ts'
import type { UsageHours } from '../../src/wire/usage.ts'
import { line, TestService } from '../service.ts'
import { listen } from '../support/listen.ts'

interface Reading {
  running: number
  waiting: number
  cache: number
  /** Lines that had been sent when it was answered. */
  sent: number
}

/** A server with `seats`, seen by the service through a proxy. */
async function server(t: TestContext, engine: EngineOptions) {
  const sim = await engineServer(engine, { output_tokens: { min: 20, max: 20 } })
  const readings: Reading[] = []
  const bodies: Buffer[] = []
  let listeners: (() => void)[] = []
  let inFlight = 0
  const tell = (): void => {
    const told = listeners
    listeners = []
    for (const listener of told) listener()
  }
  const proxy = createServer(async (request, response) => {
    const body = await buffer(request)
    const isLine = request.method === 'POST'
    if (isLine) {
      bodies.push(body)
      inFlight++
      tell()
    }
    const answer = await fetch(`${sim.base_url.replace(/\/v1$/, '')}${request.url}`, {
      method: request.method ?? 'GET',
      ...(isLine && { body, headers: { 'content-type': 'application/json' } }),
    })
    const text = await answer.text()
    if (isLine) inFlight--
    if (request.url === '/metrics') {
      const of = (name: string): number =>
        Number(new RegExp(`^vllm:${name}\\{.*\\} (.*)$`, 'm').exec(text)?.[1])
      readings.push({
        running: of('num_requests_running'),
        waiting: of('num_requests_waiting'),
        cache: of('kv_cache_usage_perc'),
        sent: bodies.length,
      })
      tell()
    }
    const type = answer.headers.get('content-type') ?? 'application/json'
    response.writeHead(answer.status, { 'content-type': type }).end(text)
  })
  const { url, close } = await listen(proxy)
  t.after(async () => {
    await close()
    await sim[Symbol.asyncDispose]()
  })
  return {
    base_url: `${url}/v1`,
    readings,
    bodies,
    inFlight: () => inFlight,
    async until<T>(ready: () => T | undefined | false): Promise<T> {
      for (;;) {
        const found = ready()
        if (found !== undefined && found !== false) return found
        await new Promise<void>((resolve) => listeners.push(resolve))
      }
    },
    async nextReading(): Promise<void> {
      const read = readings.length
      while (readings.length === read) await new Promise<void>((resolve) => listeners.push(resolve))
    },
    /** So many clients that each send a request as soon as the last one is answered; returns what stops them. */
    live(clients: number): () => Promise<void> {
      let goesOn = true
      const one = async (at: number): Promise<void> => {
        for (let i = 0; goesOn; i++) {
          const messages = [{ role: 'user', content: `${at} asks ${i}: ${'and why? '.repeat(20)}` }]
          const body = JSON.stringify({ model: 'm', messages, stream: true })
          const answer = await fetch(`${sim.base_url}/chat/completions`, { method: 'POST', body })
          await answer.text()
        }
      }
      const all = Array.from({ length: clients }, (_, at) => one(at))
      return async () => {
        goesOn = false
        await Promise.all(all)
      }
    },
  }
}

function config(base_url: string, live = '{}'): string {
  return `
models:
  - {id: m, context_window: 8192, upstreams: [{type: openai, base_url: "${base_url}", live: ${live}}]}
worker: {flush_interval: 20ms}
`
}

const lines = (count: number): string =>
  Array.from({ length: count }, (_, i) => JSON.stringify(line(`l${i}`))).join('\n')

/** Nothing is sent from the second of two readings on at which the server is full, until one at which it is not. */
function assertBacksOff(readings: readonly Reading[], isFull: (reading: Reading) => boolean): void {
  const full = timesFull(readings, isFull)
  assert.ok(full.length > 0, 'the server was never full for long')
  for (const [reading, next] of full)
    assert.equal(next.sent, reading.sent, `lines were sent after a reading: ${JSON.stringify(reading)}`)
}

/** Readings at which the server is full, as at the one before; each with the next. */
function timesFull(
  readings: readonly Reading[],
  isFull: (reading: Reading) => boolean,
): [Reading, Reading][] {
  return readings.flatMap((reading, i) => {
    const [before, next] = [readings[i - 1], readings[i + 1]]
    const isLong = before !== undefined && next !== undefined && isFull(before) && isFull(reading)
    return isLong ? [[reading, next]] : []
  })
}

interface Shown {
  waiting_reason: { code: string; model: string } | null
}

/** Why a batch waits, as soon as it does. */
async function firstReason(service: TestService, id: string, next: () => Promise<void>) {
  for (;;) {
    const { waiting_reason } = await service.json<Shown>('GET', `/v1/batches/${id}`)
    if (waiting_reason !== null) return waiting_reason
    await next()
  }
}

test('lines stop within a reading when others wait, the batch says why, and they go on when there is room', async (t) => {
  const engine = await server(t, { max_num_seqs: 8, step_ms: 20 })
  await using service = await TestService.start(config(engine.base_url))
  const file = await service.upload(lines(60))
  const { id } = await service.create(file.id)
  await engine.until(() => engine.inFlight() >= 4)

  const from = engine.readings.length
  const stop = engine.live(24)
  const waiting = await firstReason(service, id, () => engine.nextReading())
  assert.deepEqual([waiting.code, waiting.model], ['live_traffic', 'm'])
  assertBacksOff(engine.readings.slice(from), (reading) => reading.waiting > 0)
  let left: number | undefined
  while (left === undefined || left === 1) {
    await engine.nextReading()
    const { hours } = await service.json<UsageHours>('GET', '/v1/usage/hours?hours=2')
    left = hours.at(-1)?.live_left
  }
  assert.ok(left >= 0 && left < 1, `live traffic left ${left}`)

  const sent = engine.bodies.length
  await stop()
  await engine.until(() => engine.bodies.length > sent)
  const batch = await service.ended(id)
  assert.deepEqual(batch.request_counts, { total: 60, completed: 60, failed: 0 })
})

test('lines stop within a reading when others fill the cache', async (t) => {
  // Room for eight requests of about 100 tokens; seats for more.
  const engine = await server(t, { max_num_seqs: 64, step_ms: 20, kv_blocks: 50, prefix_caching: false })
  await using service = await TestService.start(config(engine.base_url))
  const file = await service.upload(lines(40))
  const { id } = await service.create(file.id)
  await engine.until(() => engine.inFlight() >= 2)
  const from = engine.readings.length
  const stop = engine.live(16)
  const isFull = ({ cache }: Reading): boolean => cache > 0.85
  await engine.until(() => timesFull(engine.readings.slice(from), isFull).length >= 3)
  await stop()
  assertBacksOff(engine.readings.slice(from), isFull)
  const batch = await service.ended(id)
  assert.equal(batch.request_counts.completed, 40)
})

test('a priority is the last key of the body, and no other byte changes', async (t) => {
  const engine = await server(t, { scheduling_policy: 'priority' })
  await using service = await TestService.start(config(engine.base_url, '{priority: 10}'))
  const body =
    '{"model" : "m","messages":[{"role":"user","content":"\\u00e4 \\/ 1"}],"seed":12345678901234567890, "max_tokens":3 }'
  const input = `{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":${body}}`
  const batch = await service.run(input)
  assert.equal(batch.request_counts.completed, 1)
  assert.equal(String(engine.bodies[0]), `${body.slice(0, -1)},"priority":10}`)
})
