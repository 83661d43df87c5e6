// How the configuration writes the addresses of model servers, batch APIs and what lies between.
import { Type } from 'typebox'
import { ENDPOINT_PATHS } from '../domain/endpoint.ts'
import { orWord, text } from './scalars.ts'
import { scalar } from './shape.ts'

export const BASE_URL_EXPECTED = 'an http:// or https:// address up to /v1, without credentials'

/** `found` without slashes at the end of its path; undefined when it is no base URL. */
export function parseBaseUrl(found: string): string | undefined {
  if (!/^https?:\/\/[^\s?#@]+(\?[^\s#]*)?$/.test(found) || !URL.canParse(found)) return undefined
  const [path = '', ...query] = found.split('?')
  const trimmed = path.replace(/\/+$/, '')
  const isOfEndpoint = ENDPOINT_PATHS.some((one) => trimmed.endsWith(one.slice('/v1'.length)))
  return isOfEndpoint ? undefined : [trimmed, ...query].join('?')
}

export const BASE_URL = scalar(
  Type.String({ pattern: '^https?://[^\\s?#@]+(\\?[^\\s#]*)?$' }),
  BASE_URL_EXPECTED,
  ['string'],
  parseBaseUrl,
)

export const PROXY = orWord(
  text(/^https?:\/\/[^\s/?#]+\/?$/, 'the address of a proxy such as http://proxy.internal:3128, or off'),
  { off: 'off', false: 'off' } as const,
  'the address of a proxy such as http://proxy.internal:3128, or off',
)

/** Without a slash at its end. */
export const ORIGIN = scalar(
  Type.String({ pattern: '^https?://[^\\s/?#@]+/?$' }),
  'an address without path and query, such as https://bucket.example',
  ['string'],
  (found) =>
    /^https?:\/\/[^\s/?#@]+\/?$/.test(found) && URL.canParse(found) ? new URL(found).origin : undefined,
)
