// Renders errors. Every error response is sent from here.
import { errorCodes, type FastifyReply, type FastifyRequest } from 'fastify'
import { BlobStoreFailed, contentDamaged, isDamaged } from '../../blobs/blobs.ts'
import { ApiError, ERRORS, openaiError } from '../../domain/errors.ts'
import { counted } from '../../domain/text.ts'
import { DatabaseDamaged, DatabaseFailure, DatabaseFull } from '../../store/store.ts'
import { isMessagesPath, messagesError } from '../../wire/message-batch.ts'

/** An error with a header of its own. */
class ErrorWithHeader extends ApiError {
  readonly header: readonly [name: string, value: string]
  constructor(header: ErrorWithHeader['header'], ...error: ConstructorParameters<typeof ApiError>) {
    super(...error)
    this.header = header
  }
}

export class MethodNotAllowed extends ErrorWithHeader {
  constructor(allowed: readonly string[]) {
    const allow = allowed.join(', ')
    const message = allow === '' ? 'No path supports this method.' : `This path supports ${allow}.`
    super(['allow', allow], 'method_not_allowed', message)
  }
}

export class RangeNotSatisfiable extends ErrorWithHeader {
  constructor(bytes: number) {
    const message = `The file has ${counted(bytes, 'byte')}.`
    super(['content-range', `bytes */${bytes}`], 'range_not_satisfiable', message, { param: 'Range' })
  }
}

/** Headers of a file's content, removed when an error replaces it. */
const OF_CONTENT = ['accept-ranges', 'content-disposition', 'content-encoding', 'content-range', 'etag']

export function sendError(error: unknown, request: FastifyRequest, reply: FastifyReply): void {
  let apiError = request.stalled ? new ApiError('request_timeout') : apiErrorOf(error)
  if (!apiError) {
    request.log.error({ err: error }, 'a request failed')
    apiError = new ApiError('internal_error')
  } else if (apiError !== error && apiError.code === 'service_unavailable')
    request.log.error({ err: error }, 'a request failed, since a store is unavailable')
  else if (apiError !== error && apiError.code === 'content_damaged')
    request.log.error({ err: error }, 'a request failed, since stored content is damaged')
  // Fastify rejects a QUERY without a content type before it looks up the path.
  if (apiError.code === 'method_not_allowed' && !(apiError instanceof MethodNotAllowed))
    apiError = new MethodNotAllowed(request.server.routeTable.methodsOf(request.url.split('?', 1)[0] ?? ''))
  for (const name of OF_CONTENT) reply.removeHeader(name)
  if (apiError instanceof ErrorWithHeader) reply.header(...apiError.header)
  const isStrict = request.compat === 'openai' && !isMessagesPath(request.url)
  const status = isStrict ? openaiError(apiError.code).status : apiError.status
  void reply
    .code(status)
    .headers(responseHeaders(request))
    .headers(errorHeaders(apiError, status))
    .type('application/json; charset=utf-8')
    .send(envelopeOf(apiError, request))
}

function envelopeOf(apiError: ApiError, { url, id, compat }: FastifyRequest): object {
  const error = apiError.toWire()
  if (isMessagesPath(url)) return messagesError(error, apiError.status, id)
  if (compat !== 'openai') return { error }
  return { error: { param: null, ...error, code: openaiError(error.code).code } }
}

// Turns known exceptions of a request into an ApiError; any other exception is an internal error.

const STORE_RETRY_S = 5
const STORES_FULL =
  'The storage of the service is full: nothing can be stored until its operator frees space; its log names the disk.'

/** The errors for Fastify's error codes. */
const FASTIFY: Record<string, () => ApiError> = {
  FST_ERR_CTP_INVALID_MEDIA_TYPE: () =>
    new ApiError('unsupported_media_type', 'Send the body as JSON, with `Content-Type: application/json`.'),
  // Fastify rejects this method before it looks up the path; no endpoint has it.
  FST_ERR_ROUTE_MISSING_CONTENT_TYPE: () => new ApiError('method_not_allowed', 'No path supports QUERY.'),
}

/** Converts an exception to the caller's error; undefined for an internal error, which must be logged. */
function apiErrorOf(error: unknown): ApiError | undefined {
  if (error instanceof ApiError) return error
  if (error instanceof DatabaseDamaged) return undefined
  if (error instanceof BlobStoreFailed || error instanceof DatabaseFailure) {
    const isFull = error instanceof BlobStoreFailed ? error.isFull : error instanceof DatabaseFull
    return new ApiError('service_unavailable', isFull ? STORES_FULL : undefined, {}, STORE_RETRY_S)
  }
  if (isDamaged(error)) return contentDamaged(error)
  if (!(error instanceof Error)) return undefined
  const code: unknown = Reflect.get(error, 'code')
  if (typeof code !== 'string') return undefined
  // The connection ended while the request was being sent: the answer is not read.
  if (code === 'ECONNRESET')
    return new ApiError('invalid_request', 'The connection ended before the request was complete.')
  const known = FASTIFY[code]
  if (known) return known()
  const status: unknown = Reflect.get(error, 'statusCode')
  if (code in errorCodes && typeof status === 'number' && status < 500) return new ApiError('invalid_request')
  return undefined
}

/** Statuses on which clients retry, unless a header says that a retry cannot succeed. */
const RETRIED_BY_CLIENTS = [408, 409, 429, 500]

export function errorHeaders(apiError: ApiError, status = apiError.status): Record<string, string> {
  // Only errors about limits are translated.
  const headers: Record<string, string> = {
    'content-language': apiError.language,
    vary: 'accept-language',
  }
  if (apiError.retryAfterS !== undefined) headers['retry-after'] = String(apiError.retryAfterS)
  if (status === 401) headers['www-authenticate'] = 'Bearer'
  if (RETRIED_BY_CLIENTS.includes(status) && !ERRORS[apiError.code].retryable)
    headers['x-should-retry'] = 'false'
  return headers
}

/**
 * Headers of every response: the request ID, under our name and under those that OpenAI's and Anthropic's clients read;
 * no content sniffing; no caching. A route may set others.
 */
export function responseHeaders({ id, url }: Pick<FastifyRequest, 'id' | 'url'>): Record<string, string> {
  return {
    'x-service-request-id': id,
    'x-request-id': id,
    ...(isMessagesPath(url) && { 'request-id': id }),
    'x-content-type-options': 'nosniff',
    'cache-control': 'no-store',
  }
}

/** The content security policy of a page, which allows only this origin. `styles`: further sources of styles. */
export function pagePolicy(styles = ''): string {
  return [
    "default-src 'none'",
    "script-src 'self'",
    `style-src 'self'${styles === '' ? '' : ` ${styles}`}`,
    "img-src 'self' data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ].join('; ')
}

/** The header for a filename (RFC 6266): in ASCII for old clients, and exact for others. */
export function attachment(filename: string): string {
  const plain = filename.replace(/[^\x20-\x7e]|["\\%]/g, '_')
  const exact = encodeURIComponent(filename).replace(
    /['()*]/g,
    (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`,
  )
  return `attachment; filename="${plain}"; filename*=UTF-8''${exact}`
}
