// The one place where an error becomes an answer.
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Refusal } from '../domain/errors.ts'
import { answerHeaders } from './answer-headers.ts'
import { refusalHeaders, refusalOf } from './refusals.ts'

/** The one refusal that needs a header of its own. */
export class MethodNotAllowed extends Refusal {
  readonly allow: string
  constructor(allowed: readonly string[]) {
    const allow = allowed.join(', ')
    super('method_not_allowed', `This path supports ${allow}.`)
    this.allow = allow
  }
}

/** What may have been said of a content that now does not follow. */
const OF_CONTENT = ['accept-ranges', 'content-disposition', 'content-range', 'etag']

export function answerError(error: unknown, request: FastifyRequest, reply: FastifyReply): void {
  let refusal = request.stalled ? new Refusal('request_timeout') : refusalOf(error)
  if (!refusal) {
    request.log.error({ err: error }, 'a request failed')
    refusal = new Refusal('internal_error')
  }
  for (const name of OF_CONTENT) reply.removeHeader(name)
  if (refusal instanceof MethodNotAllowed) reply.header('allow', refusal.allow)
  void reply
    .code(refusal.status)
    .headers(answerHeaders(request.id))
    .headers(refusalHeaders(refusal))
    .type('application/json; charset=utf-8')
    .send({ error: refusal.toWire() })
}
