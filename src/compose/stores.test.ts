import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { sql } from 'kysely'
import { loadConfig } from '../config/load.ts'
import { ensureProject } from '../store/projects.ts'
import { DatabaseFull } from '../store/store.ts'
import { openDatabase } from './stores.ts'

test('the opened database says that it is full, once it is', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-stores-'))
  t.after(() => rm(folder, { recursive: true }))
  await using store = await openDatabase(loadConfig({ env: {}, overrides: { data: folder } }))
  await store.write((tx) => sql`PRAGMA max_page_count = 1`.execute(tx))
  const project = { id: 'proj_1', name: 'a'.repeat(100_000), plan: 'payg', created: 1 }
  await assert.rejects(
    store.write((tx) => ensureProject(tx, project)),
    DatabaseFull,
  )
  assert.ok(store.failing instanceof DatabaseFull)
})
