// Peak memory of API and worker, each a process, where content is made to cost memory: huge answers that come all at
// once, huge lines, audit records and pages out of fat chunks, downloads whose readers are slow. The model server is
// in this process. Every shape that fills the worker has a service of its own; the shapes that read share one.
//
//   node bench/hostile-memory.ts [--only answers-300k,lines-8m] [--scale 1]
import { once } from 'node:events'
import { createWriteStream, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type ServerResponse } from 'node:http'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { lineRequestId } from '../src/domain/ids.ts'
import type { BatchClient } from './batch-client.ts'
import { familyOf } from './processes.ts'
import { type Service, startService } from './service.ts'

const { values } = parseArgs({
  options: { only: { type: 'string' }, scale: { type: 'string', default: '1' } },
})
const only = values.only?.split(',')
const scale = Number(values.scale)
const GOAL_MIB = 400
const MIB = 1024 * 1024

interface Row {
  shape: string
  seconds: number
  'API, MiB': number
  'worker, MiB': number
  'goal, MiB': number
}

const rows: Row[] = []

/** What the model server does: how large its answers are, and how many calls it gathers before it answers them all. */
const server = { answer: Buffer.alloc(0), gather: 1, pieces: 1, waiting: [] as ServerResponse[] }
/** A call that is not followed by others is answered after this. */
const GATHER_MS = 1_000

const upstream = createServer((request, response) => {
  request.resume().once('end', () => {
    server.waiting.push(response)
    if (server.waiting.length >= server.gather) answerAll()
    else if (server.waiting.length === 1) setTimeout(answerAll, GATHER_MS).unref()
  })
})

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
  return Buffer.from(
    JSON.stringify({
      id: 'chatcmpl-1',
      object: 'chat.completion',
      created: 1,
      model: 'bench',
      choices: [{ index: 0, message: { role: 'assistant', content: noise(bytes) }, finish_reason: 'stop' }],
      usage: { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 },
    }),
  )
}

class Measured implements AsyncDisposable {
  readonly folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
  #started: Service | null = null
  client!: BatchClient
  url = ''
  key = ''

