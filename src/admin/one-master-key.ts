// A database has one master key. The first process that opens it with one says which, and from then on no service
// starts with another: it would take what it cannot open for damaged, and seal what the others cannot open.
import { masterKeyIdOf } from '../blobs/wrap-key.ts'
import { anyWrappedKey } from '../store/blobs.ts'
import { readProperty, writePropertyOnce } from '../store/database-properties.ts'
import type { Reader, Store } from '../store/store.ts'
import { AdminCommandError } from './admin-command-error.ts'
import { assertNotFrozen } from './database-freeze.ts'

/** Throws AdminCommandError when the master key of this database is another than `key_id`. */
export async function bindMasterKey(store: Store, key_id: string): Promise<void> {
  if ((await readProperty(store.read, 'master_key')) === null)
    await store.write(async (tx) => {
      // One that was begun by an older version has blobs, and no mark.
      const wrapped = await anyWrappedKey(tx)
      const ours = wrapped === null ? null : masterKeyIdOf(wrapped)
      await writePropertyOnce(tx, 'master_key', ours ?? key_id)
    })
  await assertSameMasterKey(store.read, key_id)
}

/** Throws AdminCommandError when `key_id` is not the master key that this database was last put under. */
export async function assertSameMasterKey(db: Reader, key_id: string): Promise<void> {
  const ours = await readProperty(db, 'master_key')
  if (ours === null || ours === key_id) return
  // While it is being replaced, neither the old key nor the new one is the right one.
  await assertNotFrozen(db)
  throw new AdminCommandError(
    `the master key of this database is ${ours}, and this process was given ${key_id}: put the first of them into OFFPEAK_MASTER_KEY, or into the file master-key in the data folder`,
  )
}
