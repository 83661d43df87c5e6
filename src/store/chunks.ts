// Chunks: created by the plan, committed under the epoch of their claim (chunk-claims.ts), and sealed in the end.
import { sql, type UpdateObject } from 'kysely'
import type { ChunkSpan } from '../domain/batch.ts'
import { entityOf } from '../domain/entity.ts'
import { LINE_NUMBER_MAX, type LinePlace, lineRequestId, parseLineRequestId } from '../domain/ids.ts'
import { isStorable } from '../domain/text.ts'
import { lineNumbers } from '../jsonl/chunk-lines.ts'
import { lockBlobs, markForDeletion } from './blobs.ts'
import { deleteReservations } from './ledger.ts'
import { type AuditWindow, LAST_OF_MS, pagesOf, rowsInWindow } from './page.ts'
import {
  changedRows,
  changesRow,
  deleteRows,
  exactPlus,
  findsRow,
  insertRows,
  NOW,
  readRow,
  selectRows,
  updateRows,
} from './rows.ts'
import type { BatchRow, ChunkRow, JournalPartRow, Schema } from './schema.ts'
import type { Reader, Writer } from './store.ts'

const REFUSED_CHARACTERS_MAX = 500

/** A file of a hundred million lines has 100,000 chunks, whose rows are not in memory together. */
const ROWS_AT_ONCE = 1_000

type Owner = Pick<BatchRow, 'id' | 'project_id' | 'key_id' | 'expires_at'> &
  Partial<Pick<BatchRow, 'metadata' | 'header_entity'>>

/**
 * Inserts the chunks of a batch. `firstLines`: by chunk, if the batch deduplicates. `leased`: the transaction itself
 * commits the results of these chunks, under the epoch 0.
 */
export async function insertChunks(
  tx: Writer,
  batch: Owner,
  spans: readonly (ChunkSpan & { input_blob?: string })[],
  firstLines: readonly (string | null)[] = [],
  state: 'ready' | 'leased' = 'ready',
): Promise<void> {
  const entity = entityOf(null, batch.metadata ? JSON.parse(batch.metadata) : null, batch.header_entity) ?? ''
  for (let at = 0; at < spans.length; at += ROWS_AT_ONCE) {
    const some = spans.slice(at, at + ROWS_AT_ONCE)
    const rows = some.map((span, i) => ({
      ...newChunk(batch, entity, span),
      ...{ first_lines: firstLines[at + i] ?? null, state },
    }))
    await insertRows(tx, 'chunks', rows)
  }
}

function newChunk(batch: Owner, entity: string, span: ChunkSpan & { input_blob?: string }) {
  const { index, model, first_line, line_count, byte_start, byte_end, input_blob = null } = span
  const { lines = null, stretch_line = 0, claim_group = 0 } = span
  return {
    input_blob,
    lines,
    stretch_line,
    claim_group,
    batch_id: batch.id,
    idx: index,
    first_line,
    line_count,
    byte_start,
    byte_end,
    project_id: batch.project_id,
    model: model && isStorable(model) ? model : null,
    entity,
    key_id: batch.key_id,
    deadline: batch.expires_at,
  }
}

/** The sums that one commit adds to a chunk. */
type ChunkDelta = Pick<ChunkRow, 'completed' | 'failed' | 'cost_nanos'>

export type ChunkSeal = Pick<ChunkRow, 'output_blob' | 'output_bytes' | 'error_blob' | 'error_bytes'> & {
  audit_blob: string
}

type Lease = Pick<ChunkRow, 'batch_id' | 'idx' | 'epoch'>

/** A lease, and its last commit that is known to have taken effect. */
type CommitLease = Lease & Pick<ChunkRow, 'commit_seq'>

/** The condition of statements under a lease, which match no row once another worker has the chunk. */
function leased({ batch_id, idx, epoch }: Lease) {
  return { batch_id, idx, epoch, state: 'leased' as const }
}

