// Limits, through the whole service: real API, real worker, real database, before a model server that the
// test controls. Each service reconciles its books when it ends.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { SCOPES } from '../../src/domain/api-key.ts'
import { LIMIT_WINDOWS } from '../../src/domain/limit.ts'
import { LANGUAGES } from '../../src/ledger/limit-error.ts'
import type { BatchEstimate } from '../../src/wire/batch.ts'
import { completion, echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService, type WireBatch } from '../service.ts'

/** The estimate of the input of `lineFor` with five tokens of output, and what `usage` below says. */
const LINE_TOKENS = 13

interface WireLimit {
  id: string
  [key: string]: unknown
}

interface WireUsage {
  lines: number
  succeeded: number
  failed: number
  total_tokens: number
  cost_usd: number
  groups: { entity: string | null; day: string; lines: number; total_tokens: number; cost_usd: number }[]
}

function lineFor(entity: string | null, custom_id: string, more: object = {}): object {
  const metadata = entity === null ? {} : { metadata: { entity } }
  return { ...line(custom_id, 'x', { max_tokens: 5, ...more }), ...metadata }
}

function jsonl(lines: readonly object[]): string {
  return lines.map((one) => JSON.stringify(one)).join('\n')
}

function many(count: number, entity: string | null, name = 'l', more: object = {}): object[] {
  return Array.from({ length: count }, (_, i) => lineFor(entity, `${name}${i}`, more))
}

/** Exactly the worst case of a line. */
const usage = { prompt_tokens: 8, completion_tokens: 5, total_tokens: LINE_TOKENS }

async function limit(service: TestService, body: object): Promise<WireLimit> {
  return await service.json('POST', '/v1/limits', { metric: 'tokens', window: 'month', ...body })
}

async function used(service: TestService, query = ''): Promise<WireUsage> {
  return await service.json('GET', `/v1/usage/entities?group_by=entity&${query}`)
}

async function read<T>(response: Response): Promise<T> {
  return (await response.json()) as T
}

async function apiError(response: Response) {
  const { error } = await read<{ error: Record<string, unknown> & { message: string } }>(response)
  return { status: response.status, error, headers: response.headers }
}

async function submit(service: TestService, input_file_id: string, query = '', headers = {}) {
  const body = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' }
  return await service.request('POST', `/v1/batches${query}`, body, headers)
}

async function reservedTokens(service: TestService): Promise<number> {
  const rows = await service.stores.store.read.selectFrom('reservations').select('tokens').execute()
  return rows.reduce((sum, row) => sum + row.tokens, 0)
}

/** Asks again and again; the test's time limit ends what never comes. */
async function until(isSo: () => Promise<boolean>): Promise<void> {
  while (!(await isSo())) await setImmediate()
}

test('a batch that may pass a cap is refused: which limit, until when, in the caller’s language', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(jsonl(many(10, 'user:42')))
  const { id } = await limit(service, {
    scope: 'entity',
    entity: 'user:42',
    amount: 10 * LINE_TOKENS - 1,
    description: 'Ask Ada.',
  })
  const english = await apiError(await submit(service, file.id))
  assert.equal(english.status, 429)
  assert.equal(english.error.code, 'usage_limit_exceeded')
  assert.equal(english.error.type, 'rate_limit_error')
  assert.equal(english.error.limit_id, id)
  const now = new Date()
  const end = Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1, 1) / 1000
  assert.equal(english.error.resets_at, end)
  const retry_after = Number(english.headers.get('retry-after'))
  assert.ok(Math.abs(retry_after - (end - now.getTime() / 1000)) < 60, `${retry_after}`)
  assert.equal(english.headers.get('x-should-retry'), 'false')
  assert.match(english.error.message, /130 tokens.*129 tokens.*“user:42”.*Ask Ada\./s)
  const german = await apiError(await submit(service, file.id, '', { 'accept-language': 'de-AT, en;q=0.5' }))
  assert.match(german.error.message, /Monatslimit.*„user:42“.*zurückgesetzt/s)
  assert.deepEqual((await service.json<{ data: object[] }>('GET', '/v1/batches')).data, [])
  await service.json('POST', `/v1/limits/${id}`, { amount: 10 * LINE_TOKENS })
  assert.equal((await submit(service, file.id)).status, 200)
})

