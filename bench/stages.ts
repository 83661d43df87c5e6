// Where the CPU of a line goes: the stages of its way one by one, with the service's own modules on a batch that
// the service has just run, and what the whole run took beside their sum. CPU is that of this process, its
// thread pool included; the model server is another process.
//
//   node bench/stages.ts [--lines 40000] [--bytes 1024] [--concurrency 64] [--rounds 3]
import { parseArgs } from 'node:util'
import { openaiBackend } from '../src/backends/openai/openai-backend.ts'
import { modelsById } from '../src/compose/upstreams.ts'
import { Run } from '../src/dispatch/run.ts'
import { type ChunkLine, readChunkLines } from '../src/jsonl/chunk-lines.ts'
import { recordAnswer } from '../src/results/record-line.ts'
import { sealChunk } from '../src/results/seal.ts'
import { readBatchInput } from '../src/store/batches.ts'
import type { ChunkRow } from '../src/store/schema.ts'
import { TestService } from '../test/service.ts'
import { start } from './processes.ts'

const { values } = parseArgs({
  options: {
    lines: { type: 'string', default: '40000' },
    bytes: { type: 'string', default: '1024' },
    concurrency: { type: 'string', default: '64' },
    rounds: { type: 'string', default: '3' },
  },
})
const lines = Number(values.lines)
const upstream = await start(new URL('./fast-upstream.ts', import.meta.url).pathname, [])
const service = await TestService.start(`
models:
  - id: bench
    price: {input_per_mtok: 0.1, output_per_mtok: 0.4}
    upstreams: [{type: openai, base_url: "${upstream.first}", concurrency_max: ${values.concurrency}}]
`)
const { store, sealed } = service.stores
const models = modelsById(service.config.models)
const backend = openaiBackend({
  name: 'bench',
  base_url: upstream.first,
  timeout_ms: 60_000,
  connections_max: Number(values.concurrency),
})

const SERVER = { name: 'bench', tier: 0, price: null }

interface Opened {
  claim: ChunkRow
  bytes: Buffer
  lines: ChunkLine[]
}

const table: Record<string, { 'CPU µs/line': number }> = {}
const rounds: Record<string, number>[] = []
for (let round = 0; round < Number(values.rounds); round++) rounds.push(await measure())
for (const stage of Object.keys(rounds[0] ?? {})) {
  // The first round warms up.
  const warm = rounds.length > 1 ? rounds.slice(1) : rounds
  table[stage] = { 'CPU µs/line': Math.min(...warm.map((row) => row[stage] ?? 0)) }
}
console.table(table)
console.log(JSON.stringify({ bench: 'stages', lines, bytes: Number(values.bytes), rounds }))
await backend.close()
await service[Symbol.asyncDispose]()
await upstream.stop()

async function measure(): Promise<Record<string, number>> {
  const file = await service.upload(input())
  let batch_id = ''
  const whole = await cpuOf(async () => {
    batch_id = (await service.create(file.id)).id
    await service.ended(batch_id)
  })
  const found = await readBatchInput(store.read, batch_id)
  const content = found?.content
  if (!found || !content) throw new Error('the batch that ran is gone')
  const { batch } = found
  const claims = await store.read
    .selectFrom('chunks')
    .selectAll()
    .where('batch_id', '=', batch_id)
    .orderBy('idx')
    .execute()

  const opened: Opened[] = []
  const open = await cpuOf(async () => {
    for (const claim of claims) {
      const range = { start: claim.byte_start, end: claim.byte_end }
      opened.push({ claim, bytes: await sealed.readAll(content.project_id, content, range), lines: [] })
    }
  })
  const scan = await cpuOf(async () => {
    for (const one of opened) {
      const span = { ...one.claim, index: one.claim.idx }
      one.lines = readChunkLines(one.bytes, span, models, {
        endpoint: '/v1/chat/completions',
        metadata: {},
        header_entity: null,
      })
    }
  })

  const runs = opened.map((one) => new Run(one.claim, batch, one.lines, one.bytes))
  const jobs = runs.flatMap((run) => run.lines.map((_, position) => ({ run, position })))
  const answers: Awaited<ReturnType<typeof backend.send>>[] = []
  const send = await cpuOf(async () => {
    let next = 0
    const loop = async (): Promise<void> => {
      for (let at = next++; at < jobs.length; at = next++) {
        const { run, position } = jobs[at]!
        const { body } = run.lines[position]!
        answers[at] = await backend.send({
          endpoint: '/v1/chat/completions',
          project_id: run.batch.project_id,
          body: run.bytes.subarray(body.start, body.end),
          signal: run.signal,
        })
      }
    }
    await Promise.all(Array.from({ length: Number(values.concurrency) }, loop))
  })
  const record = await cpuOf(async () => {
    for (const [at, { run, position }] of jobs.entries()) {
      const answer = answers[at]
      if (answer?.kind !== 'answered') throw new Error('the model server refused')
      const attempts = {
        listed: [{ at: 1.7e12, upstream: 'bench', tier: 0, status: 200, duration_ms: 2 }],
        omitted: 0,
      }
      recordAnswer(run.recorded(position), answer, SERVER, attempts, models.get('bench'), 1.7e12)
    }
  })
  const seal = await cpuOf(async () => {
    for (const { claim, results } of runs) {
      await sealChunk(sealed, { project_id: batch.project_id, batch_id, idx: claim.idx }, 'again', results)
    }
  })
  const sum = open + scan + send + record + seal
  return {
    'open: read, decrypt and unpack the input': open,
    'scan: find the lines and their fields': scan,
    'send: HTTP, and parsing the answer': send,
    'record: price, result line, audit record': record,
    'seal: pack, encrypt and write results': seal,
    'the rest: plan, queues, commits': round(whole - sum),
    'the whole batch': whole,
  }
}

async function cpuOf(work: () => Promise<void>): Promise<number> {
  const before = process.cpuUsage()
  await work()
  const { user, system } = process.cpuUsage(before)
  return round((user + system) / lines)
}

function round(us: number): number {
  return Math.round(us * 10) / 10
}

function input(): string {
  const filler = 'lorem ipsum dolor sit amet '.repeat(Math.ceil(Number(values.bytes) / 27))
  const of = (i: number, content: string): string =>
    JSON.stringify({
      custom_id: `line-${i}`,
      method: 'POST',
      url: '/v1/chat/completions',
      body: { model: 'bench', messages: [{ role: 'user', content }], max_tokens: 64 },
    })
  const frame = of(0, '').length
  const all: string[] = []
  for (let i = 0; i < lines; i++)
    all.push(of(i, `${i} ${filler}`.slice(0, Math.max(1, Number(values.bytes) - frame))))
  return all.join('\n')
}
