// Claims chunks: decides which chunk runs next, and leases it.
import { type Expression, type ExpressionBuilder, type SelectQueryBuilder, sql } from 'kysely'
import { OPEN_STATUSES } from '../domain/batch.ts'
import { OPEN_STATUSES_SQL } from './batches.ts'
import { compare, findsRow, NOW, selectRows } from './rows.ts'
import type { ChunkRow, Schema, TaskRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'
import { leaseTask } from './tasks.ts'

/** A choice of chunks by their model; null stands for chunks of several models. */
export type ModelChoice =
  /** The models whose chunks are excluded. */
  | { exceptModels: readonly (string | null)[] }
  /** The models whose chunks are included. */
  | { onlyModels: readonly (string | null)[] }

export interface ClaimOrder {
  worker_id: string
  /** The deadline (Unix ms) before which chunks of any project go first. */
  urgentBefore: number
  /** Batches whose chunks go first as well. */
  urgentBatches?: readonly string[]
  /** The largest number of chunks. */
  count: number
  /** Whether each project gets one chunk at most. */
  onePerProject?: boolean
  /** Projects whose chunks are excluded. */
  exceptProjects?: readonly string[]
  models?: ModelChoice
  /** The only batches whose chunks are claimed; absent: all. */
  onlyBatches?: readonly string[]
}

/** The number of workers up to whose demand ready chunks are counted: with more chunks, sharing does not matter. */
const WORKERS_SHARED_MAX = 64

const ALL_MODELS: ModelChoice = { exceptModels: [] }

/**
 * Leases the chunks, without lines at a batch API, that should run next: first those that may miss their deadline,
 * then, one by one, the chunk with the earliest deadline of the project with the fewest leased chunks. A small batch
 * therefore never waits for another project's large one. Chunks that another claim has locked are skipped. A worker gets
 * no more than a fair share of the ready chunks among the running workers, so that towards the end of the work none keeps
 * chunks that another could run at once.
 */
export async function claimChunks(tx: Writer, order: ClaimOrder): Promise<ChunkRow[]> {
  const { claims, share } = await claimSome(tx, order)
  // A worker that has begun with a group of chunks claims the rest of it, up to its share, or as many as it asked for.
  const last = claims.at(-1)
  if (!last || last.claim_group === 0 || order.onePerProject) return claims
  const { batch_id, claim_group } = last
  const rest = (ready: Ready): Ready =>
    ready.where('batch_id', '=', batch_id).where('claim_group', '=', claim_group)
  const most = Math.max(order.count, share) - claims.length
  return [...claims, ...(await leaseReady(tx, order.worker_id, order.models ?? ALL_MODELS, [[most, rest]]))]
}

/** Claims chunks. `share`: the part of the ready chunks that each worker may have. */
async function claimSome(tx: Writer, order: ClaimOrder): Promise<{ claims: ChunkRow[]; share: number }> {
  const { worker_id, onePerProject = false, models = ALL_MODELS, urgentBatches = [] } = order
  const spent = new Set(order.exceptProjects)
  const claims: ChunkRow[] = []
  const atFirst = (await readyProjects(tx, order.count)).filter(({ project_id }) => !spent.has(project_id))
  const { ready = 0, workers = 1 } = atFirst[0] ?? {}
  const share = Math.ceil(ready / Math.max(1, workers))
  if (ready === 0) return { claims, share }
  const count = Math.min(order.count, share)
  const urgent = onePerProject ? 1 : count
  const firstOf = async (most: number, which: (ready: Ready) => Ready): Promise<ChunkRow[]> =>
    await leaseReady(tx, worker_id, models, [
      [most, (ready) => which(spent.size > 0 ? ready.where('project_id', 'not in', [...spent]) : ready)],
    ])
  const { onlyBatches, urgentBefore } = order
  if (onlyBatches)
    return { claims: await firstOf(urgent, (ready) => ready.where('batch_id', 'in', onlyBatches)), share }
  if (atFirst.some(({ first_deadline }) => first_deadline < urgentBefore))
    claims.push(...(await firstOf(urgent, (ready) => ready.where('deadline', '<', urgentBefore))))
  if (urgentBatches.length > 0 && claims.length < urgent)
    claims.push(
      ...(await firstOf(urgent - claims.length, (ready) => ready.where('batch_id', 'in', urgentBatches))),
    )
  if (onePerProject) for (const claim of claims) spent.add(claim.project_id)
  let known = claims.length === 0 ? atFirst : null
  while (claims.length < count) {
    const waiting = (known ?? (await readyProjects(tx, order.count))).filter(
      ({ project_id }) => !spent.has(project_id),
    )
    known = null
    const turns = countsByProject(waiting, count - claims.length, onePerProject)
    if (turns.size === 0) break
    const found = await leaseReady(
      tx,
      worker_id,
      models,
      Array.from(turns, ([project_id, share]) => [
        share,
        (ready) => ready.where('project_id', '=', project_id),
      ]),
    )
    for (const [project_id, share] of turns) {
      const own = found.filter((claim) => claim.project_id === project_id)
      claims.push(...own)
      if (onePerProject || own.length < share) spent.add(project_id)
    }
  }
  return { claims, share }
}

/**
 * Leases ready chunks with lines at batch APIs, earliest deadline first, to record their results. That needs no model
 * and no room under a limit.
 */
export async function claimRemote(
  tx: Writer,
  worker_id: string,
  count: number,
  onlyBatches?: readonly string[],
): Promise<ChunkRow[]> {
  const chosen = readyRemote(tx, onlyBatches)
    .select(['batch_id', 'idx'])
    .orderBy('deadline')
    .limit(count)
    .forUpdate()
    .skipLocked()
  return await lease(tx, worker_id, chosen)
}

/** Whether a ready chunk has lines at a batch API. */
export async function hasReadyRemote(db: Reader, onlyBatches?: readonly string[]): Promise<boolean> {
  return await findsRow(readyRemote(db, onlyBatches).select('idx'))
}

function readyRemote(db: Pick<Reader, 'selectFrom'>, onlyBatches: readonly string[] | undefined) {
  const query = selectRows(db, 'chunks', { state: 'ready' }).where('remote_batches', '>', sql.lit(0))
  return onlyBatches ? query.where('batch_id', 'in', onlyBatches) : query
}

/** Whether `claimChunks` would find anything, without taking the write lock. */
export async function hasReadyChunk(
  db: Reader,
  {
    exceptProjects = [],
    models = ALL_MODELS,
    onlyBatches,
  }: Omit<ClaimOrder, 'worker_id' | 'urgentBefore' | 'count'> = {},
): Promise<boolean> {
  let query = selectRows(db, 'chunks', { state: 'ready' }).select('idx')
  query = query.where('remote_batches', '=', sql.lit(0))
  if (exceptProjects.length > 0) query = query.where('project_id', 'not in', exceptProjects)
  if (onlyBatches) query = query.where('batch_id', 'in', onlyBatches)
  return await findsRow(ofModels(query, models))
}

function ofModels<O>(
  query: SelectQueryBuilder<Schema, 'chunks', O>,
  models: ModelChoice,
): SelectQueryBuilder<Schema, 'chunks', O> {
  const only = 'onlyModels' in models
  const list = only ? models.onlyModels : models.exceptModels
  const named = list.filter((model) => model !== null)
  const hasSeveral = list.includes(null) === only
  if (named.length === 0 && !only) return hasSeveral ? query : query.where('model', 'is not', null)
  return query.where((eb) =>
    eb.or([
      ...(hasSeveral ? [eb('model', 'is', null)] : []),
      ...(named.length > 0 ? [eb('model', only ? 'in' : 'not in', named)] : []),
    ]),
  )
}

type Ready = ReturnType<typeof ready>

function ready(db: Pick<Writer, 'selectFrom'>) {
  return selectRows(db, 'chunks', { state: 'ready', remote_batches: 0 }).select(['batch_id', 'idx'])
}

/** Leases ready chunks, from each part up to its number, earliest deadline first. */
async function leaseReady(
  tx: Writer,
  worker_id: string,
  models: ModelChoice,
  parts: readonly [most: number, which: (ready: Ready) => Ready][],
): Promise<ChunkRow[]> {
  const [one, ...others] = parts.map(([most, which]) =>
    tx
      .selectFrom(
        which(ofModels(ready(tx), models))
          .orderBy('deadline')
          .orderBy('batch_id')
          .orderBy('idx')
          .limit(most)
          .forUpdate()
          .skipLocked()
          .as('part'),
      )
      .selectAll(),
  )
  return one
    ? await lease(
        tx,
        worker_id,
        others.reduce((union, other) => union.unionAll(other), one),
      )
    : []
}

/** Leases the chunks that `chosen` locks, in one statement; returns them by their deadline. */
async function lease(
  tx: Writer,
  worker_id: string,
  chosen: Expression<Pick<ChunkRow, 'batch_id' | 'idx'>>,
): Promise<ChunkRow[]> {
  const rows = await tx
    .with(
      (cte) => cte('chosen').materialized(),
      () => chosen,
    )
    .updateTable('chunks')
    .set((eb) => ({ state: 'leased', worker_id, parked_reason: null, epoch: eb('epoch', '+', 1) }))
    .where(({ eb, refTuple, selectFrom }) =>
      eb(
        refTuple('batch_id', 'idx'),
        'in',
        selectFrom('chosen').select(['batch_id', 'idx']).$asTuple('batch_id', 'idx'),
      ),
    )
    .returningAll()
    .execute()
  return rows.sort((a, b) => a.deadline - b.deadline || compare(a.batch_id, b.batch_id) || a.idx - b.idx)
}

interface WaitingProject {
  project_id: string
  leased: number
  /** The first deadline of the project's ready chunks (Unix ms). */
  first_deadline: number
  /** The number of ready chunks of all projects, up to a bound. */
  ready: number
  /** The number of workers that share the chunks. */
  workers: number
}

/** The number of chunks for each project, when each of `count` goes to the project with the fewest leased by then. */
function countsByProject(
  waiting: readonly WaitingProject[],
  count: number,
  onePerProject: boolean,
): Map<string, number> {
  const turns = new Map<string, number>()
  if (waiting.length === 0) return turns
  for (let left = count; left > 0; left--) {
    const open = onePerProject ? waiting.filter(({ project_id }) => !turns.has(project_id)) : waiting
    if (open.length === 0) break
    const held = ({ project_id, leased }: WaitingProject): number => leased + (turns.get(project_id) ?? 0)
    const next = open.reduce((fewest, project) => (held(project) < held(fewest) ? project : fewest))
    turns.set(next.project_id, (turns.get(next.project_id) ?? 0) + 1)
  }
  return turns
}

/**
 * The projects with a ready chunk, fewest leased chunks first. Steps from project to project through the index instead
 * of reading every ready chunk: the cost is that of the projects, not of their work.
 */
async function readyProjects(tx: Writer, count: number): Promise<WaitingProject[]> {
  const { rows } = await sql<WaitingProject>`
    WITH RECURSIVE waiting(project_id) AS (
      SELECT min(project_id) FROM chunks WHERE state = 'ready'
      UNION ALL
      SELECT (SELECT min(project_id) FROM chunks WHERE state = 'ready' AND project_id > waiting.project_id)
      FROM waiting WHERE waiting.project_id IS NOT NULL
    ), held(project_id, leased) AS (
      SELECT project_id, count(*) FROM chunks WHERE state = 'leased' GROUP BY project_id
    )
    SELECT waiting.project_id AS project_id, coalesce(held.leased, 0) AS leased,
      (SELECT min(deadline) FROM chunks WHERE state = 'ready' AND chunks.project_id = waiting.project_id)
        AS first_deadline,
      (SELECT count(*) FROM
        (SELECT 1 FROM chunks WHERE state = 'ready' LIMIT ${count * WORKERS_SHARED_MAX}) AS counted) AS ready,
      (SELECT count(*) FROM workers WHERE role = 'worker' AND lease_until > ${NOW}) AS workers
    FROM waiting LEFT JOIN held ON held.project_id = waiting.project_id
    WHERE waiting.project_id IS NOT NULL
    ORDER BY leased, waiting.project_id`.execute(tx)
  return rows
}

// Fairness within a project: claims chunks of entities without open chunks. The other claims go by deadline, so an
// entity that came last would wait for all others.

/** Selects waiting entities; '' stands for batches without an entity. */
interface EntityClaim {
  project_id: string
  /** The entity that was served last; null: start with the first. */
  after: string | null
  /** Entities with open chunks. */
  busy: readonly string[]
  /** The limit of entities. */
  count: number
}

/** The next entities in round-robin order. Steps through the index, at a cost independent of their work. */
export async function waitingEntities(db: Reader, turn: EntityClaim): Promise<string[]> {
  const { project_id, after, busy, count } = turn
  const open: string[] = []
  let wrapped = after === null
  let last = after
  while (open.length < count) {
    const next = await selectRows(db, 'chunks', { state: 'ready', project_id })
      .select('entity')
      .where('entity', last === null ? '>=' : '>', last ?? '')
      .orderBy('entity')
      .limit(1)
      .executeTakeFirst()
    if (next && !(wrapped && after !== null && next.entity > after)) {
      last = next.entity
      if (!busy.includes(last)) open.push(last)
    } else if (wrapped) break
    else {
      wrapped = true
      last = null
    }
  }
  return open
}

/** Ready chunks of one entity. */
export interface EntityWork {
  project_id: string
  entity: string
  /** The only model of the chunks; null: chunks of several models. */
  model?: string | null
  /** The deadline (Unix ms) before which chunks are claimed. */
  before?: number
}

/** Leases one chunk of each work, with its earliest deadline; fewer if other workers claimed them first. */
export async function claimOfEntities(
  tx: Writer,
  worker_id: string,
  all: readonly EntityWork[],
  models: ModelChoice = ALL_MODELS,
): Promise<ChunkRow[]> {
  return await leaseReady(
    tx,
    worker_id,
    models,
    all.map(({ project_id, entity, model, before }) => [
      1,
      (ready) => {
        let query = ready.where('project_id', '=', project_id).where('entity', '=', entity)
        if (model !== undefined) query = query.where('model', model === null ? 'is' : '=', model)
        return before === undefined ? query : query.where('deadline', '<', before)
      },
    ]),
  )
}

/** The works with a ready chunk, at most `count`, by one index search each. */
export async function withReadyChunk<T extends Required<EntityWork>>(
  db: Reader,
  all: readonly T[],
  count: number,
): Promise<T[]> {
  if (all.length === 0) return []
  const rows = all.map(
    ({ project_id, entity, model, before }, n) =>
      sql`(${sql.lit(n)}, ${project_id}, ${entity}, CAST(${model} AS text), CAST(${before} AS bigint))`,
  )
  const found = await sql<{ n: number }>`
    WITH work(n, project_id, entity, model, until) AS (VALUES ${sql.join(rows)})
    SELECT n FROM work WHERE (
      SELECT 1 FROM chunks WHERE state = 'ready' AND remote_batches = 0 AND chunks.project_id = work.project_id
        AND chunks.entity = work.entity AND deadline < work.until AND chunks.model IS NOT DISTINCT FROM work.model
      LIMIT 1) IS NOT NULL
    ORDER BY n LIMIT ${count}`.execute(db)
  return found.rows.map(({ n }) => all[n]!)
}

// Batches that send no more lines (cancelled, input deleted, or past their window), and the claims of their remaining
// chunks. Workers close these before all other work, regardless of models and limits.

const NOT_CANCELLING = OPEN_STATUSES.filter((status) => status !== 'cancelling').map((status) =>
  sql.lit(status),
)

/**
 * Some unfinished batches that are ending and have a chunk or a plan to claim. Each part is a range of a partial index,
 * so that other batches cost nothing.
 */
export async function listEnding(
  db: Reader,
  now: number,
  limit: number,
  onlyBatches?: ReadonlySet<string>,
): Promise<string[]> {
  if (onlyBatches?.size === 0) return []
  const some = () => {
    const closable = db.selectFrom('batches').select('id').where(hasClosable).limit(limit)
    return onlyBatches ? closable.where('id', 'in', [...onlyBatches]) : closable
  }
  const cancelled = some().where('status', '=', sql.lit('cancelling' as const))
  const inputDeleted = some().where('input_deleted_at', 'is not', null).where('status', 'in', NOT_CANCELLING)
  const overdue = some().where('status', 'in', OPEN_STATUSES_SQL).where('expires_at', '<=', now)
  const rows = await db
    .selectFrom(cancelled.as('part'))
    .select('id')
    .union(db.selectFrom(inputDeleted.as('part')).select('id'))
    .union(db.selectFrom(overdue.as('part')).select('id'))
    .execute()
  return rows.map((row) => row.id)
}

function hasClosable({ or, exists, selectFrom }: ExpressionBuilder<Schema, 'batches'>) {
  return or([
    exists(
      selectFrom('chunks')
        .select('idx')
        .whereRef('chunks.batch_id', '=', 'batches.id')
        .where('state', '!=', sql.lit('sealed' as const))
        .where(isClosable),
    ),
    exists(
      selectFrom('tasks')
        .select('tasks.id')
        .whereRef('subject', '=', 'batches.id')
        .where('kind', '=', 'plan')
        .where('state', '=', 'ready')
        .where('run_at', '<=', NOW),
    ),
  ])
}

/**
 * Whether no worker has leased the chunk and no batch API has its lines: the worker that claims it next records their
 * results. A chunk parked because the stores failed waits for its time like any other.
 */
const isClosable = sql<boolean>`(chunks.remote_batches = 0 AND (chunks.state = 'ready' OR (chunks.state = 'parked'
  AND (chunks.parked_reason <> 'stores_failing' OR chunks.run_at <= ${NOW}))))`

/** Leases chunks of these batches, in order; at most `count`. */
export async function claimClosable(
  tx: Writer,
  worker_id: string,
  batch_ids: readonly string[],
  count: number,
): Promise<ChunkRow[]> {
  if (batch_ids.length === 0) return []
  const chosen = selectRows(tx, 'chunks', { batch_id: batch_ids })
    .select(['batch_id', 'idx'])
    .where('state', '!=', sql.lit('sealed' as const))
    .where(isClosable)
    .orderBy('batch_id')
    .orderBy('idx')
    .limit(count)
    .forUpdate()
    .skipLocked()
  return await lease(tx, worker_id, chosen)
}

/** Leases the plan of one of these batches. */
export async function claimPlan(
  tx: Writer,
  worker_id: string,
  batch_ids: readonly string[],
): Promise<TaskRow | undefined> {
  if (batch_ids.length === 0) return undefined
  const next = await selectRows(tx, 'tasks', { subject: batch_ids, kind: 'plan', state: 'ready' })
    .select('id')
    .where('run_at', '<=', NOW)
    .orderBy('id')
    .limit(1)
    .forUpdate()
    .skipLocked()
    .executeTakeFirst()
  if (!next) return undefined
  return await leaseTask(tx, worker_id, next.id)
}
