// Properties of a whole database: its master key, and the state of admin commands and sweeps.
import { sql } from 'kysely'
import { deleteRows, insertOnce, NOW, putRows, selectRows } from './rows.ts'
import type { Reader, Writer } from './store.ts'

/**
 * `audit_ms`: how long its service keeps audit records. `frozen`: why no service may run on it. `installation`: what
 * tells its metrics from those of other databases. `master_key`: the ID of the key that wraps its keys and secrets. `move_progress`: how far `migrate-data` has come. `swept_at`: when a worker
 * last started a sweep (Unix ms).
 */
type PropertyName = 'audit_ms' | 'frozen' | 'installation' | 'master_key' | 'move_progress' | 'swept_at'

export async function readProperty(db: Reader, name: PropertyName): Promise<string | null> {
  const row = await selectRows(db, 'database_properties', { name }).select('value').executeTakeFirst()
  return row?.value ?? null
}

export async function writeProperty(tx: Writer, name: PropertyName, value: string): Promise<void> {
  await putRows(tx, 'database_properties', [{ name, value }], ['value'])
}

/** Does nothing if the property exists. */
export async function writePropertyOnce(tx: Writer, name: PropertyName, value: string): Promise<void> {
  await insertOnce(tx, 'database_properties', { name, value })
}

/** True for one caller in each interval of `every_ms`, by the clock of the database. */
export async function claimInterval(tx: Writer, name: 'swept_at', every_ms: number): Promise<boolean> {
  const taken = await tx
    .insertInto('database_properties')
    .values((eb) => ({ name, value: eb.cast<string>(NOW, 'text') }))
    .onConflict((conflict) =>
      conflict
        .column('name')
        .doUpdateSet((eb) => ({ value: eb.ref('excluded.value') }))
        // One that lies ahead was written while the clock was.
        .where(
          sql<boolean>`CAST(database_properties.value AS bigint) NOT BETWEEN ${NOW} - ${every_ms} + 1 AND ${NOW}`,
        ),
    )
    .returning('name')
    .executeTakeFirst()
  return taken !== undefined
}

export async function deleteProperty(tx: Writer, name: PropertyName): Promise<void> {
  await deleteRows(tx, 'database_properties', { name }).execute()
}
