import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { type MasterKey, masterKeyFromText } from '../blobs/master-key.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import type { Store } from '../store/store.ts'
import { bindMasterKey, freeze } from './database-freeze.ts'

const key = (): MasterKey => masterKeyFromText(randomBytes(32).toString('hex'), 'a test')

async function onStore(use: (store: Store) => Promise<void>): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-key-'))
  const store = sqliteStore({ path: join(folder, 'one.db') })
  try {
    await store.migrate()
    await use(store)
  } finally {
    await store.close()
    await rm(folder, { recursive: true })
  }
}

test('of two keys that come to an empty database the first is taken, and the other is told which one', () =>
  onStore(async (store) => {
    const keys = [key(), key()] as const
    const [first, second] = await Promise.allSettled(keys.map(({ id }) => bindMasterKey(store, id)))
    assert.equal(first?.status, 'fulfilled')
    assert.ok(second?.status === 'rejected')
    assert.match(
      String(second.reason),
      new RegExp(
        `is ${keys[0].id}, and this process was given ${keys[1].id}: put the first of them into OFFPEAK_MASTER_KEY`,
      ),
    )
    await bindMasterKey(store, keys[0].id)
  }))

test('while the key is being replaced, that is said, and not which key is the right one', () =>
  onStore(async (store) => {
    const [from, to] = [key(), key()]
    await bindMasterKey(store, from.id)
    await freeze(store, { by: 'rekey', from: from.id, to: to.id })
    await assert.rejects(bindMasterKey(store, to.id), /run "offpeak rekey" again/)
  }))
