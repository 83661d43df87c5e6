// A database is for the user that runs the service. SQLite makes its file as open as the umask lets it, and gives the
// write-ahead log and the shared memory beside it the mode of the file; so the file is made first.
import { closeSync, fchmodSync, openSync } from 'node:fs'

/** An empty file at `path` with mode 0600, unless there is a file; where none can be made, SQLite says why. */
export function makeOwnFile(path: string): void {
  let fd: number
  try {
    fd = openSync(path, 'wx', 0o600)
  } catch {
    return
  }
  // An unusual umask may have taken the owner's own rights.
  fchmodSync(fd, 0o600)
  closeSync(fd)
}
