// node test/kill/recording-proxy.ts LOG SEED
// The model server of a crash run, in a process that is never killed. It logs every call and every answer, so repeated
// calls are known. Each answer has a unique text, so that an answer in a result file can be traced to its call. Prints its URL.
import { openSync, writeSync } from 'node:fs'
import { createServer, type ServerResponse } from 'node:http'
import { completion, send } from '../fakes/upstream.ts'
import { seededRandom } from '../simulation/seeded-random.ts'
import { listen } from '../support/listen.ts'

const [path = '', seed = '1'] = process.argv.slice(2)
const log = openSync(path, 'a')
const random = seededRandom(Number(seed))
let calls = 0

function note(what: string, call: number, more: object = {}): void {
  writeSync(log, `${JSON.stringify({ at: Date.now(), what, call, ...more })}\n`)
}

/** Mostly quick, sometimes slow enough to be in flight at any moment. */
function latencyMs(): number {
  if (random.chance(0.7)) return random.int(2, 40)
  return random.chance(0.8) ? random.int(40, 300) : random.int(300, 1200)
}

function answer(call: number, mark: string, max_tokens: number, response: ServerResponse): void {
  const fate = random.next()
  if (fate < 0.01) {
    note('refused', call, { status: 0 })
    response.destroy()
    return
  }
  const status = fate < 0.03 ? 429 : fate < 0.05 ? 503 : fate < 0.055 ? 400 : 200
  if (status !== 200) {
    note('refused', call, { status })
    const error = { message: `refused with ${status}`, type: 'fault', code: null }
    send(response, status, JSON.stringify({ error }))
    return
  }
  const usage = { prompt_tokens: random.int(1, 4), completion_tokens: random.int(1, max_tokens) }
  const content = `${mark} ${call}`
  // Before it is sent: nobody can have an answer that is not written down.
  note('answer', call, { content, ...usage })
  const total_tokens = usage.prompt_tokens + usage.completion_tokens
  send(response, 200, completion(content, { ...usage, total_tokens }))
}

const server = createServer({ keepAliveTimeout: 60_000 }, (request, response) => {
  // Services ask what models it has.
  if (request.method !== 'POST') {
    response.writeHead(404).end()
    return
  }
  const pieces: Buffer[] = []
  request.on('data', (piece: Buffer) => pieces.push(piece))
  request.on('end', () => {
    const call = ++calls
    const { messages, max_tokens } = JSON.parse(Buffer.concat(pieces).toString())
    const mark = String(messages.at(-1).content)
    note('call', call, { mark })
    response.on('close', () => note(response.writableFinished ? 'sent' : 'gone', call))
    setTimeout(() => {
      if (!response.destroyed) answer(call, mark, max_tokens, response)
    }, latencyMs())
  })
})
process.stdout.write(`${(await listen(server)).url}/v1\n`)
