// Events on their way to a receiver that verifies them with the public library, through everything that can
// go wrong in between.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { webhookAgent } from '../../src/notify/post-event.ts'
import { recordEvent } from '../../src/notify/record-event.ts'
import { readKey } from '../../src/store/projects.ts'
import { ok, type TestReceiver, testReceiver } from '../fakes/receiver.ts'
import { echo, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

const ALLOWED = 'webhooks: {allow_private_networks: true}'
/** Retries come at once, and receivers have little time. */
const FAST = { schedule: (_: unknown, now: number) => now, timeoutMs: 2_000 }

interface Webhook {
  id: string
  secret: string
  enabled: boolean
  disabled_reason: string | null
}

interface Delivery {
  event_id: string
  event_type: string
  status: string
  attempts: number
  last_status_code: number | null
  last_error: string | null
  next_attempt_at: number | null
}

async function hook(service: TestService, receiver: TestReceiver, more: object = {}): Promise<Webhook> {
  const webhook = await service.json<Webhook>('POST', '/v1/webhooks', { url: receiver.url, ...more })
  receiver.secret = webhook.secret
  return webhook
}

async function deliveries(service: TestService, id: string, status = ''): Promise<Delivery[]> {
  const query = status === '' ? '' : `?status=${status}`
  return (await service.json<{ data: Delivery[] }>('GET', `/v1/webhooks/${id}/deliveries${query}`)).data
}

/** Waits until no delivery of the webhook is pending. */
async function settled(service: TestService, id: string, count: number): Promise<Delivery[]> {
  return await service.eventually(async () => {
    const all = await deliveries(service, id)
    return all.length >= count && all.every((one) => one.status !== 'pending') ? all : undefined
  })
}

async function happen(service: TestService, n = 1): Promise<void> {
  const key = await readKey(service.stores.store.read, `key_${service.key.split('_')[2]}`)
  assert(key)
  await service.stores.store.write(async (tx) => {
    for (let i = 0; i < n; i++)
      await recordEvent(tx, { project_id: key.project_id, type: 'limit.reached', data: { i } }, Date.now())
  })
  service.worker.wake()
}

test('the end of a batch reaches a receiver that verifies it, and is the event that the API shows', async () => {
  await using upstream = await testUpstream()
  await using receiver = await testReceiver()
  await using service = await TestService.start(configFor(upstream.base_url, ALLOWED))
  const webhook = await hook(service, receiver, { event_types: ['batch.completed'] })
  const batch = await service.run([line('a'), line('b')], { metadata: { entity: 'user:1' } })
  await service.run([line('c', 'c', { model: 'nope' })])
  const [delivery] = await settled(service, webhook.id, 1)
  assert.equal(receiver.received.length, 1, 'the failed batch was not asked for')
  const { event, id } = receiver.received[0]!
  assert.deepEqual(event?.data, {
    id: batch.id,
    batch_id: batch.id,
    status: 'completed',
    input_file_id: batch.input_file_id,
    output_file_id: batch.output_file_id,
    error_file_id: null,
    request_counts: { total: 2, completed: 2, failed: 0 },
    not_run: 0,
    cost_usd: 0.000006,
    metadata: { entity: 'user:1' },
  })
  assert.equal(id, event?.id)
  assert.deepEqual(await service.json('GET', `/v1/events/${id}`), event)
  assert.deepEqual(
    [delivery?.status, delivery?.attempts, delivery?.last_status_code, delivery?.event_id],
    ['delivered', 1, 204, id],
  )
  const list = await service.json<{ data: { type: string }[] }>('GET', '/v1/events')
  assert.deepEqual(
    list.data.map((one) => one.type),
    ['batch.failed', 'batch.completed'],
  )
  const failed = await service.json<{ data: { type: string }[] }>('GET', '/v1/events?type=batch.failed')
  assert.equal(failed.data.length, 1)
})

test('cancelled and expired batches are events too', async () => {
  const held: (() => void)[] = []
  await using upstream = await testUpstream((call) => void held.push(() => echo(call)))
  await using service = await TestService.start(
    configFor(upstream.base_url, 'plans: {payg: {completion_windows: [24h, 1s], file_retention: 90d}}'),
  )
  const file = await service.upload(JSON.stringify(line('a')))
  const first = await service.create(file.id)
  await upstream.arrived(1)
  await service.json('POST', `/v1/batches/${first.id}/cancel`)
  held[0]?.()
  await service.ended(first.id)
  const second = await service.create(file.id, { completion_window: '1s' })
  await service.ended(second.id)
  const { data } = await service.json<{ data: { type: string; data: { batch_id: string } }[] }>(
    'GET',
    '/v1/events',
  )
  assert.deepEqual(
    data.map((event) => [event.type, event.data.batch_id]),
    [
      ['batch.expired', second.id],
      ['batch.cancelled', first.id],
    ],
  )
})

test('every event arrives under one ID, in spite of errors, hangs and broken connections', async () => {
  await using receiver = await testReceiver()
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1', ALLOWED), {
    delivery: FAST,
  })
  const webhook = await hook(service, receiver)
  const tries = new Map<string, number>()
  receiver.answer = (received) => {
    const n = (tries.get(received.id) ?? 0) + 1
    tries.set(received.id, n)
    if (n === 1) received.response.writeHead(500).end('the database is down\n\u0000 <script>')
    else if (n === 2) received.request.socket.resetAndDestroy()
    else if (n === 3) return
    else ok(received)
  }
  await happen(service, 6)
  const all = await settled(service, webhook.id, 6)
  assert.ok(all.every((one) => one.status === 'delivered' && one.attempts === 4))
  assert.ok(
    receiver.received.every((one) => one.event !== null),
    'each attempt was signed',
  )
  assert.equal(tries.size, 6)
  for (const n of tries.values()) assert.equal(n, 4)
})

