// An attempt that comes back with a result whatever happens on its way. What a server says never throws; what
// throws all the same is a mistake of ours, and is to cost one line an attempt, not every line its worker.
import type { Backend, BackendCall, BackendResult } from '../../backends/backend.ts'
import type { Log } from '../../domain/log.ts'

export async function sendOnce(backend: Backend, call: BackendCall, log: Log): Promise<BackendResult> {
  try {
    return await backend.send(call)
  } catch (error) {
    return ownFault(backend, error, log)
  }
}

/** The text of the error may hold anything: the log gets it, callers do not. */
export function ownFault(backend: Backend, error: unknown, log: Log): BackendResult & { kind: 'failed' } {
  log.error({ err: error, upstream: backend.name }, 'an attempt failed by a mistake of the service itself')
  const reason = 'The service failed to handle this attempt.'
  return { kind: 'failed', status: null, code: 'internal_error', reason }
}
