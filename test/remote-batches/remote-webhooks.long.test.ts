// Batch APIs that tell of ended batches by webhook: a provider's look-alike, and another Offpeak.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Webhook } from 'standardwebhooks'
import { BatchServer } from '../fakes/batch-server.ts'
import { testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

const SECRET = `whsec_${Buffer.from('a secret of the batch API').toString('base64')}`
const OTHER_SECRET = `whsec_${Buffer.from('another secret of nobody').toString('base64')}`
const LINES = Array.from({ length: 3 }, (_, i) => line(`l${i}`))
const HOUR_MS = 3_600_000

const config = (base_url: string, more: string): string => `
models:
  - id: m
    upstreams:
      - {type: openai-batch, name: provider, base_url: "${base_url}", ${more}}
worker: {flush_interval: 20ms, lease: 2s}`

interface Event {
  id?: string
  secret?: string
  at?: number
  body?: string
  headers?: Record<string, string>
}

/** What the endpoint answers to a webhook request. */
async function tell(
  service: TestService,
  batch: string,
  { id = 'evt_1', secret = SECRET, at = Date.now(), body, headers = {} }: Event = {},
): Promise<number> {
  const text = body ?? JSON.stringify({ object: 'event', id, type: 'batch.completed', data: { id: batch } })
  const time = new Date(at)
  const response = await fetch(`${service.url}/v1/batch-apis/webhook`, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      'webhook-id': id,
      'webhook-timestamp': String(Math.floor(at / 1000)),
      'webhook-signature': new Webhook(secret).sign(id, time, text),
      ...headers,
    },
    body: text,
  })
  return response.status
}

/** Starts a batch and has nobody look at it there for an hour. */
async function unwatched(service: TestService, isThere: () => Promise<unknown>): Promise<string> {
  const file = await service.upload(LINES.map((one) => JSON.stringify(one)).join('\n'))
  const { id } = await service.create(file.id)
  await isThere()
  const { store } = service.stores
  const open = () => store.read.selectFrom('remote_batches').selectAll().where('state', '=', 'open').execute()
  while ((await open()).length === 0) await new Promise((resolve) => setTimeout(resolve, 20))
  for (;;) {
    const poll_at = Date.now() + HOUR_MS
    await store.write((tx) => tx.updateTable('remote_batches').set({ poll_at }).execute())
    // A look that was under way may have stored its own time.
    await new Promise((resolve) => setTimeout(resolve, 300))
    if ((await open()).every((row) => row.poll_at === poll_at)) return id
  }
}

test('a webhook of the batch API has its batch looked at now; nothing else does', async () => {
  await using remote = await BatchServer.start({ holds: true })
  await using service = await TestService.start(config(remote.base_url, `webhook_secret: ${SECRET}`))
  const id = await unwatched(
    service,
    async () => await remote.until(() => remote.creates.length || undefined),
  )
  const [there] = [...remote.batches.keys()] as [string]
  remote.faults.holds = false
  const looks = () => remote.calls.filter((call) => call === `GET /batches/${there}`).length
  const before = looks()
  assert.equal(await tell(service, there, { secret: OTHER_SECRET }), 401)
  assert.equal(await tell(service, there, { at: Date.now() - 10 * 60_000 }), 401)
  assert.equal(await tell(service, there, { headers: { 'webhook-signature': '' } }), 401)
  assert.equal(await tell(service, there, { headers: { 'webhook-id': 'evt_2' } }), 401)
  assert.equal(await tell(service, 'batch-of-nobody'), 200)
  assert.equal(await tell(service, there, { body: 'no JSON' }), 200)
  assert.equal(await tell(service, there, { body: '{"data":{"id":7}}' }), 200)
  const [row] = await service.stores.store.read.selectFrom('remote_batches').selectAll().execute()
  assert.ok((row?.poll_at ?? 0) > Date.now() + HOUR_MS / 2)
  assert.equal(looks(), before)
  assert.equal(await tell(service, there), 200)
  const batch = await service.ended(id)
  assert.equal(batch.request_counts.completed, 3)
  // It comes again.
  assert.equal(await tell(service, there), 200)
  assert.equal(remote.batches.size, 1)
})

test('without a secret no webhook is accepted', async () => {
  await using remote = await BatchServer.start()
  await using service = await TestService.start(config(remote.base_url, 'timeout: 10s'))
  assert.equal(await tell(service, 'batch-1'), 401)
})

test('a cell tells its front by its own webhooks', async () => {
  const answers: (() => void)[] = []
  await using server = await testUpstream()
  const { reply } = server
  server.reply = (call) => void answers.push(() => void reply(call))
  await using cell = await TestService.start(
    configFor(server.base_url, 'webhooks: {allow_private_networks: true}'),
  )
  const webhook = await cell.json<{ id: string; secret: string }>('POST', '/v1/webhooks', {
    url: 'http://127.0.0.1:9/not-known-yet',
  })
  const front = await TestService.start(
    config(`${cell.url}/v1`, 'headers: {authorization: "Bearer CELL"}, webhook_secret: SECRET')
      .replace('CELL', cell.key)
      .replace('SECRET', webhook.secret),
  )
  try {
    await cell.json('POST', `/v1/webhooks/${webhook.id}`, { url: `${front.url}/v1/batch-apis/webhook` })
    const id = await unwatched(front, async () => await server.arrived(3))
    for (const answer of answers) answer()
    const batch = await front.ended(id)
    assert.equal(batch.request_counts.completed, 3)
    const { data } = await cell.json<{ data: { status: string; last_status_code: number }[] }>(
      'GET',
      `/v1/webhooks/${webhook.id}/deliveries`,
    )
    assert.deepEqual(
      data.map(({ status, last_status_code }) => [status, last_status_code]),
      [['delivered', 200]],
    )
  } finally {
    await front[Symbol.asyncDispose]()
  }
})
