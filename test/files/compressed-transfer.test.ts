// Bodies that are compressed on their way, in both directions.
import assert from 'node:assert/strict'
import { request } from 'node:http'
import { buffer } from 'node:stream/consumers'
import { test } from 'node:test'
import { constants, gunzipSync, gzipSync, zstdCompressSync, zstdDecompressSync } from 'node:zlib'
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

/** Without a client that would decompress by itself. */
async function get(service: TestService, path: string, headers: Record<string, string>, method = 'GET') {
  const authorization = `Bearer ${service.key}`
  return await new Promise<{ status: number; headers: NodeJS.Dict<string | string[]>; body: Buffer }>(
    (resolve, reject) => {
      request(new URL(path, service.url), { method, headers: { authorization, ...headers } }, (answer) => {
        buffer(answer).then(
          (body) => resolve({ status: answer.statusCode ?? 0, headers: answer.headers, body }),
          reject,
        )
      })
        .on('error', reject)
        .end()
    },
  )
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

test('a download is compressed for a caller that accepts it, under an ETag of its own', async () => {
  await using service = await TestService.start(CONFIG)
  const { id } = await service.upload(CONTENT)
  const path = `/v1/files/${id}/content`
  const plain = await get(service, path, {})
  assert.equal(plain.headers['content-length'], String(CONTENT.length))
  for (const [accept, encoding, decompress] of [
    ['gzip, deflate', 'gzip', gunzipSync],
    ['gzip, deflate, zstd', 'zstd', zstdDecompressSync],
    ['zstd;q=0, gzip;q=0.5', 'gzip', gunzipSync],
  ] as const) {
    const { headers, body } = await get(service, path, { 'accept-encoding': accept })
    assert.equal(headers['content-encoding'], encoding)
    assert.equal(headers.vary, 'accept-encoding')
    assert.ok(body.length < CONTENT.length / 2)
    assert.equal(decompress(body).toString(), CONTENT)
    assert.notEqual(headers.etag, plain.headers.etag)
    const again = { 'accept-encoding': accept, 'if-none-match': String(headers.etag) }
    assert.equal((await get(service, path, again)).status, 304)
  }
  const range = await get(service, path, { 'accept-encoding': 'gzip', range: 'bytes=0-9' })
  assert.deepEqual([range.status, range.body.toString()], [206, CONTENT.slice(0, 10)])
  const head = await get(service, path, { 'accept-encoding': 'zstd' }, 'HEAD')
  assert.deepEqual([head.status, head.headers['content-encoding'], head.body.length], [200, 'zstd', 0])
})

test('a strict client, and one that forwards answers as LiteLLM does, gets them as they are', async () => {
  await using service = await TestService.start(CONFIG)
  const batch = await service.run(CONTENT)
  for (const [name, value] of [
    ['x-offpeak-compat', 'openai'],
    ['x-stainless-raw-response', 'stream'],
    ['user-agent', 'litellm/1.106.2'],
  ] as const)
    for (const path of [`/v1/files/${batch.output_file_id}/content`, `/v1/batches/${batch.id}/results`]) {
      const { status, headers } = await get(service, path, { 'accept-encoding': 'gzip, zstd', [name]: value })
      assert.deepEqual([status, headers['content-encoding']], [200, undefined], `${name} ${path}`)
    }
})

test('a body that expands beyond the limit is cut off, and one that is broken is refused', async () => {
  await using service = await TestService.start(
    `${CONFIG}\nlimits: {file_bytes_max: 1MiB, line_bytes_max: 1MiB}`,
  )
  const { body, type } = await form(Buffer.alloc(64 * 1024 * 1024, 'a'))
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

test('large JSON, results and tables are compressed as well, small answers are not', async () => {
  await using service = await TestService.start(CONFIG)
  const batch = await service.run(CONTENT)
  for (const path of [
    '/openapi.json',
    `/v1/batches/${batch.id}/lines?limit=200`,
    `/v1/batches/${batch.id}/results`,
    `/v1/batches/${batch.id}/results?format=csv`,
  ]) {
    const plain = await get(service, path, {})
    assert.deepEqual([plain.headers['content-encoding'], plain.headers.vary], [undefined, 'accept-encoding'])
    const { headers, body } = await get(service, path, { 'accept-encoding': 'gzip' })
    assert.deepEqual([headers['content-encoding'], headers.vary], ['gzip', 'accept-encoding'], path)
    assert.ok(body.length < plain.body.length / 2)
    assert.equal(gunzipSync(body).toString(), plain.body.toString())
  }
  for (const path of [`/v1/batches/${batch.id}`, `/v1/batches/${batch.id}/results?format=parquet`]) {
    const { headers } = await get(service, path, { 'accept-encoding': 'gzip' })
    assert.equal(headers['content-encoding'], undefined, path)
  }
})
