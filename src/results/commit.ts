// The fenced commit: one transaction records the finished lines of all chunks of a worker. A chunk whose lease is lost,
// or whose part was committed before (the answer to that commit was lost or late), changes nothing. A commit may
// therefore be repeated after an attempt with an unknown outcome.
import type { SealedBlob } from '../blobs/sealed.ts'
import { groupErrors } from '../domain/batch-statistics.ts'
import { addTokens, NO_TOKENS } from '../domain/money.ts'
import { sumOf } from '../domain/spend.ts'
import { type Settlement, settle } from '../ledger/settle.ts'
import { addShared } from '../ledger/tally.ts'
import { limitCrossed, recordEvent } from '../notify/record-event.ts'
import { addToBatch, type BatchDelta, moveBatch } from '../store/batches.ts'
import { insertOwnedBlobs } from '../store/blobs.ts'
import { commitChunk, dropJournal, insertJournalParts } from '../store/chunks.ts'
import { giveUpRemoteBatches } from '../store/remote-batches.ts'
import type { BatchRow, ChunkRow, JournalPartRow } from '../store/schema.ts'
import type { Writer } from '../store/store.ts'
import { addBatchStatistics, type StatisticsDelta, statisticsOf, sumOfTallies } from './batch-statistics.ts'
import type { Fresh } from './chunk-results.ts'
import { type FinishRules, finishIfDone } from './finish.ts'
import { JOURNAL_OWNER } from './journal.ts'
import { journalSums } from './reverse-journal.ts'
import type { SealedChunk } from './seal.ts'

export interface ChunkCommit {
  claim: Pick<ChunkRow, 'batch_id' | 'idx' | 'epoch' | 'commit_seq' | 'project_id'> &
    Partial<Pick<ChunkRow, 'remote_batches'>>
  /** When the first line was sent under this lease (Unix ms), if the batch was still queued then. */
  begunAt: number | null
  /** The lines that this commit counts: those finished since the last one. */
  fresh: Fresh
  /** Whether reservations were requested for the chunk under this lease. */
  hasReservations: boolean
  /**
   * Where they lie in a journal, for a chunk that stays open; or the blobs that end it, and whether any of its
   * lines are in journals.
   */
  record:
    | { journal: SealedBlob; byte_start: number; byte_end: number }
    | { sealed: SealedChunk; journalled: boolean }
}

export interface Committed {
  /** The commits that found their lease lost. */
  lost: ChunkCommit[]
  /** The commits of which an earlier attempt has taken effect. */
  repeated: ChunkCommit[]
  /** Batches that ended in this transaction. */
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
  const deltas = new Map<string, BatchDelta>()
  const statistics = new Map<string, StatisticsDelta[]>()
  const begun = new Map<string, number>()
  const settlements: Settlement[] = []
  const blobs = new Map<string, { project_id: string; blob: SealedBlob }>()
  const parts: JournalPartRow[] = []
  for (const commit of commits) {
    const { claim, record, fresh } = commit
    const tallies = fresh.tallies.all
    const errors = groupErrors(fresh.failures)
    const sums = { ...sumOfTallies(tallies), expired_lines: fresh.expired_lines }
    const sealed = 'sealed' in record ? record.sealed : null
    const fenced = await commitChunk(tx, claim, sums, sealed?.seal ?? null)
    if (fenced === 'lost') lost.push(commit)
    if (fenced === 'repeated') repeated.push(commit)
    if (fenced !== 'accepted') continue
    if ('sealed' in record) {
      for (const blob of record.sealed.blobs) blobs.set(blob.key, { project_id: claim.project_id, blob })
      if (record.journalled) await dropJournal(tx, claim.batch_id, claim.idx, now)
      if (claim.remote_batches) await giveUpRemoteBatches(tx, claim, now)
    } else {
      const { journal, byte_start, byte_end } = record
      blobs.set(journal.key, { project_id: JOURNAL_OWNER, blob: journal })
      const { batch_id, idx } = claim
      parts.push({
        batch_id,
        idx,
        journal_blob: journal.key,
        byte_start,
        byte_end,
        sums: journalSums(tallies, errors, sums.expired_lines),
      })
    }
    add(deltas, claim.batch_id, sums, sealed)
    if (fresh.positions.length > 0) {
      const known = statistics.get(claim.batch_id) ?? []
      statistics.set(claim.batch_id, [...known, statisticsOf(tallies, errors)])
    }
    if (commit.begunAt !== null)
      begun.set(claim.batch_id, Math.min(begun.get(claim.batch_id) ?? commit.begunAt, commit.begunAt))
    const { project_id, batch_id, idx } = claim
    settlements.push({
      project_id,
      batch_id,
      idx,
      tallies,
      last: sealed !== null,
      hasReservations: commit.hasReservations,
    })
  }
  await insertOwnedBlobs(tx, [...blobs.values()], now)
  await insertJournalParts(tx, parts)
  for (const crossing of await settle(tx, settlements, now))
    await recordEvent(tx, limitCrossed(crossing), now)

  const ended: BatchRow[] = []
  // In a fixed order, which prevents deadlocks between workers that share batches.
  for (const [batch_id, delta] of [...deltas].sort(([a], [b]) => (a < b ? -1 : 1))) {
    const begunAt = begun.get(batch_id)
    if (begunAt !== undefined) await moveBatch(tx, batch_id, 'in_progress', begunAt)
    const batch = await addToBatch(tx, batch_id, { ...delta, at: now })
    const end = await finishIfDone(tx, batch, rules, now)
    if (end) ended.push(end)
  }
  await addBatchStatistics(tx, statistics, now)
  return { lost, repeated, ended }
}

type Sums = Required<
  Pick<BatchDelta, 'completed' | 'failed' | 'cost_nanos' | 'usage' | 'shared' | 'expired_lines'>
>

function add(
  deltas: Map<string, BatchDelta>,
  batch_id: string,
  sums: Sums,
  sealed: SealedChunk | null,
): void {
  const old = deltas.get(batch_id)
  deltas.set(batch_id, {
    completed: (old?.completed ?? 0) + sums.completed,
    failed: (old?.failed ?? 0) + sums.failed,
    cost_nanos: sumOf(old?.cost_nanos ?? 0, sums.cost_nanos),
    usage: addTokens(old?.usage ?? NO_TOKENS, sums.usage),
    shared: addShared(old?.shared ?? {}, sums.shared),
    expired_lines: (old?.expired_lines ?? 0) + sums.expired_lines,
    chunks_sealed: (old?.chunks_sealed ?? 0) + (sealed ? 1 : 0),
    output_bytes: (old?.output_bytes ?? 0) + (sealed?.seal.output_bytes ?? 0),
    output_lines: (old?.output_lines ?? 0) + (sealed?.output_lines ?? 0),
    error_bytes: (old?.error_bytes ?? 0) + (sealed?.seal.error_bytes ?? 0),
    error_lines: (old?.error_lines ?? 0) + (sealed?.error_lines ?? 0),
  })
}