/** The condition of a commit under a lease, which matches no row if the commit took effect before. */
function uncommitted(lease: CommitLease) {
  return { ...leased(lease), commit_seq: lease.commit_seq }
}

/**
 * The outcome of a commit. `repeated`: an earlier attempt with an unknown outcome took effect. `lost`: another worker
 * has the lease. Both change nothing.
 */
export type Fenced = 'accepted' | 'repeated' | 'lost'

/**
 * The fence of commits: adds to the chunk, and seals it if `seal` is given, only while its epoch is that of the claim
 * and no commit has taken effect since `commit_seq`. A commit that is not accepted may not be counted anywhere else.
 */
export async function commitChunk(
  tx: Writer,
  lease: CommitLease,
  delta: ChunkDelta,
  seal: ChunkSeal | null,
  now: number,
): Promise<Fenced> {
  let update = updateRows(tx, 'chunks', uncommitted(lease)).set((eb) => ({
    completed: eb('completed', '+', delta.completed),
    failed: eb('failed', '+', delta.failed),
    cost_nanos: exactPlus('cost_nanos', delta.cost_nanos),
    commit_seq: eb('commit_seq', '+', 1),
  }))
  if (seal) update = update.set({ ...seal, state: 'sealed', worker_id: null, sealed_at: now })
  return (await changesRow(update)) ? 'accepted' : await outcomeOf(tx, lease)
}

/**
 * The outcome of a commit that changed no row. One worker commits under an epoch, one commit at a time: a commit number
 * raised by one proves that the pending commit took effect.
 */
async function outcomeOf(tx: Writer, { batch_id, idx, epoch, commit_seq }: CommitLease): Promise<Fenced> {
  const now = await readRow(tx, 'chunks', { batch_id, idx })
  return now?.epoch === epoch && now.commit_seq === commit_seq + 1 ? 'repeated' : 'lost'
}

/** Whether the chunk is still leased under this epoch; if it is, it stays so until the transaction ends. */
export async function hasLease(tx: Writer, lease: Lease): Promise<boolean> {
  return await findsRow(selectRows(tx, 'chunks', leased(lease)).select('epoch').forUpdate())
}

/**
 * The fence of reservations: gives the next reservation the number `next`, only while the lease holds and `last` is the
 * number of the last effective one. Otherwise nothing changes; the result is the number of the reservation that did
 * take effect, or null when the lease is lost.
 */
export async function fenceReservation(
  tx: Writer,
  lease: Lease,
  { last, next }: { last: number; next: number },
): Promise<number | null> {
  const renumbered = updateRows(tx, 'chunks', { ...leased(lease), reservation_seq: last })
  if (await changesRow(renumbered.set({ reservation_seq: next }))) return next
  return (await readRow(tx, 'chunks', leased(lease)))?.reservation_seq ?? null
}

/**
 * Parks the chunk for `afterMs` by the database's clock, as the worker's may be wrong. `model`: the only model of
 * unfinished lines, if there is one.
 */
export async function parkChunk(
  tx: Writer,
  lease: CommitLease,
  afterMs: number,
  reason: string,
  model?: string | null,
  line_tries?: string | null,
): Promise<Fenced> {
  return await endLease(tx, lease, {
    state: 'parked',
    run_at: sql<number>`cast(${NOW} as bigint) + ${Math.max(0, Math.ceil(afterMs))}`,
    parked_reason: reason,
    model,
    line_tries,
  })
}

/**
 * Requeues a chunk whose results the database rejects, with the error `why`. Its lines end as errors, which needs no
 * model server, so it can be claimed whatever models are available.
 */
export async function rejectChunk(tx: Writer, lease: CommitLease, why: string): Promise<Fenced> {
  return await endLease(tx, lease, {
    state: 'ready',
    model: null,
    record_error: why.slice(0, REFUSED_CHARACTERS_MAX),
  })
}

