// Tiers of upstreams and what they cost, opening hours, batches that start later, and pauses.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { TOKEN_PARTS } from '../../src/domain/money.ts'
import { completion, echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

interface LineRecord {
  upstream?: string
  tier?: number
  attempts: { upstream: string; tier: number; status: number | null }[]
  usage: Record<string, number | undefined>
  cost_usd: number
}

const HOUR_S = 3600

function tiers(local: string, hosted: string, more = ''): string {
  return `
models:
  - id: m
    price: {input_per_mtok: 0.10, output_per_mtok: 0.40, cached_input_per_mtok: 0.01}
    spill: {when_down: 50ms}
    upstreams:
      - {type: openai, name: hosted, base_url: "${hosted}", tier: 1, price: {input_per_mtok: 10, output_per_mtok: 40}}
      - {type: openai, name: local, base_url: "${local}", timeout: 5s${more}}
retry: {attempts_max: 3, backoff_min: 5ms, backoff_max: 20ms, outage_patience: 1m}
worker: {flush_interval: 20ms, lease: 2s}`
}

test('a higher tier gets no line until the lower one is down, and none again once that is back', async () => {
  await using hosted = await testUpstream()
  const local = await testUpstream()
  await using service = await TestService.start(tiers(local.base_url, hosted.base_url))
  const lines = Array.from({ length: 200 }, (_, i) => line(`l${i}`))
  const before = await service.run(lines)
  assert.equal(before.request_counts.completed, 200)
  assert.equal(hosted.calls.length, 0)
  // 10 tokens in, 5 out.
  assert.equal(before.cost_usd, 0.0006)

  await local.close()
  const during = await service.run([line('spilled')])
  assert.equal(hosted.calls.length, 1)
  assert.equal(during.cost_usd, 0.0003)
  const [answer] = await service.lines(during.output_file_id)
  const record = await service.json<LineRecord>('GET', `/v1/requests/${answer?.id}`)
  assert.deepEqual([record.upstream, record.tier, record.cost_usd], ['hosted', 1, 0.0003])
  assert.deepEqual([record.attempts[0]?.upstream, record.attempts[0]?.tier], ['local', 0])

  await using again = await testUpstream(echo, Number(new URL(local.base_url).port))
  // The server is tried again after a pause, with a line.
  while (again.calls.length === 0) await service.run([line('probe')])
  const known = hosted.calls.length
  const after = await service.run(lines)
  assert.equal(after.request_counts.completed, 200)
  assert.equal(hosted.calls.length, known)
})

test('a lower tier for which a proxy answers is down, as if it could not be reached', async () => {
  const page = (title: string): string => `<html><head><title>${title}</title></head></html>`
  const pages: [status: number, body: string][] = [
    [502, page('502 Bad Gateway')],
    [503, 'no healthy upstream'],
  ]
  await using hosted = await testUpstream()
  await using local = await testUpstream()
  await using service = await TestService.start(tiers(local.base_url, hosted.base_url))
  for (const [status, body] of pages) {
    const known = hosted.calls.length
    await service.run([line('before')])
    assert.equal(hosted.calls.length, known, 'the local server answers')
    local.reply = ({ response }) => send(response, status, body)
    const during = await service.run([line('spilled')])
    assert.deepEqual([during.request_counts.completed, hosted.calls.length], [1, known + 1], `${status}`)
    local.reply = echo
    const { calls } = local
    // The server is tried again after a pause, with a line.
    for (const tried = calls.length; calls.length === tried; ) await service.run([line('probe')])
  }
})

test('a connection that cannot be made is enough for one line to go to a higher tier', async () => {
  await using hosted = await testUpstream()
  await using plain = await testUpstream()
  const closed = await testUpstream()
  await closed.close()
  const { port } = new URL(plain.base_url)
  const lower: readonly (readonly string[])[] = [
    [closed.base_url],
    ['http://nowhere.invalid/v1'],
    [closed.base_url, `https://localhost:${port}/v1`],
  ]
  for (const urls of lower) {
    const tier = urls.map((base_url) => `{type: openai, base_url: "${base_url}"}`).join(', ')
    await using service = await TestService.start(`
models:
  - id: m
    spill: {when_down: 300ms, when_at_risk: false}
    upstreams: [${tier}, {type: openai, base_url: "${hosted.base_url}", tier: 1}]
retry: {backoff_min: 600ms, backoff_max: 1s}`)
    const known = hosted.calls.length
    const batch = await service.run([line('a')])
    assert.equal(hosted.calls.length, known + 1)
    const [answer] = await service.lines(batch.output_file_id)
    const { attempts } = await service.json<LineRecord>('GET', `/v1/requests/${answer?.id}`)
    assert.ok(attempts.length <= 2 * urls.length + 1, `${urls}: ${attempts.length} attempts`)
  }
})

test('a lower tier that refuses for lack of room is not down', async () => {
  await using hosted = await testUpstream()
  await using local = await testUpstream((call) => {
    if (call.index < 20) send(call.response, 429, '{}', { 'retry-after': '0' })
    else echo(call)
  })
  await using service = await TestService.start(tiers(local.base_url, hosted.base_url))
  const batch = await service.run(Array.from({ length: 5 }, (_, i) => line(`l${i}`)))
  assert.equal(batch.request_counts.completed, 5)
  assert.equal(hosted.calls.length, 0)
})

test('a projection takes the dearest upstream that may answer', async () => {
  await using local = await testUpstream()
  const config = tiers(local.base_url, 'http://127.0.0.1:9/v1')
  await using service = await TestService.start(config)
  await using pinned = await TestService.start(
    config.replace('spill: {when_down: 50ms}', 'spill: {when_down: off, when_at_risk: false}'),
  )
  const estimates = [service, pinned].map(async (one) => {
    const { id } = await one.upload(JSON.stringify(line('a', 'a', { max_tokens: 1_000_000 })))
    const order = { input_file_id: id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    return await one.json<{ cost_usd: number }>('POST', '/v1/batches?dry_run=true', order)
  })
  const [dear, cheap] = await Promise.all(estimates)
  assert.ok((dear?.cost_usd ?? 0) >= 40 && (dear?.cost_usd ?? 0) < 40.01)
  assert.ok((cheap?.cost_usd ?? 0) >= 0.4 && (cheap?.cost_usd ?? 0) < 0.41)
})

test('prompt tokens from the cache of a server cost what the configuration says, and are told as such', async () => {
  const usage = {
    prompt_tokens: 1000,
    completion_tokens: 50,
    total_tokens: 1050,
    prompt_tokens_details: { cached_tokens: 900 },
    completion_tokens_details: { reasoning_tokens: 40 },
  }
  await using local = await testUpstream(({ response }) => send(response, 200, completion('x', usage)))
  await using service = await TestService.start(tiers(local.base_url, 'http://127.0.0.1:9/v1'))
  const batch = await service.run([line('a')])
  assert.equal(batch.cost_usd, (100 * 0.1 + 900 * 0.01 + 50 * 0.4) / 1e6)
  assert.equal(batch.cache_saved_usd, 0.000081)
  assert.deepEqual(batch.usage, {
    input_tokens: 1000,
    input_tokens_details: { cached_tokens: 900, cache_write_tokens: 0, cache_write_1h_tokens: 0 },
    output_tokens: 50,
    output_tokens_details: { reasoning_tokens: 40 },
    total_tokens: 1050,
  })
  const [answer] = await service.lines(batch.output_file_id)
  const record = await service.json<LineRecord>('GET', `/v1/requests/${answer?.id}`)
  assert.deepEqual([record.usage.cached_tokens, record.usage.reasoning_tokens], [900, 40])
})

test('what a server writes to its cache, and long prompts, cost what the configuration says', async () => {
  const writes = {
    cached_tokens: 100,
    cache_write_tokens: 50,
    cache_creation: { ephemeral_1h_input_tokens: 20 },
  }
  const usages: Record<string, object> = {
    short: { prompt_tokens: 1000, completion_tokens: 10, total_tokens: 1010, prompt_tokens_details: writes },
    long: { prompt_tokens: 1001, completion_tokens: 10, total_tokens: 1011, prompt_tokens_details: writes },
  }
  const prices = `
    price:
      input_per_mtok: 1
      output_per_mtok: 4
      cached_input_per_mtok: 0.1
      cache_write_per_mtok: 1.25
      cache_write_1h_per_mtok: 2
      above: [{prompt_tokens: 1000, input_per_mtok: 10, cache_write_per_mtok: 12.5}]`
  await using local = await testUpstream((call) =>
    send(
      call.response,
      200,
      completion('x', usages[String(call.body.messages[0]?.content).slice(0, 5).trim()] ?? null),
    ),
  )
  const plain = configFor(local.base_url).replace(/\n {4}price: .*/, prices)
  await using service = await TestService.start(plain)
  // Its body has more bytes than the step has tokens, so that the prompt may have as many.
  const text = (name: string): string => name.padEnd(5).padEnd(2_000, 'x')
  const costs: Record<string, number> = {}
  for (const name of Object.keys(usages)) {
    const batch = await service.run([line(name, text(name), { max_tokens: 10 })])
    costs[name] = batch.cost_usd
    const [answer] = await service.lines(batch.output_file_id)
    const record = await service.json<LineRecord>('GET', `/v1/requests/${answer?.id}`)
    const { cached_tokens, cache_write_tokens, cache_write_1h_tokens } = record.usage
    const told = { cached_tokens: 100, cache_write_tokens: 50, cache_write_1h_tokens: 20 }
    assert.deepEqual({ cached_tokens, cache_write_tokens, cache_write_1h_tokens }, told)
    assert.deepEqual(Object(batch.usage).input_tokens_details, told)
  }
  const sums = await service.json<Record<string, number>>('GET', '/v1/usage/entities')
  assert.deepEqual(
    TOKEN_PARTS.map((name) => sums[name]),
    [200, 100, 40, 0],
    'what the service bills by entity has the tokens that have a price of their own',
  )
  const parts = (input: number, write: number): number =>
    (850 * input + 100 * 0.1 + 30 * write + 20 * 2 + 10 * 4) / 1e6
  assert.deepEqual(costs, { short: parts(1, 1.25), long: (851 * 10 + 10 + 30 * 12.5 + 40 + 40) / 1e6 })
  const { pricing } = await service.json<{ pricing: object }>('GET', '/v1/models/m')
  const base = { output_per_mtok: 4, cached_input_per_mtok: 0.1, cache_write_1h_per_mtok: 2 }
  assert.deepEqual(pricing, {
    ...base,
    input_per_mtok: 1,
    cache_write_per_mtok: 1.25,
    above: [{ ...base, prompt_tokens: 1000, input_per_mtok: 10, cache_write_per_mtok: 12.5 }],
    currency: 'USD',
    configured: true,
  })
  const { id } = await service.upload(JSON.stringify(line('a', text('a'), { max_tokens: 10 })))
  const order = { input_file_id: id, endpoint: '/v1/chat/completions', completion_window: '24h' }
  const { cost_usd, input_tokens } = await service.json<{ cost_usd: number; input_tokens: number }>(
    'POST',
    '/v1/batches?dry_run=true',
    order,
  )
  // The dearest input of the step that the prompt may reach.
  assert.equal(cost_usd, (input_tokens * 12.5 + 10 * 4) / 1e6)
  // An upstream's own price has steps as well.
  await using dear = await TestService.start(
    configFor(local.base_url).replace(
      'timeout: 5s',
      `price: {input_per_mtok: 1, output_per_mtok: 4, above: [{prompt_tokens: 1000, output_per_mtok: 400}]}`,
    ),
  )
  const batch = await dear.run([line('a', text('long'), { max_tokens: 10 })])
  assert.equal(batch.cost_usd, (1001 + 10 * 400) / 1e6)
  const file = await dear.upload(JSON.stringify(line('a', text('a'), { max_tokens: 10 })))
  const estimate = await dear.json<{ cost_usd: number }>('POST', '/v1/batches?dry_run=true', {
    ...order,
    input_file_id: file.id,
  })
  assert.ok(estimate.cost_usd > (10 * 400) / 1e6)
})

test('an answer is priced by the service tier that it names, and projected at the dearest one', async () => {
  await using local = await testUpstream((call) => {
    const [said = ''] = String(call.body.messages[0]?.content).split(' ')
    const answer = JSON.parse(completion('x'))
    if (said === 'usage') answer.usage.service_tier = 'flex'
    else answer.service_tier = said === 'none' ? null : said
    send(call.response, 200, JSON.stringify(answer))
  })
  const tiers =
    'service_tiers: {flex: {input_per_mtok: 0.5, output_per_mtok: 2}, priority: {output_per_mtok: 8}}'
  const price = `price: {input_per_mtok: 1, output_per_mtok: 4, ${tiers}}`
  await using service = await TestService.start(configFor(local.base_url).replace(/price: .*/, price))
  const costs: Record<string, number> = {}
  for (const tier of ['none', 'default', 'flex', 'usage', 'priority', 'constructor']) {
    const batch = await service.run([line('a', tier, { max_tokens: 10 })])
    costs[tier] = batch.cost_usd
    const [answer] = await service.lines(batch.output_file_id)
    const record = await service.json<{ service_tier?: string }>('GET', `/v1/requests/${answer?.id}`)
    assert.equal(record.service_tier, tier === 'none' ? undefined : tier === 'usage' ? 'flex' : tier)
  }
  const [plain, flex] = [(10 * 1 + 5 * 4) / 1e6, (10 * 0.5 + 5 * 2) / 1e6]
  const priority = (10 * 1 + 5 * 8) / 1e6
  assert.deepEqual(costs, { none: plain, default: plain, flex, usage: flex, priority, constructor: plain })
  const { pricing } = await service.json<{ pricing: { service_tiers: { flex: object } } }>(
    'GET',
    '/v1/models/m',
  )
  assert.deepEqual(pricing.service_tiers.flex, { input_per_mtok: 0.5, output_per_mtok: 2 })
  const { id: input_file_id } = await service.upload([line('a', 'a', { max_tokens: 10 })])
  const order = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' }
  const estimate = await service.json<{ cost_usd: number; input_tokens: number }>(
    'POST',
    '/v1/batches?dry_run=true',
    order,
  )
  assert.equal(estimate.cost_usd, (estimate.input_tokens * 1 + 10 * 8) / 1e6)
})

test('outside its hours a model waits, and says until when', async () => {
  await using local = await testUpstream()
  const now = new Date()
  const later = (hours: number): string =>
    new Date(now.getTime() + hours * HOUR_S * 1000).toISOString().slice(11, 13)
  const hours = `, hours: [{from: "${later(2)}:00", to: "${later(4)}:00", concurrency_max: 8}]`
  const config = configFor(local.base_url).replace(', timeout: 5s', hours)
  await using service = await TestService.start(config)
  const { id: file } = await service.upload(JSON.stringify(line('a')))
  const { id } = await service.create(file)
  const waiting = await asked(async () => {
    const { waiting_reason } = await service.get(id)
    const reason = waiting_reason as { code: string; until?: number; model?: string } | null
    return reason?.code === 'outside_hours' ? reason : undefined
  })
  assert.equal(waiting.model, 'm')
  const opens = (waiting.until ?? 0) * 1000 - now.getTime()
  assert.ok(opens > HOUR_S * 1000 && opens <= 2 * HOUR_S * 1000, String(opens))
  assert.equal(local.calls.length, 0)
})

test('a batch whose model is closed until after its window spills over to a higher tier', async () => {
  await using hosted = await testUpstream()
  const now = Date.now()
  const later = (hours: number): string => new Date(now + hours * HOUR_S * 1000).toISOString().slice(11, 13)
  const hours = `, hours: [{from: "${later(2)}:00", to: "${later(4)}:00"}]`
  const config = tiers('http://127.0.0.1:9/v1', hosted.base_url, hours)
  await using service = await TestService.start(`${config}\nplans: {payg: {completion_windows: [30m]}}`)
  const batch = await service.run([line('a')])
  assert.equal(batch.request_counts.completed, 1)
  assert.equal(hosted.calls.length, 1)
})

test('a batch starts no earlier than it was asked to, and a start outside its window is an error', async () => {
  await using local = await testUpstream()
  await using service = await TestService.start(configFor(local.base_url))
  const { id: file } = await service.upload(JSON.stringify(line('a')))
  const late = { input_file_id: file, endpoint: '/v1/chat/completions', completion_window: '24h' }
  const now = Math.floor(Date.now() / 1000)
  const refused = await service.request('POST', '/v1/batches', { ...late, start_after: now + 25 * HOUR_S })
  assert.equal(refused.status, 400)
  const { error } = (await refused.json()) as { error: { param: string; message: string } }
  assert.equal(error.param, 'start_after')
  const start_after = now + HOUR_S
  const { id } = await service.create(file, { start_after })
  const batch = await service.get(id)
  assert.equal(batch.start_after, start_after)
  assert.deepEqual(
    [
      (batch.waiting_reason as { code: string; until: number }).code,
      (batch.waiting_reason as { until: number }).until,
    ],
    ['not_before', start_after],
  )
  const soon = await service.create(file, { start_after: Math.floor(Date.now() / 1000) + 2 })
  const ended = await service.ended(soon.id)
  assert.equal(ended.request_counts.completed, 1)
  assert.ok((ended.in_progress_at as number) >= (soon.start_after as number))
  assert.equal(local.calls.length, 1)
})

test('a batch that is paused sends nothing more until it is resumed, and loses nothing', async () => {
  const held: (() => void)[] = []
  let isHeld = true
  await using local = await testUpstream((call) => {
    if (isHeld) held.push(() => echo(call))
    else echo(call)
  })
  const config = configFor(local.base_url).replace('timeout: 5s', 'timeout: 50s, concurrency_max: 4')
  await using service = await TestService.start(config)
  const { id: file } = await service.upload(
    Array.from({ length: 50 }, (_, i) => JSON.stringify(line(`l${i}`))).join('\n'),
  )
  const created = await service.create(file)
  await local.arrived(4)
  const paused = await service.json<{ paused_at?: number; expires_at: number }>(
    'POST',
    `/v1/batches/${created.id}/pause`,
  )
  assert.ok(paused.paused_at)
  assert.equal(paused.expires_at, created.expires_at)
  // The worker reads it several times a second; what is in flight until then finishes.
  await asked(async () => {
    const { paused_at, chunks } = await chunkStates(service, created.id)
    if (chunks.includes('leased')) {
      isHeld = false
      for (const release of held.splice(0)) release()
      return undefined
    }
    return paused_at
  })
  const sent = local.calls.length
  assert.ok(sent < 50)
  assert.equal(((await service.get(created.id)).waiting_reason as { code: string }).code, 'paused')
  await service.json('POST', `/v1/batches/${created.id}/resume`)
  const ended = await service.ended(created.id)
  assert.deepEqual(ended.request_counts, { total: 50, completed: 50, failed: 0 })
  assert.equal(local.calls.length, 50)
  const again = await service.request('POST', `/v1/batches/${created.id}/pause`)
  assert.equal(again.status, 422)
})

test('a paused model holds back the lines of its project that name it, and no others', async () => {
  await using local = await testUpstream()
  const config = configFor(local.base_url)
  const two = config.replace(
    'retry:',
    `  - {id: other, upstreams: [{type: openai, base_url: "${local.base_url}"}]}\nretry:`,
  )
  await using service = await TestService.start(two)
  const pause = await service.json<{ paused_at: number | null }>('POST', '/v1/models/m/pause')
  assert.ok(pause.paused_at)
  assert.equal((await service.request('POST', '/v1/models/nonsense/pause')).status, 404)
  const mixed = [line('a'), line('b', 'b', { model: 'other' })]
  const { id: file } = await service.upload(mixed.map((one) => JSON.stringify(one)).join('\n'))
  const { id } = await service.create(file)
  await local.arrived(1)
  await asked(async () => {
    const { chunks } = await chunkStates(service, id)
    return chunks.includes('parked') || undefined
  })
  assert.deepEqual(
    local.calls.map(({ body }) => body.model),
    ['other'],
  )
  assert.equal(
    ((await service.get(id)).waiting_reason as { code: string } | null)?.code ?? 'paused',
    'paused',
  )
  await service.json('POST', '/v1/models/m/resume')
  assert.deepEqual((await service.ended(id)).request_counts, { total: 2, completed: 2, failed: 0 })
})

/** Asks again and again until there is an answer. */
async function asked<T>(ask: () => Promise<T | undefined>): Promise<T> {
  for (;;) {
    const answer = await ask()
    if (answer !== undefined) return answer
  }
}

async function chunkStates(
  service: TestService,
  batch_id: string,
): Promise<{ paused_at: number | undefined; chunks: string[] }> {
  const chunks = await service.stores.store.read
    .selectFrom('chunks')
    .select('state')
    .where('batch_id', '=', batch_id)
    .execute()
  const batch = await service.get(batch_id)
  return { paused_at: batch.paused_at as number | undefined, chunks: chunks.map(({ state }) => state) }
}
