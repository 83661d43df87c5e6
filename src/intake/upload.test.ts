// What becomes of an upload's content when the database fails at its last step; the rest is tried over HTTP,
// in http/routes/files.test.ts.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { type TestContext, test } from 'node:test'
import type { Blobs } from '../blobs/blobs.ts'
import { diskBlobs } from '../blobs/disk/disk-blobs.ts'
import { masterKeyFromText } from '../blobs/master-key.ts'
import { type SealedBlobs, sealBlobs } from '../blobs/sealed.ts'
import { readBlobRow } from '../store/blob-rows.ts'
import { readFileRow } from '../store/files.ts'
import { ensureProject } from '../store/projects.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import type { Store } from '../store/store.ts'
import { type FormPart, receiveUpload } from './upload.ts'

const CONTENT = '{"custom_id":"a"}\n'
const NOW = Date.UTC(2026, 0, 1)
const UPLOAD = { project_id: 'proj_1', now: NOW, retention_ms: 1000, file_bytes_max: 1000 }

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
  const blobs = diskBlobs({ root: join(folder, 'blobs') })
  const sealed = sealBlobs(blobs, masterKeyFromText(randomBytes(32).toString('base64'), 'the test'))
  return { store, blobs, sealed }
}

async function* form(): AsyncGenerator<FormPart> {
  yield { type: 'field', fieldname: 'purpose', value: 'batch' }
  yield { type: 'file', fieldname: 'file', file: Readable.from([Buffer.from(CONTENT)]) }
}

/** Its commits are done, and whoever asked for one is told that it failed. */
function losesAnswers(store: Store): Store {
  return {
    ...store,
    async write(change) {
      await store.write(change)
      throw new Error('the connection broke before its answer came')
    },
  }
}

test('an upload whose commit was answered by silence is there, with its content', async (t) => {
  const { store, sealed } = await stores(t)
  const file = await receiveUpload({ store: losesAnswers(store), sealed }, form(), UPLOAD)
  assert.deepEqual(await readFileRow(store.read, file.id), file)
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
