// serve-part.ts postgres|bucket|model ADDRESS: one of the servers that the hosts use; its first line is its URL.

import { createServer } from 'node:http'
import { text } from 'node:stream/consumers'
import { setTimeout as wait } from 'node:timers/promises'
import { postgresServer } from '../fakes/postgres-server.ts'
import { s3Server } from '../fakes/s3-server.ts'
import { completion } from '../fakes/upstream.ts'
import { listen } from '../support/listen.ts'
import type { ModelCall } from './model-calls.ts'

const MODEL_PORT = 8000
const BUCKET_PORT = 9000
const ANSWER_MS = 200

const [part, host = ''] = process.argv.slice(2)
for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => process.exit(0))
process.stdout.write(`${await start()}\n`)

async function start(): Promise<string> {
  if (part === 'postgres') {
    // The script that made the folder removes it.
    const { OFFPEAK_HOSTS_FOLDER: parent = '/tmp' } = process.env
    return await (await postgresServer({ host, parent })).database('empty')
  }
  if (part === 'bucket') return (await s3Server(BUCKET_PORT, host)).endpoint
  return await modelServer()
}

/** Echoes each line, and tells at `/calls` who sent what and when. */
async function modelServer(): Promise<string> {
  const calls: ModelCall[] = []
  const server = createServer({ keepAliveTimeout: 60_000 }, async (request, response) => {
    if (request.url === '/calls') {
      response.end(JSON.stringify(calls))
      return
    }
    // Whoever was cut off within a request is gone.
    const body = await text(request).catch(() => '')
    if (body === '') {
      response.writeHead(404).end()
      return
    }
    const said = textOf(body)
    const from = request.socket.remoteAddress?.replace('::ffff:', '') ?? ''
    calls.push({ text: said, from, at: Date.now() })
    await wait(ANSWER_MS)
    response.setHeader('content-type', 'application/json').end(completion(said))
  })
  return `${(await listen(server, MODEL_PORT, host)).url}/v1`
}

function textOf(body: string): string {
  const { messages }: { messages: { content: string }[] } = JSON.parse(body)
  return messages.at(-1)?.content ?? ''
}
