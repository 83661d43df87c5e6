// Keeps two runs from writing the same output, and from paying for it twice: a lock of the operating system, which ends
// with its process however that ends. It is SQLite's lock of a file beside the output, whose user_version is the ID of
// the process.
import { rmSync } from 'node:fs'
import { EXIT_NOT_SENT, Failure } from '../terminal/failure.ts'
import { readRunState, runStatePath } from './run-batch.ts'

const SQLITE_BUSY = 5
/** A process that is just ending, or writing its ID, is waited for. */
const WAIT_MS = 500

/** Returns what ends the lock. Throws a Failure that names the run that has it. */
export async function lockRun(output: string): Promise<() => void> {
  const { DatabaseSync } = await import('node:sqlite')
  const path = `${output}.offpeak-run.lock`
  const versionOf = (db: InstanceType<typeof DatabaseSync>): unknown =>
    db.prepare('PRAGMA user_version').get()?.user_version
  for (;;) {
    let db: InstanceType<typeof DatabaseSync> | undefined
    try {
      db = new DatabaseSync(path, { timeout: WAIT_MS })
      const own = `PRAGMA synchronous = OFF; BEGIN IMMEDIATE; PRAGMA user_version = ${process.pid}; COMMIT`
      db.exec(`${own}; BEGIN IMMEDIATE`)
      const there = new DatabaseSync(path, { timeout: WAIT_MS })
      const isOurs = versionOf(there) === process.pid
      there.close()
      if (isOurs) return unlocking(db, path)
      // The run that had the lock has deleted the file since it was opened.
      db.close()
    } catch (error) {
      const isBusy =
        error instanceof Error && 'errcode' in error && (Number(error.errcode) & 0xff) === SQLITE_BUSY
      const pid = isBusy && db?.isOpen ? versionOf(db) : null
      if (db?.isOpen) db.close()
      // A folder that cannot be written, or a file system without locks: what is written there later says so, or works.
      if (!isBusy) return () => {}
      const batch = (await readRunState(runStatePath(output)))?.batch_id
      throw new Failure(
        `another run with the output ${output} is running: process ${pid}${batch ? `, ${batch}` : ''}. ` +
          'Nothing was sent. Wait for that run, or choose another output with -o',
        EXIT_NOT_SENT,
      )
    }
  }
}

function unlocking(db: { close(): void }, path: string): () => void {
  return () => {
    try {
      // Before the lock ends: afterwards, the file may be that of the next run.
      rmSync(path, { force: true })
    } catch {
      // Windows deletes no open file; the next run uses it.
    }
    db.close()
  }
}