  async begin(): Promise<this> {
    const address = upstream.address()
    if (address === null || typeof address === 'string') throw new Error('the model server has no port')
    this.#started = await startService(
      this.folder,
      `
models:
  - id: bench
    context_window: 100000000
    upstreams: [{type: openai, base_url: "http://127.0.0.1:${address.port}/v1", model: other, concurrency_max: 256}]
`,
      ['--workers', '1'],
    )
    this.url = this.#started.url
    this.key = this.#started.key
    this.client = this.#started.client
    return this
  }

  async batch(lines: number, bytes: number): Promise<string> {
    const path = join(this.folder, 'input.jsonl')
    const out = createWriteStream(path)
    const content = noise(bytes)
    for (let i = 0; i < lines; i++) {
      const body = { model: 'bench', messages: [{ role: 'user', content }], max_tokens: 16 }
      const text = JSON.stringify({
        custom_id: `line-${i}`,
        method: 'POST',
        url: '/v1/chat/completions',
        body,
      })
      if (!out.write(`${text}\n`)) await once(out, 'drain')
    }
    out.end()
    await once(out, 'finish')
    const { id } = await this.client.create(await this.client.upload(path, 50))
    return id
  }

  async completed(id: string, lines: number): Promise<{ output_file_id: string }> {
    const batch = await this.client.completed(id, 100)
    if (batch.request_counts.completed !== lines)
      throw new Error(`only ${batch.request_counts.completed} of ${lines} lines were answered`)
    return batch as unknown as { output_file_id: string }
  }

  async get(path: string): Promise<number> {
    const response = await fetch(this.url + path, { headers: { authorization: `Bearer ${this.key}` } })
    let bytes = 0
    for await (const piece of response.body ?? []) bytes += piece.length
    if (!response.ok) throw new Error(`${path}: ${response.status}`)
    return bytes
  }

  /** Runs `work`, and says how far memory rose meanwhile. */
  async measure(shape: string, work: () => Promise<void>): Promise<void> {
    // The peak so far is forgotten (proc_pid_clear_refs(5)).
    for (const pid of familyOf(this.#started?.process.pid)) writeFileSync(`/proc/${pid}/clear_refs`, '5')
    const begun = performance.now()
    await work()
    const seconds = Math.round((performance.now() - begun) / 100) / 10
    const [api = 0, worker = 0] = this.#started?.peak_mib() ?? []
    rows.push({ shape, seconds, 'API, MiB': api, 'worker, MiB': worker, 'goal, MiB': GOAL_MIB })
    console.log(`${shape}: API ${api} MiB, worker ${worker} MiB, ${seconds} s`)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#started?.stop()
    rmSync(this.folder, { recursive: true })
  }
}

/** Asks for a file and reads next to nothing of it. */
async function slowReader(service: Measured, path: string): Promise<() => void> {
  const { hostname, port } = new URL(service.url)
  const socket = connect({ host: hostname, port: Number(port) })
  await once(socket, 'connect')
  socket.write(`GET ${path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${service.key}\r\n\r\n`)
  await once(socket, 'readable')
  return () => socket.destroy()
}

const wanted = (shape: string): boolean => only?.includes(shape) ?? true

async function answers(
  shape: string,
  order: { lines: number; bytes: number; gather: number; pieces?: number; line_bytes?: number },
): Promise<void> {
  if (!wanted(shape)) return
  await using service = await new Measured().begin()
  Object.assign(server, { answer: answerOf(order.bytes), gather: order.gather, pieces: order.pieces ?? 1 })
  await service.measure(shape, async () => {
    await service.completed(await service.batch(order.lines, order.line_bytes ?? 100), order.lines)
  })
}

upstream.listen(0, '127.0.0.1')
await once(upstream, 'listening')
const count = (lines: number): number => Math.max(1, Math.round(lines * scale))

await answers('answers-300k', { lines: count(1000), bytes: 300_000, gather: 1 })
await answers('answers-300k-at-once', { lines: count(2000), bytes: 300_000, gather: 256 })
await answers('answers-8m-at-once', { lines: count(128), bytes: 8 * MIB, gather: 64 })
await answers('answers-60m-at-once', { lines: count(8), bytes: 60 * MIB, gather: 8 })
await answers('answers-in-small-pieces', { lines: count(64), bytes: MIB, gather: 32, pieces: 20_000 })
await answers('lines-8m', { lines: count(64), bytes: 1000, gather: 32, line_bytes: 8 * MIB - 1000 })

if (['audit-reads', 'pages', 'slow-downloads', 'downloads'].some(wanted)) {
  await using service = await new Measured().begin()
  const lines = count(1000)
  Object.assign(server, { answer: answerOf(300_000), gather: 1, pieces: 1 })
  const id = await service.batch(lines, 100)
  const { output_file_id } = await service.completed(id, lines)
  const path = `/v1/files/${output_file_id}/content`
  const times = async (calls: number, work: (i: number) => Promise<unknown>): Promise<void> => {
    await Promise.all(Array.from({ length: calls }, (_, i) => work(i)))
  }
  if (wanted('audit-reads'))
    await service.measure('audit-reads', async () => {
      for (let round = 0; round < 4; round++)
        await times(64, (i) =>
          service.get(`/v1/requests/${lineRequestId(id, 1 + ((i * 13 + round) % lines))}`),
        )
    })
  if (wanted('pages'))
    await service.measure('pages', () =>
      times(32, (i) => service.get(`/v1/batches/${id}/results?after=${i * 20}`)),
    )
  if (wanted('downloads')) await service.measure('downloads', () => times(8, () => service.get(path)))
  if (wanted('slow-downloads'))
    await service.measure('slow-downloads', async () => {
      const leave = await Promise.all(Array.from({ length: 200 }, () => slowReader(service, path)))
      await service.get(path)
      for (const one of leave) one()
    })
}

upstream.close()
console.table(rows)
console.log(JSON.stringify({ bench: 'hostile-memory', scale, rows }))
process.exit(0)
