// The folder for compiled code between starts. Anyone who can write to it can run code as this user, so it must belong
// to this user alone, below folders that no other user can replace.
import { chmodSync, lstatSync, mkdirSync, realpathSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, isAbsolute, join } from 'node:path'

const STICKY = 0o1000
const OTHERS_MAY = 0o077
const OTHERS_MAY_WRITE = 0o022

/** A folder for compiled code, created if needed; undefined where none is safe. */
export function compileCacheFolder() {
  // On Windows each user has a temporary folder, and there are no owners and modes to check.
  if (process.platform === 'win32') return join(tmpdir(), 'offpeak-compile-cache')
  return places().find(isOwn)
}

function places() {
  const { HOME, XDG_CACHE_HOME } = process.env
  const caches = XDG_CACHE_HOME || (HOME ? join(HOME, '.cache') : '')
  const below = [join(caches, 'offpeak'), join(tmpdir(), `offpeak-${process.getuid()}`)]
  return below.filter((folder) => isAbsolute(folder))
}

function isOwn(folder) {
  try {
    makeFolder(folder)
    const found = lstatSync(folder)
    if (!found.isDirectory() || found.uid !== process.getuid() || (found.mode & OTHERS_MAY) !== 0)
      return false
    for (let at = realpathSync(dirname(folder)); ; at = dirname(at)) {
      if (!isProtected(lstatSync(at))) return false
      if (at === dirname(at)) return true
    }
  } catch {
    return false
  }
}

function makeFolder(folder) {
  try {
    mkdirSync(dirname(folder), { recursive: true, mode: 0o700 })
    mkdirSync(folder, { mode: 0o700 })
    chmodSync(folder, 0o700)
  } catch (error) {
    if (error.code !== 'EEXIST') throw error
  }
}

/** Whether only this user and root can replace this user's entries in a folder. */
function isProtected({ uid, mode }) {
  if (uid !== 0 && uid !== process.getuid()) return false
  return (mode & OTHERS_MAY_WRITE) === 0 || (mode & STICKY) !== 0
}
