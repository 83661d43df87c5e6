// The command line's uploads of large files, over connections that break.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { ApiClient } from '../../src/cli/client/client.ts'
import { uploadInParts } from '../../src/cli/client/upload.ts'
import { systemClock } from '../../src/domain/clock.ts'
import { unreliableProxy } from '../fakes/unreliable-proxy.ts'
import { line, TestService } from '../service.ts'

const CONFIG = 'models: [{id: m, upstreams: [{type: sim}]}]'
const CONTENT = Array.from({ length: 300 }, (_, i) => `${JSON.stringify(line(`l${i}`))}\n`).join('')
const PART_BYTES = 4096
const PARTS = Math.ceil(CONTENT.length / PART_BYTES)

test('an upload that was broken off goes on with the parts that are missing, also after a restart', async () => {
  await using service = await TestService.start(CONFIG)
  await using proxy = await unreliableProxy(service.url)
  const path = join(service.folder, 'big.jsonl')
  await writeFile(path, CONTENT)
  const file = { path, filename: 'big.jsonl', bytes: Buffer.byteLength(CONTENT) }
  const clientWith = (patienceMs: number): ApiClient =>
    new ApiClient({ baseUrl: proxy.url, apiKey: service.key, clock: systemClock, patienceMs })
  const sentParts = (): number => proxy.passed.filter(({ path }) => path.endsWith('/parts')).length

  let passed = 0
  proxy.lose = ({ method, path }) =>
    method === 'POST' && path.endsWith('/parts') && ++passed > 5 ? 'busy' : null
  const impatient = clientWith(0)
  await assert.rejects(uploadInParts(impatient, file, () => {}, PART_BYTES))
  await impatient.close()
  const { data } = await service.json<{ data: { id: string }[] }>('GET', '/v1/uploads?status=pending')
  assert.equal(data.length, 1)
  const parts = await service.json<{ data: unknown[] }>('GET', `/v1/uploads/${data[0]?.id}/parts`)
  const arrived = parts.data.length
  assert.ok(arrived > 0 && arrived < PARTS)

  proxy.lose = () => null
  const before = sentParts()
  const client = clientWith(10_000)
  const seen: number[] = []
  const uploaded = await uploadInParts(client, file, (sent) => seen.push(sent), PART_BYTES)
  await client.close()
  assert.equal(uploaded.sha256, createHash('sha256').update(CONTENT).digest('hex'))
  assert.equal(seen.at(-1), file.bytes)
  assert.equal(sentParts() - before, PARTS - arrived, 'only what is missing is sent')
  assert.equal(await service.content(uploaded.file.id), CONTENT)
})

test('a part whose answer is lost is sent again, and the file has it once', async () => {
  await using service = await TestService.start(CONFIG)
  await using proxy = await unreliableProxy(service.url)
  const path = join(service.folder, 'big.jsonl')
  await writeFile(path, CONTENT)
  const file = { path, filename: 'big.jsonl', bytes: Buffer.byteLength(CONTENT) }
  let lost = 0
  proxy.lose = ({ method, path }) =>
    method === 'POST' && path.endsWith('/parts') && lost++ === 0 ? 'answer lost' : null
  const client = new ApiClient({ baseUrl: proxy.url, apiKey: service.key, clock: systemClock })
  const uploaded = await uploadInParts(client, file, () => {}, PART_BYTES)
  await client.close()
  assert.equal(await service.content(uploaded.file.id), CONTENT)
})
