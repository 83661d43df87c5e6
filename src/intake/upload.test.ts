// Tests uploads whose database fails at the last step, and large uploads that are validated while they arrive;
// http/routes/files.test.ts tests the rest over HTTP.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { type TestContext, test } from 'node:test'
import { testClock } from '../../test/fakes/clock.ts'
import type { Blobs } from '../blobs/blobs.ts'
import { DiskBlobs } from '../blobs/disk/disk-blobs.ts'
import { masterKeyFromText } from '../blobs/master-key.ts'
import { type SealedBlobs, sealBlobs } from '../blobs/sealed.ts'
import { quotaExceeded } from '../domain/plan.ts'
import { linesInIndex } from '../jsonl/custom-ids.ts'
import type { FileIndex } from '../jsonl/projection.ts'
import { readBlobRow } from '../store/blobs.ts'
import { ensureProject } from '../store/projects.ts'
import { readRow } from '../store/rows.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import type { Store } from '../store/store.ts'
import { claimTask } from '../store/tasks.ts'
import { openSession } from '../store/workers.ts'
import { validateFile } from './file-index.ts'
import { StreamingValidation } from './streaming-validation.ts'
import { type FormPart, receiveUpload } from './upload.ts'
import type { ValidationLimits } from './validation.ts'

const CONTENT = '{"custom_id":"a"}\n'
const NOW = Date.UTC(2026, 0, 1)
const UPLOAD = {
  take() {},
  project_id: 'proj_1',
  now: NOW,
  retention_ms: 1000,
  file_bytes_max: 1000,
  form_bytes: 0,
}

async function stores(t: TestContext): Promise<{ store: Store; blobs: Blobs; sealed: SealedBlobs }> {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-upload-'))
  const store = sqliteStore({ path: join(folder, 'offpeak.db') })
  t.after(async () => {
    await store.close()
    await rm(folder, { recursive: true, force: true })
  })
  await store.migrate()
  const project = { id: UPLOAD.project_id, name: 'p', plan: 'payg', created: NOW }
  await store.write((tx) => ensureProject(tx, project))
  const blobs = new DiskBlobs(join(folder, 'blobs'))
  const sealed = sealBlobs(blobs, masterKeyFromText(randomBytes(32).toString('base64'), 'the test'))
  return { store, blobs, sealed }
}

async function* form(content: Iterable<Buffer> = [Buffer.from(CONTENT)]): AsyncGenerator<FormPart> {
  yield { type: 'field', fieldname: 'purpose', value: 'batch' }
  yield { type: 'file', fieldname: 'file', file: Readable.from(content) }
}

const LIMITS = { lines_max: 100_000, line_bytes_max: 100_000 }
/** An upload with a large announced size. */
const BIG_UPLOAD = { ...UPLOAD, file_bytes_max: 10_000_000, form_bytes: 50_000_000 }

function lines(count: number): string {
  const body = { model: 'sim-1', messages: [{ role: 'user', content: 'so many words '.repeat(20) }] }
  const line = (i: number): string =>
    JSON.stringify({ custom_id: `line-${i}`, method: 'POST', url: '/v1/chat/completions', body })
  return Array.from({ length: count }, (_, i) => `${line(i)}\n`).join('')
}

/** The content in pieces as they come from a socket: each with memory of its own. */
function* pieces(content: string): Generator<Buffer> {
  const all = Buffer.from(content)
  for (let at = 0; at < all.length; at += 65_536) {
    const piece = Buffer.allocUnsafeSlow(Math.min(65_536, all.length - at))
    all.copy(piece, 0, at)
    yield piece
  }
}

function streamingValidations(t: TestContext, limits: ValidationLimits = LIMITS): StreamingValidation {
  const early = new StreamingValidation({ limits, clock: testClock(), onCrash: assert.fail })
  t.after(() => early.close())
  return early
}

async function validate(deps: { store: Store; sealed: SealedBlobs }): Promise<void> {
  const { store } = deps
  const worker = await store.write((tx) => openSession(tx, 60_000, NOW))
  const task = await store.write((tx) => claimTask(tx, worker, { kinds: ['validate'], large: false }))
  assert.ok(task)
  await validateFile({ ...deps, clock: testClock(), limits: LIMITS }, task, new AbortController().signal)
}

async function keys(blobs: Blobs): Promise<string[]> {
  const found: string[] = []
  for await (const { key } of blobs.list('')) found.push(key)
  return found.sort()
}

/** A store whose commits take effect, but reject as failed. */
function losesAnswers(store: Store): Store {
  return {
    ...store,
    async write(change) {
      await store.write(change)
      throw new Error('the connection broke before its answer came')
    },
  }
}

test('an upload whose commit was not answered is stored, with its content', async (t) => {
  const { store, sealed } = await stores(t)
  const file = await receiveUpload({ store: losesAnswers(store), sealed }, form(), UPLOAD)
  assert.deepEqual(await readRow(store.read, 'files', { id: file.id }), file)
  const content = await readBlobRow(store.read, String(file.content_blob))
  assert.ok(content)
  assert.equal(String(await sealed.readAll(UPLOAD.project_id, content)), CONTENT)
})

