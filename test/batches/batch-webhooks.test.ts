// The webhook that a batch brings along, on a receiver that verifies what arrives.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import OpenAI from 'openai'
import { announceLines } from '../../src/audit/announce-lines.ts'
import type { Stores } from '../../src/compose/stores.ts'
import { deleteOldEvents } from '../../src/notify/record-event.ts'
import { testReceiver } from '../fakes/receiver.ts'
import { send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService, type WireBatch } from '../service.ts'
import { testServer } from '../support/test-server.ts'

const ALLOWED = 'webhooks: {allow_private_networks: true}'
const ORDER = { endpoint: '/v1/chat/completions', completion_window: '24h' }
const SECRET = `whsec_${Buffer.alloc(32, 7).toString('base64')}`

interface WithWebhook extends WireBatch {
  webhook?: { id: string; url: string; batch_id: string; secret?: string }
}

interface Listed {
  data: { id: string; batch_id?: string; status?: string; last_status_code?: number }[]
}

test('the end of a batch is sent to its own webhook, beside those of the project, and no other is', async () => {
  await using upstream = await testUpstream()
  await using mine = await testReceiver()
  await using ours = await testReceiver()
  await using service = await TestService.start(configFor(upstream.base_url, ALLOWED), {
    delivery: { schedule: (_: unknown, now: number) => now, timeoutMs: 2_000 },
  })
  ours.secret = (await service.json<{ secret: string }>('POST', '/v1/webhooks', { url: ours.url })).secret
  let failures = 2
  mine.answer = ({ response }) => void response.writeHead(failures-- > 0 ? 500 : 204).end()
  const file = await service.upload(JSON.stringify(line('a')))
  const order = { ...ORDER, input_file_id: file.id, webhook: { url: mine.url } }
  const { webhook, ...batch } = await service.json<WithWebhook>('POST', '/v1/batches', order)
  assert.ok(webhook?.secret)
  assert.equal(webhook.batch_id, batch.id)
  mine.secret = webhook.secret
  const other = await service.create(file.id)
  await service.ended(batch.id)
  await service.ended(other.id)
  await mine.arrived(3)
  await ours.arrived(2)
  for (const { event, id } of mine.received)
    assert.deepEqual(
      [event?.type, event?.data.batch_id, id],
      ['batch.completed', batch.id, mine.received[0]?.id],
    )
  assert.deepEqual(ours.received.map(({ event }) => event?.data.batch_id).sort(), [batch.id, other.id].sort())
  const delivery = await service.eventually(async () => {
    const { data } = await service.json<Listed>('GET', `/v1/webhooks/${webhook.id}/deliveries`)
    return data[0]?.status === 'delivered' ? data[0] : undefined
  })
  assert.equal(delivery.last_status_code, 204)
  const ids = async (query: string) =>
    (await service.json<Listed>('GET', `/v1/webhooks${query}`)).data.map(({ id }) => id)
  assert.deepEqual(await ids(`?batch_id=${batch.id}`), [webhook.id])
  assert.deepEqual(await ids(`?batch_id=${other.id}`), [])
  const [project] = await ids('')
  assert.ok(project !== undefined && project !== webhook.id)
  await deleteOldEvents(service.stores.store, Date.now() + 1)
  assert.deepEqual(await ids(`?batch_id=${batch.id}`), [], 'it goes with its event')
  assert.deepEqual(await ids(''), [project])
})

test('ends of single requests are sent to their own webhooks, and to webhooks of the project that name them', async () => {
  const answers = ['completed', 'incomplete']
  await using upstream = await testUpstream(({ response }) =>
    send(
      response,
      200,
      JSON.stringify({ object: 'response', status: answers.shift() ?? 'completed', output: [] }),
    ),
  )
  await using mine = await testReceiver()
  await using ours = await testReceiver()
  await using others = await testReceiver()
  const yaml = configFor(upstream.base_url, ALLOWED)
  await using service = await TestService.start(
    yaml.replace('- id: m', '- id: m\n    endpoints: [/v1/responses]'),
  )
  await service.json('POST', '/v1/webhooks', { url: others.url })
  const event_types = ['response.completed', 'response.incomplete', 'response.cancelled']
  const created = await service.json<{ secret: string }>('POST', '/v1/webhooks', {
    url: ours.url,
    event_types,
  })
  ours.secret = created.secret
  const { responses, webhooks } = new OpenAI({ apiKey: service.key, baseURL: `${service.url}/v1` })
  const ids: string[] = []
  for (const i of [1, 2]) {
    ids.push((await responses.create({ model: 'm', input: 'a', background: true })).id)
    await ours.arrived(i)
  }
  const told = await Promise.all(
    ours.received.map(({ body, request }) => webhooks.unwrap(body, Object(request.headers), created.secret)),
  )
  assert.deepEqual(
    told.map(({ type, data }) => [type, 'id' in data && data.id]),
    [
      ['response.completed', ids[0]],
      ['response.incomplete', ids[1]],
    ],
  )
  const order = {
    endpoint: '/v1/responses',
    body: { model: 'm', input: 'b' },
    webhook: { url: mine.url, secret: SECRET },
  }
  mine.secret = SECRET
  const { id, webhook } = await service.json<{ id: string; webhook: { secret?: string } }>(
    'POST',
    '/v1/requests',
    order,
  )
  assert.equal(webhook.secret, undefined)
  await mine.arrived(1)
  assert.partialDeepStrictEqual(mine.received[0]?.event, {
    type: 'request.completed',
    data: { id, status: 'completed' },
  })
  await ours.arrived(3)
  assert.equal(others.received.length, 0)
})

