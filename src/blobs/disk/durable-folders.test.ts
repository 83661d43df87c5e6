import assert from 'node:assert/strict'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { describe, it } from 'node:test'
import { DurableFolders, FolderSync } from './durable-folders.ts'

async function setUp() {
  const base = await mkdtemp(join(tmpdir(), 'offpeak-folders-'))
  const synced: string[] = []
  const sync = new FolderSync(async (folder) => {
    synced.push(relative(base, folder))
  })
  return {
    base,
    /** The folders that were synced since the last call, relative to the base. */
    synced: () => synced.splice(0).sort(),
    /** The folders of another process, which has its own memory. */
    folders: () => new DurableFolders(join(base, 'data/objects'), sync),
    [Symbol.asyncDispose]: () => rm(base, { recursive: true, force: true }),
  }
}

describe('durable folders', () => {
  it('what is made is synced into the folder above, up to one that was there', async () => {
    await using t = await setUp()
    const folders = t.folders()
    await folders.ensure(join(t.base, 'data/objects/a/b'))
    assert.deepEqual(t.synced(), ['', 'data', 'data/objects', 'data/objects/a'])
    await folders.ensure(join(t.base, 'data/objects/a/b'))
    assert.deepEqual(t.synced(), [], 'it is known to be durable')
    await folders.ensure(join(t.base, 'data/objects/a/c'))
    assert.deepEqual(t.synced(), ['data', 'data/objects', 'data/objects/a'])
  })

  it('a folder that another process made, and may not have synced yet, is synced too', async () => {
    await using t = await setUp()
    await t.folders().ensure(join(t.base, 'data/objects/a'))
    t.synced()
    await t.folders().ensure(join(t.base, 'data/objects/a'))
    assert.deepEqual(t.synced(), ['data', 'data/objects'])
    await t.folders().ensure(join(t.base, 'data/objects'))
    assert.deepEqual(t.synced(), ['data'])
  })

  it('a forgotten folder is made and synced anew', async () => {
    await using t = await setUp()
    const folders = t.folders()
    const folder = join(t.base, 'data/objects/a')
    await folders.ensure(folder)
    await rm(folder, { recursive: true })
    t.synced()
    folders.forget(folder)
    await folders.ensure(folder)
    assert.deepEqual(t.synced(), ['data', 'data/objects'])
    assert.deepEqual(await readdir(join(t.base, 'data/objects')), ['a'])
  })

  it('empty folders are pruned, but neither full ones nor those in use nor the root', async () => {
    await using t = await setUp()
    const folders = t.folders()
    const other = t.folders()
    await folders.ensure(join(t.base, 'data/objects/a/b/c'))
    await folders.ensure(join(t.base, 'data/objects/a/d'))
    await folders.prune(join(t.base, 'data/objects/a/d'))
    assert.deepEqual(await readdir(join(t.base, 'data/objects/a')), ['b', 'd'], 'used by this process')
    await other.prune(join(t.base, 'data/objects/a/b/c'))
    assert.deepEqual(await readdir(join(t.base, 'data/objects/a')), ['d'])
    await other.prune(join(t.base, 'data/objects/a/d'))
    assert.deepEqual(await readdir(join(t.base, 'data/objects')), [])
  })
})
