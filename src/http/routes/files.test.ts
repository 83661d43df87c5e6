import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { connect } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { sql } from 'kysely'
import { ONE_LINE, type TestServer, testServer } from '../../../test/support/test-server.ts'
import { openaiError } from '../../domain/errors.ts'
import { insertBatch } from '../../store/batches.ts'
import { insertBlobs, readBlobRow } from '../../store/blobs.ts'
import { markInvalid } from '../../store/files.ts'
import { ensureProject } from '../../store/projects.ts'
import { insertRow, readRow } from '../../store/rows.ts'
import type { FileRow } from '../../store/schema.ts'
import { claimTask } from '../../store/tasks.ts'
import { openSession } from '../../store/workers.ts'

async function blobsLeft(server: TestServer): Promise<string[]> {
  const keys: string[] = []
  for await (const blob of server.blobs.list('')) keys.push(blob.key)
  return keys
}

function multipart(parts: readonly string[], end = '--b--\r\n') {
  const headers = { 'content-type': 'multipart/form-data; boundary=b' }
  return { headers, raw: parts.map((part) => `--b\r\n${part}\r\n`).join('') + end }
}

const PURPOSE = 'content-disposition: form-data; name="purpose"\r\n\r\nbatch'
const FILE = `content-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n${ONE_LINE}`

test('an upload creates a pending file and a validation task', async () => {
  await using server = await testServer()
  const { status, json, id } = await server.upload(ONE_LINE, { filename: 'reviews.jsonl' })
  assert.equal(status, 200)
  const now = Math.floor(server.clock.now() / 1000)
  assert.deepEqual(json, {
    id,
    object: 'file',
    purpose: 'batch',
    filename: 'reviews.jsonl',
    bytes: ONE_LINE.length,
    line_count: 0,
    status: 'pending',
    region: 'local',
    created: now,
    created_at: now,
    expires_at: now + 90 * 86_400,
  })
  assert.equal(server.woken(), 1)
  const task = await server.deps.store.read.selectFrom('tasks').selectAll().executeTakeFirstOrThrow()
  assert.deepEqual([task.kind, task.subject], ['validate', id])
  assert.equal((await server.call('GET', `/v1/files/${id}/content`)).text, ONE_LINE)
})

test('a pending file shows its waiting reason', async () => {
  await using server = await testServer()
  const { store } = server.deps
  const { id } = await server.upload()
  const code = async (): Promise<unknown> => {
    const { json } = await server.call('GET', `/v1/files/${id}`)
    return json.waiting_reason && Reflect.get(Object(json.waiting_reason), 'code')
  }
  assert.equal(await code(), 'no_worker')
  await store.write((tx) => sql`PRAGMA max_page_count = 1`.execute(tx))
  const project = { id: 'proj_x', name: 'a'.repeat(100_000), plan: 'payg', created: 1 }
  await assert.rejects(store.write((tx) => ensureProject(tx, project)))
  assert.match((await server.call('GET', `/v1/files/${id}`)).text, /The storage of the service is full/)
  await store.write((tx) => sql`PRAGMA max_page_count = 1000000`.execute(tx))
  const worker = await store.write((tx) => openSession(tx, 60_000, server.clock.now()))
  assert.equal(await code(), 'queued')
  const task = await store.write((tx) => claimTask(tx, worker, { kinds: ['validate'], large: false }))
  assert.equal(await code(), 'validating')
  assert.equal(task?.subject, id)
  await server.process(id)
  assert.equal(await code(), undefined)
})

test('files of an enterprise project are kept longer', async () => {
  await using server = await testServer()
  const { key } = await server.issue({ project: 'big', plan: 'enterprise' })
  const { json } = await server.upload(ONE_LINE, { key })
  assert.equal(Number(json.expires_at) - Number(json.created), 395 * 86_400)
})

test('the order of the fields does not matter, and unknown ones are ignored', async () => {
  await using server = await testServer()
  const extra = 'content-disposition: form-data; name="expires_after[anchor]"\r\n\r\ncreated_at'
  for (const parts of [
    [PURPOSE, FILE],
    [FILE, PURPOSE],
    [extra, FILE, extra, PURPOSE],
  ]) {
    const answer = await server.call('POST', '/v1/files', multipart(parts))
    assert.equal(answer.status, 200, answer.text)
    assert.equal(answer.json.bytes, ONE_LINE.length)
  }
})

