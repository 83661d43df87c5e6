// A proxy before a model server. A request over plain HTTP names its whole address; for TLS the proxy opens a tunnel
// (CONNECT, RFC 9110 section 9.3.6).
import type { Socket } from 'node:net'

export interface HttpProxy {
  tls: boolean
  /** The host of the proxy, without the brackets of an IPv6 address. */
  host: string
  port: number
  /** The value of `Proxy-Authorization`; null where the proxy's address has no user. */
  authorization: string | null
}

const HEAD_BYTES_MAX = 16 * 1024

/** Parses the address of a proxy. Throws a TypeError, which never quotes the address, when it cannot be used. */
export function proxyOf(address: string): HttpProxy {
  const url = URL.parse(address)
  if (url === null || (url.protocol !== 'http:' && url.protocol !== 'https:'))
    throw new TypeError('a proxy must be an http or https URL')
  const tls = url.protocol === 'https:'
  const user = `${decodeURIComponent(url.username)}:${decodeURIComponent(url.password)}`
  return {
    tls,
    host: url.hostname.replace(/^\[|\]$/g, ''),
    port: Number(url.port) || (tls ? 443 : 80),
    authorization: user === ':' ? null : `Basic ${Buffer.from(user).toString('base64')}`,
  }
}

/**
 * Opens a tunnel to `authority` on a connected socket; calls one of the two callbacks, unless the socket ends first.
 */
export function openTunnel(
  socket: Socket,
  authority: string,
  { authorization }: HttpProxy,
  onOpen: () => void,
  onRefused: (why: string) => void,
): void {
  let head = Buffer.alloc(0)
  const read = (bytes: Buffer): void => {
    head = Buffer.concat([head, bytes])
    const end = head.indexOf('\r\n\r\n')
    if (end === -1 && head.length <= HEAD_BYTES_MAX) return
    socket.off('data', read)
    socket.pause()
    const [, status = 'no HTTP status'] = /^HTTP\/1\.[01] (\d{3})/.exec(head.toString('latin1')) ?? []
    // A server that speaks TLS sends nothing before its client: bytes behind the head are an error.
    if (!status.startsWith('2') || end + 4 !== head.length)
      onRefused(`the proxy answered CONNECT with ${status}`)
    else onOpen()
  }
  socket.on('data', read)
  const extra = authorization === null ? '' : `proxy-authorization: ${authorization}\r\n`
  socket.write(`CONNECT ${authority} HTTP/1.1\r\nhost: ${authority}\r\n${extra}\r\n`)
}
