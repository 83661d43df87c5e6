// Reverses the charges of lines whose journal cannot be read. These lines were counted and billed, but their results
// are lost, so they are run again. Their counts and costs are subtracted to the nano-dollar in the transaction that
// drops the journal. The sums of each journal part are stored beside it in the database for this purpose.
import type { ErrorGroup } from '../domain/batch-statistics.ts'
import { NO_SPEND } from '../domain/spend.ts'
import { settle } from '../ledger/settle.ts'
import type { Tally } from '../ledger/tally.ts'
import { addToBatch, lowerRateMark } from '../store/batches.ts'
import { commitChunk, dropJournal } from '../store/chunks.ts'
import type { ChunkRow, JournalPartRow } from '../store/schema.ts'
import type { Writer } from '../store/store.ts'
import { addBatchStatistics, statisticsOf, sumOfTallies } from './batch-statistics.ts'

interface JournalSums {
  tallies: Tally[]
  /** Missing in journals of earlier versions. */
  errors?: ErrorGroup[]
  expired_lines: number
}

export function journalSums(
  tallies: readonly Tally[],
  errors: readonly ErrorGroup[],
  expired_lines: number,
): string {
  return JSON.stringify({ tallies, errors, expired_lines })
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
    tallies.push(...read.tallies.map(negative))
    errors.push(...(read.errors ?? []).map((group) => ({ ...group, lines: -group.lines })))
    expired_lines -= read.expired_lines
  }
  const delta = sumOfTallies(tallies)
  if ((await commitChunk(tx, claim, delta, null)) !== 'accepted') return null
  const { project_id, batch_id, idx } = claim
  await dropJournal(
    tx,
    batch_id,
    idx,
    now,
    parts.map(({ journal_blob }) => journal_blob),
  )
  // No crossings: a reversal reaches no threshold.
  await settle(tx, [{ project_id, batch_id, idx, tallies, last: false, hasReservations: false }], now)
  await addToBatch(tx, batch_id, { ...delta, ...NOTHING_SEALED, expired_lines })
  await lowerRateMark(tx, batch_id)
  await addBatchStatistics(tx, new Map([[batch_id, [statisticsOf(tallies, errors)]]]), now)
  return {
    ...claim,
    commit_seq: claim.commit_seq + 1,
    completed: claim.completed + delta.completed,
    failed: claim.failed + delta.failed,
    cost_nanos: claim.cost_nanos + delta.cost_nanos,
  }
}

const NOTHING_SEALED = { chunks_sealed: 0, output_bytes: 0, output_lines: 0, error_bytes: 0, error_lines: 0 }

function negative(tally: Tally): Tally {
  return {
    ...tally,
    succeeded: -tally.succeeded,
    failed: -tally.failed,
    prompt_tokens: -tally.prompt_tokens,
    completion_tokens: -tally.completion_tokens,
    total_tokens: -tally.total_tokens,
    cached_tokens: -(tally.cached_tokens ?? 0),
    reasoning_tokens: -(tally.reasoning_tokens ?? 0),
    cost_nanos: -tally.cost_nanos,
    shared_lines: -(tally.shared_lines ?? 0),
    saved_nanos: -(tally.saved_nanos ?? 0),
    projected: { cost_nanos: -tally.projected.cost_nanos, tokens: -tally.projected.tokens },
    reserved: { ...NO_SPEND },
  }
}
