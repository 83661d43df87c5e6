// A model server with a fixed number of slots: each line takes 100 to 300 ms of one, and what finds none free is
// refused with a 429. A line on stdin `slots N` changes their number; `report` prints what happened since the start:
// how many lines were served and refused, when the number of slots changed, and how many were busy when.
import { createServer } from 'node:http'
import { createInterface } from 'node:readline'
import { completion } from '../test/fakes/upstream.ts'
import { listen } from '../test/support/listen.ts'

const LATENCY_MS_MIN = 100
const LATENCY_MS_SPREAD = 200
/** The busy slots are told as means over so many milliseconds. */
const STEP_MS = 20

let slots = Number(process.argv[2] ?? 256)
let busy = 0
let refused = 0
let served = 0
let seed = 1

const started = performance.now()
/** Milliseconds since the start, as every time here. */
const now = (): number => performance.now() - started
let until = 0
/** Slot-milliseconds that were busy, by step; and requests that were refused. */
const busy_ms: number[] = []
const apiErrors: number[] = []
const changes = [{ at: 0, slots }]

/** In [0, 1), the same in every run. */
function random(): number {
  seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0
  return seed / 2 ** 32
}

/** Counts the time since the last change; to be called before every change of `busy`. */
function count(): void {
  const end = now()
  while (until < end) {
    const step = Math.floor(until / STEP_MS)
    const next = Math.min(end, (step + 1) * STEP_MS)
    busy_ms[step] = (busy_ms[step] ?? 0) + busy * (next - until)
    apiErrors[step] ??= 0
    until = next
  }
}

const answer = completion('done')

const server = createServer((request, response) => {
  request.resume()
  if (request.method !== 'POST') {
    response.writeHead(404).end()
    return
  }
  response.setHeader('content-type', 'application/json')
  count()
  if (busy >= slots) {
    refused++
    apiErrors[apiErrors.length - 1]!++
    response.writeHead(429).end('{"error":{"message":"no slot is free"}}')
    return
  }
  busy++
  setTimeout(
    () => {
      count()
      busy--
      served++
      response.end(answer)
    },
    LATENCY_MS_MIN + random() * LATENCY_MS_SPREAD,
  )
})

console.log(`${(await listen(server)).url}/v1`)

createInterface({ input: process.stdin }).on('line', (line) => {
  const [verb, value] = line.split(' ')
  count()
  if (verb === 'slots') {
    slots = Number(value)
    changes.push({ at: now(), slots })
  } else if (verb === 'report')
    console.log(
      JSON.stringify({ now: now(), served, refused, step_ms: STEP_MS, busy_ms, apiErrors, changes }),
    )
})
