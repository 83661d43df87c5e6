// Makes one attempt and always returns a result. Backends do not throw for anything that a server answers; an
// exception is a bug of the service, and costs one line an attempt instead of stopping the worker.
import type { Backend, BackendCall, BackendResult } from '../../backends/backend.ts'
import type { Log } from '../../domain/log.ts'

export async function sendOnce(backend: Backend, call: BackendCall, log: Log): Promise<BackendResult> {
  try {
    return await backend.send(call)
  } catch (error) {
    return internalFault(backend, error, log)
  }
}

/** The error's text goes to the log only, because it may contain anything. */
export function internalFault(
  backend: Backend,
  error: unknown,
  log: Log,
): BackendResult & { kind: 'failed' } {
  log.error({ err: error, upstream: backend.name }, 'an attempt failed because of an internal error')
  const reason = 'The service failed to handle this attempt.'
  return { kind: 'failed', status: null, code: 'internal_error', reason }
}
