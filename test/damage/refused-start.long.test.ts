// What a service needs before it starts, lost or damaged: real processes that say in one sentence what is wrong and
// how to fix it, change nothing, and continue once it is fixed.
import assert from 'node:assert/strict'
import { copyFile, readFile, rename, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { after, before, describe, test } from 'node:test'
import type { WireBatch } from '../service.ts'
import { CrashTest } from '../support/crash-processes.ts'

const COUNT = 20

/** Fills the first page of `table` with nonsense. */
async function rot(path: string, table: string): Promise<void> {
  const db = new DatabaseSync(path)
  const row = db.prepare('SELECT rootpage FROM sqlite_schema WHERE name = ?').get(table)
  const size = Number(db.prepare('PRAGMA page_size').get()?.page_size)
  db.close()
  const page = Number(row?.rootpage)
  const bytes = await readFile(path)
  bytes.fill(0xa5, (page - 1) * size, page * size)
  await writeFile(path, bytes)
}

describe('a start without what it needs', () => {
  let crash: CrashTest
  let batch: WireBatch
  const inData = (name: string): string => join(crash.folder, 'data', name)

  before(async () => {
    crash = await CrashTest.begin()
    const service = await crash.start('serve')
    const { id } = await crash.batchOf(COUNT)
    batch = await crash.completed(id)
    assert.equal(await service.end('SIGTERM'), 0, service.log)
    await copyFile(inData('offpeak.db'), inData('whole.db'))
    await copyFile(inData('master-key'), inData('master-key.kept'))
  })
  after(() => crash[Symbol.asyncDispose]())

  test('a lost master key: it names the file, and makes no other', async () => {
    await rename(inData('master-key'), inData('master-key.lost'))
    await assert.rejects(
      crash.start('serve'),
      /offpeak: there is no master key at \S+; restore the file, or set OFFPEAK_MASTER_KEY to the key it held\n$/,
    )
    await assert.rejects(readFile(inData('master-key')), /ENOENT/)
  })

  test('another master key: it says which one is needed, and nothing is taken for damaged', async () => {
    await writeFile(inData('master-key'), `${Buffer.alloc(32, 'another key').toString('base64')}\n`, {
      mode: 0o600,
    })
    await assert.rejects(
      crash.start('serve'),
      /offpeak: the master key of this database is \w{16}, and this process was given \w{16}: put the first of them into OFFPEAK_MASTER_KEY, or /,
    )
    await rename(inData('master-key.kept'), inData('master-key'))
  })

  test('a database that cannot be read: it says so, and what to do', async () => {
    await rot(inData('offpeak.db'), 'workers')
    await assert.rejects(
      crash.start('serve'),
      /offpeak: the database \S+ is damaged \(.*\)\. Stop the service and restore the database from a backup/,
    )
    await copyFile(inData('whole.db'), inData('offpeak.db'))
  })

  test('a page that rots where only some look: they are told, and the doctor names it', async () => {
    await rot(inData('offpeak.db'), 'batches')
    const service = await crash.start('serve')
    await assert.rejects(crash.batch(batch.id), /500 .*internal_error/)
    assert.equal(await service.end('SIGTERM'), 0)
    assert.match(service.log, /the database \S+ is damaged \(database disk image is malformed\)/)
    const { code, said } = await doctor(crash)
    assert.equal(code, 1)
    assert.match(said, /^damage +the database: .*\n +Stop the service and restore the database from a backup/)
  })

  test('with all of it back, everything is there', async () => {
    await copyFile(inData('whole.db'), inData('offpeak.db'))
    const service = await crash.start('serve')
    assert.deepEqual(await crash.batch(batch.id), batch)
    await crash.checkResults(batch, COUNT)
    assert.equal(crash.upstream.calls.length, COUNT)
    assert.equal(await service.end('SIGTERM'), 0, service.log)
    assert.equal((await doctor(crash)).code, 0)
  })
})

async function doctor(crash: CrashTest): Promise<{ code: number | null; said: string }> {
  const child = crash.launch(['doctor', '--data', 'data', '--config', 'offpeak.yaml'])
  let said = ''
  child.stdout?.on('data', (piece: Buffer) => {
    said += piece.toString()
  })
  const code = await new Promise<number | null>((resolve) => child.once('close', resolve))
  return { code, said }
}
