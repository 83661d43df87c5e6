// Renders errors. Every error response is sent from here.
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ApiError } from '../../domain/errors.ts'
import { responseHeaders } from './headers.ts'
import { apiErrorOf, errorHeaders } from './to-api-error.ts'

/** The one error with a header of its own. */
export class MethodNotAllowed extends ApiError {
  readonly allow: string
  constructor(allowed: readonly string[]) {
    const allow = allowed.join(', ')
    super(
      'method_not_allowed',
      allow === '' ? 'No path supports this method.' : `This path supports ${allow}.`,
    )
    this.allow = allow
  }
}

/** Headers of the content that the error replaces. */
const OF_CONTENT = ['accept-ranges', 'content-disposition', 'content-encoding', 'content-range', 'etag']

export function sendError(error: unknown, request: FastifyRequest, reply: FastifyReply): void {
  let apiError = request.stalled ? new ApiError('request_timeout') : apiErrorOf(error)
  if (!apiError) {
    request.log.error({ err: error }, 'a request failed')
    apiError = new ApiError('internal_error')
  } else if (apiError !== error && apiError.code === 'service_unavailable')
    request.log.error({ err: error }, 'a request failed, since a store is unavailable')
  // Without a content type, a QUERY is refused before its path is looked up.
  if (apiError.code === 'method_not_allowed' && !(apiError instanceof MethodNotAllowed))
    apiError = new MethodNotAllowed(request.server.routeTable.methodsOf(request.url.split('?', 1)[0] ?? ''))
  for (const name of OF_CONTENT) reply.removeHeader(name)
  if (apiError instanceof MethodNotAllowed) reply.header('allow', apiError.allow)
  void reply
    .code(apiError.status)
    .headers(responseHeaders(request.id))
    .headers(errorHeaders(apiError))
    .type('application/json; charset=utf-8')
    .send({ error: { ...(request.compat === 'openai' ? { param: null } : {}), ...apiError.toWire() } })
}
