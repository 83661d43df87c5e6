import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import {
  idempotencyKey,
  newRunState,
  readRunState,
  removeRunState,
  sameTerms,
  writeRunState,
} from './run-batch.ts'

const terms = { target: 'http://a', window: '24h', metadata: { entity: 'user:1', tags: 't' } }

describe('the state of a run', () => {
  let folder: string

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'offpeak-state-'))
  })
  after(() => rm(folder, { recursive: true }))

  test('it is read as it was written, and can be removed', async () => {
    const path = join(folder, 'run.json')
    assert.equal(await readRunState(path), undefined)
    const state = { ...newRunState(terms, 'hash', 'file_1'), batch_id: 'batch_1' }
    await writeRunState(path, state)
    assert.deepEqual(await readRunState(path), state)
    await removeRunState(path)
    await removeRunState(path)
    assert.equal(await readRunState(path), undefined)
  })

  test('a truncated file, or one of another version, is ignored', async () => {
    const path = join(folder, 'broken.json')
    await writeFile(path, '{"version":1,"targ')
    assert.equal(await readRunState(path), undefined)
    await writeFile(path, '{"version":2}')
    assert.equal(await readRunState(path), undefined)
  })

  test('a resumed run keeps its idempotency key, and no other run has the same one', () => {
    const state = newRunState(terms, 'hash', 'file_1')
    const { tags, entity } = terms.metadata
    assert.equal(
      idempotencyKey({ ...state, batch_id: 'batch_1', metadata: { tags, entity } }),
      idempotencyKey(state),
    )
    const others = [
      newRunState(terms, 'hash', 'file_1'),
      { ...state, input_sha256: 'other' },
      { ...state, file_id: 'file_2' },
      { ...state, window: '4h' },
      { ...state, metadata: {} },
      { ...state, dedupe: true as const },
      { ...state, dedupe: 'force' as const },
      { ...state, order: 'file' as const },
      { ...state, reask: { max: 2, mode: 'repair' as const } },
    ]
    const keys = new Set([state, ...others].map(idempotencyKey))
    assert.equal(keys.size, 10)
  })

  test('another service, window or metadata makes another run', () => {
    const state = newRunState(terms, 'hash', 'file_1')
    assert.equal(sameTerms(state, { ...terms, metadata: { tags: 't', entity: 'user:1' } }), true)
    assert.equal(sameTerms(state, { ...terms, target: 'http://b' }), false)
    assert.equal(sameTerms(state, { ...terms, window: '4h' }), false)
    assert.equal(sameTerms(state, { ...terms, metadata: {} }), false)
  })
})
