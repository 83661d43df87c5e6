// Compares what was recorded of the batches at batch APIs with what these say of themselves: for each upstream, the lines
// answered and their cost, and each batch where the lines differ.
import { nanosFromUsd } from '../domain/money.ts'
import { listRemoteBatches } from '../store/remote-batches.ts'
import type { RemoteBatchRow } from '../store/schema.ts'
import type { Reader } from '../store/store.ts'

const PAGE = 500

export interface RemoteSums {
  upstream: string
  batches: number
  /** Not ended, or not recorded yet. */
  unfinished: number
  given_up: number
  lines: number
  /** Here. */
  answered: number
  cost_nanos: number
  /** There; the cost is null where a batch API does not say. */
  remote_answered: number
  remote_cost_nanos: number | null
}

/** Whether a configured batch API answers. */
export interface BatchApiCheck {
  upstream: string
  base_url: string
  /** What is wrong with it, and what to do; null: it answers. */
  problem: string | null
}

export interface RemoteComparison {
  upstreams: RemoteSums[]
  differences: { remote_batch: string; upstream: string; batch_id: string; problem: string }[]
}

export async function compareRemote(db: Reader): Promise<RemoteComparison> {
  const sums = new Map<string, RemoteSums>()
  const differences: RemoteComparison['differences'] = []
  for (let after = ''; ; ) {
    const page = await listRemoteBatches(db, after, PAGE)
    for (const row of page) {
      const problem = add(sums, row)
      const { upstream, batch_id } = row
      if (problem) differences.push({ remote_batch: row.remote_id ?? row.id, upstream, batch_id, problem })
    }
    if (page.length < PAGE) return { upstreams: [...sums.values()], differences }
    after = page.at(-1)!.id
  }
}

/** What differs. */
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
  if (completed === null)
    return isGivenUp ? 'it was given up: what it answered there is not recorded here' : null
  sum.remote_answered += completed
  if (!isRecorded || completed === row.answered) return null
  return `${completed} lines were answered there, ${row.answered} are recorded here`
}

function reportOf(text: string | null): { completed: number | null; cost_nanos: number | null } {
  const { request_counts, cost_usd } = text === null ? {} : JSON.parse(text)
  const completed = request_counts?.completed
  return {
    completed: typeof completed === 'number' ? completed : null,
    cost_nanos: typeof cost_usd === 'number' ? nanosFromUsd(cost_usd) : null,
  }
}
