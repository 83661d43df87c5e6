// Checks the URL of a webhook when it is set. The check at connect time (webhook-agent.ts) is what keeps deliveries out
// of private networks.
import { isIP } from 'node:net'
import { ApiError } from '../domain/errors.ts'
import { isPublicAddress } from './public-address.ts'

const URL_LENGTH_MAX = 2048

/** The URL in its normal form. Plain http is for private networks, where those are allowed. Throws invalid_request. */
export function webhookUrl(text: string, allow_private_networks: boolean): string {
  const url = URL.canParse(text) ? new URL(text) : null
  if (!url || text.length > URL_LENGTH_MAX)
    throw refused('`url` must be a URL, such as https://example.com/hook.')
  if (url.protocol !== 'https:' && !(allow_private_networks && url.protocol === 'http:'))
    throw refused('`url` must begin with https://.')
  if (url.username !== '' || url.password !== '')
    throw refused('`url` must hold no user name or password; what arrives is signed instead.')
  const literal = url.hostname.replace(/^\[|\]$/g, '')
  if (!allow_private_networks && isIP(literal) !== 0 && !isPublicAddress(literal))
    throw refused(`\`url\` must lead to the public internet, and ${literal} is no address of it.`)
  url.hash = ''
  return url.href
}

function refused(message: string): ApiError {
  return new ApiError('invalid_request', message, { param: 'url' })
}
