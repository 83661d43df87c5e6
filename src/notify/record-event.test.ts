import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { newId } from '../domain/ids.ts'
import { ensureProject } from '../store/projects.ts'
import { insertRow } from '../store/rows.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import { listEvents } from '../store/webhooks.ts'
import { deleteOldEvents, recordEvent } from './record-event.ts'

test('events older than the cutoff go, with their deliveries, and younger ones stay', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-events-'))
  const store = sqliteStore({ path: join(folder, 'offpeak.db') })
  try {
    await store.migrate()
    const project = { id: newId('project', 1), name: 'p', plan: 'payg', created: 1 }
    const project_id = (await store.write((tx) => ensureProject(tx, project))).id
    await store.write(async (tx) => {
      await insertRow(tx, 'webhooks', {
        id: newId('webhook', 1),
        project_id,
        url: 'https://example.com/',
        description: null,
        event_types: null,
        batch_id: null,
        wrapped_secret: '',
        previous_secret: null,
        previous_until: null,
        disabled_at: null,
        disabled_reason: null,
        created: 1,
      })
      for (const now of [1_000, 2_000, 3_000])
        await recordEvent(tx, { project_id, type: 'limit.reached', data: { now } }, now)
    })
    assert.equal(await deleteOldEvents(store, 2_001), 2)
    const { rows: left } = await listEvents(store.read, project_id, { limit: 10 })
    assert.deepEqual(
      left.map((event) => event.created),
      [3_000],
    )
    const deliveries = await store.read.selectFrom('deliveries').selectAll().execute()
    assert.deepEqual(
      deliveries.map((one) => one.event_id),
      left.map((event) => event.id),
    )
  } finally {
    await store.close()
    await rm(folder, { recursive: true, force: true })
  }
})
