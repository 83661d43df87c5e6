import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { temporaryDisk } from '../../test/support/temporary-disk.ts'
import { newId } from '../domain/ids.ts'
import { forgetHttpRequests } from '../store/calls.ts'
import { readOwn } from '../store/rows.ts'
import type { HttpRequestRow } from '../store/schema.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import type { Store } from '../store/store.ts'
import { HttpRecords } from './call-records.ts'

const PROJECT = 'proj_1'

function call(now = 1_700_000_000_000): HttpRequestRow {
  return {
    id: newId('request', now),
    project_id: PROJECT,
    key_id: 'key_1',
    method: 'POST',
    path: '/v1/batches',
    status: 200,
    created: now,
    duration_ms: 1,
    entity: null,
    response: '{}',
    traceparent: null,
  }
}

async function withStore(run: (store: Store) => Promise<void>): Promise<void> {
  await using disk = await temporaryDisk()
  const store = sqliteStore({ path: join(disk.root, 'db') })
  await store.migrate()
  await run(store)
  await store.close()
}

test('a record can be read when adding it is done, and not before', async () => {
  await withStore(async (store) => {
    const gate = Promise.withResolvers<void>()
    let committed = false
    const records = new HttpRecords({
      async writeAsyncCommit(change) {
        await gate.promise
        const result = await store.writeAsyncCommit(change)
        committed = true
        return result
      },
    })
    const row = call()
    const added = records.add(row).then(() => assert.ok(committed))
    gate.resolve()
    await added
    assert.deepEqual({ ...(await readOwn(store.read, 'http_requests', PROJECT, row.id)) }, row)
    assert.equal(await readOwn(store.read, 'http_requests', 'proj_2', row.id), undefined)
  })
})

test('calls that end while a commit is on its way share the next one', async () => {
  await withStore(async (store) => {
    let commits = 0
    const begun = Promise.withResolvers<void>()
    const records = new HttpRecords({
      writeAsyncCommit(change) {
        commits++
        begun.resolve()
        return store.writeAsyncCommit(change)
      },
    })
    const rows = Array.from({ length: 1200 }, () => call())
    // Those that are answered together are written together.
    const first = rows.slice(0, 3).map((row) => records.add(row))
    await begun.promise
    await Promise.all([...first, ...rows.slice(3).map((row) => records.add(row))])
    assert.equal(commits, 2)
    for (const row of rows) assert.ok(await readOwn(store.read, 'http_requests', PROJECT, row.id))
  })
})

test('a commit that fails is told to those who waited for it, and to nobody else', async () => {
  await withStore(async (store) => {
    let broken = true
    const records = new HttpRecords({
      async writeAsyncCommit(change) {
        if (broken) throw new Error('disk full')
        return await store.writeAsyncCommit(change)
      },
    })
    await assert.rejects(records.add(call()), /disk full/)
    broken = false
    await records.add(call())
  })
})

test('old records are forgotten, so many at a time', async () => {
  await withStore(async (store) => {
    const records = new HttpRecords(store)
    const now = 1_700_000_000_000
    for (let i = 0; i < 5; i++) await records.add(call(now + i))
    assert.equal(await store.write((tx) => forgetHttpRequests(tx, now + 3, 2)), 2)
    assert.equal(await store.write((tx) => forgetHttpRequests(tx, now + 3, 9)), 1)
    assert.equal(await store.write((tx) => forgetHttpRequests(tx, now + 3, 9)), 0)
  })
})
