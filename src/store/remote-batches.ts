// Remote batches. The row of a remote batch is its durable intent: it is stored before anything is sent, under the
// lease of the chunk whose lines it takes, and the worker that claims the chunk next continues from it. Its states and
// transitions are in domain/batch.ts; each change here names the state that it starts from.
//
// Until the remote batch has ended, its chunk is parked. Its reservation is kept meanwhile under an index that no chunk
// has, so that releasing the reservations of the chunk does not affect it.
import { sql } from 'kysely'
import {
  assertRemoteTransition,
  BATCH_STATUSES,
  isTerminal,
  type RemoteBatchState,
  UNRECORDED_STATES,
} from '../domain/batch.ts'
import { hasLease, wake } from './chunks.ts'
import { addReservations } from './ledger.ts'
import { pagesOf } from './page.ts'
import {
  changedRows,
  changesRow,
  deleteRows,
  findsRow,
  lockRow,
  NOW,
  readRow,
  selectRows,
  updateRows,
} from './rows.ts'
import type { ChunkRow, RemoteBatchRow, ReservationRow } from './schema.ts'
import type { Reader, Writer } from './store.ts'

type Lease = Pick<ChunkRow, 'batch_id' | 'idx' | 'epoch' | 'project_id' | 'key_id'>

const UNRECORDED: readonly RemoteBatchState[] = UNRECORDED_STATES
/** The states of unrecorded batches that are not known to have ended. */
const UNFINISHED: readonly RemoteBatchState[] = UNRECORDED.filter((state) => state !== 'ended')

/**
 * The projected cost of a remote batch's lines, which stays reserved until it is settled, whether a limit matches or
 * not.
 */
export type RemoteReservation = [
  entity: string | null,
  cost_nanos: number,
  tokens: number,
  requests: number,
][]

type NewRemoteBatch = Pick<RemoteBatchRow, 'id' | 'model' | 'upstream' | 'created' | 'line_count' | 'day'> & {
  lines: LineRanges
  reservation: RemoteReservation
  /** The part of the reservation that the chunk holds already. */
  moved: RemoteReservation
}

/** Stores the intent. Undefined if the lease is lost: then nothing may be sent. Repeating it has no further effect. */
export async function intendRemoteBatch(
  tx: Writer,
  lease: Lease,
  { lines, reservation, moved, ...batch }: NewRemoteBatch,
): Promise<RemoteBatchRow | undefined> {
  if (!(await hasLease(tx, lease))) return undefined
  const { batch_id, idx, project_id } = lease
  const json = { lines: JSON.stringify(lines), reserved: JSON.stringify(reservation) }
  const row = await tx
    .insertInto('remote_batches')
    .values({ ...batch, batch_id, idx, project_id, state: 'intended', ...json })
    .onConflict((conflict) => conflict.doNothing())
    .returningAll()
    .executeTakeFirst()
  if (row === undefined) return await readRow(tx, 'remote_batches', { id: batch.id })
  await countOf(tx, lease, 1)
  await addReservations(tx, reservationRows({ ...lease, model: batch.model }, moved, -1))
  await addReservations(
    tx,
    reservationRows({ ...lease, model: batch.model, idx: keptIndex(idx) }, reservation, 1),
  )
  return row
}

/** The remote batches of a chunk whose results are not recorded, oldest first. */
export async function unrecordedBatches(
  db: Reader,
  { batch_id, idx }: Pick<ChunkRow, 'batch_id' | 'idx'>,
): Promise<RemoteBatchRow[]> {
  return await selectRows(db, 'remote_batches', { batch_id, idx, state: UNRECORDED })
    .selectAll()
    .orderBy('id')
    .execute()
}

/** All stored remote batches of a chunk's lines. */
export async function batchesOfChunk(
  db: Reader,
  { batch_id, idx }: Pick<ChunkRow, 'batch_id' | 'idx'>,
): Promise<Pick<RemoteBatchRow, 'id' | 'upstream' | 'remote_id' | 'status' | 'answered'>[]> {
  return await selectRows(db, 'remote_batches', { batch_id, idx })
    .select(['id', 'upstream', 'remote_id', 'status', 'answered'])
    .execute()
}

