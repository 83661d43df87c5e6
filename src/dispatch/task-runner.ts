// Runs background tasks under leases: each kind has a handler, which ends the task in the same transaction
// that records its effect. A handler that throws is tried again later, ever more rarely.
import type { Clock } from '../domain/clock.ts'
import type { TaskKind, TaskRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'
import { claimTask, hasDueTask, postponeTask } from '../store/tasks.ts'
import type { Log } from './log.ts'

const TASKS_AT_ONCE_MAX = 4
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
  readonly #running = new Set<Promise<void>>()
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
    await Promise.all(this.#running)
  }

  async #claimAll(): Promise<void> {
    const { store, handlers, worker_id, log } = this.#options
    const kinds = Object.keys(handlers).filter((kind): kind is TaskKind => kind in handlers)
    try {
      while (!this.#closed && this.#running.size < TASKS_AT_ONCE_MAX) {
        if (!(await hasDueTask(store.read, store.claimSql, kinds))) return
        const task = await store.write((tx) => claimTask(tx, store.claimSql, worker_id(), kinds))
        if (!task) return
        this.#start(task)
      }
    } catch (error) {
      log.error({ err: error }, 'claiming tasks failed')
    }
  }

  #start(task: TaskRow): void {
    const run = this.#run(task).finally(() => {
      this.#running.delete(run)
      this.#options.onDone(task)
      this.look()
    })
    this.#running.add(run)
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
        .catch((failure: unknown) => log.error({ err: failure }, 'a failed task could not be given back'))
    }
  }
}
