// Chunks: made by the plan, claimed under leases, committed under their epoch, sealed for good.
import { sql as raw } from 'kysely'
import type { ChunkSpan } from '../domain/chunk.ts'
import { dropHolds } from './holds.ts'
import type { BatchRow, ChunkRow } from './schema.ts'
import type { ClaimSql, Reader, Writer } from './store.ts'

/** Rows per INSERT: bound parameters are limited. */
const INSERT_ROWS_MAX = 500

type Owner = Pick<BatchRow, 'id' | 'project_id' | 'expires_at'>

/** Chunks that are ready to be claimed. */
export async function insertChunks(tx: Writer, batch: Owner, spans: readonly ChunkSpan[]): Promise<void> {
  await insertRows(
    tx,
    spans.map((span) => newChunk(batch, span)),
  )
}

/** Chunks whose results exist already: every line failed before it was sent. */
export async function insertSealedChunks(
  tx: Writer,
  batch: Owner,
  chunks: readonly { span: ChunkSpan; seal: ChunkSeal }[],
): Promise<void> {
  await insertRows(
    tx,
    chunks.map(({ span, seal }) => ({
      ...newChunk(batch, span),
      ...seal,
      state: 'sealed' as const,
      failed: span.line_count,
    })),
  )
}

async function insertRows(tx: Writer, rows: readonly ChunkRow[]): Promise<void> {
  for (let at = 0; at < rows.length; at += INSERT_ROWS_MAX) {
    await tx
      .insertInto('chunks')
      .values(rows.slice(at, at + INSERT_ROWS_MAX))
      .execute()
  }
}

function newChunk(batch: Owner, span: ChunkSpan): ChunkRow {
  return {
    batch_id: batch.id,
    idx: span.index,
    project_id: batch.project_id,
    state: 'ready',
    epoch: 0,
    worker_id: null,
    run_at: 0,
    parked_reason: null,
    deadline: batch.expires_at,
    first_line: span.first_line,
    line_count: span.line_count,
    byte_start: span.byte_start,
    byte_end: span.byte_end,
    completed: 0,
    failed: 0,
    cost_nanos: 0,
    output_blob: null,
    output_bytes: 0,
    error_blob: null,
    error_bytes: 0,
    audit_blob: null,
  }
}

export interface ClaimOrder {
  worker_id: string
  /** Chunks whose deadline lies before this (Unix ms) go first, whoever owns them. */
  urgent_before: number
  /** At most so many. */
  count: number
  /** At most one chunk of each project. */
  one_each?: boolean
  /** Only projects that are not in this list; what a worker holds already has its share. */
  except_projects?: readonly string[]
}

/**
 * Leases the chunks that should run next: what is about to miss its deadline, then by turns the earliest
 * deadline of the project that has the fewest chunks leased. So a small batch never waits behind another
 * project's giant. Chunks that another claim has under its hands are passed over.
 */
export async function claimChunks(tx: Writer, order: ClaimOrder): Promise<ChunkRow[]> {
  const { worker_id, count, one_each = false } = order
  const spent = new Set(order.except_projects)
  const urgent = one_each ? 1 : count
  const claims = await leaseFirst(tx, worker_id, urgent, {
    before: order.urgent_before,
    except_projects: [...spent],
  })
  if (one_each) for (const claim of claims) spent.add(claim.project_id)
  while (claims.length < count) {
    const waiting = (await readyProjects(tx)).filter(({ project_id }) => !spent.has(project_id))
    const turns = takeTurns(waiting, count - claims.length, one_each)
    if (turns.size === 0) break
    for (const [project_id, share] of turns) {
      const found = await leaseFirst(tx, worker_id, share, { project_id })
      claims.push(...found)
      if (one_each || found.length < share) spent.add(project_id)
    }
  }
  return claims
}

/** Whether there is anything to claim, without taking the write lock. */
export async function hasReadyChunk(db: Reader, except_projects: readonly string[] = []): Promise<boolean> {
  let query = db.selectFrom('chunks').select('idx').where('state', '=', raw.lit('ready')).limit(1)
  if (except_projects.length > 0) query = query.where('project_id', 'not in', except_projects)
  return (await query.executeTakeFirst()) !== undefined
}

type Choice = { before: number; except_projects: readonly string[] } | { project_id: string }

