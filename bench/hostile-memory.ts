// Peak memory of API and worker, each a process, where content is made to cost memory: huge answers that come all at
// once, huge lines, audit records and pages out of fat chunks, downloads whose readers are slow. The model server is
// in this process. Every shape that fills the worker has a service of its own; the shapes that read share one.
//
//   node bench/hostile-memory.ts [--only answers-300k,lines-8m] [--scale 1]
import { once } from 'node:events'
import { createWriteStream, writeFileSync } from 'node:fs'
import { createServer, type ServerResponse } from 'node:http'
import { connect } from 'node:net'
import { join } from 'node:path'
import { lineRequestId } from '../src/domain/ids.ts'
import { completion } from '../test/fakes/upstream.ts'
import { Bench, familyOf, option, runBatch, type Service } from './harness.ts'

const only = option('only', '')
const scale = option('scale', 1)
await using bench = new Bench('hostile-memory')
const GOAL_MIB = 350
const MIB = 1024 * 1024

const rows: { shape: string; seconds: number; 'API, MiB': number; 'worker, MiB': number }[] = []

/** The behaviour of the model server: the size of its answers, and how many calls it gathers before it answers them all. */
const server = { answer: Buffer.alloc(0), gather: 1, pieces: 1, waiting: [] as ServerResponse[] }
/** A call that is not followed by others is answered after this. */
const GATHER_MS = 1_000

const upstream = createServer((request, response) => {
  request.resume().once('end', () => {
    if (request.method !== 'POST') return void response.writeHead(404).end()
    server.waiting.push(response)
    if (server.waiting.length >= server.gather) answerAll()
    else if (server.waiting.length === 1) setTimeout(answerAll, GATHER_MS).unref()
  })
})

const base_url = await bench.listen(upstream)
const upstreamAt = `{type: openai, base_url: "${base_url}", model: other, concurrency_max: 256}`

function answerAll(): void {
  for (const response of server.waiting.splice(0)) {
    const { answer, pieces } = server
    const head = { 'content-type': 'application/json' }
    response.writeHead(200, pieces === 1 ? { ...head, 'content-length': answer.length } : head)
    const size = Math.ceil(answer.length / pieces)
    for (let at = 0; at < answer.length; at += size) response.write(answer.subarray(at, at + size))
    response.end()
  }
}

/** Text that does not become smaller than three quarters of itself. */
function noise(bytes: number): string {
  return Buffer.from(crypto.getRandomValues(new Uint8Array(65536)))
    .toString('base64')
    .repeat(Math.ceil(bytes / 87384))
    .slice(0, bytes)
}

function answerOf(bytes: number): Buffer {
  return Buffer.from(completion(noise(bytes)))
}

/** A service before the model server of this process. */
async function newService(): Promise<Service> {
  const model = `{id: bench, context_window: 100000000, upstreams: [${upstreamAt}]}`
  // All of the slow downloads are of one project, which gets at most half of those of a process.
  const plans = 'plans: {payg: {quotas: {downloads: off}}}'
  return await bench.service(`${plans}\nmodels: [${model}]`, { flags: ['--workers', '1'] })
}

/** The ID of an uploaded file of lines that do not become much smaller. */
async function uploaded({ client }: Service, lines: number, bytes: number): Promise<string> {
  const path = join(bench.folder, 'hostile.jsonl')
  const out = createWriteStream(path)
  const content = noise(bytes)
  for (let i = 0; i < lines; i++) {
    const body = { model: 'bench', messages: [{ role: 'user', content }], max_tokens: 16 }
    const line = { custom_id: `line-${i}`, method: 'POST', url: '/v1/chat/completions', body }
    if (!out.write(`${JSON.stringify(line)}\n`)) await once(out, 'drain')
  }
  out.end()
  await once(out, 'finish')
  return await client.upload(path, 50)
}

async function read({ url, key }: Service, path: string): Promise<void> {
  const response = await fetch(url + path, { headers: { authorization: `Bearer ${key}` } })
  for await (const _ of response.body ?? []);
  if (!response.ok) throw new Error(`${path}: ${response.status}`)
}

