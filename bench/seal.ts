// What sealing costs: MB/s of plaintext sealed and opened, and microseconds per blob put on disk, plain and
// sealed, one at a time and four at once. Prints; asserts nothing.  node bench/seal.ts
import { randomBytes } from 'node:crypto'
import { masterKeyFromText } from '../src/blobs/master-key.ts'
import { sealBlobs } from '../src/blobs/sealed.ts'
import { temporaryDisk } from '../test/support/temporary-disk.ts'

const MB = 1_000_000
const STREAM_MB = 256

/** Result lines as a model server gives them: short IDs of chance, prose that repeats somewhat. */
function lines(bytes: number): Buffer {
  const words = 'the model answers in plain words and says why it thinks so of every line it reads'.split(' ')
  const out: string[] = []
  for (let n = 0, length = 0; length < bytes; n++) {
    const prose = Array.from(randomBytes(60), (byte) => words[byte % words.length]).join(' ')
    const line = `{"id":"req_${randomBytes(13).toString('hex')}","custom_id":"row-${n}","response":{"status_code":200,"body":{"id":"chatcmpl-${randomBytes(9).toString('base64url')}","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"${prose}"},"finish_reason":"stop"}],"usage":{"prompt_tokens":${n % 97},"completion_tokens":${n % 53},"total_tokens":${(n % 97) + (n % 53)}}}},"error":null}\n`
    out.push(line)
    length += line.length
  }
  return Buffer.from(out.join('')).subarray(0, bytes)
}

function* repeated(piece: Buffer, times: number): Generator<Buffer> {
  for (let i = 0; i < times; i++) yield piece
}

async function timed(work: () => Promise<void>): Promise<number> {
  const start = performance.now()
  await work()
  return performance.now() - start
}

await using disk = await temporaryDisk()
const sealed = sealBlobs(disk.blobs, masterKeyFromText(randomBytes(32).toString('hex'), 'the benchmark'))

for (const [kind, piece] of [
  ['JSON lines', lines(MB)],
  ['noise', randomBytes(MB)],
] as const) {
  await sealed.put('p', 'warm-up', repeated(piece, 16))
  let peak_mb = 0
  const watch = setInterval(() => {
    peak_mb = Math.max(peak_mb, process.memoryUsage.rss() / MB)
  }, 20)
  const cpu = process.cpuUsage()
  let blob = { key: '', wrapped_key: '', bytes: 0 }
  const sealMs = await timed(async () => {
    blob = await sealed.put('p', 'stream', repeated(piece, STREAM_MB))
  })
  const { user, system } = process.cpuUsage(cpu)
  const openMs = await timed(async () => {
    for await (const _ of sealed.read('p', blob));
  })
  const ranges = 200
  const rangeMs = await timed(async () => {
    for (let i = 0; i < ranges; i++) {
      const start = Math.floor((i / ranges) * blob.bytes)
      await sealed.readAll('p', blob, { start, end: start + 100_000 })
    }
  })
  clearInterval(watch)
  const stored = await disk.blobs.size('stream')
  console.log(
    `${kind}, ${STREAM_MB} MB: seal ${rate(sealMs)}, open ${rate(openMs)}, stored ${((100 * stored) / blob.bytes).toFixed(1)} %, ` +
      `CPU to seal ${((user + system) / 1000 / STREAM_MB).toFixed(2)} ms/MB, 100 kB range ${((rangeMs / ranges) * 1000).toFixed(0)} us, peak RSS ${peak_mb.toFixed(0)} MB`,
  )
}

const each = {
  'plain 1 MB': MB,
  'plain 100 kB': 100_000,
  'sealed 1 MB': MB,
  'sealed 4 MB': 4 * MB,
  'sealed 1 kB': 1000,
}
for (const [kind, bytes] of Object.entries(each)) {
  const piece = lines(bytes)
  for (const at_once of [1, 4]) {
    const blobs = 100
    let n = 0
    const put = async (): Promise<void> => {
      while (n < blobs) {
        const key = `${kind.replaceAll(' ', '-')}/${at_once}/${n++}`
        if (kind.startsWith('plain')) await disk.blobs.put(key, [piece])
        else await sealed.put('p', key, [piece])
      }
    }
    const cpu = process.cpuUsage()
    const ms = await timed(async () => {
      await Promise.all(Array.from({ length: at_once }, put))
    })
    const { user, system } = process.cpuUsage(cpu)
    console.log(
      `${kind}, ${at_once} at once: ${((ms / blobs) * 1000).toFixed(0)} us a blob (${((user + system) / blobs).toFixed(0)} us of CPU)`,
    )
  }
}

function rate(ms: number): string {
  return `${((STREAM_MB * 1000) / ms).toFixed(0)} MB/s`
}
