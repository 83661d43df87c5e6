// Which proxy a model server is reached through where the configuration names none: as HTTPS_PROXY, HTTP_PROXY and
// NO_PROXY say, in capitals or not. Servers on this machine are never reached through such a proxy.
import { present } from './secrets.ts'

/** The address of the proxy; null where there is none. */
export function proxyFromEnv(base_url: string, env: NodeJS.ProcessEnv): string | null {
  const url = new URL(base_url)
  const either = (name: string): string | undefined => present(env[name]) ?? present(env[name.toUpperCase()])
  const proxy = either(url.protocol === 'https:' ? 'https_proxy' : 'http_proxy') ?? either('all_proxy')
  if (proxy === undefined || isLoopback(url.hostname)) return null
  if (isExcepted(url, either('no_proxy') ?? '')) return null
  const address = proxy.includes('://') ? proxy : `http://${proxy}`
  return URL.canParse(address) && /^https?:/.test(address) ? address : null
}

function isLoopback(hostname: string): boolean {
  return hostname === 'localhost' || hostname === '[::1]' || /^127\./.test(hostname)
}

/** `example.com` and `.example.com` stand for the name and all below it; a port may follow; `*` is everything. */
function isExcepted({ hostname, port, protocol }: URL, list: string): boolean {
  const ownPort = port || (protocol === 'https:' ? '443' : '80')
  return list.split(/[\s,]+/).some((entry) => {
    if (entry === '*') return true
    const [, name = '', onPort] = /^\*?\.?(.*?)(?::(\d+))?$/.exec(entry.toLowerCase()) ?? []
    if (name === '' || (onPort !== undefined && onPort !== ownPort)) return false
    return hostname === name || hostname.endsWith(`.${name}`)
  })
}
