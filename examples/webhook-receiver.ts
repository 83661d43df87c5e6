// A receiver of events: it verifies the signature over the bytes as they came, answers at once, and remembers
// which events it has handled, since an event may arrive twice. `webhooks.allow_private_networks: true` in the
// configuration lets a service send to an address of this machine.
//
//   node examples/webhook-receiver.ts
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { Webhook } from 'standardwebhooks'
import { client, runBatch } from './run-batch.ts'

let secret = ''
const handled = new Set<string>()
const ended = Promise.withResolvers<{ type: string; data: { batch_id: string; cost_usd: number } }>()

const receiver = createServer(async (request, response) => {
  const body = await buffer(request)
  try {
    const headers = Object.fromEntries(
      Object.entries(request.headers).map(([name, value]) => [name, String(value)]),
    )
    const event = new Webhook(secret).verify(body.toString(), headers)
    response.writeHead(204).end()
    if (handled.has(headers['webhook-id'] ?? '')) return
    handled.add(headers['webhook-id'] ?? '')
    ended.resolve(event as Awaited<typeof ended.promise>)
  } catch {
    response.writeHead(400).end()
  }
})
receiver.listen(0, '127.0.0.1')
await once(receiver, 'listening')

const { port } = receiver.address() as AddressInfo
const webhook = await client.post<{ id: string; secret: string }>('/webhooks', {
  body: { url: `http://127.0.0.1:${port}/offpeak`, event_types: ['batch.completed'] },
})
secret = webhook.secret

await runBatch([
  {
    custom_id: 'hello',
    body: { model: 'sim-1', messages: [{ role: 'user', content: 'Hello' }], max_tokens: 8 },
  },
])
const { type, data } = await ended.promise
console.log(`${type}: ${data.batch_id} for ${data.cost_usd} USD`)

await client.delete(`/webhooks/${webhook.id}`)
receiver.close()