test('a form that is not an upload is rejected with the reason, and leaves nothing', async () => {
  await using server = await testServer()
  const field = (name: string, value: string) =>
    `content-disposition: form-data; name="${name}"\r\n\r\n${value}`
  const cases: [string[], string][] = [
    [[FILE], 'purpose'],
    [[PURPOSE], 'file'],
    [[], 'file'],
    [[FILE, field('purpose', 'fine-tune')], 'purpose'],
    [[field('purpose', ''), FILE], 'purpose'],
    [[PURPOSE, field('file', ONE_LINE)], 'file'],
    [[PURPOSE, FILE, FILE], 'file'],
    [[PURPOSE, FILE.replace('name="file"', 'name="other"')], 'other'],
  ]
  for (const [parts, param] of cases) {
    const answer = await server.call('POST', '/v1/files', multipart(parts))
    assert.equal(answer.outcome, '400 invalid_request', answer.text)
    assert.equal(answer.error.param, param)
  }
  assert.deepEqual(await blobsLeft(server), [])
  assert.deepEqual((await server.call('GET', '/v1/files')).data, [])
})

test('a malformed form is rejected and leaves nothing', async () => {
  await using server = await testServer()
  const cut = await server.call('POST', '/v1/files', multipart([PURPOSE, FILE], ''))
  assert.equal(cut.outcome, '400 invalid_multipart')
  const headless = await server.call('POST', '/v1/files', {
    raw: 'x',
    headers: { 'content-type': 'multipart/form-data' },
  })
  assert.equal(headless.outcome, '400 invalid_multipart')
  const trap = await server.call(
    'POST',
    '/v1/files',
    multipart(['content-disposition: form-data; name="__proto__"\r\n\r\nx', PURPOSE, FILE]),
  )
  assert.equal(trap.outcome, '400 invalid_multipart')
  const json = await server.call('POST', '/v1/files', { body: { purpose: 'batch' } })
  assert.equal(json.outcome, '415 unsupported_media_type')
  const nothing = await server.call('POST', '/v1/files')
  assert.equal(nothing.outcome, '415 unsupported_media_type')
  assert.deepEqual(await blobsLeft(server), [])
})

test('an aborted upload leaves nothing', async () => {
  await using server = await testServer()
  for (const parts of [FILE.slice(0, -10), `${FILE}\r\n--b\r\ncontent-dis`]) {
    const socket = connect(server.port, '127.0.0.1')
    socket.write(
      `POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${server.key.key}\r\n` +
        `content-type: multipart/form-data; boundary=b\r\ncontent-length: 5000\r\n\r\n--b\r\n${parts}`,
    )
    while (server.clock.waiting === 0) await setImmediate()
    socket.resetAndDestroy()
    while (server.clock.waiting > 0) await setImmediate()
  }
  // The aborted uploads have cleaned up once a later one is through.
  const { id } = await server.upload()
  while ((await blobsLeft(server)).length > 1) await setImmediate()
  assert.deepEqual(await blobsLeft(server), [`files/${id}/upload`])
  assert.equal((await server.call('GET', '/v1/files')).data.length, 1)
})

test('a file of the maximum size is accepted; one byte more is a 413 and leaves nothing', async () => {
  await using server = await testServer({ file_bytes_max: 1000 })
  assert.equal((await server.upload('x'.repeat(1000))).status, 200)
  assert.equal((await server.upload('x'.repeat(1001))).outcome, '413 payload_too_large')
  // Beyond any doubt from its length alone: refused before it is read.
  const huge = await server.upload('x'.repeat(3_000_000))
  assert.equal(huge.outcome, '413 payload_too_large')
  assert.equal((await blobsLeft(server)).length, 1)
})