test('the end of a background response is sent after its input is gone', async () => {
  await using upstream = await testUpstream(({ response }) =>
    send(response, 200, JSON.stringify({ object: 'response', status: 'completed', output: [] })),
  )
  await using receiver = await testReceiver()
  const plans = 'plans: {payg: {retention: {results: 0h}}}\nrequests: {gather: {lines: 1}}'
  const yaml = configFor(upstream.base_url, `${ALLOWED}\n${plans}`)
  await using service = await TestService.start(
    yaml.replace('- id: m', '- id: m\n    endpoints: [/v1/responses]'),
    { worker: false },
  )
  const event_types = ['response.completed', 'response.cancelled']
  const hook = await service.json<{ secret: string }>('POST', '/v1/webhooks', {
    url: receiver.url,
    event_types,
  })
  receiver.secret = hook.secret
  const { responses } = new OpenAI({ apiKey: service.key, baseURL: `${service.url}/v1` })
  const kept = await responses.create({ model: 'm', input: 'a', background: true })
  const deleted = await responses.create({ model: 'm', input: 'b', background: true })
  const place = await service.json<{ batch_id: string }>(
    'GET',
    `/v1/requests/${deleted.id.replace('resp_', 'req_')}`,
  )
  await service.json('DELETE', `/v1/files/${(await service.get(place.batch_id)).input_file_id}`)
  await service.worker.start()
  await receiver.arrived(2)
  const told = receiver.received.map(({ event }) => [event?.type, event?.data.id])
  assert.deepEqual(told.sort(), [
    ['response.cancelled', deleted.id],
    ['response.completed', kept.id],
  ])
})

const LOST: Record<string, (stores: Stores, key: string) => Promise<unknown>> = {
  damaged: ({ blobs }, key) => blobs.delete(key),
  gone: ({ store }, key) => store.write((tx) => tx.deleteFrom('blobs').where('key', '=', key).execute()),
}
for (const [how, lose] of Object.entries(LOST))
  test(`records of one chunk that are ${how} keep back no events of others, and are tried again later`, async () => {
    await using upstream = await testUpstream()
    await using receiver = await testReceiver()
    const yaml = configFor(upstream.base_url, `${ALLOWED}\nrequests: {gather: {lines: 2}}`)
    await using service = await TestService.start(yaml)
    const event_types = ['request.completed']
    const hook = await service.json<{ secret: string }>('POST', '/v1/webhooks', {
      url: receiver.url,
      event_types,
    })
    receiver.secret = hook.secret
    const order = {
      endpoint: ORDER.endpoint,
      body: { model: 'm', messages: [{ role: 'user', content: 'a' }] },
    }
    const ids: string[] = []
    for (let i = 0; i < 2; i++)
      ids.push((await service.json<{ id: string }>('POST', '/v1/requests', order)).id)
    await receiver.arrived(2)
    const { store, sealed } = service.stores
    const chunks = await store.read.selectFrom('chunks').selectAll().orderBy('first_line').execute()
    assert.equal(chunks.length, 2)
    await lose(service.stores, chunks[0]?.audit_blob ?? '')
    await store.write((tx) => tx.updateTable('chunks').set({ announced: 0, announced_lines: null }).execute())
    const { batch_id: subject, project_id } = chunks[0]!
    const claimed = { kind: 'announce', subject, project_id, state: 'leased', epoch: 1 } as const
    const task = await store.write((tx) =>
      tx
        .insertInto('tasks')
        .values({ id: 'task_1', ...claimed, created: 0 })
        .returningAll()
        .executeTakeFirstOrThrow(),
    )
    await assert.rejects(announceLines({ store, sealed, clock: store.clock }, task), /audit|are gone/)
    const events = await store.read
      .selectFrom('events')
      .select('data')
      .where('type', '=', 'request.completed')
      .execute()
    assert.deepEqual(events.map(({ data }) => JSON.parse(data).id).sort(), [ids[0], ids[1], ids[1]])
  })