test('the error of the receiver is stored, shortened', async () => {
  await using receiver = await testReceiver()
  let last = false
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1', ALLOWED), {
    delivery: { ...FAST, schedule: (_, now) => (last ? null : now) },
  })
  const webhook = await hook(service, receiver)
  last = true
  receiver.answer = ({ response }) => response.writeHead(500).end(`no\n\u0000 room ${'x'.repeat(100_000)}`)
  await happen(service)
  const [failed] = await settled(service, webhook.id, 1)
  assert.equal(failed?.status, 'failed')
  assert.equal(failed?.last_status_code, 500)
  assert.match(failed?.last_error ?? '', /^status 500: no room x+…$/)
  assert.ok((failed?.last_error ?? '').length < 250)
})

test('a receiver that is gone is not asked again', async () => {
  await using receiver = await testReceiver()
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1', ALLOWED), {
    delivery: FAST,
  })
  const webhook = await hook(service, receiver)
  receiver.answer = ({ response }) => response.writeHead(410).end()
  await happen(service)
  const [failed] = await settled(service, webhook.id, 1)
  assert.deepEqual([failed?.status, failed?.attempts, failed?.last_status_code], ['failed', 1, 410])
  const shown = await service.json<Webhook>('GET', `/v1/webhooks/${webhook.id}`)
  assert.deepEqual([shown.enabled, shown.disabled_reason], [false, 'the receiver answered 410 Gone'])
  await happen(service)
  assert.equal((await deliveries(service, webhook.id)).length, 1, 'nothing is queued for it')
  const refused = await service.request('POST', `/v1/webhooks/${webhook.id}/replay`)
  assert.equal(refused.status, 422)

  receiver.answer = ok
  await service.json('POST', `/v1/webhooks/${webhook.id}`, { enabled: true })
  const answer = await service.json('POST', `/v1/webhooks/${webhook.id}/replay`)
  assert.deepEqual(answer, { object: 'webhook.replay', webhook_id: webhook.id, queued: 1, has_more: false })
  const [again] = await settled(service, webhook.id, 1)
  assert.deepEqual([again?.status, again?.event_id], ['delivered', failed?.event_id])
  assert.equal(receiver.received.at(-1)?.id, failed?.event_id)
})

test('a redirect is not followed', async () => {
  await using receiver = await testReceiver()
  await using elsewhere = await testReceiver()
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1', ALLOWED), {
    delivery: { ...FAST, schedule: () => null },
  })
  const webhook = await hook(service, receiver)
  receiver.answer = ({ response }) => response.writeHead(307, { location: elsewhere.url }).end()
  await happen(service)
  const [failed] = await settled(service, webhook.id, 1)
  assert.equal(failed?.last_error, 'status 307, and redirects are not followed')
  assert.equal(elsewhere.received.length, 0)
})

