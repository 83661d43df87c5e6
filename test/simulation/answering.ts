// What a fake server of a run is: a function from a call to its result. Only this file knows the shape of the port.
import { type Backend, type BackendCall, type BackendResult, settle } from '../../src/backends/backend.ts'

export type Answering = (call: BackendCall) => Promise<BackendResult>

export function backendOf(name: string, answer: Answering): Backend {
  return { name, send: (call, done) => settle(answer(call), done), close: async () => {} }
}

export const UNREACHABLE: BackendResult = {
  kind: 'failed',
  status: null,
  code: 'upstream_unavailable',
  reason: 'connection refused',
  unreachable: true,
}

/** Of a call that its caller has aborted. */
export const ABORTED: BackendResult = {
  kind: 'failed',
  status: null,
  code: 'upstream_unavailable',
  reason: 'aborted',
}

/** What an answer says, and how often the line was asked before; `null` for a request without a schema. */
export function askedBefore({ body }: BackendCall): number | null {
  const { messages, seed = 0, response_format } = JSON.parse(Buffer.from(body).toString())
  if (!response_format) return null
  return messages.length > 1 ? JSON.parse(messages[1].content).asked + 1 : seed
}

/** What the body of a call asks for, or of a request in a batch. */
export function bodyOf({ body }: Pick<BackendCall, 'body'>): { text: string; max_tokens: number } {
  const { messages, input, max_tokens } = JSON.parse(Buffer.from(body).toString())
  return { text: String(messages?.[0].content ?? input), max_tokens }
}
