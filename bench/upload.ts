// Upload and validation through the whole service, against JSON.parse alone on the same lines, and by CPU time against
// JSON.parse and zstd alone, without which it is not done; and meanwhile how long other calls take, how late the API's
// event loop is, and what memory API and worker take. Repeated words compress to nothing; prose costs a compressor what real text
// does.
//
//   node bench/upload.ts [--megabytes 200] [--bytes 1024] [--text words,prose] [--at-once 1]
import { once } from 'node:events'
import { createReadStream, createWriteStream, readFileSync, statSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { FRAME_BYTES } from '../src/blobs/frame-cipher.ts'
import { ZSTD_LEVEL, ZstdPackers } from '../src/blobs/seal-frames.ts'
import { Bench, option, quantile, rounded } from './harness.ts'

const megabytes = option('megabytes', 200)
const lineBytes = option('bytes', 1024)
const texts = option('text', 'words,prose').split(',')
const atOnce = option('at-once', 1)
await using bench = new Bench('upload')
const GOAL = 0.5
/** The share of the service's CPU time that JSON.parse and zstd alone take. */
const NEEDED_SHARE_GOAL = 0.6
const ASK_EVERY_MS = 10
/** The service makes the page of its metrics at most so often. */
const PAGE_KEPT_MS = 1_000
let pageKeptUntil = 0
const NEWLINE = 0x0a
const CORES = availableParallelism()

for (const text of texts) {
  const lines = Math.round((megabytes * 1e6) / lineBytes)
  await measure(text, text === 'prose' ? await writeProse(lines) : await bench.lines(lines, lineBytes))
}

async function measure(text: string, input: string): Promise<void> {
  const mb = (statSync(input).size * atOnce) / 1e6
  const service = await bench.service('')
  const { url, key, client } = service

  // Before and after, so that a neighbour who comes or goes meanwhile is seen.
  const parsed = [await spent(() => parseAll(input))]
  await loopDelay(url, key)
  const idle = await pings(url, setTimeout(1_000))
  const idle_mib = service.peak_mib()
  const idle_loop = await loopDelay(url, key)
  const serviceCpuUs = service.cpu_us()
  let sent = { wall_s: 0, cpu_s: 0 }
  const busy = await pings(
    url,
    spent(() => Promise.all(Array.from({ length: atOnce }, () => client.upload(input, 20)))).then((all) => {
      sent = all
    }),
  )
  const loop = await loopDelay(url, key)
  const service_cpu_s = (service.cpu_us() - serviceCpuUs) / 1e6
  parsed.push(await spent(() => parseAll(input)))
  const packed = await spent(() => packAll(input))
  const peak_mib = service.peak_mib()
  await service.stop()

  const parse_s = (parsed.reduce((sum, { wall_s }) => sum + wall_s, 0) / parsed.length) * atOnce
  const parse_cpu_s = (parsed.reduce((sum, { cpu_s }) => sum + cpu_s, 0) / parsed.length) * atOnce
  const cpu = (seconds: number): number => rounded((seconds * 1000) / mb)
  const row = {
    text,
    'upload + validation, MB/s': Math.round(mb / sent.wall_s),
    'JSON.parse alone, MB/s': Math.round(mb / parse_s),
    ratio: rounded(parse_s / sent.wall_s),
    'CPU, ms/MB: service': cpu(service_cpu_s),
    client: cpu(sent.cpu_s),
    'JSON.parse': cpu(parse_cpu_s),
    zstd: cpu(packed.cpu_s * atOnce),
    // With every core busy for nothing else.
    'limit of the ratio': rounded((parse_cpu_s * CORES) / (service_cpu_s + sent.cpu_s)),
  }
  console.table([row])
  const states = {
    idle: { ...summary(idle), ...idle_loop, ...peaks(idle_mib) },
    meanwhile: { ...summary(busy), ...loop, ...peaks(peak_mib) },
  }
  console.table(states)
  bench.figure(`${text}: upload and validation ÷ JSON.parse`, parse_s / sent.wall_s, { atLeast: GOAL })
  const needed_s = parse_cpu_s + packed.cpu_s * atOnce
  bench.figure(`${text}: CPU of JSON.parse and zstd ÷ the service`, needed_s / service_cpu_s, {
    atLeast: NEEDED_SHARE_GOAL,
  })
}

function peaks([api = 0, worker = 0]: readonly number[]): Record<string, number> {
  return { 'API peak, MiB': api, 'worker peak, MiB': worker }
}

/** How long calls take until `end` resolves, in ms. */
async function pings(url: string, end: Promise<unknown>): Promise<number[]> {
  const times: number[] = []
  let isOver = false
  const over = end.finally(() => {
    isOver = true
  })
  while (!isOver) {
    const sent = performance.now()
    await (await fetch(`${url}/healthz`)).arrayBuffer()
    times.push(performance.now() - sent)
    await setTimeout(ASK_EVERY_MS)
  }
  await over
  return times
}

/**
 * How late the API's event loop was since the last time this was asked, as it measures itself: with a timer of
 * 10 ms, which is part of the number.
 */
async function loopDelay(url: string, key: string): Promise<Record<string, number>> {
  await setTimeout(Math.max(0, pageKeptUntil - performance.now()))
  const page = await (await fetch(`${url}/metrics`, { headers: { authorization: `Bearer ${key}` } })).text()
  pageKeptUntil = performance.now() + PAGE_KEPT_MS
  const ms = (name: string): number =>
    rounded(
      1000 *
        Number(
          new RegExp(`^nodejs_eventloop_lag_${name}_seconds\\{process="api"[^}]*\\} (.+)$`, 'm').exec(
            page,
          )?.[1],
        ),
    )
  return { 'loop p50, ms': ms('p50'), 'loop p99, ms': ms('p99') }
}

function summary(times: readonly number[]): Record<string, number> {
  const at = (share: number): number => rounded(quantile(times, share))
  return { calls: times.length, 'p50, ms': at(0.5), 'p99, ms': at(0.99), 'max, ms': at(1) }
}

/** Seconds, on the clock and of this process's CPU. */
async function spent(run: () => Promise<unknown>): Promise<{ wall_s: number; cpu_s: number }> {
  const begun = performance.now()
  const cpu = process.cpuUsage()
  await run()
  const { user, system } = process.cpuUsage(cpu)
  return { wall_s: (performance.now() - begun) / 1000, cpu_s: (user + system) / 1e6 }
}

/** Every line of the file, read in blocks and parsed. */
async function parseAll(input: string): Promise<void> {
  let rest: Buffer = Buffer.alloc(0)
  for await (const block of createReadStream(input, { highWaterMark: 1 << 20 })) {
    const bytes: Buffer = Buffer.concat([rest, block])
    let at = 0
    for (let end = bytes.indexOf(NEWLINE); end !== -1; end = bytes.indexOf(NEWLINE, at)) {
      JSON.parse(bytes.toString('utf8', at, end))
      at = end + 1
    }
    rest = bytes.subarray(at)
  }
}

/** The file, compressed frame by frame as the service does it. */
async function packAll(input: string): Promise<void> {
  const packers = new ZstdPackers(ZSTD_LEVEL, FRAME_BYTES)
  for await (const frame of createReadStream(input, { highWaterMark: FRAME_BYTES })) await packers.pack(frame)
}

/**
 * A file of lines as people write them: the sentences of the GSM8K questions in an order of chance, seeded, so that two
 * runs send the same bytes. It costs a compressor what real text does.
 */
async function writeProse(lines: number): Promise<string> {
  const sentences = readFileSync(new URL('../examples/gsm8k.jsonl', import.meta.url), 'utf8')
    .trim()
    .split('\n')
    .flatMap((line) => String(JSON.parse(line).body.messages.at(-1).content).split(/(?<=[.?!]) /))
  const path = join(bench.folder, 'prose.jsonl')
  let state = 12345
  const pick = (): string => {
    state ^= state << 13
    state ^= state >>> 17
    state ^= state << 5
    return sentences[(state >>> 0) % sentences.length] ?? ''
  }
  const out = createWriteStream(path)
  for (let i = 0; i < lines; i++) {
    let content = pick()
    while (content.length < lineBytes - 200) content += ` ${pick()}`
    const body = { model: 'bench', messages: [{ role: 'user', content }], max_tokens: 16 }
    const text = JSON.stringify({ custom_id: `line-${i}`, method: 'POST', url: '/v1/chat/completions', body })
    if (!out.write(`${text}\n`)) await once(out, 'drain')
  }
  out.end()
  await once(out, 'finish')
  return path
}
