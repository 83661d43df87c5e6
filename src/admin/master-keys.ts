// A database has one master key. The first process that opens it with one says which, and from then on no service
// starts with another: it would take what it cannot open for damaged, and seal what the others cannot open.

import { constants } from 'node:fs'
import { copyFile, link, open, rename, unlink } from 'node:fs/promises'
import { dirname } from 'node:path'
import { type MasterKey, readMasterKey } from '../blobs/master-key.ts'
import { masterKeyIdOf } from '../blobs/wrap-key.ts'
import { anyWrappedKey } from '../store/blobs.ts'
import { readProperty, writePropertyOnce } from '../store/database-properties.ts'
import type { Reader, Store } from '../store/store.ts'
import { AdminCommandError, assertNotFrozen } from './database-freeze.ts'

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

// Puts a new master key's file in the place of the old one, which is kept beside it: backups made before need
// it. At no moment is there no file, or half a file, under the key's name, and running it again is safe.

/** Where a new key waits until everything is under it. */
export function nextKeyPath(path: string): string {
  return `${path}.new`
}

export function oldKeyPath(path: string): string {
  return `${path}.old`
}

/** The key that the file at `from` holds, also at `to`, for its owner alone; a half written copy is replaced. */
export async function copyKeyFile(from: string, to: string): Promise<MasterKey> {
  const temporary = `${to}.part`
  await unlink(temporary).catch(() => {})
  await copyFile(from, temporary, constants.COPYFILE_EXCL)
  {
    await using file = await open(temporary, 'r+')
    await file.chmod(0o600)
    await file.sync()
  }
  await rename(temporary, to)
  await syncFolder(to)
  return await readMasterKey(to)
}

/** Afterwards `path` holds what `nextKeyPath(path)` held, and `oldKeyPath(path)` what `path` held. */
export async function switchKeyFile(path: string): Promise<void> {
  await keepOld(path)
  await rename(nextKeyPath(path), path)
  await syncFolder(path)
}

/** Takes the key away where another source has its place: then `path` is gone, and kept as the old one. */
export async function retireKeyFile(path: string): Promise<void> {
  await keepOld(path)
  await unlink(path)
  await syncFolder(path)
}

async function keepOld(path: string): Promise<void> {
  const present = await readMasterKey(path)
  const kept = await readMasterKey(oldKeyPath(path)).catch(() => null)
  if (kept?.id === present.id) return
  if (kept !== null) await rename(oldKeyPath(path), `${oldKeyPath(path)}.${kept.id}`)
  await link(path, oldKeyPath(path))
  await syncFolder(path)
}

async function syncFolder(path: string): Promise<void> {
  if (process.platform === 'win32') return
  await using folder = await open(dirname(path), constants.O_RDONLY)
  await folder.sync()
}
