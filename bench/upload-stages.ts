// What each stage of an upload costs by itself, on the lines of one file: MB/s of what was uploaded, and CPU of all
// threads per megabyte. Receiving is measured in this process while another one sends.
import { fork } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { readFileSync, statSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'
import multipart from '@fastify/multipart'
import fastify from 'fastify'
import { FRAME_BYTES, FrameCipher, newHeader } from '../src/blobs/frame-cipher.ts'
import { masterKeyFromText } from '../src/blobs/master-key.ts'
import { ZstdPackers } from '../src/blobs/seal-frames.ts'
import { sealBlobs } from '../src/blobs/sealed.ts'
import { systemClock } from '../src/domain/clock.ts'
import { StreamingValidation } from '../src/intake/streaming-validation.ts'
import { freeBuffer } from '../src/intake/upload.ts'
import { validateContent } from '../src/intake/validation.ts'
import { temporaryDisk } from '../test/support/temporary-disk.ts'

const SAMPLE_BYTES_MAX = 128 * 1024 * 1024
const PIECE_BYTES = 64 * 1024
const NEWLINE = 0x0a
const LIMITS = { lines_max: 10_000_000, line_bytes_max: 8 * 1024 * 1024 }
const ROUNDS = 2

interface Cost {
  stage: string
  'MB/s': number
  'CPU, ms/MB': number
}

/** Prints a row for each stage, and what all of them together allow. */
export async function uploadStages(text: string, input: string): Promise<void> {
  const all = readFileSync(input).subarray(0, SAMPLE_BYTES_MAX)
  const sample = all.subarray(0, all.lastIndexOf(NEWLINE) + 1)
  const frames = cut(sample, FRAME_BYTES)
  const packers = new ZstdPackers(1, FRAME_BYTES)
  const packed: Buffer[] = []
  for (const frame of frames) packed.push(Buffer.from(await packers.pack(frame)))
  await using disk = await temporaryDisk()
  const sealed = sealBlobs(disk.blobs, masterKeyFromText(randomBytes(32).toString('hex'), 'the benchmark'))
  const early = new StreamingValidation({
    limits: LIMITS,
    clock: systemClock,
    onCrash: (error) => {
      throw error
    },
  })
  await alongside(early, sample)

  const mb = sample.length / 1e6
  const costs: Cost[] = []
  const add = async (stage: string, run: () => Promise<unknown>): Promise<Cost> => {
    let best: Cost = { stage, 'MB/s': 0, 'CPU, ms/MB': Number.POSITIVE_INFINITY }
    for (let round = 0; round < ROUNDS; round++) {
      const begun = performance.now()
      const before = process.cpuUsage()
      await run()
      const { user, system } = process.cpuUsage(before)
      const cpu = Math.round((user + system) / 10 / mb) / 100
      if (cpu < best['CPU, ms/MB'])
        best = { stage, 'MB/s': Math.round((mb * 1000) / (performance.now() - begun)), 'CPU, ms/MB': cpu }
    }
    costs.push(best)
    return best
  }

  const parse = await add('JSON.parse of each line, to compare with', async () => parseLines(sample))
  const receive = await receiveForm(input)
  costs.push(...receive)
  const reading = await add('find and validate lines, in their thread', () => alongside(early, sample))
  await add('find and validate lines, afterwards', async () => {
    const verdict = await validateContent(() => pieces(sample), LIMITS)
    if (!verdict.ok) throw new Error(verdict.details)
  })
  await add('zstd, level 1', async () => {
    for (let at = 0; at < frames.length; at += 3)
      await Promise.all(frames.slice(at, at + 3).map((frame) => packers.pack(frame)))
  })
  await add('AES-256-GCM of what zstd left', async () => {
    const cipher = new FrameCipher(newHeader(FRAME_BYTES), randomBytes(32), 'p', 'k')
    for (const [i, frame] of packed.entries()) cipher.seal(i, frame, { last: false, zstd: true })
  })
  await add('write what zstd left, and fsync', () => disk.blobs.put('written', packed))
  const seal = await add('zstd, AES, write and fsync, as one', () =>
    sealed.put('p', 'sealed', pieces(sample)),
  )
  await early.close()

  console.log(
    `${text}, ${Math.round(mb)} MB, zstd leaves ${Math.round((packed.reduce((sum, { length }) => sum + length, 0) * 1000) / sample.length) / 10} %`,
  )
  console.table(costs)
  const sum = [...receive, reading, seal].reduce((total, cost) => total + cost['CPU, ms/MB'], 0)
  const limit = (availableParallelism() * 1000) / sum
  const ratio = (availableParallelism() * parse['CPU, ms/MB']) / sum
  console.log(
    `sending, receiving, reading and sealing take ${sum.toFixed(2)} ms/MB of CPU: at most ${limit.toFixed(0)} MB/s, ${ratio.toFixed(2)} of JSON.parse`,
  )
}

async function alongside(early: StreamingValidation, sample: Buffer): Promise<void> {
  const along = early.begin('p', Number.MAX_SAFE_INTEGER)
  for await (const piece of pieces(sample)) await along?.take(piece)
  if (!(await along?.verdict())) throw new Error('the file is not in order')
}

function parseLines(sample: Buffer): void {
  let at = 0
  for (let end = sample.indexOf(NEWLINE); end !== -1; end = sample.indexOf(NEWLINE, at)) {
    JSON.parse(sample.toString('utf8', at, end))
    at = end + 1
  }
}

/** The form of the whole file, taken apart and thrown away; and what it costs another process to send it. */
async function receiveForm(input: string): Promise<[Cost, Cost]> {
  const mb = statSync(input).size / 1e6
  const app = fastify()
  app.register(multipart)
  let cost: Cost = { stage: 'receive the form', 'MB/s': 0, 'CPU, ms/MB': 0 }
  app.post('/', async (request) => {
    const begun = performance.now()
    const before = process.cpuUsage()
    for await (const part of request.parts({ limits: { fileSize: Number.MAX_SAFE_INTEGER } }))
      if (part.type === 'file') for await (const piece of part.file) freeBuffer(piece)
    const { user, system } = process.cpuUsage(before)
    cost = {
      ...cost,
      'MB/s': Math.round((mb * 1000) / (performance.now() - begun)),
      'CPU, ms/MB': Math.round((user + system) / 10 / mb) / 100,
    }
    return {}
  })
  const url = await app.listen({ port: 0, host: '127.0.0.1' })
  const child = fork(fileURLToPath(new URL('./upload-sender.ts', import.meta.url)), [url, input])
  const [client_us] = await once(child, 'message')
  await app.close()
  const sender = { stage: 'send the form, another process', 'MB/s': cost['MB/s'] }
  return [cost, { ...sender, 'CPU, ms/MB': Math.round(Number(client_us) / 10 / mb) / 100 }]
}

async function* pieces(sample: Buffer): AsyncGenerator<Buffer> {
  yield* cut(sample, PIECE_BYTES)
}

function cut(bytes: Buffer, size: number): Buffer[] {
  const out: Buffer[] = []
  for (let at = 0; at < bytes.length; at += size) out.push(bytes.subarray(at, at + size))
  return out
}
