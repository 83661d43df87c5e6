// Runs background tasks under leases: each kind has a handler, which ends the task in the same transaction
// that records its effect. A handler that throws is tried again later, ever more rarely.
import type { Clock } from '../domain/clock.ts'
import { holdSession, releaseStrayTasks } from '../store/leases.ts'
import type { TaskKind, TaskRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'
import { claimTask, hasDueTask, postponeTask } from '../store/tasks.ts'
import type { Log } from './log.ts'

/** How many tasks run at once. Deliveries wait for servers of others, so they have room of their own. */
const ROOMS: readonly { kinds: readonly TaskKind[]; at_once_max: number }[] = [
  { kinds: ['validate', 'plan', 'purge'], at_once_max: 4 },
  { kinds: ['deliver'], at_once_max: 16 },
]
const BACKOFF_MS_MIN = 1_000
const BACKOFF_MS_MAX = 60_000

/** Ends the task (`finishTask`) in its own transaction; stops soon after `signal` aborts. */
export type TaskHandler = (task: TaskRow, signal: AbortSignal) => Promise<void>
export type TaskHandlers = Readonly<Partial<Record<TaskKind, TaskHandler>>>

export interface TaskRunnerOptions {
  store: Store
  clock: Clock
  log: Log
  handlers: TaskHandlers
  worker_id: () => string
  /** A task has ended: it may have made work. */
  onDone: (task: TaskRow) => void
}

export class TaskRunner {
  readonly #options: TaskRunnerOptions
  readonly #running = new Map<Promise<void>, TaskKind>()
  /** The IDs of what runs. */
  readonly #held = new Set<string>()
  /** A claim failed, or a task could not be given back: it may still be leased to this worker. */
  #unsure = false
  #abort = new AbortController()
  #looking: Promise<void> | null = null
  #again = false
  #closed = false

  constructor(options: TaskRunnerOptions) {
    this.#options = options
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

  /** The leases are gone: what runs is stopped, and will find its commit refused. */
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
    const { store, worker_id, log } = this.#options
    try {
      while (!this.#closed) {
        const kinds = this.#kindsWithRoom()
        if (kinds.length === 0) return
        if (!this.#unsure && !(await hasDueTask(store.read, store.claimSql, kinds))) return
        const id = worker_id()
        const task = await store.write(async (tx) => {
          if (!(await holdSession(tx, store.claimSql, id))) return undefined
          if (this.#unsure) await releaseStrayTasks(tx, id, [...this.#held])
          return await claimTask(tx, store.claimSql, id, kinds)
        })
        this.#unsure = false
        if (!task) return
        this.#start(task)
      }
    } catch (error) {
      // What the database may have leased to this worker all the same is given back at the next look.
      this.#unsure = true
      log.error({ err: error }, 'claiming tasks failed')
    }
  }

  #kindsWithRoom(): TaskKind[] {
    const running = [...this.#running.values()]
    return ROOMS.filter(
      ({ kinds, at_once_max }) => running.filter((kind) => kinds.includes(kind)).length < at_once_max,
    )
      .flatMap(({ kinds }) => kinds)
      .filter((kind) => kind in this.#options.handlers)
  }

  #start(task: TaskRow): void {
    this.#held.add(task.id)
    const run = this.#run(task).finally(() => {
      this.#running.delete(run)
      this.#held.delete(task.id)
      this.#options.onDone(task)
      this.look()
    })
    this.#running.set(run, task.kind)
  }

  async #run(task: TaskRow): Promise<void> {
    const { store, clock, log, handlers } = this.#options
    const { signal } = this.#abort
    try {
      await handlers[task.kind]!(task, signal)
    } catch (error) {
      if (signal.aborted) return
      log.error({ err: error, task: task.kind, subject: task.subject }, 'a task failed; it is tried again')
      const wait_ms = Math.min(BACKOFF_MS_MAX, BACKOFF_MS_MIN * 2 ** Math.min(task.attempts - 1, 10))
      const text = error instanceof Error ? error.message : String(error)
      await store
        .write((tx) => postponeTask(tx, task, clock.now() + wait_ms, text))
        .catch((failure: unknown) => {
          this.#unsure = true
          log.error({ err: failure }, 'a failed task could not be given back yet')
        })
    }
  }
}