/** Whether a batch API has, or may have, another batch of the model. */
export async function hasOthersThere(
  db: Reader,
  { id, model, upstream }: Pick<RemoteBatchRow, 'id' | 'model' | 'upstream'>,
): Promise<boolean> {
  const some = selectRows(db, 'remote_batches', { model, upstream, state: ['creating', 'open'] })
  return await findsRow(some.where('id', '<>', id).select('id'))
}

/** The remote batches of unfinished batches, for their waiting reasons. */
export interface RemoteWork
  extends Pick<RemoteBatchRow, 'batch_id' | 'upstream' | 'state' | 'status' | 'detail' | 'failing_since'> {
  /** The first of its batches there. */
  remote_id: string | null
  batches: number
  lines: number
  cancelled_at: number | null
}

export async function remoteWorkOf(db: Reader, batch_ids: readonly string[]): Promise<RemoteWork[]> {
  if (batch_ids.length === 0) return []
  return await selectRows(db, 'remote_batches', { batch_id: batch_ids, state: UNRECORDED })
    .select(['batch_id', 'upstream', 'state', 'status', 'detail'])
    .select(({ fn }) => [
      fn.min('remote_id').as('remote_id'),
      fn.countAll<number>().as('batches'),
      fn.sum<number>('line_count').as('lines'),
      fn.min('failing_since').as('failing_since'),
      fn.min('cancelled_at').as('cancelled_at'),
    ])
    .groupBy(['batch_id', 'upstream', 'state', 'status', 'detail'])
    .execute()
}

/** The given IDs at an upstream that belong to open remote batches. */
export async function openRemoteIds(
  db: Reader,
  upstream: string,
  ids: readonly string[],
): Promise<Set<string>> {
  const rows = await selectRows(db, 'remote_batches', { remote_id: ids, state: 'open', upstream })
    .select('remote_id')
    .execute()
  return new Set(rows.flatMap(({ remote_id }) => remote_id ?? []))
}

type Change = Partial<Omit<RemoteBatchRow, 'id' | 'batch_id' | 'idx' | 'project_id'>>

/** Changes a remote batch. False if it is in another state by now. */
export async function changeRemoteBatch(
  tx: Writer,
  id: string,
  from: RemoteBatchState,
  change: Change,
): Promise<boolean> {
  if (change.state !== undefined) assertRemoteTransition(id, from, change.state)
  return await changesRow(updateRows(tx, 'remote_batches', { id, state: from }).set(change))
}

/**
 * Stores the time, by the database's clock, at which the batch is about to be created, and clears the batch API's
 * failure, since it has just answered. False without the lease, or in another state.
 */
export async function announceCreation(
  tx: Writer,
  { id, state, file_id }: Pick<RemoteBatchRow, 'id' | 'state' | 'file_id'>,
  lease: Lease,
): Promise<boolean> {
  assertRemoteTransition(id, state, 'creating')
  if (!(await hasLease(tx, lease))) return false
  return await changesRow(
    updateRows(tx, 'remote_batches', { id, state }).set((eb) => ({
      state: 'creating',
      file_id,
      creating_at: NOW,
      creations: eb('creations', '+', 1),
      failing_since: null,
    })),
  )
}

/** Milliseconds since the last attempt to create the batch, by the database's clock. */
export async function creationAge(db: Reader, id: string): Promise<number> {
  const row = await selectRows(db, 'remote_batches', { id })
    .select((eb) => eb(NOW, '-', eb.ref('creating_at')).as('age_ms'))
    .executeTakeFirst()
  return Number(row?.age_ms ?? 0)
}

type RemoteEnd = Pick<RemoteBatchRow, 'status'> &
  Partial<Pick<RemoteBatchRow, 'output_file_id' | 'error_file_id' | 'remote_report' | 'detail'>>

/** Records the end of a remote batch, and makes its chunk ready, whatever models are available. */
export async function endRemoteBatch(
  tx: Writer,
  batch: Pick<RemoteBatchRow, 'id' | 'batch_id' | 'idx' | 'state'>,
  end: RemoteEnd,
  look_at: number,
): Promise<boolean> {
  const { batch_id, idx } = batch
  // A worker that parks the chunk sees this end, or the parked chunk is seen here.
  const chunk = await lockRow(tx, 'chunks', { batch_id, idx })
  const change = { detail: null, ...end, state: 'ended', failing_since: null, poll_at: look_at } as const
  const ended = await changeRemoteBatch(tx, batch.id, batch.state, change)
  if (ended && chunk?.state === 'parked') await makeReady(tx, batch)
  return ended
}

