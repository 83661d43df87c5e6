// Decides whether a service may use a database: not while the database is rekeyed or moved, and only with its master
// key. The order of steps prevents a race: a service opens its session before it looks for the mark of the admin
// command, and the admin command sets the mark before it looks for sessions.
import { ExplainedError } from '../domain/errors.ts'
import { counted } from '../domain/text.ts'
import {
  deleteProperty,
  readProperty,
  writeProperty,
  writePropertyOnce,
} from '../store/database-properties.ts'
import type { Reader, Store } from '../store/store.ts'
import { liveSessions } from '../store/workers.ts'

export type Freeze =
  /** A change of the master key; `from` and `to` are IDs of master keys. */
  | { by: 'rekey'; from: string; to: string }
  /** A move to another place, running or done. `id` is new for each move. */
  | { by: 'move_out'; id: string; to: string; done: boolean }
  /** A move to this place, which is incomplete. */
  | { by: 'move_in'; id: string; from: string }

export async function readFreeze(db: Reader): Promise<Freeze | null> {
  const text = await readProperty(db, 'frozen')
  if (text === null) return null
  const why: Freeze = JSON.parse(text)
  if (['rekey', 'move_in', 'move_out'].includes(why.by)) return why
  throw new AdminCommandError('this database carries a mark that this version of offpeak does not know')
}

/** Marks the database as frozen, replacing an earlier mark; `thaw` removes the mark. */
export async function freeze(store: Store, why: Freeze): Promise<void> {
  await store.write((tx) => writeProperty(tx, 'frozen', JSON.stringify(why)))
}

export async function thaw(store: Store): Promise<void> {
  await store.write((tx) => deleteProperty(tx, 'frozen'))
}

/** Checks that a service may run on the database; else throws AdminCommandError with the action to take. */
export async function assertNotFrozen(db: Reader): Promise<void> {
  const why = await readFreeze(db)
  if (why !== null) throw new AdminCommandError(`this database is not to be used now: ${freezeReason(why)}`)
}

/** Checks that no process of a service runs, or may still run; else throws AdminCommandError. */
export async function assertNoLiveProcess(store: Store, doing: string): Promise<void> {
  const { count, longest_ms } = await liveSessions(store.read)
  if (count === 0) return
  const seconds = Math.ceil(longest_ms / 1000)
  throw new AdminCommandError(
    `${doing}: ${counted(count, 'process', 'processes')} of the service (api, worker or serve) ${count === 1 ? 'is' : 'are'} running; stop them all first. ` +
      `One that was killed counts for another ${seconds} s at most.`,
  )
}

/** The reason as a sentence for the operator. */
export function freezeReason(why: Freeze): string {
  switch (why.by) {
    case 'rekey':
      return `the change of its master key from ${why.from} to ${why.to} was not finished; run "offpeak rekey" again`
    case 'move_in':
      return `what it holds has not arrived completely from ${why.from}; run "offpeak migrate-data" again`
    case 'move_out':
      return why.done
        ? `what it holds was moved to ${why.to}; start with that, or run "offpeak migrate-data --from PLACE --release" to use this one again`
        : `what it holds is being moved to ${why.to}; run "offpeak migrate-data" again to finish, or with --from PLACE --release to give it up`
  }
}

/** An error that stops work on a whole database; the message names the reason and the fix. */
export class AdminCommandError extends ExplainedError {
  constructor(message: string) {
    super(message)
    this.name = 'AdminCommandError'
  }
}

// A database has one master key, stored by the first process that opens it with one. No service starts with another
// key: it would report blobs that it cannot open as damaged, and seal blobs that other services cannot open.

/** Binds the database to a master key. Throws AdminCommandError when it is bound to another one than `key_id`. */
export async function bindMasterKey(store: Store, key_id: string): Promise<void> {
  if ((await readProperty(store.read, 'master_key')) === null)
    await store.write((tx) => writePropertyOnce(tx, 'master_key', key_id))
  await assertSameMasterKey(store.read, key_id)
}

/** Checks that the master key of the database is `key_id`, if it has one; else throws AdminCommandError. */
export async function assertSameMasterKey(db: Reader, key_id: string): Promise<void> {
  const ours = await readProperty(db, 'master_key')
  if (ours === null || ours === key_id) return
  // During a change of the key, neither the old nor the new one is valid.
  await assertNotFrozen(db)
  throw new AdminCommandError(
    `the master key of this database is ${ours}, and this process was given ${key_id}: put the first of them into OFFPEAK_MASTER_KEY, or into the file master-key in the data folder; where the configuration has a master_key, restore its encrypted file of that key`,
  )
}
