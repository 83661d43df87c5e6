// Translates a failed call to a batch API: its outcome for lines, and its reasons for callers and for operators.
import type { Dispatcher } from 'undici'
import { isRecord } from '../../domain/json-record.ts'
import { retryAfterMs } from '../../domain/retry-after.ts'
import { unanswered } from '../backend.ts'
import { BatchApiError, type BlamedLine } from '../batch-api/batch-api.ts'
import { OVER_LIMIT } from '../batch-api/result-line.ts'
import { accessError } from '../verdict/access-errors.ts'
import { MESSAGE_LENGTH_MAX, readUpstreamError, upstreamErrorOf } from '../verdict/upstream-error.ts'

const NOT_CONNECTED = [
  'ECONNREFUSED',
  'ENOTFOUND',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'UND_ERR_CONNECT_TIMEOUT',
  'EAI_AGAIN',
]
/** Statuses of calls that were rejected as a whole. With any other error status, a call may have had its effect. */
const REFUSED = [400, 401, 402, 403, 404, 405, 413, 415, 422, 429]
const NOT_ADMITTED = [401, 402, 403, 407]
const NOT_THERE = [404, 405]

type Redact = (text: string) => string

/** The failure of a call that was answered with an error; `text`: the part of its body that was read. */
export function refusedCall(
  { statusCode: status, headers }: Pick<Dispatcher.ResponseData, 'statusCode' | 'headers'>,
  text: string,
  redact: Redact,
  now: number,
): BatchApiError {
  const error = readUpstreamError(Buffer.from(text), redact)
  const { message, codes } = error
  const reason = `the batch API answered ${status}`
  const words = message === '' ? {} : { words: message }
  const hadNoEffect = REFUSED.includes(status)
  const retry_after_ms = retryAfterMs(headers, now)
  const wait = retry_after_ms === undefined ? {} : { retry_after_ms }
  const isTooMuch = hadNoEffect && (status === 413 || saysTooMuch([...codes, message].join(' ')))
  // The limit's window has an end, until which the limit may be raised.
  if (status === 429 && codes.includes(OVER_LIMIT))
    return new BatchApiError({ kind: 'throttled', status, reason, ...words, isOverLimit: true }, hadNoEffect)
  if (status === 429)
    return new BatchApiError(
      { kind: 'throttled', status, reason, ...words, ...wait },
      hadNoEffect,
      null,
      isTooMuch,
    )
  const denied = accessError(status, error)
  const unusable = denied
    ? `${denied.reason.replace('the server', 'the batch API')} (${status})`
    : NOT_ADMITTED.includes(status)
      ? `the batch API does not admit this service (${status})`
      : NOT_THERE.includes(status)
        ? `the batch API has nothing there (${status})`
        : null
  const blamed = denied ? null : blamedByCall(status, codes, message)
  const operatorReason = `${reason}; ${denied?.advice ?? 'check base_url and API key of the upstream'}`
  return new BatchApiError(
    {
      kind: 'failed',
      status,
      code: 'upstream_unavailable',
      ...(unusable === null ? { reason } : { reason: unusable, operatorReason }),
      ...words,
      ...wait,
      ...(blamed === null && hadNoEffect && { refusesService: true }),
      // An error of the lines' content also goes to callers.
      ...(BLAMES_REQUEST.includes(status) && { showsWords: true }),
    },
    hadNoEffect,
    blamed,
    isTooMuch,
  )
}

/** The failure of a call without a complete answer. */
export function brokenCall(error: unknown, redact: Redact): BatchApiError {
  if (error instanceof BatchApiError) return error
  const code = error instanceof Error && 'code' in error ? String(error.code) : ''
  const words = error instanceof Error ? error.message || code || error.name : String(error)
  const isUnsendable = code === 'UND_ERR_INVALID_ARG'
  const unreachable = isUnsendable || NOT_CONNECTED.includes(code)
  const reason = unreachable ? 'the batch API cannot be reached' : 'the batch API broke the connection'
  return new BatchApiError(
    unanswered(
      code.includes('TIMEOUT') ? 'upstream_timeout' : 'upstream_unavailable',
      isUnsendable ? 'calls to the batch API cannot be sent as it is configured' : reason,
      { operatorReason: redact(words), ...(unreachable ? { unreachable } : {}) },
    ),
    unreachable,
  )
}

