import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { gzipSync } from 'node:zlib'
import { ONE_LINE, TEST_PLANS, type TestServer, testServer } from '../../../test/support/test-server.ts'
import type { SealedBlobs } from '../../blobs/sealed.ts'
import { runMaintenance } from '../../maintenance/maintenance.ts'
import { beginCompletion } from '../../store/uploads.ts'

const CONTENT = ONE_LINE.repeat(3)
const PARTS = [CONTENT.slice(0, 20), CONTENT.slice(20, 100), CONTENT.slice(100)]

function begin(server: TestServer, more: object = {}) {
  const body = { filename: 'in.jsonl', purpose: 'batch', bytes: CONTENT.length, mime_type: 'text/jsonl' }
  return server.call('POST', '/v1/uploads', { body: { ...body, ...more } })
}

function partForm(text: string, field = 'data'): FormData {
  const form = new FormData()
  form.set(field, new Blob([text]), 'part')
  return form
}

function send(server: TestServer, id: string, text: string, field?: string) {
  return server.call('POST', `/v1/uploads/${id}/parts`, { raw: partForm(text, field) })
}

async function keysOf(server: TestServer): Promise<string[]> {
  const keys: string[] = []
  for await (const { key } of server.blobs.list('')) keys.push(key)
  return keys
}

test('parts that were sent at once become one file in the order that is asked for', async () => {
  await using server = await testServer()
  const { id, json } = await begin(server, { expires_after: { anchor: 'created_at', seconds: 60 } })
  assert.deepEqual([json.status, json.bytes, json.part_bytes], ['pending', CONTENT.length, 0])
  const parts = await Promise.all(PARTS.toReversed().map((text) => send(server, id, text)))
  const listed = await server.call('GET', `/v1/uploads/${id}/parts?limit=2`)
  assert.deepEqual([listed.data.length, listed.json.has_more], [2, true])
  assert.equal(parts[0]?.json.sha256, createHash('sha256').update(PARTS[2]!).digest('hex'))
  assert.equal((await server.call('GET', '/v1/quotas')).status, 200)
  const part_ids = parts.toReversed().map((part) => part.id)
  const md5 = createHash('md5').update(CONTENT).digest('hex')
  const wrong = await server.call('POST', `/v1/uploads/${id}/complete`, {
    body: { part_ids, md5: md5.replace(/./, (c) => (c === '0' ? '1' : '0')) },
  })
  assert.deepEqual([wrong.outcome, wrong.error.param], ['422 upload_mismatch', 'md5'])
  const body = { part_ids, md5: md5.toUpperCase() }
  const done = await server.call('POST', `/v1/uploads/${id}/complete`, { body })
  const file = done.json.file as { id: string; bytes: number; created: number; expires_at: number }
  assert.deepEqual(
    [done.json.status, file.bytes, file.expires_at - file.created],
    ['completed', CONTENT.length, 60],
  )
  assert.equal((await server.call('GET', `/v1/files/${file.id}/content`)).text, CONTENT)
  const again = await server.call('POST', `/v1/uploads/${id}/complete`, { body })
  assert.equal((again.json.file as { id: string }).id, file.id)
  await runMaintenance(server.deps)
  assert.deepEqual(await keysOf(server), [`files/${file.id}/upload`], 'nothing is left of the parts')
})

test('two calls that complete an upload at once make one file', async () => {
  await using server = await testServer()
  const { id } = await begin(server)
  const part_ids = [(await send(server, id, CONTENT)).id]
  const calls = [1, 2, 3].map(() => server.call('POST', `/v1/uploads/${id}/complete`, { body: { part_ids } }))
  const files = (await Promise.all(calls)).map(({ json }) => (json.file as { id: string }).id)
  assert.equal(new Set(files).size, 1)
  assert.equal((await server.call('GET', '/v1/files')).data.length, 1)
})

/** A store of blobs that waits until the test opens it. */
function gated({ sealed }: TestServer['deps']) {
  const gate = Promise.withResolvers<void>()
  const begun = Promise.withResolvers<void>()
  const files: string[] = []
  const put: SealedBlobs['put'] = async (project_id, key, source) => {
    if (!key.startsWith('files/')) return await sealed.put(project_id, key, source)
    files.push(key)
    begun.resolve()
    await gate.promise
    return await sealed.put(project_id, key, source)
  }
  return { sealed: { ...methodsOf(sealed), put }, open: gate.resolve, begun: begun.promise, files }
}

