// Runs background tasks under leases: each kind has a handler, which ends the task in the same transaction
// that records its effect. A task whose handler throws is retried with exponential backoff.
import type { Clock } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import { lockSession, releaseStrayTasks } from '../store/leases.ts'
import type { TaskKind, TaskRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'
import { claimTask, hasDueTask, postponeTask, type TaskChoice, type TaskHandlers } from '../store/tasks.ts'
import { StrayClaims } from './claim/stray-claims.ts'

interface Room {
  kinds: readonly TaskKind[]
  large: boolean
  places: number
  /** Of these, so many are for projects that have none of the others. */
  kept: number
}

/**
 * How many tasks run at once. Small work has places that large work never takes, and deliveries, which wait for
 * servers of others, have theirs.
 */
const ROOMS: readonly Room[] = [
  { kinds: ['validate', 'plan', 'purge'], large: false, places: 3, kept: 1 },
  { kinds: ['validate', 'plan', 'purge'], large: true, places: 3, kept: 1 },
  { kinds: ['deliver'], large: false, places: 16, kept: 4 },
]
const BACKOFF_MS_MIN = 1_000
const BACKOFF_MS_MAX = 60_000

export interface TaskRunnerOptions {
  store: Store
  clock: Clock
  log: Log
  handlers: TaskHandlers
  sessionId: () => string
  /** A task has ended: it may have made work. */
  onDone: (task: TaskRow) => void
}

export class TaskRunner {
  readonly #options: TaskRunnerOptions
  readonly #running = new Map<Promise<void>, { room: Room; project_id: string }>()
  /** By room, the project that was served last. */
  readonly #served = new Map<Room, string>()
  /** The IDs of what runs. */
  readonly #runningIds = new Set<string>()
  readonly #doubt: StrayClaims
  #abort = new AbortController()
  #looking: Promise<void> | null = null
  #again = false
  #closed = false

  constructor(options: TaskRunnerOptions) {
    this.#options = options
    this.#doubt = new StrayClaims(options.clock)
  }

  look(): void {
    if (this.#closed) return
    if (this.#looking) {
      this.#again = true
      return
    }
    this.#looking = this.#claimAll().finally(() => {
      this.#looking = null
      if (this.#again) {
        this.#again = false
        this.look()
      }
    })
  }

  /** The leases are lost: running tasks are aborted, and their commits would be rejected. */
  abandon(): void {
    this.#abort.abort()
    this.#abort = new AbortController()
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#abort.abort()
    await this.#looking
    await Promise.all(this.#running.keys())
  }

  async #claimAll(): Promise<void> {
    const { log } = this.#options
    try {
      for (const room of ROOMS) while (!this.#closed && (await this.#claimOne(room)));
    } catch (error) {
      // The database may have leased a task to this worker all the same; the next claim releases it.
      this.#doubt.raise()
      log.error({ err: error }, 'claiming tasks failed')
    }
  }

  async #claimOne(room: Room): Promise<boolean> {
    const { store, sessionId } = this.#options
    const choice = this.#choiceFor(room)
    if (!choice) return false
    const inDoubt = this.#doubt.isRaised
    if (!inDoubt && !(await hasDueTask(store.read, store.claimSql, choice))) return false
    const id = sessionId()
    const task = await store.write(async (tx) => {
      if (!(await lockSession(tx, store.claimSql, id))) return undefined
      if (inDoubt) await releaseStrayTasks(tx, id, [...this.#runningIds])
      return await claimTask(tx, store.claimSql, id, choice)
    })
    if (inDoubt) this.#doubt.settle()
    if (task) this.#start(task, room)
    return task !== undefined
  }

  /** Null when every place of the room is taken. */
  #choiceFor(room: Room): TaskChoice | null {
    const running = [...this.#running.values()].filter((task) => task.room === room)
    if (running.length >= room.places) return null
    const { large } = room
    const kinds = room.kinds.filter((kind) => kind in this.#options.handlers)
    if (kinds.length === 0) return null
    const except_projects =
      running.length < room.places - room.kept ? [] : running.map((task) => task.project_id)
    return { kinds, large, except_projects, after: this.#served.get(room) ?? null }
  }

  #start(task: TaskRow, room: Room): void {
    this.#runningIds.add(task.id)
    this.#served.set(room, task.project_id)
    const run = this.#run(task).finally(() => {
      this.#running.delete(run)
      this.#runningIds.delete(task.id)
      this.#options.onDone(task)
      this.look()
    })
    this.#running.set(run, { room, project_id: task.project_id })
  }

  async #run(task: TaskRow): Promise<void> {
    const { store, clock, log, handlers } = this.#options
    const { signal } = this.#abort
    try {
      await handlers[task.kind]!(task, signal)
    } catch (error) {
      if (signal.aborted) return
      log.error({ err: error, task: task.kind, subject: task.subject }, 'a task failed; it is tried again')
      const waitMs = Math.min(BACKOFF_MS_MAX, BACKOFF_MS_MIN * 2 ** Math.min(task.attempts - 1, 10))
      const text = error instanceof Error ? error.message : String(error)
      await store
        .write((tx) => postponeTask(tx, task, clock.now() + waitMs, text))
        .catch((failure: unknown) => {
          this.#doubt.raise()
          log.error({ err: failure }, 'a failed task could not be postponed yet')
        })
    }
  }
}