test('a failed batch tells its webhook, with a secret of the caller, and a retry takes a webhook of its own', async () => {
  await using upstream = await testUpstream()
  await using receiver = await testReceiver()
  await using service = await TestService.start(configFor(upstream.base_url, ALLOWED))
  receiver.secret = SECRET
  const requests = [{ custom_id: 'a', body: { model: 'nope', messages: [] } }]
  const order = { ...ORDER, requests, webhook: { url: receiver.url, secret: SECRET }, wait: '20s' }
  const batch = await service.json<WithWebhook>('POST', '/v1/batches', order)
  assert.deepEqual([batch.status, batch.webhook?.secret], ['failed', undefined])
  assert.ok(batch.webhook?.id)
  await receiver.arrived(1)
  assert.deepEqual(
    [receiver.received[0]?.event?.type, receiver.received[0]?.event?.data.batch_id],
    ['batch.failed', batch.id],
  )
  const again = await service.json<WithWebhook>('POST', `/v1/batches/${batch.id}/retry`, {})
  assert.equal(again.webhook, undefined)
  assert.equal((await service.json<Listed>('GET', `/v1/webhooks?batch_id=${again.id}`)).data.length, 0)
  const told = await service.json<WithWebhook>('POST', `/v1/batches/${batch.id}/retry`, {
    webhook: { url: receiver.url, secret: SECRET },
  })
  await service.ended(again.id)
  await service.ended(told.id)
  await receiver.arrived(2)
  assert.equal(receiver.received[1]?.event?.data.batch_id, told.id)
})

test('a webhook of a batch is checked before anything is stored, and needs its scope', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  const order = { ...ORDER, input_file_id: file }
  for (const [webhook, param] of [
    [{ url: 'http://hooks.example/' }, 'webhook.url'],
    [{ url: 'https://127.0.0.1/' }, 'webhook.url'],
    [{ url: 'https://u:p@hooks.example/' }, 'webhook.url'],
    [{ url: 'https://hooks.example/', secret: 'whsec_c2hvcnQ=' }, 'webhook.secret'],
    [{ url: 'https://hooks.example/', secret: `${SECRET}!` }, 'webhook.secret'],
    [
      { url: 'https://hooks.example/', secret: `whsec_${Buffer.alloc(24).toString('base64')}` },
      'webhook.secret',
    ],
    [{ secret: SECRET }, 'webhook.url'],
    [{ url: 'https://hooks.example/', event_types: null }, 'webhook.event_types'],
  ] as const) {
    for (const query of ['', '?dry_run=true']) {
      const { outcome, error } = await server.call('POST', `/v1/batches${query}`, {
        body: { ...order, webhook },
      })
      assert.deepEqual([outcome, error.param], ['400 invalid_request', param], JSON.stringify(webhook))
    }
  }
  const { key } = await server.issue({ scopes: ['batches:write'] })
  const body = { ...order, webhook: { url: 'https://hooks.example/' } }
  const refused = await server.call('POST', '/v1/batches', { body, key })
  assert.equal(refused.outcome, '403 missing_scope')
  assert.deepEqual((await server.call('GET', '/v1/batches')).data, [])
  const rows = await server.deps.store.read.selectFrom('webhooks').selectAll().execute()
  assert.deepEqual(rows, [])
})

test('the secret of a batch is in the first answer alone, and batches do not use up webhooks', async () => {
  await using server = await testServer()
  const file = await server.processedFile()
  const body = { ...ORDER, input_file_id: file, webhook: { url: 'https://hooks.example/' } }
  const call = () => server.call('POST', '/v1/batches', { body, headers: { 'idempotency-key': 'one' } })
  const first = await call()
  const { secret, ...shown } = Object(first.json.webhook)
  assert.match(String(secret), /^whsec_/)
  const second = await call()
  assert.deepEqual(second.json, { ...first.json, webhook: shown })
  const tables = ['idempotency_keys', 'http_requests', 'webhooks'] as const
  for (const table of tables) {
    const rows = await server.deps.store.read.selectFrom(table).selectAll().execute()
    assert.ok(rows.length > 0 && !JSON.stringify(rows).includes(String(secret)), table)
  }
  for (let i = 0; i < 21; i++) assert.equal((await server.call('POST', '/v1/batches', { body })).status, 200)
  const path = '/v1/webhooks'
  for (let i = 0; i < 20; i++)
    assert.equal((await server.call('POST', path, { body: { url: body.webhook.url } })).status, 200)
})