test('a cap of every window that a limit may have refuses a batch, and says the window in every language', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(jsonl(many(10, 'user:42')))
  const said = new Set<string>()
  for (const window of LIMIT_WINDOWS) {
    const body = { scope: 'entity', entity: 'user:42', amount: LINE_TOKENS, window }
    const { id } = await limit(service, body)
    for (const language of LANGUAGES) {
      const { status, error } = await apiError(
        await submit(service, file.id, '', { 'accept-language': language }),
      )
      assert.deepEqual([status, error.limit_id], [429, id], window)
      said.add(error.message.replaceAll(/\d/g, ''))
    }
    await service.json('DELETE', `/v1/limits/${id}`)
  }
  assert.equal(said.size, LIMIT_WINDOWS.length * LANGUAGES.length)
})

test('of forty batches submitted at once, as many are let in as fit, and the cap holds to the token', async () => {
  await using upstream = await testUpstream(({ response }) => send(response, 200, completion('ok', usage)))
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(jsonl(many(10, 'user:1')))
  const fits = 7
  await limit(service, { scope: 'entity_type', entity_type: 'user', amount: fits * 10 * LINE_TOKENS + 1 })
  const answers = await Promise.all(Array.from({ length: 40 }, () => submit(service, file.id)))
  const made = answers.filter((answer) => answer.status === 200)
  assert.equal(made.length, fits)
  assert.ok(answers.every((answer) => answer.status === 200 || answer.status === 429))
  const batches = await Promise.all(made.map((answer) => read<WireBatch>(answer)))
  for (const { id } of batches) {
    const { status, request_counts } = await service.ended(id)
    assert.deepEqual([status, request_counts.completed], ['completed', 10])
  }
  assert.equal((await used(service)).total_tokens, fits * 10 * LINE_TOKENS)
  assert.equal((await submit(service, file.id)).status, 429)
})

test('what a batch did not use of its projection is there for the next as soon as its lines settle', async () => {
  await using upstream = await testUpstream(({ response }) =>
    send(response, 200, completion('ok', { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 })),
  )
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(jsonl(many(10, null)))
  await limit(service, { scope: 'project', amount: 10 * LINE_TOKENS + 20 })
  for (let round = 0; round < 2; round++) {
    const batch = await read<WireBatch>(await submit(service, file.id))
    assert.equal((await service.ended(batch.id)).request_counts.completed, 10)
  }
  assert.equal((await used(service)).total_tokens, 40)
  assert.equal((await submit(service, file.id)).status, 429)
})

test('a cap made after submit ends the lines of its entity that it meets, and the others go on', async () => {
  await using upstream = await testUpstream(({ response }) => send(response, 200, completion('ok', usage)))
  await using service = await TestService.start(configFor(upstream.base_url))
  const mixed = Array.from({ length: 60 }, (_, i) => lineFor(i % 3 === 0 ? 'user:a' : 'user:b', `l${i}`))
  const file = await service.upload(jsonl([...mixed, ...many(20, null, 'n')]))
  await service.worker.stop()
  const batch = await service.create(file.id)
  const { id } = await limit(service, { scope: 'entity', entity: 'user:a', amount: 5 * LINE_TOKENS })
  await service.restartWorker()
  const { status, request_counts, error_file_id } = await service.ended(batch.id)
  assert.equal(status, 'completed')
  assert.deepEqual(request_counts, { total: 80, completed: 65, failed: 15 })
  const failed = await service.lines(error_file_id)
  assert.ok(failed.every(({ error }) => error?.code === 'usage_limit_exceeded'))
  for (const { custom_id, error } of failed) {
    assert.equal(Number(custom_id.slice(1)) % 3, 0, `${custom_id} is of user:a`)
    assert.equal(error && Reflect.get(error, 'limit_id'), id)
    assert.ok(error && Reflect.get(error, 'resets_at') > Date.now() / 1000)
  }
  assert.equal(upstream.calls.length, 65)
  const { groups } = await used(service)
  assert.deepEqual(
    groups.map(({ entity, lines, total_tokens }) => [entity, lines, total_tokens]),
    [
      [null, 20, 20 * LINE_TOKENS],
      ['user:a', 20, 5 * LINE_TOKENS],
      ['user:b', 40, 40 * LINE_TOKENS],
    ],
  )
})

