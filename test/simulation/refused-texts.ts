// Texts that the database of a run refuses to store, as PostgreSQL refuses U+0000: the usage of one entity, and that
// character in what is known of batches at batch APIs.
import { sql } from 'kysely'
import type { Writer } from '../../src/store/store.ts'

/** The database refuses every statement that stores usage of this entity. */
export const POISON = 'user:poison'

export class RefusedTexts {
  /** Whether any line of the run has the entity. */
  hasPoison = false
  /** Whether any batch API of the run says U+0000. */
  hasNul = false

  /** Looks only for what the run may have: it is asked in every transaction. */
  readonly areIn = async (tx: Writer): Promise<boolean> =>
    (this.hasPoison && (await hasPoison(tx))) || (this.hasNul && (await hasNul(tx)))
}

async function hasPoison(tx: Writer): Promise<boolean> {
  const row = await tx.selectFrom('usage_days').select('day').where('entity', '=', POISON).executeTakeFirst()
  return row !== undefined
}

async function hasNul(tx: Writer): Promise<boolean> {
  const texts = ['status', 'detail', 'remote_id', 'output_file_id', 'error_file_id', 'remote_report']
  const found = sql.join(
    texts.map((column) => sql`instr(${sql.ref(column)}, char(0)) > 0`),
    sql` OR `,
  )
  const row = await tx
    .selectFrom('remote_batches')
    .select('id')
    .where(sql<boolean>`(${found})`)
    .executeTakeFirst()
  return row !== undefined
}
