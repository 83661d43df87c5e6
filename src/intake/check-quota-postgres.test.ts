// Transactions that run side by side do not pass a quota together.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { emptyPostgres } from '../../test/fakes/empty-postgres.ts'
import { postgresServer, withoutPostgres } from '../../test/fakes/postgres-server.ts'
import { newId } from '../domain/ids.ts'
import { QUOTA_NAMES, QUOTAS_DEFAULT } from '../domain/plan.ts'
import { newLimitRow } from '../http/routes/limits.ts'
import { amountsByEntity, insertProjectedSpend } from '../store/ledger.ts'
import { insertLimit } from '../store/limits.ts'
import { ensureProject, isStored, readUse } from '../store/projects.ts'
import { checkQuotas } from './check-quota.ts'

const NOW = 1_700_000_000_000
const LIMIT = { scope: 'project', metric: 'tokens', amount: 5, window: 'day' } as const

test('a quota holds however many add at the same moment', { skip: withoutPostgres }, async () => {
  await using server = await postgresServer()
  await using database = await emptyPostgres(server)
  const store = database.open()
  await store.migrate()
  const project_id = newId('project', NOW)
  await store.write((tx) => ensureProject(tx, { id: project_id, name: 'p', plan: 'payg', created: NOW }))
  const holder = { project_id, quotas: { ...QUOTAS_DEFAULT, limits: 5 } }
  const add = () =>
    store.write(async (tx) => {
      await checkQuotas(tx, holder, { limits: 1 })
      await insertLimit(tx, newLimitRow(LIMIT, { project_id, created: NOW }))
    })
  const added = await Promise.allSettled(Array.from({ length: 20 }, add))
  const refused = added.flatMap((one) => (one.status === 'rejected' ? [String(one.reason.code)] : []))
  assert.equal(added.length - refused.length, 5)
  assert.deepEqual([...new Set(refused)], ['quota_exceeded'])
  const use = await readUse(store.read, project_id, QUOTA_NAMES.filter(isStored))
  const none = { stored_bytes: 0, open_batches: 0, queued_lines: 0, webhooks: 0, keys: 0 }
  assert.deepEqual(use, { ...none, limits: 5 })

  const rows = Array.from({ length: 1200 }, (_, i) => ({
    batch_id: 'batch_1',
    project_id,
    key_id: 'key_1',
    entity: `user'$1:${i}`,
    model: 'm',
    cost_nanos: 2 ** 53 - 1 - i,
    tokens: i,
    requests: 1,
  }))
  await store.write((tx) => insertProjectedSpend(tx, rows))
  const found = await amountsByEntity(
    store.read,
    'batch_projected_spend',
    project_id,
    rows.map(({ entity }) => entity),
  )
  assert.equal(found.length, 1200)
  const one = found.find(({ entity }) => entity === "user'$1:7")
  assert.deepEqual([one?.model, one?.cost_nanos, one?.tokens, one?.requests], ['m', 2 ** 53 - 8, 7, 1])
  await store.close()
})
