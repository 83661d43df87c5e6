// Texts that the database of a run refuses to store, as PostgreSQL refuses U+0000: the usage of one entity, and that
// character in what is known of batches at batch APIs.
import type { DatabaseSync } from 'node:sqlite'

/** The database refuses every statement that stores usage of this entity. */
export const POISON = 'user:poison'

const TEXTS = ['status', 'detail', 'remote_id', 'output_file_id', 'error_file_id', 'remote_report']

/** Has the database refuse them from now on. */
export function refuseTexts(db: DatabaseSync): void {
  const hasNul = TEXTS.map((column) => `instr(NEW.${column}, char(0)) > 0`).join(' OR ')
  for (const [event, table, refused] of [
    ['INSERT', 'usage_days', `NEW.entity = '${POISON}'`],
    ['INSERT', 'remote_batches', hasNul],
    [`UPDATE OF ${TEXTS.join(', ')}`, 'remote_batches', hasNul],
  ])
    db.exec(`CREATE TRIGGER "refuse ${table} ${event}" BEFORE ${event} ON ${table} WHEN ${refused}
      BEGIN SELECT RAISE(ABORT, 'this text cannot be stored'); END`)
}
