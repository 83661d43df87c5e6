// Embeddings, whose answers are far larger than their requests: lines/s, MB/s of answers, and peak memory of API and
// worker, each a process, for vectors as numbers and as base64. The model server answers from memory, so what is
// measured is this service. Beside it the scan of one answer alone, next to `JSON.parse`.
//
//   node bench/embeddings.ts [--inputs 20000] [--dimensions 3072] [--per-line 1,64] [--encodings float,base64]
import { once } from 'node:events'
import { createWriteStream } from 'node:fs'
import { createServer } from 'node:http'
import { join } from 'node:path'
import { AnswerScanner } from '../src/jsonl/answer-scan.ts'
import { Bench, option, runBatch } from './harness.ts'

const inputs = option('inputs', 20_000)
const dimensions = option('dimensions', 3072)
const perLines = option('per-line', '1,64').split(',').map(Number)
const encodings = option('encodings', 'float,base64')
await using bench = new Bench('embeddings')
const GOAL_MIB = 300
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
})
const base_url = await bench.listen(upstream)

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
for (const encoding of (['float', 'base64'] as const).filter((one) => encodings.includes(one))) {
  for (const perLine of perLines) {
    answer = answerOf(encoding, perLine)
    if (scanner.scan(answer, '/v1/embeddings') === null) throw new Error('the answer is not one')
    const scan = rateOf(answer.length, () => scanner.scan(answer, '/v1/embeddings'))
    const parse = rateOf(answer.length, () => JSON.parse(answer.toString()))
    const found = await measure(encoding, perLine)
    rows.push({ encoding, 'inputs a line': perLine, ...found, 'scan, MB/s': scan, 'JSON.parse, MB/s': parse })
    const what = `${encoding}, ${perLine} a line`
    bench.figure(`${what}: worker, MiB`, found['worker, MiB'], { atMost: GOAL_MIB })
    bench.figure(`${what}: inputs/s`, found['inputs/s'])
  }
}
console.table(rows)

async function measure(encoding: Encoding, perLine: number) {
  const service = await bench.service(
    `models: [{id: bench, endpoints: [/v1/embeddings], upstreams: [{type: openai, base_url: "${base_url}"}]}]`,
    { flags: ['--workers', '1'] },
  )
  const lines = Math.ceil(inputs / perLine)
  const path = join(bench.folder, 'embeddings.jsonl')
  await writeInput(path, lines, perLine, encoding)
  const file = await service.client.upload(path, 50)
  const { seconds } = await runBatch(service, file, { endpoint: '/v1/embeddings' })
  const [api = 0, worker = 0] = service.peak_mib()
  await service.stop()
  return {
    'answers, MB': Math.round((lines * answer.length) / MB),
    'inputs/s': Math.round((lines * perLine) / seconds),
    'MB/s': Math.round((lines * answer.length) / MB / seconds),
    'API, MiB': api,
    'worker, MiB': worker,
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