test('a client that is still sending can read the error', async () => {
  await using server = await testServer({ file_bytes_max: 100_000_000 })
  const much = 'x'.repeat(20_000_000)
  const second = FILE.replace(ONE_LINE, much)
  const twice = await server.call('POST', '/v1/files', multipart([PURPOSE, FILE, second]))
  assert.equal(twice.outcome, '400 invalid_request')
  const stranger = await server.call('POST', '/v1/files', { ...multipart([PURPOSE, second]), key: null })
  assert.equal(stranger.outcome, '401 invalid_api_key')
  const scopeless = await server.issue({ scopes: ['files:read'] })
  assert.equal((await server.upload(much, { key: scopeless.key })).outcome, '403 missing_scope')
})

test('folders and invisible characters are removed from a filename', async () => {
  await using server = await testServer()
  for (const [given, kept] of [
    ['../../etc/passwd', 'passwd'],
    ['C:\\dir\\in.jsonl', 'in.jsonl'],
    ['a\u202egpj.jsonl', 'agpj.jsonl'],
    ['ü ber.jsonl', 'ü ber.jsonl'],
    ['x'.repeat(400), 'x'.repeat(255)],
    ['..', 'upload.jsonl'],
  ] as const) {
    const { json, id } = await server.upload(ONE_LINE, { filename: given })
    assert.equal(json.filename, kept)
    const header = (await server.call('GET', `/v1/files/${id}/content`)).headers.get('content-disposition')
    assert.match(header ?? '', /^attachment; filename="[^"]+"; filename\*=UTF-8''[^"]+$/)
  }
})

test('an invalid file shows the reason', async () => {
  await using server = await testServer()
  const { id } = await server.upload('nonsense')
  const errors = [{ line: 1, code: 'invalid_json', message: 'This is not valid JSON.' }]
  await server.deps.store.write((tx) =>
    markInvalid(tx, id, { line_count: 0, status_details: 'Line 1: …', errors: JSON.stringify(errors) }),
  )
  const { json } = await server.call('GET', `/v1/files/${id}`)
  assert.equal(json.status, 'error')
  assert.equal(json.status_details, 'Line 1: …')
  assert.deepEqual(json.errors, errors)
})

test('content can be requested in ranges', async () => {
  await using server = await testServer()
  const content = 'abcdefghij'
  const { id } = await server.upload(content)
  const get = (range: string, more = {}) =>
    server.call('GET', `/v1/files/${id}/content`, { headers: { range, ...more } })
  for (const [range, part, shown] of [
    ['bytes=0-3', 'abcd', 'bytes 0-3/10'],
    ['bytes=7-', 'hij', 'bytes 7-9/10'],
    ['bytes=-2', 'ij', 'bytes 8-9/10'],
    ['bytes=8-99', 'ij', 'bytes 8-9/10'],
    ['bytes=-99', content, 'bytes 0-9/10'],
  ] as const) {
    const answer = await get(range)
    assert.equal(answer.status, 206, range)
    assert.equal(answer.text, part)
    assert.equal(answer.headers.get('content-range'), shown)
    assert.equal(answer.headers.get('content-length'), String(part.length))
  }
  for (const ignored of ['bytes=0-1,4-5', 'bytes=5-2', 'lines=1-2', 'bytes=-', 'bytes=x-'])
    assert.equal((await get(ignored)).text, content, ignored)
  for (const outside of ['bytes=10-', 'bytes=-0']) {
    const answer = await get(outside)
    assert.equal(answer.outcome, '416 range_not_satisfiable')
    assert.equal(answer.headers.get('content-range'), 'bytes */10')
    assert.equal(answer.headers.get('etag'), null, 'of the content that the error replaces')
  }
  const strict = await get('bytes=10-', { 'x-offpeak-compat': 'openai' })
  assert.equal(strict.headers.get('content-range'), 'bytes */10')
  assert.equal(strict.error.param, 'Range')
  assert.equal(strict.error.code, openaiError('range_not_satisfiable').code)
  const changed = await get('bytes=0-3', { 'if-range': '"other"' })
  assert.equal(changed.text, content)
  const same = await get('bytes=0-3', { 'if-range': `"${id}"` })
  assert.equal(same.text, 'abcd')
  const head = await server.call('HEAD', `/v1/files/${id}/content`)
  assert.equal(head.headers.get('content-length'), '10')
  assert.equal(head.headers.get('accept-ranges'), 'bytes')
  assert.equal(head.text, '')
})

