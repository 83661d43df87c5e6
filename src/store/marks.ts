// Notes that a database carries about itself as a whole.
import type { Reader, Writer } from './store.ts'

/** `frozen`: why no service may run on it. `master_key`: the ID of the key that wraps everything in it. */
export type MarkName = 'frozen' | 'master_key' | 'move_progress'

export async function readMark(db: Reader, name: MarkName): Promise<string | null> {
  const row = await db.selectFrom('marks').select('value').where('name', '=', name).executeTakeFirst()
  return row?.value ?? null
}

export async function writeMark(tx: Writer, name: MarkName, value: string): Promise<void> {
  await tx
    .insertInto('marks')
    .values({ name, value })
    .onConflict((conflict) => conflict.column('name').doUpdateSet({ value }))
    .execute()
}

export async function dropMark(tx: Writer, name: MarkName): Promise<void> {
  await tx.deleteFrom('marks').where('name', '=', name).execute()
}
