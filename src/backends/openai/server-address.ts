// The address of a server: its base URL and its key. A base URL may end in a slash or not, and may have a query, as
// Azure's has.
import type { Target } from '../http1/connection.ts'
import { requestHead } from '../http1/exchange.ts'
import type { HttpProxy } from '../http1/proxy.ts'

export interface ServerAddress extends Pick<Target, 'authority' | 'tls' | 'host' | 'port'> {
  /** The origin of the server, `http://host:port`. */
  origin: string
  /** The path and query of `resource` below the base: `/v1/chat/completions?api-version=…`. */
  path(resource: string): string
}

/** Parses a base URL. Throws a TypeError, which never quotes the URL, when it cannot be used. */
export function serverAddressOf(base_url: string): ServerAddress {
  const url = URL.parse(base_url)
  if (url === null || (url.protocol !== 'http:' && url.protocol !== 'https:')) {
    throw new TypeError('base_url must be an http or https URL')
  }
  if (url.username !== '' || url.password !== '') {
    throw new TypeError('base_url must not carry credentials: use api_key or headers')
  }
  const base = url.pathname.replace(/\/+$/, '')
  const tls = url.protocol === 'https:'
  return {
    origin: url.origin,
    authority: url.host,
    tls,
    host: url.hostname.replace(/^\[|\]$/g, ''),
    port: Number(url.port) || (tls ? 443 : 80),
    path: (resource) => `${base}${resource}${url.search}`,
  }
}

/** The headers of every request to a server, by names in lower case; a configured header wins. */
export function headersOf({
  api_key,
  headers = {},
}: {
  api_key?: string | null
  headers?: Readonly<Record<string, string>>
}): Map<string, string> {
  // Without accept-encoding a server may choose any encoding.
  const all = new Map([
    ['accept', 'application/json'],
    ['accept-encoding', 'identity'],
  ])
  if (api_key) all.set('authorization', `Bearer ${api_key}`)
  for (const [name, value] of Object.entries(headers)) all.set(name.toLowerCase(), value)
  return all
}

/** The head of a request; over a plain HTTP proxy it has the whole URL. */
export function headOf(
  address: ServerAddress,
  resource: string,
  headers: ReadonlyMap<string, string>,
  proxy: HttpProxy | null,
  method: 'GET' | 'POST',
): Buffer {
  const isForwarded = proxy !== null && !address.tls
  const all = new Map(headers)
  if (isForwarded && proxy.authorization !== null) all.set('proxy-authorization', proxy.authorization)
  const path = `${isForwarded ? address.origin : ''}${address.path(resource)}`
  return requestHead(address.authority, path, all, method)
}
