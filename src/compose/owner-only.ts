// Only the user that runs a service may read what it stores: folders are 0700 and files 0600, whatever the umask is and
// whichever modes an earlier version or a restored copy had. Blobs are not checked one by one: their folder is closed.

import { chmodSync, readdirSync, type Stats, statSync } from 'node:fs'
import { join } from 'node:path'
import { apiKeyPath, type Config } from '../config/config.ts'
import { COMPAT_MODES } from '../domain/api-key.ts'

const OTHERS_MAY = 0o077
const STICKY = 0o1000

/** A file or folder that other users could read or write. */
interface OpenToOthers {
  path: string
  /** The octal mode that was found. */
  mode: string
  /** Why it was not closed; null: it was closed. */
  kept_open: string | null
}

/** Closes the data folder, the database and the folder of blobs to other users; returns what was open. */
export function closeToOthers(config: Config): OpenToOthers[] {
  // Windows has no such bits and reports every file as open to all.
  if (process.platform === 'win32') return []
  const { data_dir, database, blobs } = config
  const found = [closeFolder(data_dir, ['blobs', 'engines'])]
  if (blobs.kind === 'disk') {
    found.push(closeFolder(blobs.root, ['objects', 'tmp']))
    for (const name of ['objects', 'tmp']) found.push(closed(join(blobs.root, name), 0o700))
  }
  if (database.kind === 'sqlite')
    for (const rest of ['', '-wal', '-shm']) found.push(closed(`${database.path}${rest}`, 0o600))
  for (const compat of [null, ...COMPAT_MODES]) found.push(closed(apiKeyPath(config, compat), 0o600))
  const open = found.filter((one) => one !== null)
  // With database and blobs elsewhere, a data folder created by an orchestrator contains nothing secret.
  return database.kind === 'sqlite' || blobs.kind === 'disk' ? open : open.filter((one) => !one.kept_open)
}

/** Closes a folder, unless it has subfolders other than `ours`: other users may need those. */
export function closeFolder(path: string, ours: readonly string[]): OpenToOthers | null {
  const found = statIfThere(path)
  if (found === null || (found.mode & OTHERS_MAY) === 0) return null
  const shared =
    (found.mode & STICKY) !== 0 ||
    readdirSync(path, { withFileTypes: true }).some(
      (entry) => entry.isDirectory() && ![...ours, 'lost+found'].includes(entry.name),
    )
  if (shared)
    return {
      path,
      mode: octal(found),
      kept_open: 'it contains other folders; choose a folder for Offpeak alone',
    }
  return closed(path, 0o700)
}

function closed(path: string, mode: number): OpenToOthers | null {
  const found = statIfThere(path)
  if (found === null || (found.mode & OTHERS_MAY) === 0) return null
  try {
    chmodSync(path, mode)
    return { path, mode: octal(found), kept_open: null }
  } catch (error) {
    return { path, mode: octal(found), kept_open: error instanceof Error ? error.message : String(error) }
  }
}

function statIfThere(path: string): Stats | null {
  try {
    return statSync(path, { throwIfNoEntry: false }) ?? null
  } catch {
    // Opening it later reports the error.
    return null
  }
}

function octal({ mode }: Stats): string {
  return (mode & 0o7777).toString(8).padStart(4, '0')
}
