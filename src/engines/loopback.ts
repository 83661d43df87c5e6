// How the worker finds a port for an engine, and asks it whether it is ready.
import { once } from 'node:events'
import { createServer } from 'node:net'

const READY_MS_MAX = 5_000

/** A port of the loopback address that nobody listens on. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address()
  server.close()
  await once(server, 'close')
  if (address === null || typeof address === 'string') throw new Error('the system assigned no port')
  return address.port
}

export async function answersOk(url: string, api_key: string): Promise<boolean> {
  const { request } = await import('undici')
  try {
    const { statusCode, body } = await request(url, {
      headers: { authorization: `Bearer ${api_key}` },
      signal: AbortSignal.timeout(READY_MS_MAX),
      // A connection that is kept would delay the server when it stops.
      reset: true,
    })
    await body.dump()
    return statusCode === 200
  } catch {
    return false
  }
}