function methodsOf(sealed: SealedBlobs): SealedBlobs {
  return {
    put: (...args) => sealed.put(...args),
    read: (...args) => sealed.read(...args),
    readAll: (...args) => sealed.readAll(...args),
    delete: (key) => sealed.delete(key),
  }
}

/** Resolves when the server has begun `calls` more calls, and each of them waits. */
async function callsWait({ app }: TestServer, calls: number): Promise<void> {
  await new Promise<void>((resolve) => {
    app.server.on('request', () => {
      if (--calls === 0) resolve()
    })
  })
  for (let turn = 0; turn < 50; turn++) await setImmediate()
}

const WRONG_MD5 = '0'.repeat(32)

test('of calls that complete an upload alike one runs at a time, and those that wait share its failure', async () => {
  await using plain = await testServer()
  const gate = gated(plain.deps)
  await using server = await testServer({ ...plain.deps, sealed: gate.sealed })
  const { key } = plain.key
  const { id } = await plain.call('POST', '/v1/uploads', {
    body: { filename: 'in.jsonl', purpose: 'batch', bytes: CONTENT.length, mime_type: 'text/jsonl' },
  })
  const part_ids = [(await send(plain, id, CONTENT)).id]
  const complete = (md5: string | null) =>
    server.call('POST', `/v1/uploads/${id}/complete`, { key, body: { part_ids, md5 } })
  const allWait = callsWait(server, 30)
  const calls = Array.from({ length: 30 }, () => complete(WRONG_MD5))
  await allWait
  const other = await complete(null)
  assert.deepEqual([other.outcome, other.headers.get('retry-after')], ['409 upload_completing', '1'])
  gate.open()
  const outcomes = (await Promise.all(calls)).map(({ outcome, error }) => `${outcome} ${error.param}`)
  assert.deepEqual([...new Set(outcomes)], ['422 upload_mismatch md5'])
  assert.equal(gate.files.length, 1)
  assert.ok(
    (await keysOf(plain)).every((stored) => stored.startsWith('uploads/')),
    'what it stored is gone',
  )
  assert.equal((await complete(null)).json.status, 'completed')
})

test('calls of two processes complete an upload one at a time, and share a failure', async () => {
  await using first = await testServer()
  const gate = gated(first.deps)
  await using slow = await testServer({ ...first.deps, sealed: gate.sealed })
  const { key } = first.key
  const { id } = await begin(first)
  const part_ids = [(await send(first, id, CONTENT)).id]
  const complete = (server: TestServer) =>
    server.call('POST', `/v1/uploads/${id}/complete`, { key, body: { part_ids, md5: WRONG_MD5 } })
  const running = complete(slow)
  await gate.begun
  const waits = callsWait(first, 1)
  const waiting = complete(first)
  await waits
  gate.open()
  assert.equal((await running).outcome, '422 upload_mismatch')
  await first.clock.advance(1_000)
  assert.equal((await waiting).outcome, '422 upload_mismatch')
  assert.equal(gate.files.length, 1)
})

test('an upload whose completion was interrupted by a crash is completed by the next call', async () => {
  await using server = await testServer()
  const { store } = server.deps
  const { id } = await begin(server)
  const part_ids = [(await send(server, id, CONTENT)).id]
  const crashed = { order: 'of a process that crashed', lease_ms: 0 }
  assert.equal(await store.write((tx) => beginCompletion(tx, id, crashed)), 1)
  const done = await server.call('POST', `/v1/uploads/${id}/complete`, { body: { part_ids } })
  assert.equal(done.json.status, 'completed')
})

