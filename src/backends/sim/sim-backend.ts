// The simulator as a backend in the service's own process, without a socket. Answers, errors and their classification
// are the same as over HTTP.
import { type Clock, systemClock } from '../../domain/clock.ts'
import type { EndpointPath } from '../../domain/endpoint.ts'
import type { SimOptions } from '../../domain/simulated-server.ts'
import {
  AbortWatch,
  type Backend,
  type BackendCall,
  type BackendResult,
  settle,
  unanswered,
} from '../backend.ts'
import { classify } from '../verdict/classify.ts'
import { type SimResponse, Simulator } from './simulator.ts'

interface SimBackendOptions extends SimOptions {
  name: string
  /** The timeout in ms of a request that never gets an answer. Default 60 s. */
  timeout_ms?: number
  clock?: Clock
  /** A simulator shared with others, in place of a new one with these options. */
  simulator?: Simulator
}

const TIMEOUT_MS = 60_000
const CLOSED = unanswered('upstream_unavailable', 'the backend was closed')
const ABORTED = unanswered('upstream_unavailable', 'aborted')

/** Creates a simulated upstream. Throws a RangeError for invalid options. */
export function simBackend(options: SimBackendOptions): Backend {
  const { name, timeout_ms = TIMEOUT_MS, clock = systemClock } = options
  const simulator = options.simulator ?? new Simulator(options)
  const watch = new AbortWatch()
  const waiting = new Set<(result: BackendResult) => void>()
  let closed = false

  function wait(
    fate: SimResponse,
    endpoint: EndpointPath,
    signal: AbortSignal | undefined,
  ): Promise<BackendResult> {
    return new Promise((resolve) => {
      const end = (result: BackendResult): void => {
        cancel()
        waiting.delete(end)
        if (signal !== undefined) watch.leave(signal, abortable)
        resolve(result)
      }
      const abortable = { abort: () => end(ABORTED) }
      const cancel =
        fate.kind === 'hang'
          ? clock.after(timeout_ms, () =>
              end(unanswered('upstream_timeout', `no complete answer within ${timeout_ms} ms`)),
            )
          : clock.after(fate.after_ms, () => end(resultOf(fate, endpoint)))
      waiting.add(end)
      if (signal !== undefined) watch.enter(signal, abortable)
    })
  }

  async function attempt({ endpoint, body, signal }: BackendCall): Promise<BackendResult> {
    if (closed) return CLOSED
    if (signal?.aborted) return ABORTED
    const { fate } = simulator.arrive(body, endpoint)
    try {
      if (fate.kind !== 'hang' && fate.after_ms === 0) return resultOf(fate, endpoint)
      return await wait(fate, endpoint, signal)
    } finally {
      simulator.release()
    }
  }

  return {
    name,

    // A simulator in this process is always up.
    probe: async () => ({ isUp: true, reason: null }),

    send: (call, done) => settle(attempt(call), done),

    async close() {
      closed = true
      for (const end of [...waiting]) end(CLOSED)
    },
  }
}

function resultOf(fate: Exclude<SimResponse, { kind: 'hang' }>, endpoint: EndpointPath): BackendResult {
  if (fate.kind === 'reset') return unanswered('upstream_unavailable', 'simulated: the connection was reset')
  const { status, text, retry_after_ms } = fate
  return classify({ status, body: Buffer.from(text), retry_after_ms: retry_after_ms ?? undefined }, endpoint)
}