test('an upload that could not be committed fails, and leaves its content to the sweep', async (t) => {
  const { store, blobs, sealed } = await stores(t)
  const refuses: Store = {
    ...store,
    async write() {
      throw new Error('the disk is full')
    },
  }
  await assert.rejects(receiveUpload({ store: refuses, sealed }, form(), UPLOAD), /the disk is full/)
  // The commit may still be on its way, for all that is known here.
  const left: string[] = []
  for await (const { key } of blobs.list('')) left.push(key)
  assert.equal(left.length, 1)
  assert.equal(await readBlobRow(store.read, left[0]!), undefined)
})

test('a big file in order comes with its index, and is processed without being read again', async (t) => {
  const { store, blobs, sealed } = await stores(t)
  const content = lines(3000)
  const deps = { store, sealed, streamingValidation: streamingValidations(t) }
  const file = await receiveUpload(deps, form(pieces(content)), BIG_UPLOAD)
  assert.equal(file.status, 'pending')
  const stored = await readBlobRow(store.read, `files/${file.id}/upload`)
  assert.equal(String(await sealed.readAll(UPLOAD.project_id, stored!)), content)

  const indexed = await readBlobRow(store.read, `files/${file.id}/index`)
  const index: FileIndex = JSON.parse(String(await sealed.readAll(UPLOAD.project_id, indexed!)))
  assert.deepEqual(
    index.chunks.map((chunk) => chunk.line_count),
    [1000, 1000, 1000],
  )
  // Nobody can read it any more, and nobody has to.
  await blobs.delete(`files/${file.id}/upload`)
  await validate({ store, sealed })
  assert.deepEqual(
    { ...(await readRow(store.read, 'files', { id: file.id })) },
    { ...file, status: 'processed' },
  )
  assert.deepEqual([file.line_count, file.index_blob], [3000, `files/${file.id}/index`])
})

test('a big file whose custom_ids do not fit into memory comes with its index all the same', async (t) => {
  const { store, blobs, sealed } = await stores(t)
  const streamingValidation = streamingValidations(t, { ...LIMITS, ids_in_memory_max: 500 })
  const content = pieces(lines(9000))
  const file = await receiveUpload({ store, sealed, streamingValidation }, form(content), BIG_UPLOAD)
  const stored = `files/${file.id}`
  assert.deepEqual(await keys(blobs), [`${stored}/index`, `${stored}/index-ids`, `${stored}/upload`])
  const ids = await readBlobRow(store.read, `${stored}/index-ids`)
  assert.equal(ids?.bytes, 8 + 8 * 9000)
  for (const i of [0, 4321, 8999])
    assert.deepEqual(
      await linesInIndex(ids.bytes, `line-${i}`, (range) => sealed.readAll(UPLOAD.project_id, ids, range)),
      [i + 1],
    )
  // Two lines of different parts have the same custom_id.
  const twice = pieces(`${lines(9000)}${lines(1)}`)
  const bad = await receiveUpload({ store, sealed, streamingValidation }, form(twice), BIG_UPLOAD)
  assert.equal(bad.index_blob, null)
  assert.equal((await keys(blobs)).length, 4)
})

test('a big file with a bad line has no index, and its validation names the line', async (t) => {
  const { store, blobs, sealed } = await stores(t)
  const content = `${lines(1200)}{"custom_id":""}\n${lines(5)}`
  const deps = { store, sealed, streamingValidation: streamingValidations(t) }
  const file = await receiveUpload(deps, form(pieces(content)), BIG_UPLOAD)
  assert.equal(file.index_blob, null)
  assert.deepEqual(await keys(blobs), [file.content_blob])
  await validate({ store, sealed })
  const judged = await readRow(store.read, 'files', { id: file.id })
  assert.equal(judged?.status, 'error')
  assert.match(String(judged?.status_details), /^Line 1201: .* There are 5 more invalid lines\.$/)
})

test('an upload that is rejected says why, also if its content cannot be deleted', async (t) => {
  const { store, blobs, sealed } = await stores(t)
  const keeping: SealedBlobs = {
    put: (...args) => sealed.put(...args),
    read: (...args) => sealed.read(...args),
    readAll: (...args) => sealed.readAll(...args),
    delete: () => Promise.reject(new Error('the disk is read-only')),
  }
  const deps = { store, sealed: keeping }
  async function* twice(): AsyncGenerator<FormPart> {
    yield* form()
    yield* form()
  }
  await assert.rejects(receiveUpload(deps, twice(), UPLOAD), /`purpose` is given twice/)
  const check = (): Promise<void> => Promise.reject(quotaExceeded('stored_bytes', 10, 0, 18))
  await assert.rejects(receiveUpload(deps, form(), UPLOAD, check), { code: 'quota_exceeded' })
  assert.equal((await keys(blobs)).length, 2, 'the sweep deletes them')
})

test('a big file that breaks off, or whose form turns out wrong, leaves neither content nor index', async (t) => {
  const { store, blobs, sealed } = await stores(t)
  const deps = { store, sealed, streamingValidation: streamingValidations(t) }
  function* broken(): Generator<Buffer> {
    yield* pieces(lines(2000))
    throw new Error('the sender is gone')
  }
  await assert.rejects(receiveUpload(deps, form(broken()), BIG_UPLOAD), /the sender is gone/)
  async function* twice(): AsyncGenerator<FormPart> {
    yield* form(pieces(lines(2000)))
    yield { type: 'file', fieldname: 'file', file: Readable.from(pieces(lines(10))) }
  }
  await assert.rejects(receiveUpload(deps, twice(), BIG_UPLOAD), /more than one/)
  assert.deepEqual(await keys(blobs), [])
})
