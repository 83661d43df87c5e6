// A proxy before the service that loses what a test tells it to lose: real connections, really broken.
import { createServer, request as send } from 'node:http'
import { pipeline } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { type Listening, listen } from '../support/listen.ts'

/** The call reaches the service and its answer is lost; or a server in between says that it is busy. */
export type Loss = 'answer lost' | 'busy' | null

export interface Passed {
  method: string
  path: string
  headers: NodeJS.Dict<string | string[]>
}

export interface UnreliableProxy extends Listening {
  /** Every call that arrived, in order. */
  passed: Passed[]
  /** What is to go wrong with this call. */
  lose: (call: Passed) => Loss
  /** Makes another answer of one in JSON. */
  rewrite: ((body: unknown, call: Passed) => unknown) | null
}

export async function unreliableProxy(target: string): Promise<UnreliableProxy> {
  const server = createServer((request, response) => {
    const call = { method: request.method ?? '', path: request.url ?? '', headers: request.headers }
    proxy.passed.push(call)
    const loss = proxy.lose(call)
    if (loss === 'busy') {
      request.resume()
      response.writeHead(503, { 'content-type': 'text/plain', 'retry-after-ms': '1' }).end('busy')
      return
    }
    const { method, headers } = call
    const onward = send(new URL(call.path, target), { method, headers }, (answer) => {
      if (loss === 'answer lost') {
        void buffer(answer).then(() => response.destroy())
        return
      }
      const { rewrite } = proxy
      if (rewrite !== null && answer.headers['content-type']?.startsWith('application/json')) {
        void buffer(answer).then((bytes) => {
          const { 'content-length': _length, ...rest } = answer.headers
          response.writeHead(answer.statusCode ?? 500, rest)
          response.end(JSON.stringify(rewrite(JSON.parse(bytes.toString()), call)))
        })
        return
      }
      response.writeHead(answer.statusCode ?? 500, answer.headers)
      pipeline(answer, response, () => {})
    })
    pipeline(request, onward, () => {})
  })
  const proxy: UnreliableProxy = { ...(await listen(server)), passed: [], lose: () => null, rewrite: null }
  return proxy
}
