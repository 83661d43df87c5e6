// Makes a folder and its missing parents. Node's `recursive` never returns where the file system answers ENOENT
// although the parent exists, as /proc does.
import { existsSync, mkdirSync, statSync } from 'node:fs'
import { dirname } from 'node:path'

/** Returns the highest folder that was missing. Throws what the system says. */
export function makeFolder(folder: string, mode = 0o700): string | undefined {
  const above = dirname(folder)
  const highest = above === folder || existsSync(above) ? undefined : makeFolder(above, mode)
  try {
    mkdirSync(folder, { mode })
  } catch (error) {
    // Another process may have made it since.
    if (existsSync(folder) && statSync(folder).isDirectory()) return highest
    throw error
  }
  return highest ?? folder
}
