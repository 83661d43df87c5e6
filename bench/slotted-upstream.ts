// A model server with a fixed number of slots: each line takes 100 to 300 ms of one, and what finds none free is
// refused with a 429. A line on stdin `slots N` changes their number; `report` prints what happened since the start.
import { createServer } from 'node:http'
import { createInterface } from 'node:readline'

const LATENCY_MS_MIN = 100
const LATENCY_MS_SPREAD = 200

let slots = Number(process.argv[2] ?? 256)
let busy = 0
let refused = 0
let served = 0
/** Slot-milliseconds that the answered lines have taken. */
let work_ms = 0
let seed = 1

/** In [0, 1), the same in every run. */
function random(): number {
  seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0
  return seed / 2 ** 32
}

const answer = JSON.stringify({
  id: 'chatcmpl-1',
  object: 'chat.completion',
  created: 1,
  model: 'bench',
  choices: [{ index: 0, message: { role: 'assistant', content: 'done' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 },
})

const server = createServer((request, response) => {
  request.resume()
  response.setHeader('content-type', 'application/json')
  if (busy >= slots) {
    refused++
    response.writeHead(429).end('{"error":{"message":"no slot is free"}}')
    return
  }
  busy++
  const takes_ms = LATENCY_MS_MIN + random() * LATENCY_MS_SPREAD
  setTimeout(() => {
    busy--
    served++
    work_ms += takes_ms
    response.end(answer)
  }, takes_ms)
})

server.listen(0, '127.0.0.1', () => {
  const address = server.address()
  if (address === null || typeof address === 'string') throw new Error('no port was given')
  console.log(`http://127.0.0.1:${address.port}/v1`)
})

createInterface({ input: process.stdin }).on('line', (line) => {
  const [verb, value] = line.split(' ')
  if (verb === 'slots') slots = Number(value)
  else if (verb === 'report') console.log(JSON.stringify({ served, refused, work_ms }))
})