test('a limit lowered while a batch runs lets lines in flight finish and stops the rest', async () => {
  const held: (() => void)[] = []
  await using upstream = await testUpstream(({ response }) => {
    held.push(() => send(response, 200, completion('ok', usage)))
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(jsonl(many(100, 'user:a')))
  const { id } = await limit(service, { scope: 'entity', entity: 'user:a', amount: 1000 * LINE_TOKENS })
  const batch = await service.create(file.id)
  await upstream.arrived(32)
  await service.json('POST', `/v1/limits/${id}`, { amount: 1 })
  upstream.reply = ({ response }) => send(response, 200, completion('ok', usage))
  // The lines that were not sent end while those in flight are still out.
  await until(async () => (await service.get(batch.id)).request_counts.failed === 68)
  for (const answer of held.splice(0)) answer()
  const { request_counts } = await service.ended(batch.id)
  assert.deepEqual(request_counts, { total: 100, completed: 32, failed: 68 })
  assert.equal(upstream.calls.length, 32)
  assert.equal((await used(service)).total_tokens, 32 * LINE_TOKENS)
})

/** A second model, at the same upstream. */
function twoModels(base_url: string): string {
  const upstreams = `upstreams: [{type: openai, base_url: "${base_url}", timeout: 5s}]`
  const large = `  - {id: large, price: {input_per_mtok: 1, output_per_mtok: 4}, ${upstreams}}`
  return configFor(base_url).replace('models:', `models:\n${large}`)
}

/** Twenty lines, every other one of the large model, of two entities. */
function twoModelLines(): string {
  const lines = Array.from({ length: 20 }, (_, i) =>
    lineFor(i < 10 ? 'user:a' : 'user:b', `l${i}`, i % 2 === 0 ? {} : { model: 'large' }),
  )
  return jsonl(lines)
}

test('of forty batches of two keys submitted at once, as many are let in as the caps on a key and a model allow', async () => {
  await using upstream = await testUpstream(({ response }) => send(response, 200, completion('ok', usage)))
  await using service = await TestService.start(twoModels(upstream.base_url))
  const file = await service.upload(twoModelLines())
  const other = await service.issueKey(['files:read', 'batches:write', 'batches:read'])
  const key = `key_${other.split('_')[2]}`
  await limit(service, { scope: 'key', key, metric: 'requests', amount: 3 * 20 + 19 })
  await limit(service, { scope: 'model', model: 'large', amount: 5 * 10 * LINE_TOKENS + 1 })
  const capped = { authorization: `Bearer ${other}` }
  const of = (headers: object) => Array.from({ length: 20 }, () => submit(service, file.id, '', headers))
  const [first, second] = await Promise.all([Promise.all(of(capped)), Promise.all(of({}))])
  const made = [...first, ...second].filter(({ status }) => status === 200)
  assert.ok(first.filter(({ status }) => status === 200).length <= 3)
  assert.equal(made.length, 5)
  const batches = await Promise.all(made.map((answer) => read<WireBatch>(answer)))
  for (const { id } of batches) assert.equal((await service.ended(id)).request_counts.completed, 20)
  for (const query of [`key=${key}`, 'model=large', 'model=m'])
    assert.ok((await used(service, query)).total_tokens > 0, query)
  assert.equal((await used(service, 'model=large')).total_tokens, 5 * 10 * LINE_TOKENS)
  const { error } = await apiError(await submit(service, file.id))
  assert.match(error.message, /the model “large”/)
})

test('a cap on a model that is lowered in mid-run ends its lines alone, and one together with an entity only hers', async () => {
  await using upstream = await testUpstream(({ response }) => send(response, 200, completion('ok', usage)))
  await using service = await TestService.start(twoModels(upstream.base_url))
  const file = await service.upload(twoModelLines())
  const { id } = await limit(service, { scope: 'model', model: 'large', amount: 1000 * LINE_TOKENS })
  await service.worker.stop()
  const batch = await service.create(file.id)
  await service.json('POST', `/v1/limits/${id}`, { amount: 7 * LINE_TOKENS })
  const ofUser = { scope: 'entity', entity: 'user:a', model: 'm', metric: 'requests', amount: 2 }
  const user = await limit(service, ofUser)
  await service.restartWorker()
  const { request_counts, error_file_id } = await service.ended(batch.id)
  assert.deepEqual(request_counts, { total: 20, completed: 14, failed: 6 })
  const failed = await service.lines(error_file_id)
  const by = Map.groupBy(failed, ({ error }) => error && Reflect.get(error, 'limit_id'))
  assert.deepEqual([by.get(id)?.length, by.get(user.id)?.length], [3, 3])
  assert.ok(by.get(id)?.every(({ custom_id }) => Number(custom_id.slice(1)) % 2 === 1))
  assert.ok(by.get(user.id)?.every(({ custom_id }) => ['l0', 'l2', 'l4', 'l6', 'l8'].includes(custom_id)))
  assert.match(String(by.get(user.id)?.[0]?.error?.message), /“user:a” on the model “m”.*2 requests are used/)
  assert.equal(upstream.calls.length, 14)
  assert.equal(await reservedTokens(service), 0)
})

test('a key that is issued with a cap spends no more, whoever retries, and cannot lift it', async () => {
  await using upstream = await testUpstream(({ response }) =>
    send(response, 400, JSON.stringify({ error: { message: 'no', code: 'invalid_prompt' } })),
  )
  await using service = await TestService.start(configFor(upstream.base_url))
  const body = { name: 'ci', limit: { metric: 'requests', amount: 10, window: 'week' } }
  const admin = { authorization: `Bearer ${await service.issueKey(SCOPES)}` }
  const issued = await read<{ key: string; scopes: string[]; limit: WireLimit }>(
    await service.request('POST', '/v1/keys', body, admin),
  )
  const id = `key_${issued.key.split('_')[2]}`
  assert.deepEqual([issued.limit.scope, issued.limit.key, issued.limit.amount], ['key', id, 10])
  assert.ok(!issued.scopes.includes('limits:write'))
  const file = await service.upload(jsonl(many(6, null)))
  const headers = { authorization: `Bearer ${issued.key}` }
  const batch = await read<WireBatch>(await submit(service, file.id, '', headers))
  assert.equal((await service.ended(batch.id)).request_counts.failed, 6)
  // Lines that were sent count, though they failed and cost nothing.
  const retry = await service.request('POST', `/v1/batches/${batch.id}/retry`, {}, headers)
  const refused = await apiError(retry)
  assert.deepEqual([refused.status, refused.error.limit_id], [429, issued.limit.id])
  assert.match(refused.error.message, new RegExp(`weekly limit of 10 requests for the key “${id}”`))
  assert.equal(
    (await service.request('DELETE', `/v1/limits/${issued.limit.id}`, undefined, headers)).status,
    403,
  )
  assert.equal((await service.request('POST', `/v1/batches/${batch.id}/retry`, {})).status, 200)
})

test('a limit made in a project that had none holds for the batch that runs', async () => {
  const held: (() => void)[] = []
  await using upstream = await testUpstream(({ response }) => {
    held.push(() => send(response, 200, completion('ok', usage)))
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(jsonl(many(100, null)))
  const batch = await service.create(file.id)
  await upstream.arrived(32)
  await limit(service, { scope: 'project', amount: 40 * LINE_TOKENS })
  await until(async () => (await reservedTokens(service)) === 40 * LINE_TOKENS)
  upstream.reply = ({ response }) => send(response, 200, completion('ok', usage))
  for (const answer of held.splice(0)) answer()
  const { request_counts } = await service.ended(batch.id)
  assert.deepEqual(request_counts, { total: 100, completed: 40, failed: 60 })
})

test('lines that only holds keep out wait, and run on what others did not use', async () => {
  await using upstream = await testUpstream(({ response }) =>
    send(response, 200, completion('ok', { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 })),
  )
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(jsonl(many(200, 'user:a')))
  await service.worker.stop()
  const batch = await service.create(file.id)
  await limit(service, { scope: 'entity', entity: 'user:a', amount: 500 })
  await service.restartWorker()
  // The worst case of 200 lines is 2,600 tokens; they use 400.
  assert.deepEqual((await service.ended(batch.id)).request_counts, { total: 200, completed: 200, failed: 0 })
  assert.equal((await used(service)).total_tokens, 400)
})

test('reservations of a crashed worker are released with its leases', async () => {
  await using upstream = await testUpstream(() => {})
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(jsonl(many(10, 'user:a')))
  await limit(service, { scope: 'entity', entity: 'user:a', amount: 10 * LINE_TOKENS })
  const batch = await service.create(file.id)
  await upstream.arrived(10)
  assert.equal(await reservedTokens(service), 10 * LINE_TOKENS)
  upstream.reply = ({ response }) => send(response, 200, completion('ok', usage))
  const { store } = service.stores
  // As if it had been silent for longer than its lease.
  await store.write((tx) => tx.updateTable('workers').set({ lease_until: 0 }).execute())
  const { request_counts } = await service.ended(batch.id)
  assert.deepEqual(request_counts, { total: 10, completed: 10, failed: 0 })
  assert.equal((await used(service)).total_tokens, 10 * LINE_TOKENS)
  assert.equal(await reservedTokens(service), 0)
})

test('while the ledger cannot be asked nothing is sent, and afterwards everything is', async () => {
  await using upstream = await testUpstream(({ response }) => send(response, 200, completion('ok', usage)))
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(jsonl(many(10, 'user:a')))
  await limit(service, { scope: 'entity', entity: 'user:a', amount: 10 * LINE_TOKENS })
  await service.worker.stop()
  const batch = await service.create(file.id)
  const { store } = service.stores
  let failures = 0
  const { write } = store
  Object.assign(store, {
    write: (change: Parameters<typeof write>[0]) =>
      write(change).catch((error: unknown) => {
        failures++
        throw error
      }),
  })
  await write((tx) => tx.schema.alterTable('reservations').renameTo('elsewhere').execute())
  await service.restartWorker()
  await until(async () => failures >= 3)
  assert.equal(upstream.calls.length, 0)
  await write((tx) => tx.schema.alterTable('elsewhere').renameTo('reservations').execute())
  assert.equal((await service.ended(batch.id)).request_counts.completed, 10)
})

test('only lines with a result cost anything, and a batch that fails costs nothing', async () => {
  await using upstream = await testUpstream((call) => {
    if (call.body.messages[0]?.content.includes('bad'))
      send(call.response, 400, '{"error":{"message":"no such thing"}}')
    else if (call.body.messages[0]?.content.includes('broken')) send(call.response, 500, 'oh')
    else echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run([
    line('a', 'a', { max_tokens: 5 }),
    line('b', 'bad'),
    line('c', 'broken'),
    line('d', 'd', { model: 'nope' }),
  ])
  assert.deepEqual(batch.request_counts, { total: 4, completed: 1, failed: 3 })
  assert.equal(batch.cost_usd, 0.000003)
  await service.run([line('a', 'a', { model: 'nope' })])
  const total = await used(service)
  assert.deepEqual([total.lines, total.succeeded, total.failed], [5, 1, 4])
  assert.deepEqual([total.total_tokens, total.cost_usd], [15, 0.000003])
})

test('a cancelled batch is billed for the lines that finished, and its projected cost is released', async () => {
  const held: (() => void)[] = []
  await using upstream = await testUpstream((call) => {
    held.push(() => echo(call))
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(jsonl(many(100, 'user:a')))
  const capped = await limit(service, { scope: 'entity', entity: 'user:a', amount: 100 * LINE_TOKENS })
  const { id } = await service.create(file.id)
  assert.equal((await submit(service, file.id)).status, 429)
  await upstream.arrived(32)
  await service.json('POST', `/v1/batches/${id}/cancel`)
  upstream.reply = echo
  for (const answer of held.splice(0)) answer()
  const batch = await service.ended(id)
  const { succeeded, cost_usd } = await used(service)
  assert.equal(succeeded, batch.request_counts.completed)
  assert.equal(cost_usd, batch.cost_usd)
  await service.json('POST', `/v1/limits/${capped.id}`, { amount: 100 * LINE_TOKENS + 15 * succeeded })
  assert.equal((await submit(service, file.id)).status, 200)
})

test('each threshold is told of once, and so is the cap', async () => {
  await using upstream = await testUpstream(({ response }) => send(response, 200, completion('ok', usage)))
  await using service = await TestService.start(configFor(upstream.base_url))
  const body = { scope: 'entity', entity: 'user:a', amount: 20 * LINE_TOKENS, action: 'notify' }
  await limit(service, { ...body, notify_at: [0.5, 0.9] })
  for (let round = 0; round < 3; round++) await service.run(many(10, 'user:a', `r${round}-`))
  const { data } = await service.json<{
    data: { type: string; data: { threshold: number; entity: string } }[]
  }>('GET', '/v1/events')
  const crossed = data.filter(({ type }) => type.startsWith('limit.'))
  assert.deepEqual(crossed.map(({ type, data }) => [type, data.threshold, data.entity]).reverse(), [
    ['limit.threshold_reached', 0.5, 'user:a'],
    ['limit.threshold_reached', 0.9, 'user:a'],
    ['limit.reached', 1, 'user:a'],
  ])
})

test('a dry run says what a batch may cost and which limits it meets, and creates nothing', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(
    configFor(upstream.base_url).replace('models:', `models:\n  - id: free\n    upstreams: [{type: sim}]`),
  )
  const lines = [
    ...many(3, 'user:a'),
    ...many(2, null, 'f', { model: 'free' }),
    ...many(1, null, 'n', { model: 'none' }),
  ]
  const file = await service.upload(jsonl(lines))
  await limit(service, { scope: 'entity_type', entity_type: 'user', metric: 'cost_usd', amount: 0.000001 })
  const response = await submit(service, file.id, '?dry_run=true')
  assert.equal(response.status, 200)
  const estimate = await read<BatchEstimate>(response)
  assert.equal(estimate.object, 'batch.estimate')
  assert.equal(estimate.accepted, false)
  assert.equal(estimate.lines, 6)
  // 8 × 100 + 5 × 400 nano-dollars, three times; the model without a price is free, and it is said.
  assert.equal(estimate.cost_usd, 0.0000084)
  assert.deepEqual([estimate.unpriced_models, estimate.unknown_models], [['free'], ['none']])
  assert.deepEqual(
    estimate.limits.map((one) => [one.entity, one.needed, one.exceeds]),
    [['user:a', 0.0000084, true]],
  )
  assert.deepEqual((await service.json<{ data: object[] }>('GET', '/v1/batches')).data, [])
})