test('what does not make up the content is refused by name, and the upload goes on', async () => {
  await using server = await testServer()
  const { id } = await begin(server)
  const complete = (part_ids: string[]) =>
    server.call('POST', `/v1/uploads/${id}/complete`, { body: { part_ids } })
  const [first, second] = [await send(server, id, PARTS[0]!), await send(server, id, PARTS[1]!)]
  const short = await complete([first.id, second.id])
  assert.equal(short.outcome, '422 upload_mismatch')
  assert.match(String(short.error.message), /have 100 bytes/)
  for (const ids of [[first.id, first.id], []]) {
    const refused = await complete(ids)
    assert.deepEqual([refused.outcome, refused.error.param], ['400 invalid_request', 'part_ids'])
  }
  const unknown = await complete([first.id, 'part_x'])
  assert.deepEqual([unknown.outcome, unknown.error.param], ['422 upload_mismatch', 'part_ids'])
  assert.equal((await send(server, id, `${CONTENT}x`)).outcome, '413 payload_too_large')
  assert.deepEqual((await send(server, id, 'x', 'file')).error.param, 'file')
  const last = await send(server, id, PARTS[2]!)
  assert.equal((await complete([first.id, second.id, last.id])).json.status, 'completed')
  assert.equal((await send(server, id, 'x')).outcome, '422 upload_not_pending')
})

test('an upload is cancelled or expires with its parts, and is nobody else’s', async () => {
  await using server = await testServer()
  const { id } = await begin(server)
  await send(server, id, CONTENT)
  const { key: other } = await server.issue({ project: 'other' })
  for (const [method, path] of [
    ['GET', ''],
    ['GET', '/parts'],
    ['POST', '/cancel'],
  ] as const)
    assert.equal(
      (await server.call(method, `/v1/uploads/${id}${path}`, { key: other })).outcome,
      '404 upload_not_found',
    )
  const cancelled = await server.call('POST', `/v1/uploads/${id}/cancel`)
  assert.equal(cancelled.json.status, 'cancelled')
  assert.equal((await server.call('POST', `/v1/uploads/${id}/cancel`)).json.status, 'cancelled')
  const late = await begin(server)
  await send(server, late.id, CONTENT)
  await server.clock.advance(25 * 3_600_000)
  assert.equal((await send(server, late.id, 'x')).outcome, '422 upload_not_pending')
  // Before maintenance has run, too.
  assert.equal((await server.call('GET', `/v1/uploads/${late.id}`)).json.status, 'expired')
  assert.deepEqual((await server.call('GET', `/v1/uploads/${late.id}/parts`)).ids, [])
  assert.deepEqual((await server.call('GET', '/v1/uploads?status=expired')).ids, [late.id])
  assert.deepEqual((await server.call('GET', '/v1/uploads?status=pending')).ids, [])
  await runMaintenance(server.deps)
  assert.deepEqual(await keysOf(server), [])
  const statuses = (await server.call('GET', '/v1/uploads?order=asc')).data.map(({ status }) => status)
  assert.deepEqual(statuses, ['cancelled', 'expired'])
})

test('pending uploads count against the quotas', async () => {
  const payg = TEST_PLANS.get('payg')!
  const quotas = { ...payg.quotas, uploads: 2, stored_bytes: CONTENT.length + 10 }
  await using server = await testServer({ plans: new Map([['payg', { ...payg, quotas }]]) })
  const { id } = await begin(server)
  const full = await begin(server)
  assert.deepEqual([full.outcome, full.error.quota], ['429 quota_exceeded', 'stored_bytes'])
  assert.equal((await begin(server, { bytes: 10 })).status, 200)
  const many = await begin(server, { bytes: 1 })
  assert.deepEqual([many.outcome, many.error.quota], ['429 quota_exceeded', 'uploads'])
  // Bytes that are sent twice are stored twice.
  assert.equal((await send(server, id, CONTENT)).status, 200)
  assert.deepEqual((await send(server, id, CONTENT)).error.quota, 'stored_bytes')
})

test('a part may be compressed on its way', async () => {
  await using server = await testServer()
  const { id } = await begin(server)
  const form = new Response(partForm(CONTENT))
  const raw = gzipSync(Buffer.from(await form.arrayBuffer()))
  const headers = { 'content-type': form.headers.get('content-type')!, 'content-encoding': 'gzip' }
  const part = await server.call('POST', `/v1/uploads/${id}/parts`, { raw, headers })
  assert.equal(part.json.bytes, CONTENT.length)
})
