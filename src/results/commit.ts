// The fenced commit: one transaction records the finished lines of all chunks of a worker. A chunk whose lease is lost,
// or whose part was committed before (the answer to that commit was lost or late), changes nothing. A commit may
// therefore be repeated after an attempt with an unknown outcome. An unreadable journal reverses its part of a commit.
import type { SealedBlob } from '../blobs/sealed.ts'
import type { ErrorGroup } from '../domain/batch-statistics.ts'
import { releaseProjectedSpend, type Settlement, settle } from '../ledger/settle.ts'
import { NO_LINES, reversed, type Tally } from '../ledger/tally.ts'
import { type FinishRules, finishIfDone } from '../lifecycle/batch.ts'
import { limitCrossed, recordEvent } from '../notify/record-event.ts'
import { addToBatch, type BatchDelta, lowerRateMark, moveBatch } from '../store/batches.ts'
import { insertOwnedBlobs, markForDeletion } from '../store/blobs.ts'
import { commitChunk, dropJournal } from '../store/chunks.ts'
import { giveUpRemoteBatches } from '../store/remote-batches.ts'
import { insertRows } from '../store/rows.ts'
import type { BatchRow, ChunkRow, JournalPartRow } from '../store/schema.ts'
import type { Writer } from '../store/store.ts'
import { addBatchStatistics, type StatisticsDelta, sumOfTallies } from './batch-statistics.ts'
import type { Fresh } from './chunk-results.ts'
import { JOURNAL_OWNER } from './journal.ts'
import type { SealedChunk } from './seal.ts'

export interface ChunkCommit {
  claim: Pick<ChunkRow, 'batch_id' | 'idx' | 'epoch' | 'commit_seq' | 'project_id' | 'key_id'> &
    Partial<Pick<ChunkRow, 'remote_batches' | 'lines' | 'input_blob'>>
  /** The time of the first request under this lease (Unix ms), if the batch was still queued then. */
  begunAt: number | null
  /** The lines that finished since the last commit, which this commit counts. */
  fresh: Pick<Fresh, 'tallies' | 'errors' | 'expired_lines'>
  /** Whether reservations were requested for the chunk under this lease. */
  hasReservations: boolean
  /**
   * The lines' location in a journal, for a chunk that stays open; or the blobs of a sealed chunk, and whether any of
   * its lines are in journals.
   */
  record:
    | { journal: SealedBlob; byte_start: number; byte_end: number }
    | { sealed: SealedChunk; journalled: boolean }
}

/** The commit of a chunk that was leased to a worker. */
export interface RunCommit extends ChunkCommit {
  fresh: Fresh
}

export interface Committed {
  /** The commits whose lease was lost. */
  lost: ChunkCommit[]
  /** The commits of which an earlier attempt has taken effect. */
  repeated: ChunkCommit[]
  ended: BatchRow[]
}

export async function commitChunks(
  tx: Writer,
  commits: readonly ChunkCommit[],
  rules: FinishRules,
  now: number,
): Promise<Committed> {
  const lost: ChunkCommit[] = []
  const repeated: ChunkCommit[] = []
  const accepted: (StatisticsDelta & { commit: ChunkCommit })[] = []
  const statistics = new Map<string, StatisticsDelta[]>()
  const settlements: Settlement[] = []
  const blobs = new Map<string, { project_id: string; blob: SealedBlob }>()
  const parts: JournalPartRow[] = []
  for (const commit of commits) {
    const { claim, record, fresh, hasReservations } = commit
    const { batch_id, idx, project_id, key_id } = claim
    const { errors, expired_lines } = fresh
    const tallies = fresh.tallies.all
    const finished = sumOfTallies(tallies)
    const sealed = 'sealed' in record ? record.sealed : null
    const fenced = await commitChunk(tx, claim, finished, sealed?.seal ?? null, now)
    if (fenced === 'lost') lost.push(commit)
    if (fenced === 'repeated') repeated.push(commit)
    if (fenced !== 'accepted') continue
    accepted.push({ commit, finished, errors })
    if ('sealed' in record) {
      for (const blob of record.sealed.blobs) blobs.set(blob.key, { project_id, blob })
      if (record.journalled) await dropJournal(tx, batch_id, idx, now)
      // The lines of a chunk that were copied for it are those of the batch's input again.
      if (claim.lines && claim.input_blob) await markForDeletion(tx, [claim.input_blob], now)
      if (claim.remote_batches) await giveUpRemoteBatches(tx, claim, now)
    } else {
      const { journal, byte_start, byte_end } = record
      blobs.set(journal.key, { project_id: JOURNAL_OWNER, blob: journal })
      const sums: JournalSums = { tallies, errors, expired_lines }
      const part = { batch_id, idx, journal_blob: journal.key, byte_start, byte_end }
      parts.push({ ...part, sums: JSON.stringify(sums) })
    }
    settlements.push({ project_id, key_id, batch_id, idx, tallies, last: sealed !== null, hasReservations })
  }
  await insertOwnedBlobs(tx, [...blobs.values()], now)
  await insertRows(tx, 'journal_parts', parts)
  for (const crossing of await settle(tx, settlements, now))
    await recordEvent(tx, limitCrossed(crossing), now)

  const ended: BatchRow[] = []
  // A fixed order prevents deadlocks between workers that share batches.
  const byBatch = Map.groupBy(accepted, ({ commit }) => commit.claim.batch_id)
  for (const [batch_id, all] of [...byBatch].sort(([a], [b]) => (a < b ? -1 : 1))) {
    const counted = all.filter(({ commit }) => commit.fresh.tallies.all.length > 0)
    if (counted.length > 0) statistics.set(batch_id, counted)
    const group = all.map(({ commit }) => commit)
    const begun = group.flatMap(({ begunAt }) => begunAt ?? []).sort((a, b) => a - b)
    if (begun[0] !== undefined) await moveBatch(tx, batch_id, 'in_progress', begun[0])
    const tallies = group.flatMap(({ fresh }) => fresh.tallies.all)
    const delta = deltaOf(
      tallies,
      group.reduce((sum, { fresh }) => sum + fresh.expired_lines, 0),
      group.flatMap(({ record }) => ('sealed' in record ? record.sealed : [])),
    )
    const batch = await addToBatch(tx, batch_id, { ...delta, at: now })
    await releaseProjectedSpend(tx, batch_id, tallies)
    const end = await finishIfDone(tx, batch, rules, now)
    if (end) ended.push(end)
  }
  await addBatchStatistics(tx, statistics, now)
  return { lost, repeated, ended }
}