/** Runs `work`, and says how far memory rose meanwhile. */
async function measure(service: Service, shape: string, work: () => Promise<unknown>): Promise<void> {
  // The peak so far is forgotten (proc_pid_clear_refs(5)).
  for (const pid of familyOf(service.process.pid)) writeFileSync(`/proc/${pid}/clear_refs`, '5')
  const begun = performance.now()
  await work()
  const seconds = Math.round((performance.now() - begun) / 100) / 10
  const [api = 0, worker = 0] = service.peak_mib()
  rows.push({ shape, seconds, 'API, MiB': api, 'worker, MiB': worker })
  bench.figure(`${shape}: the larger process, MiB`, Math.max(api, worker), { atMost: GOAL_MIB })
}

/** Asks for a file and reads next to nothing of it. */
async function slowReader(service: Service, path: string): Promise<() => void> {
  const { hostname, port } = new URL(service.url)
  const socket = connect({ host: hostname, port: Number(port) })
  await once(socket, 'connect')
  socket.write(`GET ${path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${service.key}\r\n\r\n`)
  await once(socket, 'readable')
  return () => socket.destroy()
}

const wanted = (shape: string): boolean => only === '' || only.split(',').includes(shape)

async function answers(
  shape: string,
  order: { lines: number; bytes: number; gather: number; pieces?: number; line_bytes?: number },
): Promise<void> {
  if (!wanted(shape)) return
  const service = await newService()
  Object.assign(server, { answer: answerOf(order.bytes), gather: order.gather, pieces: order.pieces ?? 1 })
  await measure(service, shape, async () =>
    runBatch(service, await uploaded(service, order.lines, order.line_bytes ?? 100), { askMs: 100 }),
  )
  await service.stop()
}

const count = (lines: number): number => Math.max(1, Math.round(lines * scale))

await answers('answers-300k', { lines: count(1000), bytes: 300_000, gather: 1 })
await answers('answers-300k-at-once', { lines: count(2000), bytes: 300_000, gather: 256 })
await answers('answers-8m-at-once', { lines: count(128), bytes: 8 * MIB, gather: 64 })
await answers('answers-60m-at-once', { lines: count(8), bytes: 60 * MIB, gather: 8 })
await answers('answers-in-small-pieces', { lines: count(64), bytes: MIB, gather: 32, pieces: 20_000 })
await answers('lines-8m', { lines: count(64), bytes: 1000, gather: 32, line_bytes: 8 * MIB - 1000 })

if (['audit-reads', 'pages', 'slow-downloads', 'downloads'].some(wanted)) {
  const service = await newService()
  const lines = count(1000)
  Object.assign(server, { answer: answerOf(300_000), gather: 1, pieces: 1 })
  const { id } = await runBatch(service, await uploaded(service, lines, 100))
  const { output_file_id } = await service.client.get(id)
  const path = `/v1/files/${output_file_id}/content`
  const times = async (calls: number, work: (i: number) => Promise<unknown>): Promise<void> => {
    await Promise.all(Array.from({ length: calls }, (_, i) => work(i)))
  }
  if (wanted('audit-reads'))
    await measure(service, 'audit-reads', async () => {
      for (let round = 0; round < 4; round++)
        await times(64, (i) =>
          read(service, `/v1/requests/${lineRequestId(id, 1 + ((i * 13 + round) % lines))}`),
        )
    })
  if (wanted('pages'))
    await measure(service, 'pages', () =>
      times(32, (i) => read(service, `/v1/batches/${id}/results?after=${i * 20}`)),
    )
  if (wanted('downloads')) await measure(service, 'downloads', () => times(8, () => read(service, path)))
  if (wanted('slow-downloads'))
    await measure(service, 'slow-downloads', async () => {
      const leave = await Promise.all(Array.from({ length: 100 }, () => slowReader(service, path)))
      await read(service, path)
      for (const one of leave) one()
    })
}

console.table(rows)