async function endLease(
  tx: Writer,
  lease: CommitLease,
  change: UpdateObject<Schema, 'chunks'>,
): Promise<Fenced> {
  const ended = { ...change, worker_id: null, commit_seq: sql<number>`commit_seq + 1` }
  if (!(await changesRow(updateRows(tx, 'chunks', uncommitted(lease)).set(ended))))
    return await outcomeOf(tx, lease)
  await deleteReservations(tx, lease)
  return 'accepted'
}

/** Stores the tries of a leased chunk's unfinished lines, for the worker that claims the chunk next. */
export async function storeLineTries(tx: Writer, lease: Lease, line_tries: string | null): Promise<void> {
  await updateRows(tx, 'chunks', leased(lease)).set({ line_tries }).execute()
}

/** Requeues the chunk at once. */
export async function releaseChunk(tx: Writer, lease: Lease): Promise<void> {
  const released = updateRows(tx, 'chunks', leased(lease)).set({ state: 'ready', worker_id: null })
  if (await changesRow(released)) await deleteReservations(tx, lease)
}

/** Makes a project's chunks that wait for a limit ready, after limits were changed or have room again. */
export async function wakeOverLimit(tx: Writer, project_id: string): Promise<void> {
  await wake(tx, { parked_reason: 'usage_limit', project_id }).execute()
}

/** Makes parked chunks ready whose time has come; returns their number. */
export async function wakeParked(tx: Writer): Promise<number> {
  return await changedRows(wake(tx).where('run_at', '<=', NOW))
}

type ParkedBy = Parameters<typeof updateRows<'chunks'>>[2]

/** Makes the matching parked chunks ready. */
export function wake(tx: Writer, match: ParkedBy = {}) {
  return updateRows(tx, 'chunks', { ...match, state: 'parked' }).set({ state: 'ready', parked_reason: null })
}

/** Makes a chunk that was just parked ready if lines of it were cancelled since `claim`. */
export async function wakeIfCancelled(
  tx: Writer,
  { batch_id, idx, cancelled_lines }: Pick<ChunkRow, 'batch_id' | 'idx' | 'cancelled_lines'>,
): Promise<void> {
  await wake(tx, { batch_id, idx })
    .where('cancelled_lines', 'is distinct from', cancelled_lines ?? null)
    .execute()
}

/** The chunk that holds a line (its physical number in the input file, from 1). */
export async function readChunkOfLine(
  db: Reader,
  batch_id: string,
  line: number,
): Promise<ChunkRow | undefined> {
  const before = selectRows(db, 'chunks', { batch_id })
    .selectAll()
    .where('first_line', '<=', line)
    .orderBy('first_line', 'desc')
  const last = await before.limit(1).executeTakeFirst()
  if (!last || last.stretch_line === 0) return last
  const stretch = await before.where('first_line', '>=', last.stretch_line).execute()
  return stretch.find((chunk) => lineNumbers(chunk)?.includes(line)) ?? last
}

/** The chunks that hold these lines, in their order, by one statement unless chunks share a stretch. */
export async function readChunksOfLines(
  db: Reader,
  places: readonly LinePlace[],
): Promise<(ChunkRow | undefined)[]> {
  if (places.length === 0) return []
  const values = places.map(({ batchId, line }) => sql`(${batchId}, CAST(${line} AS bigint))`)
  const { rows } = await sql<ChunkRow>`
    WITH places(batch_id, line) AS (VALUES ${sql.join(values)})
    SELECT * FROM chunks WHERE (batch_id, first_line) IN (
      SELECT batch_id, (SELECT max(first_line) FROM chunks WHERE batch_id = places.batch_id AND first_line <= line)
      FROM places)
    ORDER BY first_line`.execute(db)
  const byBatch = Map.groupBy(rows, ({ batch_id }) => batch_id)
  return await Promise.all(
    places.map(async ({ batchId, line }) => {
      const last = byBatch.get(batchId)?.findLast(({ first_line }) => first_line <= line)
      return last && last.stretch_line !== 0 ? await readChunkOfLine(db, batchId, line) : last
    }),
  )
}

