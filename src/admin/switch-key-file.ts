// Puts a new master key's file in the place of the old one, which is kept beside it: backups made before need
// it. At no moment is there no file, or half a file, under the key's name, and running it again is safe.
import { constants } from 'node:fs'
import { copyFile, link, open, rename, unlink } from 'node:fs/promises'
import { dirname } from 'node:path'
import { type MasterKey, readMasterKey } from '../blobs/master-key.ts'

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
