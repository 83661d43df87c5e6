// How a worker reaches an engine: by a Unix socket in a folder that is closed to other users, or by a port of the
// loopback address whose listener is known to be the engine. Nothing is sent before that is certain: each connection is
// checked once it is established, because the listener that it then finds has been there all the time.
import { once } from 'node:events'
import { mkdtemp } from 'node:fs/promises'
import { connect, createServer, type NetConnectOpts } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { EngineConfig } from '../config/config.ts'
import { http } from '../domain/http-module.ts'
import { type EnginePlace, socketOf, usesPlaceholder } from './engine-spec.ts'
import { type FindListener, findListener, type Owner } from './listener.ts'

const READY_MS_MAX = 5_000

export async function newPlace(spec: EngineConfig): Promise<EnginePlace> {
  const hasSocket = usesPlaceholder(spec, 'socket')
  const needsFolder = hasSocket || usesPlaceholder(spec, 'files')
  const folder = needsFolder ? await mkdtemp(join(shortFolder(), 'offpeak-engine-')) : null
  return { port: hasSocket ? null : await freePort(), folder }
}

/** The path of a socket has 103 bytes at most. */
function shortFolder(): string {
  const folder = tmpdir()
  return Buffer.byteLength(folder) > 64 ? '/tmp' : folder
}

/** `ready`: it takes requests; `taken`: another process listens on its port. */
export type EngineState = 'starting' | 'ready' | 'taken'

export interface EngineAccess {
  readonly base_url: string
  /** Null: it is reached by its port. */
  readonly socket: string | null
  /** Asks `path`, with the key, where the engine listens. Rejects where nobody can tell whether it does. */
  state(path: string, api_key: string): Promise<EngineState>
  /** Whether a connection to its port that has just been established is one to the engine. */
  isOwn(): Promise<boolean>
}

export function accessTo(place: EnginePlace, owner: Owner, find: FindListener = findListener): EngineAccess {
  const { port } = place
  const socket = socketOf(place)
  let verified: string | null = null
  const whose = async (): Promise<'nobody' | 'own' | 'other'> => {
    if (port === null) return 'own'
    const listening = await find(port, owner)
    if (listening === null) return 'nobody'
    if (listening.id !== verified) verified = (await listening.isOwned()) ? listening.id : null
    return verified === null ? 'other' : 'own'
  }
  const isOwn = async (): Promise<boolean> => (await whose()) === 'own'
  const to: NetConnectOpts = socket === null ? { host: '127.0.0.1', port: port ?? 0 } : { path: socket }
  return {
    base_url: socket === null ? `http://127.0.0.1:${port}/v1` : 'http://localhost/v1',
    socket,
    isOwn,
    async state(path, api_key) {
      const found = await whose()
      if (found !== 'own') return found === 'other' ? 'taken' : 'starting'
      return (await answersOk(to, isOwn, path, api_key)) ? 'ready' : 'starting'
    },
  }
}

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

/** Whether the path answers 200. Never rejects for what the other side does. */
async function answersOk(
  to: NetConnectOpts,
  isOwn: () => Promise<boolean>,
  path: string,
  api_key: string,
): Promise<boolean> {
  const signal = AbortSignal.timeout(READY_MS_MAX)
  const socket = connect(to)
  socket.on('error', () => {})
  try {
    await once(socket, 'connect', { signal })
    if (!(await isOwn())) return false
    // A connection that is kept would delay the server when it stops.
    const headers = { authorization: `Bearer ${api_key}`, host: 'localhost', connection: 'close' }
    const request = http.request({ path, headers, signal, createConnection: () => socket }).end()
    const [response] = await once(request, 'response', { signal })
    // From now on, errors are those of the connection that is closed here.
    for (const emitter of [request, response]) emitter.on('error', () => {})
    return response.statusCode === 200
  } catch {
    return false
  } finally {
    socket.destroy()
  }
}