/** The first line of the chunk, or of its stretch. */
export function startOf({ first_line, stretch_line }: Pick<ChunkRow, 'first_line' | 'stretch_line'>): number {
  return stretch_line || first_line
}

/** The chunk with the first lines of a batch that is not sealed; undefined when there is none. */
export async function firstUnsealed(db: Reader, batch_id: string): Promise<ChunkRow | undefined> {
  return await selectRows(db, 'chunks', { batch_id })
    .selectAll()
    .where('state', '!=', sql.lit('sealed' as const))
    .orderBy('first_line')
    .limit(1)
    .executeTakeFirst()
}

/** Rows of chunks that are read at a time. */
const ROWS_PER_READ = 200

interface ChunkChoice {
  from_line?: number | undefined
  begun?: boolean
  unannounced?: boolean
}

/**
 * The chunks of a batch in the order of its lines, from the chunk that begins with `from_line`; with `begun`, only
 * chunks with finished lines, with `unannounced`, with finished lines of which no event is recorded. Their `idx` counts
 * them in the order of claims.
 */
export async function* chunksOf(
  db: Reader,
  batch_id: string,
  { from_line = 0, begun = false, unannounced = false }: ChunkChoice = {},
): AsyncGenerator<ChunkRow, void, undefined> {
  const chunks = selectRows(db, 'chunks', { batch_id }).selectAll().orderBy('first_line').limit(ROWS_PER_READ)
  const some =
    begun || unannounced
      ? chunks.where((eb) =>
          eb(eb('completed', '+', eb.ref('failed')), '>', unannounced ? eb.ref('announced') : 0),
        )
      : chunks
  for await (const rows of pagesOf<ChunkRow>(ROWS_PER_READ, (last) =>
    some.where('first_line', '>=', last ? last.first_line + 1 : from_line).execute(),
  ))
    yield* rows
}

/** The same chunks, with all chunks of a stretch together. */
export async function* stretchesOf(
  db: Reader,
  batch_id: string,
  which?: ChunkChoice,
): AsyncGenerator<[ChunkRow, ...ChunkRow[]], void, undefined> {
  let stretch: [ChunkRow, ...ChunkRow[]] | null = null
  for await (const chunk of chunksOf(db, batch_id, which)) {
    if (stretch && chunk.stretch_line !== 0 && startOf(stretch[0]) === chunk.stretch_line) {
      stretch.push(chunk)
      continue
    }
    if (stretch) yield stretch
    stretch = [chunk]
  }
  if (stretch) yield stretch
}

/** The first line of each chunk of a batch, in the order of the lines. */
export async function listChunkStarts(
  db: Reader,
  batch_id: string,
): Promise<Pick<ChunkRow, 'idx' | 'first_line'>[]> {
  const chunks = selectRows(db, 'chunks', { batch_id }).select(['idx', 'first_line'])
  return await chunks.orderBy('first_line').execute()
}

// Summaries of the unsealed chunks of unfinished batches. A list shows a hundred batches, and each may have ten
// thousand chunks: of each batch only its leased chunks, which are as few as workers have slots, and the first of the
// others are read.

const CHUNKS_LOOKED_AT_MAX = 32
/** The number of batches in one statement. */
const BATCHES_AT_ONCE = 100

const LEASED_GROUP = ['batch_id', 'state', 'parked_reason', 'model', 'worker_id'] as const

/** Unsealed chunks of a batch in the same state. */
export type ChunkGroup = Pick<ChunkRow, 'batch_id' | 'state' | 'parked_reason' | 'model'>

/** The groups of the first unsealed chunks of each batch. */
export async function groupUnsealed(db: Reader, batch_ids: readonly string[]): Promise<ChunkGroup[]> {
  const groups = new Map<string, ChunkGroup>()
  for (let at = 0; at < batch_ids.length; at += BATCHES_AT_ONCE) {
    const [first, ...others] = batch_ids
      .slice(at, at + BATCHES_AT_ONCE)
      .map((id) => db.selectFrom(firstGroups(db, id).as('first')).selectAll())
    const all = others.reduce((query, other) => query?.unionAll(other), first)
    for (const row of (await all?.execute()) ?? []) groups.set(JSON.stringify(Object.values(row)), row)
  }
  return [...groups.values()]
}

