// A proxy before the service that loses what a test tells it to lose: real connections, really broken.
import { once } from 'node:events'
import { createServer, request as send } from 'node:http'
import type { AddressInfo } from 'node:net'
import { pipeline } from 'node:stream'
import { buffer } from 'node:stream/consumers'

/** The call reaches the service and its answer is lost; or a server in between says that it is busy. */
export type Loss = 'answer lost' | 'busy' | null

export interface Passed {
  method: string
  path: string
  headers: NodeJS.Dict<string | string[]>
}

export interface UnreliableProxy extends AsyncDisposable {
  url: string
  /** Every call that arrived, in order. */
  passed: Passed[]
  /** What is to go wrong with this call. */
  lose: (call: Passed) => Loss
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
      response.writeHead(answer.statusCode ?? 500, answer.headers)
      pipeline(answer, response, () => {})
    })
    pipeline(request, onward, () => {})
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address() as AddressInfo
  const proxy: UnreliableProxy = {
    url: `http://127.0.0.1:${address.port}`,
    passed: [],
    lose: () => null,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    },
  }
  return proxy
}
