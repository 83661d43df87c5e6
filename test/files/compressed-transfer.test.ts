// Uploads that are compressed on their way, and uploads in parts.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { constants, gzipSync, zstdCompressSync } from 'node:zlib'
import OpenAI, { toFile } from 'openai'
import { line, TestService } from '../service.ts'

const CONFIG = 'models: [{id: m, upstreams: [{type: sim}]}]'
const CONTENT = Array.from({ length: 200 }, (_, i) => `${JSON.stringify(line(`l${i}`))}\n`).join('')

async function form(content: string | Buffer): Promise<{ body: Buffer; type: string }> {
  const form = new FormData()
  form.set('purpose', 'batch')
  form.set('file', new Blob([new Uint8Array(Buffer.from(content))]), 'in.jsonl')
  const response = new Response(form)
  return {
    body: Buffer.from(await response.arrayBuffer()),
    type: String(response.headers.get('content-type')),
  }
}

async function post(service: TestService, body: Buffer, type: string, encoding: string): Promise<Response> {
  return await fetch(`${service.url}/v1/files`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${service.key}`,
      'content-type': type,
      'content-encoding': encoding,
    },
    body: new Uint8Array(body),
  })
}

test('an upload may be gzip or zstd, and is stored as what it stands for', async () => {
  await using service = await TestService.start(CONFIG)
  const { body, type } = await form(CONTENT)
  for (const [encoding, compressed] of [
    ['gzip', gzipSync(body)],
    ['zstd', zstdCompressSync(body)],
  ] as const) {
    const response = await post(service, compressed, type, encoding)
    const { id, bytes } = (await response.json()) as { id: string; bytes: number }
    assert.deepEqual([response.status, bytes], [200, CONTENT.length], encoding)
    assert.equal(await service.content(id), CONTENT)
  }
})

test('a body that expands beyond the limit is cut off, and one that is broken is refused', async () => {
  await using service = await TestService.start(
    `${CONFIG}\nlimits: {file_bytes_max: 1MiB, line_bytes_max: 1MiB}`,
  )
  const { body, type } = await form(Buffer.alloc(16 * 1024 * 1024, 'a'))
  for (const [encoding, bomb] of [
    ['gzip', gzipSync(body)],
    ['zstd', zstdCompressSync(body)],
  ] as const) {
    assert.ok(bomb.length < 100_000)
    const response = await post(service, bomb, type, encoding)
    assert.equal(response.status, 413, encoding)
    assert.match(await response.text(), /payload_too_large/)
  }
  // Beyond the file as well: what comes after the form counts.
  const small = await form(CONTENT)
  const after = gzipSync(Buffer.concat([small.body, Buffer.alloc(8 * 1024 * 1024)]))
  assert.equal((await post(service, after, small.type, 'gzip')).status, 413)

  for (const [encoding, broken] of [
    ['gzip', gzipSync(small.body).subarray(0, -200)],
    ['gzip', small.body],
    // A window that a recipient need not support.
    ['zstd', zstdCompressSync(body, { params: { [constants.ZSTD_c_windowLog]: 27 } }).subarray(0, 5000)],
  ] as const) {
    const response = await post(service, broken, small.type, encoding)
    assert.deepEqual(
      [response.status, JSON.parse(await response.text()).error.code],
      [400, 'invalid_multipart'],
    )
  }
  const brotli = await post(service, small.body, small.type, 'br')
  assert.equal(brotli.status, 415)
  assert.deepEqual((await service.json<{ data: unknown[] }>('GET', '/v1/files')).data, [])
})

test('the SDK uploads in parts, and its file runs', async () => {
  await using service = await TestService.start(CONFIG)
  const client = new OpenAI({ apiKey: service.key, baseURL: `${service.url}/v1` })
  const upload = await client.uploads.create({
    filename: 'big.jsonl',
    purpose: 'batch',
    bytes: CONTENT.length,
    mime_type: 'application/jsonl',
  })
  const cuts = [CONTENT.slice(0, 5000), CONTENT.slice(5000, 9000), CONTENT.slice(9000)]
  const parts = await Promise.all(
    cuts.map(async (text) =>
      client.uploads.parts.create(upload.id, { data: await toFile(Buffer.from(text)) }),
    ),
  )
  const part_ids = parts.map(({ id }) => id)
  const { status, file } = await client.uploads.complete(upload.id, { part_ids })
  assert.equal(status, 'completed')
  await client.files.waitForProcessing(String(file?.id), { pollInterval: 10, maxWait: 10_000 })
  const batch = await client.batches.create({
    input_file_id: String(file?.id),
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
  })
  await service.ended(batch.id)
  assert.equal((await client.batches.retrieve(batch.id)).request_counts?.completed, 200)
  const other = await client.uploads.create({
    filename: 'x',
    purpose: 'batch',
    bytes: 1,
    mime_type: 'text/jsonl',
  })
  assert.equal((await client.uploads.cancel(other.id)).status, 'cancelled')
})