/** The sums that lines add to their batch; `sealed`: the chunks that they end. */
function deltaOf(
  tallies: readonly Tally[],
  expired_lines: number,
  sealed: readonly SealedChunk[],
): BatchDelta {
  const total = (of: (chunk: SealedChunk) => number): number =>
    sealed.reduce((sum, chunk) => sum + of(chunk), 0)
  return {
    ...sumOfTallies(tallies),
    expired_lines,
    chunks_sealed: sealed.length,
    output_bytes: total(({ seal }) => seal.output_bytes),
    output_lines: total(({ output_lines }) => output_lines),
    error_bytes: total(({ seal }) => seal.error_bytes),
    error_lines: total(({ error_lines }) => error_lines),
  }
}

// Reverses the charges of lines whose journal cannot be read. These lines were counted and billed, but their results
// are lost, so they run again. Their counts and costs are subtracted to the nano-dollar in the transaction that drops
// the journal. The sums of each journal part are stored beside it in the database for this purpose.

interface JournalSums {
  tallies: readonly Tally[]
  errors: readonly ErrorGroup[]
  expired_lines: number
}

/**
 * Reverses these parts of the chunk's journal and returns the updated chunk, or null, without any change, if its lease
 * is lost.
 */
export async function reverseJournal(
  tx: Writer,
  claim: ChunkRow,
  parts: readonly JournalPartRow[],
  now: number,
): Promise<ChunkRow | null> {
  const errors: ErrorGroup[] = []
  const tallies: Tally[] = []
  let expired_lines = 0
  for (const { sums } of parts) {
    const read: JournalSums = JSON.parse(sums)
    // A journal of another version may lack sums.
    tallies.push(...read.tallies.map((tally) => reversed({ ...NO_LINES, ...tally })))
    errors.push(...read.errors.map((group) => ({ ...group, lines: -group.lines })))
    expired_lines -= read.expired_lines
  }
  const delta = sumOfTallies(tallies)
  if ((await commitChunk(tx, claim, delta, null, now)) !== 'accepted') return null
  const { project_id, key_id, batch_id, idx } = claim
  const journals = parts.map(({ journal_blob }) => journal_blob)
  await dropJournal(tx, batch_id, idx, now, journals)
  // A reversal reaches no threshold.
  const settlement = { project_id, key_id, batch_id, idx, tallies, last: false, hasReservations: false }
  await settle(tx, [settlement], now)
  await addToBatch(tx, batch_id, { ...delta, expired_lines })
  await releaseProjectedSpend(tx, batch_id, tallies)
  await lowerRateMark(tx, batch_id)
  await addBatchStatistics(tx, new Map([[batch_id, [{ finished: delta, errors }]]]), now)
  return {
    ...claim,
    commit_seq: claim.commit_seq + 1,
    completed: claim.completed + delta.completed,
    failed: claim.failed + delta.failed,
    cost_nanos: claim.cost_nanos + delta.cost_nanos,
  }
}
