// The ledger's entries; they are never changed or deleted.
import type { LedgerEntryRow } from './schema.ts'
import type { Writer } from './store.ts'

/** Rows per INSERT: bound parameters are limited. */
const ROWS_MAX = 500

export async function insertEntries(tx: Writer, rows: readonly LedgerEntryRow[]): Promise<void> {
  for (let at = 0; at < rows.length; at += ROWS_MAX)
    await tx
      .insertInto('ledger_entries')
      .values(rows.slice(at, at + ROWS_MAX))
      .execute()
}