/** Makes a chunk that was just parked ready if one of its remote batches has ended with readable results. */
export async function wakeIfEnded(tx: Writer, chunk: Pick<ChunkRow, 'batch_id' | 'idx'>): Promise<void> {
  const { batch_id, idx } = chunk
  const ended = selectRows(tx, 'remote_batches', { batch_id, idx, state: 'ended', failing_since: null })
  if (await findsRow(ended.select('id'))) await makeReady(tx, chunk)
}

async function makeReady(tx: Writer, { batch_id, idx }: Pick<ChunkRow, 'batch_id' | 'idx'>): Promise<void> {
  await wake(tx, { batch_id, idx }).set({ model: null }).execute()
}

/**
 * Settles a remote batch: its answers are committed under the epoch `epoch`, and `returned` is the projected cost of
 * its unanswered lines, which stays reserved for the chunk; the rest is released. False if another worker may have
 * claimed the chunk since: that worker records the remaining results. Repeating it changes nothing.
 */
export async function settleRemoteBatch(
  tx: Writer,
  { id, batch_id, idx }: Pick<RemoteBatchRow, 'id' | 'batch_id' | 'idx'>,
  epoch: number,
  change: {
    state: 'recorded' | 'abandoned' | 'done'
    answered: number
    cost_nanos: number
    poll_at: number | null
    /** The status of a rejected batch. */
    status?: string
  },
  returned: RemoteReservation = [],
): Promise<boolean> {
  const chunk = await lockRow(tx, 'chunks', { batch_id, idx })
  // A delayed write must not reserve for a chunk that was parked meanwhile.
  if (chunk?.epoch !== epoch || (chunk.state !== 'leased' && chunk.state !== 'sealed')) return false
  const row = await lockRow(tx, 'remote_batches', { id })
  // An earlier attempt whose response was lost may have settled the batch, and its remote files may be deleted by now.
  if (!row || !UNRECORDED.includes(row.state)) return row !== undefined
  assertRemoteTransition(id, row.state, change.state)
  await updateRows(tx, 'remote_batches', { id })
    .set({ ...change, failing_since: null, reserved: null })
    .execute()
  const { model } = row
  await countOf(tx, chunk, -1)
  if (row.reserved === null || chunk.state === 'sealed') return true
  const kept: RemoteReservation = JSON.parse(row.reserved)
  await addReservations(tx, reservationRows({ ...chunk, model, idx: keptIndex(idx) }, kept, -1))
  await addReservations(tx, reservationRows({ ...chunk, model }, returned, 1))
  const others = selectRows(tx, 'remote_batches', { batch_id, idx }).where('reserved', 'is not', null)
  if (!(await findsRow(others.select('id')))) await releaseKept(tx, chunk)
  return true
}

/**
 * Deletes the rows of up to `limit` batches without remaining work, whose lines' results are deleted here. Returns
 * their number.
 */
export async function forgetRemoteBatches(tx: Writer, limit: number): Promise<number> {
  const forgettable = tx
    .selectFrom('remote_batches')
    .innerJoin('batches', 'batches.id', 'remote_batches.batch_id')
    .select('remote_batches.id')
    .where('state', '=', sql.lit('done' as const))
    .where('batches.status', 'in', BATCH_STATUSES.filter(isTerminal))
    .where(({ not, exists, selectFrom }) =>
      not(
        exists(
          selectFrom('files')
            .select('files.id')
            .where((eb) =>
              eb.or([
                eb('files.id', '=', eb.ref('batches.output_file_id')),
                eb('files.id', '=', eb.ref('batches.error_file_id')),
              ]),
            )
            .where('files.deleted_at', 'is', null),
        ),
      ),
    )
    .limit(limit)
  return await changedRows(tx.deleteFrom('remote_batches').where('id', 'in', forgettable))
}

/**
 * Abandons the remote batches of a sealed chunk, whose results or input are damaged; batches that have ended are
 * settled by other means.
 */
export async function giveUpRemoteBatches(
  tx: Writer,
  chunk: Pick<ChunkRow, 'batch_id' | 'idx'>,
  now: number,
): Promise<void> {
  const { batch_id, idx } = chunk
  const unfinished = updateRows(tx, 'remote_batches', { batch_id, idx, state: UNFINISHED })
  const abandoned = { state: 'abandoned', reserved: null, failing_since: null, poll_at: now } as const
  const count = await changedRows(unfinished.set(abandoned))
  if (count > 0) await countOf(tx, chunk, -count)
  await releaseKept(tx, chunk)
}