/** Leases up to `count` of the ready chunks of a choice, earliest deadline first. */
async function leaseFirst(tx: Writer, worker_id: string, count: number, choice: Choice): Promise<ChunkRow[]> {
  const rows = await tx
    .with(
      (cte) => cte('chosen').materialized(),
      (db) => {
        let query = db
          .selectFrom('chunks')
          .select(['batch_id', 'idx'])
          .where('state', '=', raw.lit('ready'))
          .orderBy('deadline')
          .orderBy('batch_id')
          .orderBy('idx')
          .limit(count)
          .forUpdate()
          .skipLocked()
        if ('project_id' in choice) return query.where('project_id', '=', choice.project_id)
        if (choice.except_projects.length > 0)
          query = query.where('project_id', 'not in', choice.except_projects)
        return query.where('deadline', '<', choice.before)
      },
    )
    .updateTable('chunks')
    .set((eb) => ({ state: 'leased', worker_id, epoch: eb('epoch', '+', 1) }))
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

function compare(a: string, b: string): number {
  return a < b ? -1 : Number(a > b)
}

interface WaitingProject {
  project_id: string
  leased: number
}

/** How many chunks each project gets of `count`, when each goes to the one that has the fewest by then. */
function takeTurns(
  waiting: readonly WaitingProject[],
  count: number,
  one_each: boolean,
): Map<string, number> {
  const turns = new Map<string, number>()
  if (waiting.length === 0) return turns
  for (let left = count; left > 0; left--) {
    const open = one_each ? waiting.filter(({ project_id }) => !turns.has(project_id)) : waiting
    if (open.length === 0) break
    const held = ({ project_id, leased }: WaitingProject): number => leased + (turns.get(project_id) ?? 0)
    const next = open.reduce((fewest, project) => (held(project) < held(fewest) ? project : fewest))
    turns.set(next.project_id, (turns.get(next.project_id) ?? 0) + 1)
  }
  return turns
}

/**
 * Projects that have a ready chunk, fewest leased chunks first. Steps from project to project through the
 * index instead of reading every ready chunk: the cost is that of the projects, not of their work.
 */
async function readyProjects(tx: Writer): Promise<WaitingProject[]> {
  const { rows } = await raw<WaitingProject>`
    WITH RECURSIVE waiting(project_id) AS (
      SELECT min(project_id) FROM chunks WHERE state = 'ready'
      UNION ALL
      SELECT (SELECT min(project_id) FROM chunks WHERE state = 'ready' AND project_id > waiting.project_id)
      FROM waiting WHERE waiting.project_id IS NOT NULL
    ), held(project_id, leased) AS (
      SELECT project_id, count(*) FROM chunks WHERE state = 'leased' GROUP BY project_id
    )
    SELECT waiting.project_id AS project_id, coalesce(held.leased, 0) AS leased
    FROM waiting LEFT JOIN held ON held.project_id = waiting.project_id
    WHERE waiting.project_id IS NOT NULL
    ORDER BY leased, waiting.project_id`.execute(tx)
  return rows
}

/** What one commit does to a chunk. */
export interface ChunkDelta {
  completed: number
  failed: number
  cost_nanos: number
}

export interface ChunkSeal {
  output_blob: string | null
  output_bytes: number
  error_blob: string | null
  error_bytes: number
  audit_blob: string
}

type Lease = Pick<ChunkRow, 'batch_id' | 'idx' | 'epoch'>

/**
 * The fence: adds to the chunk, and seals it if `seal` is given, only while the epoch is the one it was
 * claimed with. False when the lease was lost: then nothing of this chunk may be committed.
 */
export async function commitChunk(
  tx: Writer,
  lease: Lease,
  delta: ChunkDelta,
  seal: ChunkSeal | null,
): Promise<boolean> {
  let update = tx
    .updateTable('chunks')
    .set((eb) => ({
      completed: eb('completed', '+', delta.completed),
      failed: eb('failed', '+', delta.failed),
      cost_nanos: eb('cost_nanos', '+', delta.cost_nanos),
    }))
    .where('batch_id', '=', lease.batch_id)
    .where('idx', '=', lease.idx)
    .where('epoch', '=', lease.epoch)
    .where('state', '=', 'leased')
  if (seal) update = update.set({ ...seal, state: 'sealed', worker_id: null })
  const result = await update.executeTakeFirst()
  return result.numUpdatedRows > 0n
}

/** Whether the chunk is still leased under this epoch; if it is, it stays so until the transaction ends. */
export async function holdsLease(tx: Writer, lease: Lease): Promise<boolean> {
  const row = await tx
    .selectFrom('chunks')
    .select('epoch')
    .where('batch_id', '=', lease.batch_id)
    .where('idx', '=', lease.idx)
    .where('epoch', '=', lease.epoch)
    .where('state', '=', 'leased')
    .forUpdate()
    .executeTakeFirst()
  return row !== undefined
}

/** Gives the chunk back until `run_at` (Unix ms); at once if it has passed. */
export async function parkChunk(tx: Writer, lease: Lease, run_at: number, reason: string): Promise<boolean> {
  const result = await tx
    .updateTable('chunks')
    .set({ state: 'parked', worker_id: null, run_at, parked_reason: reason })
    .where('batch_id', '=', lease.batch_id)
    .where('idx', '=', lease.idx)
    .where('epoch', '=', lease.epoch)
    .where('state', '=', 'leased')
    .executeTakeFirst()
  if (result.numUpdatedRows === 0n) return false
  await dropHolds(tx, lease)
  return true
}

/** Gives the chunk back to be claimed by anyone at once. */
export async function releaseChunk(tx: Writer, lease: Lease): Promise<void> {
  const result = await tx
    .updateTable('chunks')
    .set({ state: 'ready', worker_id: null })
    .where('batch_id', '=', lease.batch_id)
    .where('idx', '=', lease.idx)
    .where('epoch', '=', lease.epoch)
    .where('state', '=', 'leased')
    .executeTakeFirst()
  if (result.numUpdatedRows > 0n) await dropHolds(tx, lease)
}

/** Parked chunks whose time has come are ready again; returns how many. */
export async function wakeParked(tx: Writer, sql: ClaimSql): Promise<number> {
  const result = await tx
    .updateTable('chunks')
    .set({ state: 'ready', parked_reason: null })
    .where('state', '=', 'parked')
    .where('run_at', '<=', sql.now)
    .executeTakeFirst()
  return Number(result.numUpdatedRows)
}

/** Makes every parked chunk of these batches ready: there is something new to do with them. */
export async function wakeBatches(tx: Writer, batch_ids: readonly string[]): Promise<void> {
  if (batch_ids.length === 0) return
  await tx
    .updateTable('chunks')
    .set({ state: 'ready', parked_reason: null })
    .where('state', '=', 'parked')
    .where('batch_id', 'in', batch_ids)
    .execute()
}

/** Sealed chunks of a batch in order, from `from_idx`; with the results' sizes and blobs. */
export async function listSealed(
  db: Reader,
  batch_id: string,
  from_idx: number,
  limit: number,
): Promise<ChunkRow[]> {
  return await db
    .selectFrom('chunks')
    .selectAll()
    .where('batch_id', '=', batch_id)
    .where('state', '=', 'sealed')
    .where('idx', '>=', from_idx)
    .orderBy('idx')
    .limit(limit)
    .execute()
}

/** The chunk that holds a line (its physical number in the input file, from 1). */
export async function readChunkOfLine(
  db: Reader,
  batch_id: string,
  line: number,
): Promise<ChunkRow | undefined> {
  return await db
    .selectFrom('chunks')
    .selectAll()
    .where('batch_id', '=', batch_id)
    .where('first_line', '<=', line)
    .orderBy('first_line', 'desc')
    .limit(1)
    .executeTakeFirst()
}

/** The first chunk of a batch that still has lines to run; undefined when there is none. */
export async function firstUnsealed(db: Reader, batch_id: string): Promise<ChunkRow | undefined> {
  return await db
    .selectFrom('chunks')
    .selectAll()
    .where('batch_id', '=', batch_id)
    .where('state', '!=', 'sealed')
    .orderBy('idx')
    .limit(1)
    .executeTakeFirst()
}

/** Chunks of a batch that have finished lines, in order, from `from_idx` on. */
export async function listBegun(
  db: Reader,
  batch_id: string,
  from_idx: number,
  limit: number,
): Promise<ChunkRow[]> {
  return await db
    .selectFrom('chunks')
    .selectAll()
    .where('batch_id', '=', batch_id)
    .where('idx', '>=', from_idx)
    .where((eb) => eb(eb('completed', '+', eb.ref('failed')), '>', 0))
    .orderBy('idx')
    .limit(limit)
    .execute()
}

export async function readChunk(db: Reader, batch_id: string, idx: number): Promise<ChunkRow | undefined> {
  return await db
    .selectFrom('chunks')
    .selectAll()
    .where('batch_id', '=', batch_id)
    .where('idx', '=', idx)
    .executeTakeFirst()
}
