// Turns whatever a request throws into an ApiError; anything else is an internal error.
import { errorCodes } from 'fastify'
import { BlobStoreFailed } from '../../blobs/blobs.ts'
import { ApiError, ERRORS } from '../../domain/errors.ts'

const BLOB_STORE_RETRY_S = 5

/** Fastify's own errors, by their code. */
const FASTIFY: Record<string, () => ApiError> = {
  FST_ERR_CTP_BODY_TOO_LARGE: () => new ApiError('payload_too_large'),
  FST_ERR_CTP_INVALID_MEDIA_TYPE: () =>
    new ApiError('unsupported_media_type', 'Send the body as JSON, with `Content-Type: application/json`.'),
  // The one method that is judged before its path: none of ours knows it.
  FST_ERR_ROUTE_MISSING_CONTENT_TYPE: () => new ApiError('method_not_allowed', 'No path supports QUERY.'),
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: () =>
    new ApiError('invalid_request', 'The body is not as long as Content-Length says.'),
  FST_ERR_BAD_URL: () => new ApiError('invalid_request', 'The URL holds a broken percent-encoding.'),
  FST_ERR_MAX_PARAM_LENGTH: () => new ApiError('unknown_endpoint'),
}

/** The error for the caller; undefined for an internal error, which must be logged. */
export function apiErrorOf(error: unknown): ApiError | undefined {
  if (error instanceof ApiError) return error
  if (error instanceof BlobStoreFailed)
    return new ApiError('service_unavailable', undefined, {}, BLOB_STORE_RETRY_S)
  if (!(error instanceof Error)) return undefined
  const code: unknown = Reflect.get(error, 'code')
  if (typeof code !== 'string') return undefined
  // The caller went away, or its connection broke, while it was still sending: nobody reads the answer.
  if (code === 'ECONNRESET') return new ApiError('invalid_request', 'The request was cut short.')
  const known = FASTIFY[code]
  if (known) return known()
  const status: unknown = Reflect.get(error, 'statusCode')
  if (code in errorCodes && typeof status === 'number' && status < 500) return new ApiError('invalid_request')
  return undefined
}

/** Clients retry these statuses by themselves, so an error that no retry can fix says so. */
const RETRIED_BY_CLIENTS = [408, 409, 429]

export function errorHeaders(apiError: ApiError): Record<string, string> {
  // Only limits are told in the caller's language, and any call may ask for one.
  const headers: Record<string, string> = {
    'content-language': apiError.language,
    vary: 'accept-language',
  }
  if (apiError.retryAfterS !== undefined) headers['retry-after'] = String(apiError.retryAfterS)
  if (apiError.status === 401) headers['www-authenticate'] = 'Bearer'
  if (RETRIED_BY_CLIENTS.includes(apiError.status) && !ERRORS[apiError.code].retryable)
    headers['x-should-retry'] = 'false'
  return headers
}
