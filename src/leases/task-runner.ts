// Runs background tasks under leases: each kind has a handler, which ends the task in the same transaction
// that records its effect. A task whose handler throws is retried with exponential backoff.

import { messageOf } from '../domain/errors.ts'
import type { TaskKind, TaskRow } from '../store/schema.ts'
import type { Ports } from '../store/store.ts'
import {
  claimTask,
  hasDueTask,
  postponeTask,
  type TaskChoice,
  type TaskHandler,
  type TaskHandlers,
} from '../store/tasks.ts'
import { type Leases, Rounds } from './leases.ts'

interface TaskPool {
  kinds: readonly TaskKind[]
  large: boolean
  slots: number
  /** The number of the slots for projects that use no other slot. */
  extraSlots: number
}

/** The pools of tasks. Tasks that large tasks, or callers' servers, could hold up have slots of their own. */
const TASK_POOLS: readonly TaskPool[] = [
  { kinds: ['validate', 'plan', 'purge', 'announce'], large: false, slots: 3, extraSlots: 1 },
  { kinds: ['validate', 'plan', 'purge'], large: true, slots: 3, extraSlots: 1 },
  { kinds: ['deliver'], large: false, slots: 16, extraSlots: 4 },
  { kinds: ['fetch', 'export'], large: false, slots: 4, extraSlots: 1 },
  // Lines of a retry; and lines of a table, which take a process: of that a worker has room for one.
  { kinds: ['make'], large: false, slots: 3, extraSlots: 1 },
  { kinds: ['make'], large: true, slots: 1, extraSlots: 0 },
]
const BACKOFF_MS_MIN = 1_000
const BACKOFF_MS_MAX = 60_000
/** The greatest setback of the clock in ms while a command waits for the validation of its file. */
const SET_BACK_MS_MAX = 10_000

interface TaskRunnerOptions extends Pick<Ports, 'store' | 'clock' | 'log'> {
  handlers: TaskHandlers
  /** The only batches whose tasks are run, and files that are validated though uploaded before. Absent: all. */
  onlyBatches?: ReadonlySet<string> | undefined
  leases: Leases
  /** Called when a task has ended, which may have created chunks or other tasks. */
  onDone: (task: TaskRow) => void
}

export class TaskRunner {
  readonly #options: TaskRunnerOptions
  readonly #running = new Map<Promise<void>, { pool: TaskPool; project_id: string }>()
  /** The project of the task that was started last, by pool. */
  readonly #lastProject = new Map<TaskPool, string>()
  #abort = new AbortController()
  readonly #rounds = new Rounds(() => this.#claimAll())
  /** Unix ms. */
  readonly #since: number

  constructor(options: TaskRunnerOptions) {
    this.#options = options
    this.#since = options.clock.now() - SET_BACK_MS_MAX
  }

  claimNow(): void {
    this.#rounds.start()
  }

  /** Aborts running tasks, whose leases are lost and whose commits would be rejected. */
  abandon(): void {
    this.#abort.abort()
    this.#abort = new AbortController()
  }

  async close(): Promise<void> {
    this.#abort.abort()
    await this.#rounds.close()
    await Promise.all(this.#running.keys())
  }

  async #claimAll(): Promise<void> {
    const { log } = this.#options
    try {
      for (const pool of TASK_POOLS) while (!this.#rounds.isClosed && (await this.#claimOne(pool)));
    } catch (error) {
      log.error({ err: error }, 'claiming tasks failed')
    }
  }

  async #claimOne(pool: TaskPool): Promise<boolean> {
    const { store, leases } = this.#options
    const choice = this.#choiceFor(pool)
    if (!choice) return false
    if (!leases.isReleaseDue && !(await hasDueTask(store.read, choice))) return false
    const [task] = await leases.claim(async (tx, id) => {
      const claimed = await claimTask(tx, id, choice)
      return claimed ? [claimed] : []
    })
    if (task) this.#start(task, pool)
    return task !== undefined
  }

  /** The choice of the next task; null when every slot of the pool is taken. */
  #choiceFor(pool: TaskPool): TaskChoice | null {
    const running = [...this.#running.values()].filter((task) => task.pool === pool)
    if (running.length >= pool.slots) return null
    const { large } = pool
    const kinds = pool.kinds.filter((kind) => kind in this.#options.handlers)
    if (kinds.length === 0) return null
    const exceptProjects =
      running.length < pool.slots - pool.extraSlots ? [] : running.map((task) => task.project_id)
    const { onlyBatches } = this.#options
    return {
      ...{ kinds, large, exceptProjects, after: this.#lastProject.get(pool) ?? null },
      ...{ onlyBatches: onlyBatches && [...onlyBatches], since: this.#since },
    }
  }

  #start(task: TaskRow, pool: TaskPool): void {
    this.#lastProject.set(pool, task.project_id)
    const handler = this.#options.handlers[task.kind]!
    const run = runTask(this.#options, task, handler, this.#abort.signal).finally(() => {
      this.#running.delete(run)
      this.#options.onDone(task)
      this.claimNow()
    })
    this.#running.set(run, { pool, project_id: task.project_id })
  }
}

/** Runs a claimed task, and ends its lease; a task whose handler throws is tried again after `waitMs`. */
export async function runTask(
  { store, clock, log, leases }: Pick<TaskRunnerOptions, 'store' | 'clock' | 'log' | 'leases'>,
  task: TaskRow,
  handler: TaskHandler,
  signal: AbortSignal,
  waitMs = Math.min(BACKOFF_MS_MAX, BACKOFF_MS_MIN * 2 ** Math.min(task.attempts - 1, 10)),
): Promise<void> {
  try {
    await handler(task, signal)
  } catch (error) {
    if (signal.aborted) return
    log.error({ err: error, task: task.kind, subject: task.subject }, 'a task failed; it is tried again')
    await store
      .write((tx) => postponeTask(tx, task, clock.now() + waitMs, messageOf(error)))
      .catch((failure: unknown) => {
        leases.suspect()
        log.error({ err: failure }, 'a failed task could not be postponed yet')
      })
  } finally {
    leases.forget(task)
  }
}
