// What a batch says while its storage fails: within five seconds, a code of its own, with one worker and with several.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { setTimeout } from 'node:timers/promises'
import { type Fault, s3Server, TEST_BUCKET } from '../fakes/s3-server.ts'
import { SmallDisk, withoutDisk } from '../fakes/small-disk.ts'
import { echo, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { line, TestService } from '../service.ts'

const LINES = 4_000
const WITHIN_MS = 5_000
const ASK_MS = 50
const MASTER_KEY = randomBytes(32).toString('base64')

/** A server that takes 10 ms for a line. */
async function slowUpstream(): Promise<TestUpstream & AsyncDisposable> {
  const upstream = await testUpstream()
  upstream.reply = (call) => void setTimeout(10).then(() => echo(call))
  return Object.assign(upstream, { [Symbol.asyncDispose]: () => upstream.close() })
}

function models(upstream: TestUpstream): string {
  return `models:
  - {id: m, upstreams: [{type: openai, base_url: "${upstream.base_url}", concurrency_max: 4}]}`
}

/** A batch of which lines have ended, and more are being answered. */
async function runningBatch(service: TestService): Promise<string> {
  const lines = Array.from({ length: LINES }, (_, i) => JSON.stringify(line(`l${i}`)))
  const { id } = await service.create((await service.upload(lines.join('\n'))).id)
  while ((await service.get(id)).request_counts.completed === 0) await setTimeout(ASK_MS)
  return id
}

async function reasonWithin(service: TestService, id: string, ms: number): Promise<unknown> {
  const until = performance.now() + ms
  while (performance.now() < until) {
    const { waiting_reason } = await service.get(id)
    const code = (waiting_reason as { code: string } | null)?.code
    if (code !== undefined) return code
    await setTimeout(ASK_MS)
  }
  return undefined
}

const FAULTS: Readonly<Record<string, Fault | null>> = {
  'closes each connection': 'reset',
  'answers 503': { status: 503, code: 'SlowDown' },
  'never answers': null,
}

for (const [what, fault] of Object.entries(FAULTS))
  for (const workers of [1, 2])
    test(`a bucket that ${what} is told, with ${workers} workers`, { timeout: 120_000 }, async () => {
      await using s3 = await s3Server()
      await using upstream = await slowUpstream()
      const yaml = `blobs: "s3://${TEST_BUCKET}/b?endpoint=${s3.endpoint}"\n${models(upstream)}`
      const env = { OFFPEAK_MASTER_KEY: MASTER_KEY, AWS_ACCESS_KEY_ID: 'a', AWS_SECRET_ACCESS_KEY: 'b' }
      await using service = await TestService.start(yaml, { env })
      const others = workers === 2 ? [await service.addWorker()] : []
      const id = await runningBatch(service)
      const back = Promise.withResolvers<'reset'>()
      s3.fault = () => fault ?? back.promise
      assert.equal(await reasonWithin(service, id, WITHIN_MS), 'storage_failing')
      s3.fault = () => null
      back.resolve('reset')
      await service.request('POST', `/v1/batches/${id}/cancel`)
      assert.equal((await service.ended(id)).status, 'cancelled')
      await Promise.all(others.map((worker) => worker.stop()))
    })

test('a disk that is full for blobs alone is told', { skip: withoutDisk, timeout: 60_000 }, async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-full-'))
  using disk = new SmallDisk(join(folder, 'data', 'blobs'))
  await using upstream = await slowUpstream()
  await using service = await TestService.start(models(upstream), { folder })
  const id = await runningBatch(service)
  disk.fill()
  assert.equal(await reasonWithin(service, id, WITHIN_MS), 'storage_failing')
  disk.empty()
  await service.request('POST', `/v1/batches/${id}/cancel`)
  assert.equal((await service.ended(id)).status, 'cancelled')
})
