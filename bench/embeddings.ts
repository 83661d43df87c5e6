// Embeddings, whose answers are far larger than their requests: lines/s, MB/s of answers, and peak memory of API and
// worker, each a process, for vectors as numbers and as base64. The model server answers from memory, so what is
// measured is this service. Beside it the scan of one answer alone, next to `JSON.parse`.
//
//   node bench/embeddings.ts [--inputs 20000] [--dimensions 3072] [--per-line 1,64] [--encodings float,base64]
import { once } from 'node:events'
import { createWriteStream, mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { AnswerScanner } from '../src/jsonl/answer-scan.ts'
import { startService } from './service.ts'

const { values } = parseArgs({
  options: {
    inputs: { type: 'string', default: '20000' },
    dimensions: { type: 'string', default: '3072' },
    'per-line': { type: 'string', default: '1,64' },
    encodings: { type: 'string', default: 'float,base64' },
  },
})
const inputs = Number(values.inputs)
const dimensions = Number(values.dimensions)
const GOAL_MIB = 400
const MB = 1e6

const vector = Float32Array.from({ length: dimensions }, () => (Math.random() - 0.5) / 20)
const ENCODINGS = {
  float: `[${Array.from(vector, (value) => Number(value.toPrecision(8))).join(',')}]`,
  base64: `"${Buffer.from(vector.buffer).toString('base64')}"`,
}
type Encoding = keyof typeof ENCODINGS

function answerOf(encoding: Encoding, count: number): Buffer {
  const data = Array.from(
    { length: count },
    (_, index) => `{"object":"embedding","index":${index},"embedding":${ENCODINGS[encoding]}}`,
  )
  const usage = `"usage":{"prompt_tokens":${8 * count},"total_tokens":${8 * count}}`
  return Buffer.from(`{"object":"list","data":[${data.join(',')}],"model":"bench",${usage}}`)
}

let answer: Buffer = Buffer.alloc(0)
const upstream = createServer((request, response) => {
  request.resume().once('end', () => {
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': answer.length })
    response.end(answer)
  })
}).listen(0, '127.0.0.1')
await once(upstream, 'listening')
const address = upstream.address()
if (address === null || typeof address === 'string') throw new Error('the model server has no port')

/** MB/s of looking at one answer, as often as half a second allows. */
function rateOf(bytes: number, look: () => unknown): number {
  look()
  const begun = performance.now()
  let times = 0
  while (performance.now() - begun < 500) {
    look()
    times++
  }
  return Math.round((times * bytes) / MB / ((performance.now() - begun) / 1000))
}

const rows: Record<string, string | number>[] = []
const scanner = new AnswerScanner()
for (const encoding of (['float', 'base64'] as const).filter((one) => values.encodings.includes(one))) {
  for (const perLine of values['per-line'].split(',').map(Number)) {
    answer = answerOf(encoding, perLine)
    if (scanner.scan(answer, '/v1/embeddings') === null) throw new Error('the answer is not one')
    const scan = rateOf(answer.length, () => scanner.scan(answer, '/v1/embeddings'))
    const parse = rateOf(answer.length, () => JSON.parse(answer.toString()))
    rows.push({ encoding, 'inputs a line': perLine, ...(await measure(encoding, perLine)), scan, parse })
    console.log(JSON.stringify(rows.at(-1)))
  }
}
upstream.close()
console.table(rows)
console.log(JSON.stringify({ bench: 'embeddings', inputs, dimensions, rows }))
process.exit(0)

async function measure(encoding: Encoding, perLine: number): Promise<Record<string, number>> {
  const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
  const { port } = address as { port: number }
  const service = await startService(
    folder,
    `
models:
  - {id: bench, endpoints: [/v1/embeddings], upstreams: [{type: openai, base_url: "http://127.0.0.1:${port}/v1"}]}
`,
    ['--workers', '1'],
  )
  try {
    const { client } = service
    const lines = Math.ceil(inputs / perLine)
    const path = join(folder, 'input.jsonl')
    await writeInput(path, lines, perLine, encoding)
    const fileId = await client.upload(path, 50)
    const begun = performance.now()
    const { id } = await client.create(fileId, '/v1/embeddings')
    const batch = await client.completed(id, 50)
    const seconds = (performance.now() - begun) / 1000
    if (batch.request_counts.completed !== lines)
      throw new Error(`only ${batch.request_counts.completed} of ${lines} lines were answered`)
    const [api = 0, worker = 0] = service.peak_mib()
    return {
      'answers, MB': Math.round((lines * answer.length) / MB),
      seconds: Math.round(seconds * 10) / 10,
      'inputs/s': Math.round((lines * perLine) / seconds),
      'MB/s': Math.round((lines * answer.length) / MB / seconds),
      'API, MiB': api,
      'worker, MiB': worker,
      'goal, MiB': GOAL_MIB,
    }
  } finally {
    await service.stop()
    rmSync(folder, { recursive: true })
  }
}

async function writeInput(path: string, lines: number, perLine: number, encoding: Encoding): Promise<void> {
  const out = createWriteStream(path)
  for (let i = 0; i < lines; i++) {
    const input = Array.from({ length: perLine }, (_, k) => `document ${i} ${k}: the quick brown fox`)
    const body = { model: 'bench', input, encoding_format: encoding, dimensions }
    const text = JSON.stringify({ custom_id: `line-${i}`, method: 'POST', url: '/v1/embeddings', body })
    if (!out.write(`${text}\n`)) await once(out, 'drain')
  }
  out.end()
  await once(out, 'finish')
}
