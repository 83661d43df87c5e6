// Properties of a whole database: its master key, and the state of admin commands and sweeps.
import { sql } from 'kysely'
import { deleteRows, insertOnce, NOW, putRows, selectRows } from './rows.ts'
import type { Reader, Writer } from './store.ts'

/**
 * The properties. `audit_ms`: the retention of audit records. `frozen`: the reason why no service may run on the
 * database. `installation`: an ID of the database in metrics. `master_key`: the ID of the key that wraps keys and
 * secrets. `move_progress`: the progress of `migrate-data`. `swept_at`: the start of the last sweep (Unix ms).
 */
type PropertyName = 'audit_ms' | 'frozen' | 'installation' | 'master_key' | 'move_progress' | 'swept_at'

export async function readProperty(db: Reader, name: PropertyName): Promise<string | null> {
  const row = await selectRows(db, 'database_properties', { name }).select('value').executeTakeFirst()
  return row?.value ?? null
}

export async function writeProperty(tx: Writer, name: PropertyName, value: string): Promise<void> {
  await putRows(tx, 'database_properties', [{ name, value }], ['value'])
}

/** Inserts a property; no change if it exists. */
export async function writePropertyOnce(tx: Writer, name: PropertyName, value: string): Promise<void> {
  await insertOnce(tx, 'database_properties', { name, value })
}

/** Claims an interval of `every_ms` by the clock of the database: true for one caller in each. */
export async function claimInterval(tx: Writer, name: 'swept_at', every_ms: number): Promise<boolean> {
  const taken = await tx
    .insertInto('database_properties')
    .values((eb) => ({ name, value: eb.cast<string>(NOW, 'text') }))
    .onConflict((conflict) =>
      conflict
        .column('name')
        .doUpdateSet((eb) => ({ value: eb.ref('excluded.value') }))
        // A time ahead of the clock was written while the clock was wrong.
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
