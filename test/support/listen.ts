// Servers of tests on this machine.
import { once } from 'node:events'
import type { AddressInfo, Server, Socket } from 'node:net'

export interface Listening extends AsyncDisposable {
  port: number
  /** `http://host:port` */
  url: string
  /** Breaks all connections, and resolves when the server has closed. */
  close(): Promise<void>
}

/** On a free port unless told. */
export async function listen(server: Server, port = 0, host = '127.0.0.1'): Promise<Listening> {
  const sockets = new Set<Socket>()
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.on('close', () => sockets.delete(socket))
  })
  await once(server.listen(port, host), 'listening')
  const address = server.address() as AddressInfo
  const close = async (): Promise<void> => {
    for (const socket of sockets) socket.destroy()
    if (!server.listening) return
    await once(server.close(), 'close')
  }
  return {
    port: address.port,
    url: `http://${host}:${address.port}`,
    close,
    [Symbol.asyncDispose]: close,
  }
}
