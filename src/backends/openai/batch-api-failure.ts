// What a call to a batch API that failed means: for its lines, for callers, and for operators.
import type { Dispatcher } from 'undici'
import { retryAfterMs } from '../../domain/retry-after.ts'
import { BatchApiError } from '../batch-api/batch-api.ts'
import { readUpstreamError } from '../verdict/upstream-error.ts'
import { blamedByCall } from './blamed-lines.ts'

const NOT_CONNECTED = [
  'ECONNREFUSED',
  'ENOTFOUND',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'UND_ERR_CONNECT_TIMEOUT',
  'EAI_AGAIN',
]
/** The call was refused as a whole. With any other status of an error it may have had its effect. */
const REFUSED = [400, 401, 402, 403, 404, 405, 413, 415, 422, 429]
const NOT_ADMITTED = [401, 402, 403, 407]
const NOT_THERE = [404, 405]

type Redact = (text: string) => string

/** It was answered with an error; `text`: what it said, as far as that was read. */
export function refusedCall(
  { statusCode: status, headers }: Pick<Dispatcher.ResponseData, 'statusCode' | 'headers'>,
  text: string,
  redact: Redact,
  now: number,
): BatchApiError {
  const { message, codes } = readUpstreamError(Buffer.from(text), redact)
  const reason = `the batch API answered ${status}`
  const words = message === '' ? {} : { words: message }
  const hadNoEffect = REFUSED.includes(status)
  const retry_after_ms = retryAfterMs(headers, now)
  const wait = retry_after_ms === undefined ? {} : { retry_after_ms }
  if (status === 429)
    return new BatchApiError({ kind: 'throttled', status, reason, ...words, ...wait }, hadNoEffect)
  const unusable = NOT_ADMITTED.includes(status)
    ? `the batch API does not admit this service (${status})`
    : NOT_THERE.includes(status)
      ? `the batch API has nothing there (${status})`
      : null
  const operatorReason = `${reason}; check base_url and API key of the upstream`
  return new BatchApiError(
    {
      kind: 'failed',
      status,
      code: 'upstream_unavailable',
      ...(unusable === null ? { reason } : { reason: unusable, operatorReason }),
      ...words,
      ...wait,
    },
    hadNoEffect,
    blamedByCall(status, codes, message),
  )
}

/** It was not answered, or not to the end. */
export function brokenCall(error: unknown, redact: Redact): BatchApiError {
  if (error instanceof BatchApiError) return error
  const code = error instanceof Error && 'code' in error ? String(error.code) : ''
  const words = error instanceof Error ? error.message || code || error.name : String(error)
  const unreachable = NOT_CONNECTED.includes(code)
  return new BatchApiError(
    {
      kind: 'failed',
      status: null,
      code: code.includes('TIMEOUT') ? 'upstream_timeout' : 'upstream_unavailable',
      reason: unreachable ? 'the batch API cannot be reached' : 'the batch API broke the connection',
      operatorReason: redact(words),
      ...(unreachable ? { unreachable } : {}),
    },
    unreachable,
  )
}

/** Its answer began, and comes more slowly than any that is meant. */
export function tooSlow(): BatchApiError {
  const reason = 'the batch API answers too slowly'
  return new BatchApiError({ kind: 'failed', status: null, code: 'upstream_timeout', reason }, false)
}

/** It was answered with something else than the batch API's definition says. */
export function notUnderstood(what: string, moreForOperators = ''): BatchApiError {
  const reason = `the batch API answered with ${what}`
  const operatorReason = `${reason}${moreForOperators}`
  return new BatchApiError(
    { kind: 'failed', status: 200, code: 'upstream_invalid_response', reason, operatorReason },
    false,
  )
}