/** A batch with three sealed chunks, the second of which has no output. */
async function withResults(server: TestServer): Promise<FileRow> {
  const { store, sealed, clock } = server.deps
  const { project_id } = server.key
  const input = await server.processedFile()
  const now = clock.now()
  const batch = await store.write((tx) =>
    insertBatch(tx, {
      id: 'batch_1',
      project_id,
      key_id: server.key.id,
      endpoint: '/v1/chat/completions',
      input_file_id: input,
      completion_window: '24h',
      metadata: null,
      header_entity: null,
      language: 'en',
      total: 3,
      created: now,
      expires_at: now + 1000,
    }),
  )
  const texts = ['one\ntwo\n', null, 'three\n']
  const file: FileRow = {
    id: 'file_out',
    project_id,
    purpose: 'batch_output',
    filename: 'batch_1_output.jsonl',
    bytes: 14,
    line_count: 3,
    status: 'processed',
    status_details: null,
    errors: null,
    created: now,
    expires_at: now + 1000,
    deleted_at: null,
    content_blob: null,
    index_blob: null,
    ids_blob: null,
    batch_id: batch.id,
    part: 'output',
    source: null,
    not_kept: 0,
  }
  for (const [idx, content] of texts.entries()) {
    const blob = content === null ? null : await sealed.put(project_id, `out/${idx}`, [Buffer.from(content)])
    await store.write(async (tx) => {
      if (blob) await insertBlobs(tx, project_id, [blob], now)
      await tx
        .insertInto('chunks')
        .values({
          batch_id: batch.id,
          idx,
          project_id,
          state: 'sealed',
          epoch: 1,
          worker_id: null,
          run_at: 0,
          parked_reason: null,
          deadline: now,
          first_line: idx + 1,
          line_count: 1,
          byte_start: 0,
          byte_end: 1,
          completed: 1,
          failed: 0,
          cost_nanos: 0,
          output_blob: blob?.key ?? null,
          output_bytes: blob?.bytes ?? 0,
          error_blob: null,
          error_bytes: 0,
          audit_blob: null,
        })
        .execute()
    })
  }
  await store.write((tx) => insertRow(tx, 'files', file))
  return file
}

test('results are the sealed chunks in order, whole and in any range', async () => {
  await using server = await testServer()
  const { id } = await withResults(server)
  const whole = await server.call('GET', `/v1/files/${id}/content`)
  assert.equal(whole.text, 'one\ntwo\nthree\n')
  assert.equal(whole.headers.get('content-type'), 'application/x-ndjson')
  for (let start = 0; start < 14; start++)
    for (let end = start; end < 14; end++) {
      const answer = await server.call('GET', `/v1/files/${id}/content`, {
        headers: { range: `bytes=${start}-${end}` },
      })
      assert.equal(answer.text, whole.text.slice(start, end + 1))
    }
})

test('result files of a running batch cannot be deleted; after the batch, deleting one destroys its content', async () => {
  await using server = await testServer()
  const { id } = await withResults(server)
  assert.equal((await server.call('DELETE', `/v1/files/${id}`)).outcome, '422 file_not_deletable')
  await server.deps.store.write((tx) =>
    tx.updateTable('batches').set({ status: 'completed' }).where('id', '=', 'batch_1').execute(),
  )
  assert.equal((await server.call('DELETE', `/v1/files/${id}`)).status, 200)
  assert.equal(await readBlobRow(server.deps.store.read, 'out/0'), undefined)
  assert.equal((await server.call('GET', `/v1/files/${id}/content`)).outcome, '404 file_not_found')
})

