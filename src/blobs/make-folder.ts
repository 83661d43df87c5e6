// Makes a folder and its missing parents. Node's `recursive` never returns where the file system answers ENOENT
// although the parent exists, as /proc does.
import { existsSync, mkdirSync, statSync } from 'node:fs'
import { dirname } from 'node:path'

/** Returns the highest folder that was missing. Throws what the system says. */
export function makeFolder(folder: string, mode = 0o700): string | undefined {
  try {
    mkdirSync(folder, { mode })
    return folder
  } catch (error) {
    if (existsSync(folder) && statSync(folder).isDirectory()) return undefined
    const isMissing = error instanceof Error && 'code' in error && error.code === 'ENOENT'
    const above = dirname(folder)
    if (!isMissing || existsSync(above)) throw error
    const highest = makeFolder(above, mode)
    makeFolder(folder, mode)
    return highest ?? folder
  }
}
