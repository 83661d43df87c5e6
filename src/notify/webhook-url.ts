// Checks the URL of a webhook when it is set. Only the check at connect time (post-event.ts) keeps deliveries out of
// private networks.
import { BlockList, isIP } from 'node:net'
import { invalidParam } from '../domain/errors.ts'

const URL_LENGTH_MAX = 2048
const ALLOWING =
  'The operator of the service allows those with `webhooks.allow_private_networks: true` in the configuration.'

/** The URL in its normal form. Plain http is allowed only with private networks. Throws invalid_request for `param`. */
export function webhookUrl(text: string, allow_private_networks: boolean, param = 'url'): string {
  const refused = (message: string) => invalidParam(param, `\`${param}\` ${message}`)
  const url = URL.canParse(text) ? new URL(text) : null
  if (!url || text.length > URL_LENGTH_MAX) throw refused('must be a URL, such as https://example.com/hook.')
  if (url.protocol !== 'https:' && !(allow_private_networks && url.protocol === 'http:'))
    throw refused(
      `must begin with https://.${url.protocol === 'http:' ? ` Plain http is for private networks. ${ALLOWING}` : ''}`,
    )
  if (url.username !== '' || url.password !== '')
    throw refused('must hold no user name or password; what arrives is signed instead.')
  const literal = url.hostname.replace(/^\[|\]$/g, '')
  if (!allow_private_networks && isIP(literal) !== 0 && !isPublicAddress(literal))
    throw refused(`must lead to the public internet, and ${literal} is no address of it. ${ALLOWING}`)
  url.hash = ''
  return url.href
}

// Addresses that are not on the public internet. The owner of a key chooses the URL of a webhook, and must not reach
// private networks with it. Sources: the special-purpose address registries of IANA (RFC 6890). Of IPv6 only global
// unicast is public, without the ranges that contain IPv4 addresses.

const NOT_PUBLIC_V4 = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
]
const GLOBAL_V6 = '2000::/3'
const NOT_PUBLIC_V6 = ['2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20']

const notPublic4 = listOf(NOT_PUBLIC_V4, 'ipv4')
const notPublic6 = listOf(NOT_PUBLIC_V6, 'ipv6')
const global6 = listOf([GLOBAL_V6], 'ipv6')

/** Whether `address`, an IPv4 or IPv6 address as text, is on the public internet. */
export function isPublicAddress(address: string): boolean {
  const version = isIP(address)
  if (version === 4) return !notPublic4.check(address, 'ipv4')
  if (version === 6) return global6.check(address, 'ipv6') && !notPublic6.check(address, 'ipv6')
  return false
}

function listOf(ranges: readonly string[], family: 'ipv4' | 'ipv6'): BlockList {
  const list = new BlockList()
  for (const range of ranges) {
    const [net = '', bits] = range.split('/')
    list.addSubnet(net, Number(bits), family)
  }
  return list
}
