// Makes folders, and brings their entries to the disk.
import { closeSync, constants, existsSync, fsync, mkdirSync, openSync, statSync } from 'node:fs'
import { dirname } from 'node:path'
import { promisify } from 'node:util'

/**
 * Makes a folder and its missing parents; returns the highest folder that was missing. Throws the system's error:
 * Node's `recursive` never returns where the file system answers ENOENT although the parent exists, as /proc does.
 */
export function makeFolder(folder: string, mode = 0o700): string | undefined {
  const above = dirname(folder)
  const highest = above === folder || existsSync(above) ? undefined : makeFolder(above, mode)
  try {
    mkdirSync(folder, { mode })
  } catch (error) {
    // Another process may have made the folder meanwhile.
    if (existsSync(folder) && statSync(folder).isDirectory()) return highest
    throw error
  }
  return highest ?? folder
}

const syncAside = promisify(fsync)
/** Errors of file systems that cannot sync a folder (some network and FUSE ones). */
const NOT_SUPPORTED = ['EINVAL', 'ENOTSUP']

/** Makes changes in a folder survive a power failure, where the file system can. */
export async function syncFolder(folder: string): Promise<void> {
  // Windows syncs no folders; NTFS keeps renames in its own journal.
  if (process.platform === 'win32') return
  const fd = openSync(folder, constants.O_RDONLY)
  try {
    await syncAside(fd)
  } catch (cause) {
    if (!NOT_SUPPORTED.includes(errnoOf(cause) ?? '')) throw cause
  } finally {
    closeSync(fd)
  }
}

/** The error code of the operating system ("ENOENT"); null when `error` is no failed system call. */
export function errnoOf(error: unknown): string | null {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : null
}