function firstGroups(db: Reader, batch_id: string) {
  return selectRows(db, 'chunks', { batch_id })
    .select(['batch_id', 'state', 'parked_reason', 'model'])
    .where('state', '!=', sql.lit('sealed' as const))
    .orderBy('idx')
    .limit(CHUNKS_LOOKED_AT_MAX)
}

/** The leased chunks of all projects, by batch, model and worker. */
export async function countLeased(
  db: Reader,
): Promise<(ChunkGroup & Pick<ChunkRow, 'worker_id'> & { chunks: number })[]> {
  return await selectRows(db, 'chunks', { state: 'leased' })
    .select(LEASED_GROUP)
    .select((eb) => eb.fn.countAll<number>().as('chunks'))
    .groupBy(LEASED_GROUP)
    .execute()
}

/**
 * The journal parts of an open chunk, spans of journal blobs, in the order of writing. A journal that no open chunk
 * needs is marked for deletion in the transaction that seals the last chunk.
 */
export async function listJournalParts(db: Reader, batch_id: string, idx: number): Promise<JournalPartRow[]> {
  return await selectRows(db, 'journal_parts', { batch_id, idx })
    .selectAll()
    .orderBy('journal_blob')
    .execute()
}

/** Deletes a chunk's journal parts, or those in the blobs `only`, and marks blobs without parts for deletion. */
export async function dropJournal(
  tx: Writer,
  batch_id: string,
  idx: number,
  now: number,
  only?: readonly string[],
): Promise<void> {
  const dropped = await deleteRows(tx, 'journal_parts', { batch_id, idx })
    .$if(only !== undefined, (parts) => parts.where('journal_blob', 'in', only ?? []))
    .returning('journal_blob')
    .execute()
  let unneeded = dropped.map((row) => row.journal_blob)
  const shared = await stillNeeded(tx, unneeded)
  if (shared.size > 0) {
    // Another chunk of the same journal may be sealed at the same time: the transaction that gets the lock second finds
    // no parts of the first, and deletes the journal.
    await lockBlobs(tx, [...shared])
    for (const key of await stillNeeded(tx, [...shared])) unneeded = unneeded.filter((one) => one !== key)
  }
  await markForDeletion(tx, unneeded, now)
}

async function stillNeeded(tx: Writer, keys: readonly string[]): Promise<Set<string>> {
  if (keys.length === 0) return new Set()
  const needed = await selectRows(tx, 'journal_parts', { journal_blob: keys })
    .select('journal_blob')
    .distinct()
    .execute()
  return new Set(needed.map((row) => row.journal_blob))
}

/** Sealed chunks in the order of sealing, from the chunk that contains `after`. */
export async function listSealedChunks(db: Reader, window: AuditWindow) {
  const { after } = window
  const line = parseLineRequestId(after.id)
  const first = line && (await readChunkOfLine(db, line.batchId, line.line))?.first_line
  // A call's ID shares its time with batch IDs; LAST_OF_MS sorts after every ID of a millisecond.
  const batch = line?.batchId ?? (after.id === LAST_OF_MS ? LAST_OF_MS : after.id.replace('req_', 'batch_'))
  const begin = { operator: '>=', at: [after.at, batch, first ?? LINE_NUMBER_MAX] } as const
  const all = db.selectFrom('chunks').selectAll().where('sealed_at', 'is not', null)
  const { rows, end } = await rowsInWindow(
    all.$narrowType<{ sealed_at: number }>(),
    ['sealed_at', 'batch_id', 'first_line'],
    begin,
    window,
  )
  return {
    rows,
    end: end ? { at: Number(end.sealed_at), id: lineRequestId(end.batch_id, end.first_line) } : null,
  }
}

export type SealedChunkRow = ChunkRow & { sealed_at: number }
