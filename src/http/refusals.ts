// Whatever goes wrong in a request becomes one of our refusals here, or is a fault of ours.
import { errorCodes } from 'fastify'
import { BlobStoreFailed } from '../blobs/blobs.ts'
import { ERRORS, Refusal } from '../domain/errors.ts'

const BLOB_STORE_RETRY_S = 5

/** Fastify's own errors, by their code. */
const FASTIFY: Record<string, () => Refusal> = {
  FST_ERR_CTP_BODY_TOO_LARGE: () => new Refusal('payload_too_large'),
  FST_ERR_CTP_INVALID_MEDIA_TYPE: () =>
    new Refusal('unsupported_media_type', 'Send the body as JSON, with `Content-Type: application/json`.'),
  // The one method that is judged before its path: none of ours knows it.
  FST_ERR_ROUTE_MISSING_CONTENT_TYPE: () => new Refusal('method_not_allowed', 'No path supports QUERY.'),
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: () =>
    new Refusal('invalid_request', 'The body is not as long as Content-Length says.'),
  FST_ERR_BAD_URL: () => new Refusal('invalid_request', 'The URL holds a broken percent-encoding.'),
  FST_ERR_MAX_PARAM_LENGTH: () => new Refusal('unknown_endpoint'),
}

/** What the caller is to be told; undefined for what is a fault of ours and must be logged. */
export function refusalOf(error: unknown): Refusal | undefined {
  if (error instanceof Refusal) return error
  if (error instanceof BlobStoreFailed)
    return new Refusal('service_unavailable', undefined, {}, BLOB_STORE_RETRY_S)
  if (!(error instanceof Error)) return undefined
  const code: unknown = Reflect.get(error, 'code')
  if (typeof code !== 'string') return undefined
  // The caller went away, or its connection broke, while it was still sending: nobody reads the answer.
  if (code === 'ECONNRESET') return new Refusal('invalid_request', 'The request was cut short.')
  const known = FASTIFY[code]
  if (known) return known()
  const status: unknown = Reflect.get(error, 'statusCode')
  if (code in errorCodes && typeof status === 'number' && status < 500) return new Refusal('invalid_request')
  return undefined
}

/** Clients retry these statuses by themselves, so a refusal that no retry can heal says so. */
const RETRIED_BY_CLIENTS = [408, 409, 429]

export function refusalHeaders(refusal: Refusal): Record<string, string> {
  // Only limits are told in the caller's language, and any call may ask for one.
  const headers: Record<string, string> = {
    'content-language': refusal.language,
    vary: 'accept-language',
  }
  if (refusal.retryAfter_s !== undefined) headers['retry-after'] = String(refusal.retryAfter_s)
  if (refusal.status === 401) headers['www-authenticate'] = 'Bearer'
  if (RETRIED_BY_CLIENTS.includes(refusal.status) && !ERRORS[refusal.code].retryable)
    headers['x-should-retry'] = 'false'
  return headers
}