test('a name that leads into a private network is refused when it is connected to', async () => {
  await using receiver = await testReceiver()
  for (const address of ['127.0.0.1', '::ffff:127.0.0.1', '10.1.2.3', '169.254.169.254', '::1', 'fd00::1']) {
    const family = address.includes(':') ? 6 : 4
    const agent = await webhookAgent({
      allow_private_networks: false,
      lookup: (_name, _options, done) => done(null, [{ address, family }]),
    })
    await using service = await TestService.start(configFor('http://127.0.0.1:1/v1'), {
      delivery: { ...FAST, schedule: () => null, agent: async () => agent },
    })
    const port = new URL(receiver.url).port
    const webhook = await service.json<Webhook>('POST', '/v1/webhooks', {
      url: `https://hooks.example:${port}/`,
    })
    await happen(service)
    const [failed] = await settled(service, webhook.id, 1)
    assert.equal(
      failed?.last_error,
      'its host leads to no address of the public internet (see webhooks.allow_private_networks)',
    )
    await agent.close()
  }
  assert.equal(receiver.received.length, 0)
})

test('a delivery that fails does not say what the name of its host resolves to', async () => {
  const receiver = await testReceiver()
  const { port } = new URL(receiver.url)
  await receiver[Symbol.asyncDispose]()
  for (const [code, expected] of [
    [null, 'the connection was refused (ECONNREFUSED)'],
    ['ENOTFOUND', 'the name of its host cannot be resolved (ENOTFOUND)'],
  ] as const) {
    const agent = await webhookAgent({
      allow_private_networks: true,
      lookup: (name, _options, done) => {
        const error = Object.assign(new Error(`lookup ${name} on 10.0.0.10:53`), { code: code ?? '' })
        done(code === null ? null : error, [{ address: '127.0.0.1', family: 4 }])
      },
    })
    await using service = await TestService.start(configFor('http://127.0.0.1:1/v1', ALLOWED), {
      delivery: { ...FAST, schedule: () => null, agent: async () => agent },
    })
    const webhook = await service.json<Webhook>('POST', '/v1/webhooks', { url: `http://inner:${port}/` })
    await happen(service)
    const [failed] = await settled(service, webhook.id, 1)
    assert.equal(failed?.last_error, expected)
    await agent.close()
  }
})

test('an address that was allowed once is refused when it no longer is', async () => {
  await using receiver = await testReceiver()
  const agent = await webhookAgent({ allow_private_networks: false })
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1', ALLOWED), {
    delivery: { ...FAST, schedule: () => null, agent: async () => agent },
  })
  const { port } = new URL(receiver.url)
  for (const host of ['127.0.0.1', '[::ffff:7f00:1]', 'localhost']) {
    const { id } = await service.json<Webhook>('POST', '/v1/webhooks', { url: `http://${host}:${port}/` })
    await happen(service)
    const [failed] = await settled(service, id, 1)
    assert.match(failed?.last_error ?? '', /leads to no address of the public internet/, host)
    await service.json('DELETE', `/v1/webhooks/${id}`)
  }
  assert.equal(receiver.received.length, 0)
})

test('after a rotation both secrets verify, and the old one no longer once the overlap is over', async () => {
  await using receiver = await testReceiver()
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1', ALLOWED))
  const webhook = await hook(service, receiver)
  const rotated = await service.json<Webhook>('POST', `/v1/webhooks/${webhook.id}/rotate_secret`)
  assert.notEqual(rotated.secret, webhook.secret)
  await happen(service)
  await receiver.arrived(1)
  receiver.secret = rotated.secret
  await happen(service)
  await receiver.arrived(2)
  assert.ok(receiver.received.every(({ event }) => event !== null))

  const third = await service.json<Webhook>('POST', `/v1/webhooks/${webhook.id}/rotate_secret`, {
    overlap_seconds: 0,
  })
  await happen(service)
  await receiver.arrived(3)
  assert.equal(receiver.received[2]?.event, null, 'the secret before is of no use')
  receiver.secret = third.secret
  await happen(service)
  await receiver.arrived(4)
  assert.notEqual(receiver.received[3]?.event, null)
})

test('any event can be sent again, also one from before the webhook was made', async () => {
  await using receiver = await testReceiver()
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1', ALLOWED))
  await happen(service)
  const webhook = await hook(service, receiver)
  const { data } = await service.json<{ data: { id: string }[] }>('GET', '/v1/events')
  const event_id = data[0]!.id
  for (let n = 1; n <= 2; n++) {
    await service.json('POST', `/v1/webhooks/${webhook.id}/replay`, { event_id })
    await receiver.arrived(n)
    await settled(service, webhook.id, 1)
  }
  assert.deepEqual(
    receiver.received.map((one) => one.event?.id),
    [event_id, event_id],
  )
  const unknown = await service.request('POST', `/v1/webhooks/${webhook.id}/replay`, { event_id: 'evt_x' })
  assert.equal(unknown.status, 404)
})

