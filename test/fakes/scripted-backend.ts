// A model server whose attempts end when the test says, one by one. Its responses are classified like those of a real
// server.
import {
  type Backend,
  type BackendCall,
  type BackendResult,
  type Done,
  settle,
} from '../../src/backends/backend.ts'
import { classify } from '../../src/backends/verdict/classify.ts'

export interface ScriptedAttempt {
  /** The content of the line's message. */
  content: string
  call: BackendCall
  respond(status: number, body: object): Promise<void>
  /** Answers with 3 prompt tokens and 2 completion tokens. */
  answer(): Promise<void>
  /** The connection breaks. */
  breakConnection(): Promise<void>
  /** No connection came about. */
  unreachable(): Promise<void>
}

const BROKEN = {
  kind: 'failed',
  status: null,
  code: 'upstream_unavailable',
  reason: 'connection reset',
} satisfies BackendResult

export const ANSWER = {
  id: 'chatcmpl-1',
  object: 'chat.completion',
  choices: [{ index: 0, message: { role: 'assistant', content: 'yes' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 },
}

/** Makes one attempt; rejects for a mistake of this service. */
export function sendTo(backend: Pick<Backend, 'send'>, call: BackendCall): Promise<BackendResult> {
  return new Promise((resolve, reject) => {
    const done: Done = (result, error) => (error === undefined ? resolve(result) : reject(error))
    backend.send(call, done)
  })
}

export function scriptedBackend(name = 'server') {
  const attempts: ScriptedAttempt[] = []
  const sent: string[] = []
  const backend: Backend = {
    name,
    send: (call, done) =>
      settle(
        new Promise((resolve) => {
          const end = async (result: BackendResult): Promise<void> => {
            const at = attempts.indexOf(attempt)
            if (at === -1) throw new Error(`the attempt of ${attempt.content} has ended already`)
            attempts.splice(at, 1)
            resolve(result)
            // The sender has concluded the attempt by then.
            await new Promise(setImmediate)
          }
          const respond = (status: number, body: object): Promise<void> =>
            end(classify({ status, body: Buffer.from(JSON.stringify(body)) }, call.endpoint))
          const { messages } = JSON.parse(Buffer.from(call.body).toString())
          const attempt: ScriptedAttempt = {
            content: messages[0].content,
            call,
            respond,
            answer: () => respond(200, ANSWER),
            breakConnection: () => end(BROKEN),
            unreachable: () => end({ ...BROKEN, unreachable: true }),
          }
          attempts.push(attempt)
          sent.push(attempt.content)
          call.signal?.addEventListener('abort', () => {
            if (attempts.includes(attempt)) void end(BROKEN)
          })
        }),
        done,
      ),
    close: async () => {},
  }
  return {
    backend,
    /** The attempts in flight, in the order in which they were sent. */
    inFlight: attempts,
    /** The contents of all lines, in the order in which they were sent. */
    sent,
  }
}
