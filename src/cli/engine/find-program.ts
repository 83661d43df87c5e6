// Where a program is: what its variable names, or the first of that name on the PATH.
import { accessSync, constants, statSync } from 'node:fs'
import { delimiter, join } from 'node:path'

export function findProgram(
  name: string,
  named: string | undefined,
  path: string | undefined,
): string | null {
  if (named !== undefined && named.trim() !== '') return isExecutable(named) ? named : null
  const folders = (path ?? '').split(delimiter).filter(Boolean)
  return folders.map((folder) => join(folder, name)).find(isExecutable) ?? null
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return statSync(path).isFile()
  } catch {
    return false
  }
}