test('a test event reaches one webhook, whatever it subscribes to', async () => {
  await using receiver = await testReceiver()
  await using other = await testReceiver()
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1', ALLOWED))
  const webhook = await hook(service, receiver, { event_types: ['batch.failed'] })
  await hook(service, other)
  const path = `/v1/webhooks/${webhook.id}`
  const sent = await service.json<{ id: string; type: string; data: object }>('POST', `${path}/test`)
  assert.deepEqual([sent.type, sent.data], ['webhook.test', { webhook_id: webhook.id }])
  await receiver.arrived(1)
  await settled(service, webhook.id, 1)
  assert.deepEqual(receiver.received[0]?.event, sent)
  assert.equal(other.received.length, 0)
  const listed = await service.json<{ data: { id: string }[] }>('GET', '/v1/events?type=webhook.test')
  assert.deepEqual(
    listed.data.map(({ id }) => id),
    [sent.id],
  )
  const refused = await service.request('POST', '/v1/webhooks', {
    url: receiver.url,
    event_types: ['webhook.test'],
  })
  assert.equal(refused.status, 400, 'nobody subscribes to it')
  await service.json('POST', path, { enabled: false })
  assert.equal((await service.request('POST', `${path}/test`)).status, 422)
})

test('a crash between an event and its delivery loses nothing', async () => {
  await using receiver = await testReceiver()
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1', ALLOWED))
  const webhook = await hook(service, receiver)
  await service.worker.stop()
  await happen(service)
  assert.equal(receiver.received.length, 0)
  receiver.answer = () => {}
  await service.restartWorker()
  await receiver.arrived(1)
  // The second worker ends with the request under way, and nothing recorded of it.
  await service.worker.stop()
  assert.deepEqual(
    (await deliveries(service, webhook.id)).map(({ status, attempts }) => [status, attempts]),
    [['pending', 0]],
  )
  receiver.answer = ok
  await service.restartWorker()
  const [delivery] = await settled(service, webhook.id, 1)
  assert.equal(delivery?.status, 'delivered')
  assert.equal(new Set(receiver.received.map(({ id }) => id)).size, 1)
})

test('a receiver that hangs holds up neither files nor other receivers', async () => {
  await using upstream = await testUpstream()
  await using receiver = await testReceiver()
  await using unresponsive = await testReceiver()
  await using service = await TestService.start(configFor(upstream.base_url, ALLOWED), {
    delivery: { timeoutMs: 60_000 },
  })
  const stuck = await hook(service, unresponsive)
  unresponsive.answer = () => {}
  await happen(service, 30)
  await unresponsive.arrived(4)
  const fine = await hook(service, receiver, { event_types: ['batch.completed'] })
  const batch = await service.run([line('a')])
  assert.equal(batch.status, 'completed')
  await settled(service, fine.id, 1)
  assert.equal(receiver.received.length, 1)
  assert.equal(unresponsive.received.length, 4)
  await service.json('DELETE', `/v1/webhooks/${stuck.id}`)
})

test('each threshold of a limit is told once, and the cap itself too', async () => {
  await using upstream = await testUpstream()
  await using receiver = await testReceiver()
  await using service = await TestService.start(configFor(upstream.base_url, ALLOWED))
  const webhook = await hook(service, receiver, { event_types: ['limit.threshold_reached', 'limit.reached'] })
  // Each line takes 15 tokens.
  const limit = await service.json<{ id: string }>('POST', '/v1/limits', {
    scope: 'entity_type',
    entity_type: 'user',
    metric: 'tokens',
    amount: 60,
    window: 'month',
    action: 'notify',
    notify_at: [0.5, 0.75],
  })
  const twice = { metadata: { entity: 'user:1' } }
  await service.run([line('a')], twice)
  assert.equal((await deliveries(service, webhook.id)).length, 0)
  await service.run([line('b'), line('c')], twice)
  await service.run([line('d'), line('e')], twice)
  await service.run([line('f')], twice)
  await settled(service, webhook.id, 3)
  const told = receiver.received.map(({ event }) => [
    event?.type,
    event?.data.limit_id,
    event?.data.entity,
    event?.data.threshold,
  ])
  assert.deepEqual(told.sort(), [
    ['limit.reached', limit.id, 'user:1', 1],
    ['limit.threshold_reached', limit.id, 'user:1', 0.5],
    ['limit.threshold_reached', limit.id, 'user:1', 0.75],
  ])
})
