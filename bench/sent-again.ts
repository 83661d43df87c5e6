// How many lines a kill of everything repeats: the service and its worker are killed with SIGKILL while a batch runs, and
// started again on the same folder. Lines in flight are sent again in any case, since it is not known whether they were
// answered; so are lines that were answered, but in no journal yet. Their number is told in seconds of throughput.
//
//   node bench/sent-again.ts [--kills 8] [--lines 20000] [--concurrency 256] [--latency-ms 200]
import { once } from 'node:events'
import { mkdirSync } from 'node:fs'
import { createServer } from 'node:http'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { completion } from '../test/fakes/upstream.ts'
import { Bench, familyOf, modelAt, option, rounded, type Service, startService } from './harness.ts'

/** Long enough for all slots to be busy again. */
const BETWEEN_MS_MIN = 1_500
const BETWEEN_MS_SPREAD = 500

const kills = option('kills', 8)
const lines = option('lines', 20_000)
const concurrency = option('concurrency', 256)
const latencyMs = option('latency-ms', 200)
await using bench = new Bench('sent-again')
const answer = completion('as it was before')
let calls = 0
let inFlight = 0
let answered = 0
const upstream = createServer((request, response) => {
  request.resume()
  if (request.method !== 'POST') {
    response.writeHead(404).end()
    return
  }
  calls++
  inFlight++
  // Also of a client that is gone: an answer that was not received was in flight.
  globalThis.setTimeout(() => {
    inFlight--
    if (!response.destroyed) answered++
    response.setHeader('content-type', 'application/json').end(answer)
  }, latencyMs)
})
const config = modelAt(await bench.listen(upstream), concurrency)
const folder = join(bench.folder, 'killed')
mkdirSync(folder)
let service: Service = await startService(folder, config)
bench.defer(() => service.stop())
const { id } = await service.client.create(await service.client.upload(await bench.lines(lines, 400), 50))

const rows: { 'in flight': number; 'lines/s': number }[] = []
for (let kill = 0; kill < kills; kill++) {
  const [begun, before] = [performance.now(), answered]
  await setTimeout(BETWEEN_MS_MIN + (BETWEEN_MS_SPREAD * kill) / kills)
  const { process: serve } = service
  const family = familyOf(serve.pid)
  rows.push({
    'in flight': inFlight,
    'lines/s': rounded((answered - before) / ((performance.now() - begun) / 1000)),
  })
  for (const pid of family) process.kill(pid, 'SIGKILL')
  if (serve.exitCode === null && serve.signalCode === null) await once(serve, 'exit')
  service = await startService(folder, config)
}
const { request_counts } = await service.client.completed(id, 50)
if (request_counts.completed !== lines)
  throw new Error(`${request_counts.completed} of ${lines} were answered`)

const again = (calls - lines - rows.reduce((sum, row) => sum + row['in flight'], 0)) / kills
const throughput = (concurrency * 1000) / latencyMs
console.table(rows)
console.log(
  `${calls} calls for ${lines} lines; ${rounded(again)} lines a kill were sent again beyond those in flight`,
)
bench.figure('lines sent again beyond those in flight, in seconds of throughput', again / throughput, {
  atMost: 0.1,
})
