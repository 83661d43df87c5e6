// Chunks: made by the plan, claimed under leases, committed under their epoch, sealed for good.
import { sql as raw } from 'kysely'
import type { ChunkSpan } from '../domain/chunk.ts'
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
  /** Only projects that are not in this list; what a worker holds already has its share. */
  except_projects?: readonly string[]
}

/**
 * Leases the chunk that should run next: what is about to miss its deadline, else the earliest deadline of
 * the project that has the fewest chunks leased. So a small batch never waits behind another project's giant.
 */
export async function claimChunk(
  tx: Writer,
  sql: ClaimSql,
  order: ClaimOrder,
): Promise<ChunkRow | undefined> {
  const next = (await urgentChunk(tx, sql, order)) ?? (await fairChunk(tx, sql, order))
  if (!next) return undefined
  return await tx
    .updateTable('chunks')
    .set((eb) => ({ state: 'leased', worker_id: order.worker_id, epoch: eb('epoch', '+', 1) }))
    .where('batch_id', '=', next.batch_id)
    .where('idx', '=', next.idx)
    .returningAll()
    .executeTakeFirst()
}

/** Whether there is anything to claim, without taking the write lock. */
export async function hasReadyChunk(db: Reader, except_projects: readonly string[] = []): Promise<boolean> {
  let query = db.selectFrom('chunks').select('idx').where('state', '=', raw.lit('ready')).limit(1)
  if (except_projects.length > 0) query = query.where('project_id', 'not in', except_projects)
  return (await query.executeTakeFirst()) !== undefined
}

type ChunkKey = Pick<ChunkRow, 'batch_id' | 'idx'>

async function urgentChunk(tx: Writer, sql: ClaimSql, order: ClaimOrder): Promise<ChunkKey | undefined> {
  let query = tx
    .selectFrom('chunks')
    .select(['batch_id', 'idx'])
    .where('state', '=', raw.lit('ready'))
    .where('deadline', '<', order.urgent_before)
    .orderBy('deadline')
    .orderBy('batch_id')
    .orderBy('idx')
    .limit(1)
  if (order.except_projects?.length) query = query.where('project_id', 'not in', order.except_projects)
  if (sql.skipLocked) query = query.forUpdate().skipLocked()
  return await query.executeTakeFirst()
}

async function fairChunk(tx: Writer, sql: ClaimSql, order: ClaimOrder): Promise<ChunkKey | undefined> {
  const projects = await readyProjects(tx, order.except_projects ?? [])
  for (const project_id of projects) {
    let query = tx
      .selectFrom('chunks')
      .select(['batch_id', 'idx'])
      .where('state', '=', raw.lit('ready'))
      .where('project_id', '=', project_id)
      .orderBy('deadline')
      .orderBy('batch_id')
      .orderBy('idx')
      .limit(1)
    if (sql.skipLocked) query = query.forUpdate().skipLocked()
    const chunk = await query.executeTakeFirst()
    if (chunk) return chunk
  }
  return undefined
}

/**
 * Projects that have a ready chunk, fewest leased chunks first. Steps from project to project through the
 * index instead of reading every ready chunk: the cost is that of the projects, not of their work.
 */
async function readyProjects(tx: Writer, except: readonly string[]): Promise<string[]> {
  const { rows } = await raw<{ project_id: string; leased: number }>`
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
  return rows.map((row) => row.project_id).filter((id) => !except.includes(id))
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
  return result.numUpdatedRows > 0n
}

/** Gives the chunk back to be claimed by anyone at once. */
export async function releaseChunk(tx: Writer, lease: Lease): Promise<void> {
  await tx
    .updateTable('chunks')
    .set({ state: 'ready', worker_id: null })
    .where('batch_id', '=', lease.batch_id)
    .where('idx', '=', lease.idx)
    .where('epoch', '=', lease.epoch)
    .where('state', '=', 'leased')
    .execute()
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