async function releaseKept(tx: Writer, { batch_id, idx }: Pick<ChunkRow, 'batch_id' | 'idx'>): Promise<void> {
  await deleteRows(tx, 'reservations', { batch_id, idx: keptIndex(idx) }).execute()
}

/** All remote batches, ordered by ID, in pages of `limit`. */
export function remoteBatchPages(db: Reader, limit: number): AsyncGenerator<RemoteBatchRow[]> {
  const rows = db.selectFrom('remote_batches').selectAll().orderBy('id').limit(limit)
  return pagesOf<RemoteBatchRow>(limit, (last) => rows.where('id', '>', last?.id ?? '').execute())
}

async function countOf(
  tx: Writer,
  { batch_id, idx }: Pick<Lease, 'batch_id' | 'idx'>,
  by: number,
): Promise<void> {
  await updateRows(tx, 'chunks', { batch_id, idx })
    .set((eb) => ({ remote_batches: eb('remote_batches', '+', by) }))
    .execute()
}

/** The index for reservations of lines at a batch API, which no chunk has. */
function keptIndex(idx: number): number {
  return -1 - idx
}

function reservationRows(
  { batch_id, idx, project_id, key_id, model }: Omit<Lease, 'epoch'> & { model: string },
  spend: RemoteReservation,
  sign: 1 | -1,
): ReservationRow[] {
  return spend.map(([entity, cost_nanos, tokens, requests]) => ({
    ...{ batch_id, idx, project_id, key_id, model, entity: entity ?? '' },
    ...{ cost_nanos: sign * cost_nanos, tokens: sign * tokens, requests: sign * requests },
  }))
}

// Line numbers of a remote batch in ascending order, as runs of consecutive ones.

/** Pairs of first and last line number. */
type LineRanges = [first: number, last: number][]

/** The runs of `lines`, which ascend. */
export function rangesOf(lines: Iterable<number>): LineRanges {
  const ranges: LineRanges = []
  for (const line of lines) {
    const last = ranges.at(-1)
    if (last && last[1] === line - 1) last[1] = line
    else ranges.push([line, line])
  }
  return ranges
}

/** The numbers of a remote batch's lines. */
export function* linesOf(row: Pick<RemoteBatchRow, 'lines'>): Generator<number> {
  const ranges: LineRanges = JSON.parse(row.lines)
  for (const [first, last] of ranges) for (let line = first; line <= last; line++) yield line
}

// When remote batches are polled.

/** The kind of work that is due on a remote batch: no kind waits for the calls of another. */
export type RemoteDuty = 'look' | 'cancel' | 'tidy'

const DUTY = sql<RemoteDuty>`CASE WHEN state <> 'open' THEN 'tidy' WHEN cancelled_at IS NULL THEN 'look' ELSE 'cancel' END`

interface DueOrder {
  upstream: string
  duty: RemoteDuty
  /** The only batches of the work; absent: all. */
  onlyBatches?: readonly string[] | undefined
  exceptBatches: readonly string[]
}

/**
 * Claims up to `limit` due batches of an upstream, and sets the next due time of each, `nextIn` ms from now, before
 * which no worker claims it again.
 */
export async function takeDueBatches(
  tx: Writer,
  { upstream, duty, onlyBatches, exceptBatches }: DueOrder,
  nextIn: (row: RemoteBatchRow) => number,
  limit: number,
): Promise<RemoteBatchRow[]> {
  const due = await selectRows(tx, 'remote_batches', {
    upstream,
    ...(onlyBatches && { batch_id: onlyBatches }),
  })
    .$if(exceptBatches.length > 0, (query) => query.where('batch_id', 'not in', exceptBatches))
    .selectAll()
    .where(DUTY, '=', duty)
    .where('poll_at', 'is not', null)
    .where('poll_at', '<=', NOW)
    .orderBy('poll_at')
    .limit(limit)
    .forUpdate()
    .skipLocked()
    .execute()
  for (const row of due) {
    const { poll_at } = await updateRows(tx, 'remote_batches', { id: row.id })
      .set((eb) => ({ poll_at: eb(NOW, '+', nextIn(row)) }))
      .returning('poll_at')
      .executeTakeFirstOrThrow()
    row.poll_at = poll_at
  }
  return due
}