/** The failure of a call whose answer arrives too slowly. */
export function tooSlow(): BatchApiError {
  return new BatchApiError(unanswered('upstream_timeout', 'the batch API answers too slowly'), false)
}

/** The failure of a call whose answer does not follow the batch API's definition. */
export function notUnderstood(what: string, moreForOperators = ''): BatchApiError {
  const reason = `the batch API answered with ${what}`
  const operatorReason = `${reason}${moreForOperators}`
  return new BatchApiError(
    { kind: 'failed', status: 200, code: 'upstream_invalid_response', reason, operatorReason },
    false,
  )
}

// A batch API that rejects a file may name the lines that are the reason. The code of an error decides: errors about
// timing, capacity, keys or the state of the file blame no line and pass. Every other error with a status that blames
// the request is about lines, whether the batch API names them or not.

const BLAMES_REQUEST = [400, 413, 422]
/** Codes and types, without separators, of errors that are not about lines. */
const PASSES =
  /notprocessed|file(?:notfound|expired|deleted)|notready|pending|inprogress|processing|conflict|idempoten|ratelimit|toomany|quota|budget|billing|insufficient|tokenlimit|requestlimit|capacity|overload|unavailable|timeout|servererror|apierror|apikey|auth|permission|region|maintenance/i
/** The pattern of the IDs by which this service names lines in files (dispatch/senders/batch-apis/creation.ts). */
const CUSTOM_ID = /\breq_[0-9a-z]{33}\b/g
const NUMBER = /\blines?(?: number)?[ :#]*(\d{1,7})\b/gi
/** The pattern by which Anthropic names requests: `requests.0.custom_id`. */
const INDEX = /\brequests[.[](\d{1,7})\b/g
const NAMED_MAX = 1_000

/** The line that an answer to a call blames; `codes`: the error's `code` and `type`. */
export function blamedByCall(
  status: number,
  codes: readonly string[],
  message: string,
): readonly BlamedLine[] | null {
  if (!BLAMES_REQUEST.includes(status) || codes.some(passes)) return null
  return namedIn(message, message)
}

/** The line that a failed batch blames in its `errors` or `error`. `redact` removes secrets from text for callers. */
export function blamedByBatch(
  { errors, error }: Record<string, unknown>,
  redact: (text: string) => string,
): readonly BlamedLine[] | null {
  const data = isRecord(errors) ? errors.data : errors
  const list = Array.isArray(data) ? data : [data ?? error]
  const found: BlamedLine[] = []
  let isSaid = false
  for (const one of list.slice(0, NAMED_MAX)) {
    const { code = '', message = one, line } = isRecord(one) ? one : {}
    if (typeof message !== 'string' || message === '') continue
    if (typeof code === 'string' && passes(code)) return null
    if (accessError(400, upstreamErrorOf({ error: one }, redact))) return null
    isSaid = true
    const words = redact(message).slice(0, MESSAGE_LENGTH_MAX)
    if (Number.isSafeInteger(line)) found.push({ custom_id: null, line: Number(line), message: words })
    else found.push(...namedIn(message, words))
  }
  return isSaid ? found : null
}

/** Codes and words of errors about size: of a file, its requests, or the tokens that are queued. */
const TOO_MUCH =
  /token.?limit|request.?limit|enqueued|too.?(?:large|big)|payload.?size|content.?length|too many (?:requests|lines|tokens|items) in|(?:exceeds?|exceeded|larger than|more than) (?:the |its |your )?(?:max|limit|allowed|size)|(?:maximum|max) (?:batch|file|request|number|size)/i

/** Whether an error says that fewer lines at once would be accepted. */
export function saysTooMuch(words: string): boolean {
  return TOO_MUCH.test(words)
}

function passes(code: string): boolean {
  return PASSES.test(code.replace(/[^a-z]/gi, ''))
}

function namedIn(text: string, message: string): BlamedLine[] {
  const ids = [...new Set(text.match(CUSTOM_ID) ?? [])].slice(0, NAMED_MAX)
  if (ids.length > 0) return ids.map((custom_id) => ({ custom_id, line: null, message }))
  const numbers = new Set(Array.from(text.matchAll(NUMBER), ([, number]) => Number(number)))
  for (const [, index] of text.matchAll(INDEX)) numbers.add(Number(index) + 1)
  return [...numbers].slice(0, NAMED_MAX).map((line) => ({ custom_id: null, line, message }))
}