test('a deleted file is a 404 at once, and its content cannot be decrypted any more', async () => {
  await using server = await testServer()
  const { id } = await server.upload()
  const answer = await server.call('DELETE', `/v1/files/${id}`)
  assert.deepEqual(answer.json, { id, object: 'file', deleted: true })
  assert.equal(await readBlobRow(server.deps.store.read, `files/${id}/upload`), undefined)
  for (const [method, path] of [
    ['GET', ''],
    ['GET', '/content'],
    ['DELETE', ''],
  ] as const)
    assert.equal((await server.call(method, `/v1/files/${id}${path}`)).outcome, '404 file_not_found')
  assert.deepEqual((await server.call('GET', '/v1/files')).data, [])
})

test('deleting the input of an unfinished batch is a 404 at once; its content is deleted after the batch', async () => {
  await using server = await testServer()
  const { read, write } = server.deps.store
  const id = await server.processedFile()
  const batch = await server.createBatch(id)
  assert.equal(batch.status, 200)
  assert.equal((await server.call('DELETE', `/v1/files/${id}`)).status, 200)
  assert.equal((await server.call('GET', `/v1/files/${id}`)).outcome, '404 file_not_found')
  assert.ok(await readBlobRow(read, `files/${id}/upload`))
  const row = await read.selectFrom('batches').selectAll().executeTakeFirstOrThrow()
  assert.equal(row.input_deleted_at, server.clock.now())
  assert.equal((await server.call('GET', `/v1/batches/${batch.id}`)).status, 200)

  const { releaseInput } = await import('../../lifecycle/remove-file.ts')
  await write((tx) => releaseInput(tx, id, 1))
  assert.ok(await readBlobRow(read, `files/${id}/upload`), 'the batch still reads it')
  await write((tx) => tx.updateTable('batches').set({ status: 'failed' }).execute())
  await write((tx) => releaseInput(tx, id, 1))
  assert.equal(await readBlobRow(read, `files/${id}/upload`), undefined)
  assert.equal(await readBlobRow(read, `files/${id}/index`), undefined)
  assert.ok((await readRow(read, 'files', { id }))?.deleted_at)
})

test('the input of a finished batch stays until it is deleted', async () => {
  await using server = await testServer()
  const id = await server.processedFile()
  const { releaseInput } = await import('../../lifecycle/remove-file.ts')
  await server.deps.store.write((tx) => releaseInput(tx, id, 1))
  assert.ok(await readBlobRow(server.deps.store.read, `files/${id}/upload`))
})

test('files are listed newest first, by purpose', async () => {
  await using server = await testServer()
  const first = (await server.upload()).id
  const results = await withResults(server)
  const all = await server.call('GET', '/v1/files')
  assert.equal(all.data.length, 3)
  assert.equal(all.ids.at(-1), first)
  assert.deepEqual((await server.call('GET', '/v1/files?purpose=batch_output')).ids, [results.id])
  const wrong = await server.call('GET', '/v1/files?purpose=other')
  assert.equal(wrong.outcome, '400 invalid_request')
  assert.match(
    String(wrong.error.message),
    /must be one of "batch", "batch_output", "table", .*not "other"\.$/,
  )
})

test('a large upload is downloaded unchanged', async () => {
  await using server = await testServer({ file_bytes_max: 20_000_000 })
  const content = randomBytes(6_000_000).toString('base64')
  const { id, json } = await server.upload(content)
  assert.equal(json.bytes, content.length)
  const back = await server.call('GET', `/v1/files/${id}/content`, {
    headers: { accept: 'application/binary' },
  })
  assert.ok(back.text === content)
})

test('a download of missing or damaged content is aborted and never looks complete', async () => {
  await using server = await testServer({ file_bytes_max: 20_000_000 })
  const { id } = await server.upload('x'.repeat(5_000_000))
  const key = `files/${id}/upload`
  const path = `/v1/files/${id}/content`
  const stored = await buffer(server.blobs.read(key))

  await server.blobs.delete(key)
  const missing = await server.call('GET', path)
  assert.equal(missing.outcome, '500 content_damaged')
  assert.equal(missing.headers.get('content-disposition'), null)

  // Its last byte belongs to the last frame: everything before that is already on its way.
  stored.writeUInt8(stored.readUInt8(stored.length - 1) ^ 1, stored.length - 1)
  await server.blobs.put(key, [stored])
  await assert.rejects(server.call('GET', path))
})
