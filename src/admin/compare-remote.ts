// Compares the recorded results of remote batches with what their batch APIs report: for each upstream, the answered
// lines and their cost, and each batch whose lines differ. A worker may have crashed between recording results and
// counting them; the audit records of such a chunk are counted instead.
import type { SealedBlobs } from '../blobs/sealed.ts'
import { nanosFromUsd } from '../domain/money.ts'
import { counted } from '../domain/text.ts'
import { readBlobRow } from '../store/blobs.ts'
import { remoteBatchPages } from '../store/remote-batches.ts'
import { readRow } from '../store/rows.ts'
import type { RemoteBatchRow } from '../store/schema.ts'
import type { Reader } from '../store/store.ts'

const PAGE = 500

interface RemoteSums {
  upstream: string
  batches: number
  /** The number of remote batches that have not ended, or are not recorded yet. */
  unfinished: number
  given_up: number
  lines: number
  /** The answered lines, and their cost, as recorded here. */
  answered: number
  cost_nanos: number
  /** The answered lines by the batch API, and their cost; null where it reports none. */
  remote_answered: number
  remote_cost_nanos: number | null
}

/** Checks of the services that the configuration names; `problem`: the problem and its fix, or null. */
export interface OutsideChecks {
  batch_apis: { upstream: string; base_url: string; problem: string | null }[]
  /** The metrics of servers with live traffic. */
  live_metrics: { upstream: string; metrics_url: string; problem: string | null }[]
  /** The keys of issuers of tokens. */
  key_sets: { issuer: string; keys_at: string; problem: string | null }[]
}

export interface RemoteComparison {
  upstreams: RemoteSums[]
  differences: { remote_batch: string; upstream: string; batch_id: string; problem: string }[]
}

export async function compareRemote(db: Reader, sealed: SealedBlobs): Promise<RemoteComparison> {
  const sums = new Map<string, RemoteSums>()
  const differences: RemoteComparison['differences'] = []
  for await (const page of remoteBatchPages(db, PAGE))
    for (const stored of page) {
      const row = await withAuditCounts(db, sealed, stored)
      const problem = add(sums, row)
      const { upstream, batch_id } = row
      if (problem) differences.push({ remote_batch: row.remote_id ?? row.id, upstream, batch_id, problem })
    }
  return { upstreams: [...sums.values()], differences }
}

/** Adds a remote batch to the sums; returns the difference between both records of the batch, or null. */
function add(sums: Map<string, RemoteSums>, row: RemoteBatchRow): string | null {
  const { upstream } = row
  const sum = sums.get(upstream) ?? {
    upstream,
    batches: 0,
    unfinished: 0,
    given_up: 0,
    lines: 0,
    answered: 0,
    cost_nanos: 0,
    remote_answered: 0,
    remote_cost_nanos: null,
  }
  sums.set(upstream, sum)
  const isRecorded = row.state === 'recorded' || row.state === 'done'
  const isGivenUp = row.state === 'abandoned' || row.status === 'abandoned'
  sum.batches++
  sum.lines += row.line_count
  if (isGivenUp) sum.given_up++
  else if (!isRecorded) sum.unfinished++
  sum.answered += row.answered
  sum.cost_nanos += row.cost_nanos
  const { completed, cost_nanos } = reportOf(row.remote_report)
  if (cost_nanos !== null) sum.remote_cost_nanos = (sum.remote_cost_nanos ?? 0) + cost_nanos
  if (completed === null) return isGivenUp ? 'it was given up, and has not said since what it answered' : null
  sum.remote_answered += completed
  if (!isRecorded || completed === row.answered) return null
  if (isGivenUp)
    return `it was given up; ${counted(completed, 'line that it answered there is', 'lines that it answered there are')} not recorded here`
  return `${counted(completed, 'line was', 'lines were')} answered there, ${row.answered} ${row.answered === 1 ? 'is' : 'are'} recorded here`
}

/** A remote batch with the counts of its audit records, if it counts fewer answers than the batch API. */
async function withAuditCounts(
  db: Reader,
  sealed: SealedBlobs,
  row: RemoteBatchRow,
): Promise<RemoteBatchRow> {
  const { completed } = reportOf(row.remote_report)
  if (row.status === 'abandoned' || completed === null || completed === row.answered) return row
  const chunk = await readRow(db, 'chunks', { batch_id: row.batch_id, idx: row.idx })
  const audit = chunk?.audit_blob ? await readBlobRow(db, chunk.audit_blob) : undefined
  if (!audit) return row
  let [answered, cost_nanos] = [0, 0]
  for (const text of (await sealed.readAll(audit.project_id, audit)).toString().split('\n')) {
    // The index of the lines comes after the records.
    if (!text.startsWith('{')) continue
    const { attempts, error, cost_usd } = JSON.parse(text)
    if (error !== null || attempts.at(-1)?.remote_batch !== row.remote_id) continue
    answered++
    cost_nanos += nanosFromUsd(cost_usd)
  }
  return { ...row, answered, cost_nanos }
}

function reportOf(text: string | null): { completed: number | null; cost_nanos: number | null } {
  const { request_counts, cost_usd } = text === null ? {} : JSON.parse(text)
  const completed = request_counts?.completed
  return {
    completed: typeof completed === 'number' ? completed : null,
    cost_nanos: typeof cost_usd === 'number' ? nanosFromUsd(cost_usd) : null,
  }
}
