// Why a batch waits whose lines batch APIs have: in plain words, what is known of them there.
import { withoutAddresses } from '../backends/failure-reason.ts'
import { type Model, serverNameOf } from '../domain/model.ts'
import type { RemoteWork } from '../store/remote-batches.ts'

/** Of several things to say, the first one is said: what goes wrong comes before what goes on. */
export function remoteReason(
  work: readonly RemoteWork[],
  models: ReadonlyMap<string, Model>,
): { message: string; since?: number } {
  const failing = work.find(({ failing_since }) => failing_since !== null)
  const [first] = failing ? [failing] : work.toSorted((a, b) => Number(b.batches) - Number(a.batches))
  if (!first)
    return { message: 'A batch API has its lines; their results are recorded when it has finished them.' }
  const since = first.failing_since === null ? {} : { since: first.failing_since }
  const message = messageOf(first, serverNameOf(first.upstream, models) ?? 'the batch API')
  return { message: message.replace(/^the /, 'The '), ...since }
}

function messageOf(work: RemoteWork, upstream: string): string {
  const { state, status, detail, remote_id, failing_since, cancelled_at } = work
  const lines = Number(work.lines) === 1 ? 'one line' : `${work.lines} lines`
  const batches = Number(work.batches)
  const where =
    batches > 1 ? `in ${batches} batches` : remote_id === null ? 'in a batch' : `in the batch ${remote_id}`
  const there = `${upstream} has ${lines} of it ${where}`
  const because = detail === null ? '' : `: ${withoutAddresses(detail)}`
  if (state === 'intended' || (state === 'creating' && failing_since === null))
    return `${lines} of it are being sent to ${upstream}.`
  if (state === 'creating')
    return `It is not known yet whether ${upstream} has taken ${lines} of it${because}; that is looked up before they are sent again.`
  if (state === 'ended')
    return failing_since === null
      ? `${upstream} has ended with ${lines} of it ${where}; their results are recorded next.`
      : `${upstream} has ended with ${lines} of it ${where}, and their results cannot be read${because}; it is tried again.`
  if (failing_since !== null)
    return `${there}, and nothing can be learned of them${because}; it is tried again.`
  if (cancelled_at !== null)
    return `${there}, which is being cancelled there; what it has not answered is answered by other servers or ends with the batch.`
  const shown = status === null ? '' : ` (${status})`
  return `${there}${shown}; their results are recorded when it has finished them.`
}