/** The open batches of a model and a project at a batch API. `first`: the oldest, since most end in this order. */
export interface OpenAtBatchApi {
  model: string
  upstream: string
  project_id: string
  first: string
  lines: number
}

export async function openAtBatchApis(db: Reader): Promise<OpenAtBatchApi[]> {
  const rows = await selectRows(db, 'remote_batches', { state: 'open' })
    .select(['model', 'upstream', 'project_id'])
    .select(({ fn }) => [fn.min('id').as('first'), fn.sum('line_count').as('lines')])
    .where('poll_at', 'is not', null)
    .groupBy(['model', 'upstream', 'project_id'])
    .execute()
  return rows.map((row) => ({ ...row, lines: Number(row.lines) }))
}

/** Makes the oldest remaining batch due now, after the given one has ended. */
export async function hastenNextBatch(
  tx: Writer,
  { model, upstream }: Pick<RemoteBatchRow, 'model' | 'upstream'>,
  now: number,
): Promise<void> {
  await tx
    .updateTable('remote_batches')
    .set({ poll_at: now })
    .where('poll_at', '>', now)
    .where('id', '=', (eb) =>
      eb
        .selectFrom('remote_batches')
        .select((inner) => inner.fn.min('id').as('id'))
        .where('state', '=', 'open')
        .where('poll_at', 'is not', null)
        .where('model', '=', model)
        .where('upstream', '=', upstream),
    )
    .execute()
}

/** The upstreams with due batches, and the kinds of due work. */
export async function dueUpstreams(
  db: Reader,
  now: number,
  onlyBatches?: readonly string[],
): Promise<{ upstream: string; duty: RemoteDuty }[]> {
  return await db
    .selectFrom('remote_batches')
    .$if(onlyBatches !== undefined, (query) => query.where('batch_id', 'in', onlyBatches ?? []))
    .select('upstream')
    .select(DUTY.as('duty'))
    .distinct()
    .where('poll_at', 'is not', null)
    .where('poll_at', '<=', now)
    .execute()
}

/** Up to `limit` open batches of an upstream, in the last third of their windows, due at `since` and not claimed. */
export async function overdueBatches(
  db: Reader,
  { upstream, onlyBatches, exceptBatches }: Omit<DueOrder, 'duty'>,
  { now, since, limit }: { now: number; since: number; limit: number },
): Promise<RemoteBatchRow[]> {
  return await db
    .selectFrom('remote_batches')
    .innerJoin('batches', 'batches.id', 'remote_batches.batch_id')
    .selectAll('remote_batches')
    .where('upstream', '=', upstream)
    .where('state', '=', 'open')
    .$if(onlyBatches !== undefined, (query) => query.where('batch_id', 'in', onlyBatches ?? []))
    .$if(exceptBatches.length > 0, (query) => query.where('batch_id', 'not in', exceptBatches))
    .where('poll_at', 'is not', null)
    .where('poll_at', '<=', since)
    .where(sql<boolean>`3 * (batches.expires_at - ${now}) <= batches.expires_at - batches.created`)
    .orderBy('poll_at')
    .limit(limit)
    .execute()
}

/** Makes an open remote batch of some upstreams due now, by its remote ID. False if there is none. */
export async function hastenRemoteBatch(
  tx: Writer,
  remote_id: string,
  upstreams: readonly string[],
  now: number,
): Promise<boolean> {
  return await changesRow(
    updateRows(tx, 'remote_batches', { remote_id, state: 'open', upstream: upstreams }).set({ poll_at: now }),
  )
}

/** Ends the remote batches of ending batches: they are due now to be cancelled, or a worker records their answers. */
export async function stopRemoteBatches(
  tx: Writer,
  batch_id: string | readonly string[],
  now: number,
): Promise<void> {
  await updateRows(tx, 'remote_batches', { batch_id, state: UNRECORDED })
    .set((eb) => ({ cancelled_at: eb.fn.coalesce('cancelled_at', eb.val(now)) }))
    .execute()
  await updateRows(tx, 'remote_batches', { batch_id, state: 'open' }).set({ poll_at: now }).execute()
  await wake(tx, { batch_id }).set({ model: null }).where('remote_batches', '>', 0).execute()
}
