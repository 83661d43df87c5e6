// A receiver of webhooks on a free port. It verifies what arrives as any receiver would, with the public library,
// and answers as the test says.
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { text } from 'node:stream/consumers'
import { Webhook } from 'standardwebhooks'
import { type Listening, listen } from '../support/listen.ts'

export interface Received {
  id: string
  body: string
  /** The body as the library handed it on; null when it did not verify. */
  event: { id: string; type: string; data: Record<string, unknown> } | null
  request: IncomingMessage
  response: ServerResponse
}

export interface TestReceiver extends Listening {
  received: Received[]
  /** Set by the test once it is known. */
  secret: string
  answer: (received: Received) => void
  /** Resolves when `count` requests have arrived. */
  arrived(count: number): Promise<void>
}

export async function testReceiver(): Promise<TestReceiver> {
  let waiting: (() => void)[] = []
  const server = createServer(async (request, response) => {
    response.on('error', () => {})
    const body = await text(request).catch(() => '')
    const id = String(request.headers['webhook-id'])
    const received = { id, body, event: verified(receiver.secret, body, request), request, response }
    receiver.received.push(received)
    receiver.answer(received)
    const told = waiting
    waiting = []
    for (const tell of told) tell()
  })
  const at = await listen(server)
  const receiver: TestReceiver = {
    ...at,
    url: `${at.url}/hook`,
    received: [],
    secret: '',
    answer: ok,
    async arrived(count) {
      while (receiver.received.length < count) await new Promise<void>((resolve) => waiting.push(resolve))
    },
  }
  return receiver
}

export function ok({ response }: Received): void {
  response.writeHead(204).end()
}

function verified(secret: string, body: string, request: IncomingMessage): Received['event'] {
  const headers = Object.fromEntries(
    Object.entries(request.headers).map(([name, value]) => [name, String(value)]),
  )
  try {
    return new Webhook(secret).verify(body, headers) as Received['event']
  } catch {
    return null
  }
}
