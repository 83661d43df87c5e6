// Background work that is not a chunk: validate a file, plan a batch, purge, deliver. Projects are served round robin,
// each project's tasks in the order of run_at, under the same leases as chunks (workers.ts).
import { type RawBuilder, sql } from 'kysely'
import { newId } from '../domain/ids.ts'
import { expiredFiles } from './files.ts'
import { changesRow, compare, deleteRows, findsRow, insertRow, NOW, selectRows, updateRows } from './rows.ts'
import type { TaskKind, TaskRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

/** Runs a task and ends it (`finishTask`) in a transaction of its own; stops soon after `signal` aborts. */
export type TaskHandler = (task: TaskRow, signal: AbortSignal) => Promise<unknown>
export type TaskHandlers = Readonly<Partial<Record<TaskKind, TaskHandler>>>

/** The bytes to read from which a task is large; large tasks never get the last slot. */
const LARGE_BYTES_MIN = 2 * 1024 * 1024

/** The value of `large` for a task that may read this many bytes. */
export function sizeClass(bytes: number): number {
  return Number(bytes >= LARGE_BYTES_MIN)
}

export async function insertTask(
  tx: Writer,
  task: Pick<TaskRow, 'kind' | 'subject' | 'project_id'> & Partial<Pick<TaskRow, 'run_at' | 'large'>>,
  now: number,
): Promise<void> {
  await insertRow(tx, 'tasks', { id: newId('task', now), ...task, state: 'ready', created: now })
}

/** Makes a postponed task due now. */
export async function runAtOnce(
  tx: Writer,
  { kind, subject }: Pick<TaskRow, 'kind' | 'subject'>,
  now: number,
): Promise<void> {
  await updateRows(tx, 'tasks', { kind, subject, state: 'ready' }).set({ run_at: now }).execute()
}

export interface TaskChoice {
  kinds: readonly TaskKind[]
  /** Whether to select large tasks, or the others. */
  large: boolean
  exceptProjects?: readonly string[]
  /** The project that was served last. */
  after?: string | null
  /**
   * The only batches of the tasks, and files among them; absent: all. Validation tasks queued from `since` on (Unix ms)
   * are selected as well.
   */
  onlyBatches?: readonly string[] | undefined
  since?: number
}

/** The condition of `onlyBatches` for tasks of this kind; tasks of other kinds have no open batch. */
function ofBatches(kind: TaskKind, { onlyBatches: ids, since = 0 }: TaskChoice): RawBuilder<boolean> {
  if (ids === undefined || kind === 'purge' || kind === 'deliver') return sql`1 = 1`
  const isNew = kind === 'validate' || kind === 'make' ? sql`created >= ${since}` : sql`1 = 0`
  if (ids.length === 0) return sql`${isNew}`
  const batches = sql.join(ids)
  const isInput = sql`subject IN (SELECT input_file_id FROM batches WHERE id IN (${batches}))`
  return sql`(${isNew} OR subject IN (${batches}) OR ${isInput})`
}

interface Turn {
  kind: TaskKind
  project_id: string
}

/** Whether a task can be claimed, read without the write lock. */
export async function hasDueTask(db: Reader, choice: TaskChoice): Promise<boolean> {
  return (await nextProjects(db, choice)).length > 0
}

/** Leases the longest due task of the next project in the round robin, if any is due. */
export async function claimTask(
  tx: Writer,
  worker_id: string,
  choice: TaskChoice,
): Promise<TaskRow | undefined> {
  for (const { kind, project_id } of await nextProjects(tx, choice)) {
    const next = await selectRows(tx, 'tasks', {
      state: 'ready',
      kind,
      large: Number(choice.large),
      project_id,
    })
      .select('id')
      .where('run_at', '<=', NOW)
      .$if(choice.onlyBatches !== undefined, (query) => query.where(ofBatches(kind, choice)))
      .orderBy('run_at')
      .orderBy('id')
      .limit(1)
      .forUpdate()
      .skipLocked()
      .executeTakeFirst()
    // Another worker is about to lease the task.
    if (next) return await leaseTask(tx, worker_id, next.id)
  }
  return undefined
}

export async function leaseTask(tx: Writer, worker_id: string, id: string): Promise<TaskRow | undefined> {
  return await updateRows(tx, 'tasks', { id })
    .set((eb) => ({
      state: 'leased',
      worker_id,
      epoch: eb('epoch', '+', 1),
      attempts: eb('attempts', '+', 1),
    }))
    .returningAll()
    .executeTakeFirst()
}

/**
 * The next projects in the round robin: those with the fewest such tasks running first. Steps from project to project
 * through the index: the cost is that of the projects, not of their tasks.
 */
async function nextProjects(db: Reader, choice: TaskChoice): Promise<Turn[]> {
  const { kinds, large, exceptProjects = [], after = null } = choice
  const size = sql.lit(Number(large))
  const ofKind = (kind: TaskKind) =>
    sql`state = 'ready' AND kind = ${sql.lit(kind)} AND large = ${size} AND ${ofBatches(kind, choice)}`
  const parts = kinds.map((kind) => {
    const waiting = sql.ref(`waiting_${kind}`)
    return {
      steps: sql`${waiting}(project_id) AS (
        SELECT min(project_id) FROM tasks WHERE ${ofKind(kind)}
        UNION ALL
        SELECT (SELECT min(project_id) FROM tasks WHERE ${ofKind(kind)} AND tasks.project_id > ${waiting}.project_id)
        FROM ${waiting} WHERE ${waiting}.project_id IS NOT NULL)`,
      first: sql`SELECT ${sql.lit(kind)} AS kind, project_id,
        (SELECT min(run_at) FROM tasks WHERE ${ofKind(kind)} AND tasks.project_id = ${waiting}.project_id) AS run_at
        FROM ${waiting} WHERE project_id IS NOT NULL`,
    }
  })
  const { rows } = await sql<Turn & { leased: number; run_at: number }>`
    WITH RECURSIVE ${sql.join(parts.map((part) => part.steps))},
    held(project_id, leased) AS (
      SELECT project_id, count(*) FROM tasks
      WHERE state = 'leased' AND large = ${size} AND kind IN (${sql.join(kinds.map((kind) => sql.lit(kind)))})
      GROUP BY project_id)
    SELECT due.kind, due.project_id, due.run_at, coalesce(held.leased, 0) AS leased
    FROM (${sql.join(
      parts.map((part) => part.first),
      sql` UNION ALL `,
    )}) AS due LEFT JOIN held ON held.project_id = due.project_id
    WHERE due.run_at <= ${NOW}`.execute(db)
  const isLater = ({ project_id }: Turn): number => Number(after !== null && project_id <= after)
  return rows
    .filter(({ project_id }) => !exceptProjects.includes(project_id))
    .sort(
      (a, b) =>
        a.leased - b.leased ||
        isLater(a) - isLater(b) ||
        compare(a.project_id, b.project_id) ||
        a.run_at - b.run_at,
    )
}

/** Ends the task if its lease is valid; to be called first in the transaction that records its effect. */
export async function finishTask(tx: Writer, task: TaskRow): Promise<boolean> {
  return await changesRow(deleteRows(tx, 'tasks', { id: task.id, epoch: task.epoch, state: 'leased' }))
}

/** Requeues the task, to run at `run_at` or later; false if its lease is lost. */
export async function postponeTask(
  tx: Writer,
  task: TaskRow,
  run_at: number,
  last_error: string | null,
): Promise<boolean> {
  const own = updateRows(tx, 'tasks', { id: task.id, epoch: task.epoch, state: 'leased' })
  return await changesRow(own.set({ state: 'ready', worker_id: null, run_at, last_error }))
}

/** Queues the task again, with all its attempts, unless it is running. */
export async function requeueTask(
  tx: Writer,
  { kind, subject, project_id }: Pick<TaskRow, 'kind' | 'subject' | 'project_id'>,
  now: number,
): Promise<void> {
  await deleteRows(tx, 'tasks', { kind, subject, state: 'ready' }).execute()
  const running = selectRows(tx, 'tasks', { kind, subject }).select('id')
  if (!(await findsRow(running))) await insertTask(tx, { kind, subject, project_id }, now)
}

/** The task of a pending file; undefined if there is none. */
export async function readFileTask(
  db: Reader,
  file_id: string,
): Promise<Pick<TaskRow, 'kind' | 'state' | 'last_error'> | undefined> {
  return await selectRows(db, 'tasks', { subject: file_id, kind: ['validate', 'fetch', 'make'] })
    .select(['kind', 'state', 'last_error'])
    .executeTakeFirst()
}

/**
 * Whether each maintenance task is due: expired sessions, parked chunks whose time has come, files that have ended,
 * uploads that were not completed in time, blobs pending deletion. It is one query, because every worker asks every
 * second and the answer is mostly no. States are literals, so that the partial indexes serve it.
 */
export async function maintenanceDue(db: Reader, now: number) {
  return await db
    .selectNoFrom(({ exists, selectFrom }) => [
      exists(selectFrom('workers').select('id').where('lease_until', '<=', NOW)).as('sessions'),
      exists(
        selectFrom('chunks')
          .select('idx')
          .where('state', '=', sql.lit('parked' as const))
          .where('run_at', '<=', NOW),
      ).as('parked'),
      exists(expiredFiles(db, now).select('id')).as('files'),
      exists(
        selectFrom('uploads')
          .select('id')
          .where('status', '=', sql.lit('pending' as const))
          .where('expires_at', '<=', now),
      ).as('uploads'),
      exists(selectFrom('blobs').select('key').where('deletion_pending_since', 'is not', null)).as('blobs'),
    ])
    .executeTakeFirstOrThrow()
}
