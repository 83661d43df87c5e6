// What an HTTP answer of a model server means to a line: the one place that knows the dialects.
//
// A machine-readable mark (`code`, `type`) decides before prose does. Prose is only read where the status
// already says that the request itself is at fault, and only for the three things that servers tell apart
// in words alone: too long, unknown model, filtered content. Whatever smells of our own configuration (a
// wrong path, a wrong key, an empty account) is `failed`: no line should carry the blame for that.
import { isUtf8 } from 'node:buffer'
import { CompletionScanner } from '../../domain/completion-scan.ts'
import type { BackendResult, FailureCode } from '../backend.ts'
import { completionFault } from './completion-fault.ts'
import { readUpstreamError, type UpstreamError, upstreamErrorOf } from './upstream-error.ts'

export interface HttpAnswer {
  status: number
  /** The whole body. */
  body: Buffer
  /** What the server asked us to wait, if it did. */
  retry_after_ms?: number | undefined
}

const TOO_LONG_MARKS = [
  'context_length_exceeded',
  'exceed_context_size_error',
  'model_context_window_exceeded',
]
const FILTER_MARKS = ['content_filter', 'content_policy_violation', 'responsibleaipolicyviolation']
const MODEL_MARKS = ['model_not_found', 'model_not_exist', 'unknown_model']
const QUOTA_MARKS = ['insufficient_quota', 'billing_hard_limit_reached', 'billing_not_active']
const THROTTLE_MARKS = ['rate_limit_exceeded', 'rate_limit_error', 'overloaded_error', 'server_overloaded']

/** As OpenAI, vLLM, SGLang, llama.cpp, Ollama, LM Studio, TGI and the larger hosts word it. */
const TOO_LONG = [
  /maximum context length/i,
  /longer than the (model's context length|maximum model length)/i,
  /exceeds?\b.{0,40}\bcontext (size|length|window|limit)/i,
  /larger than the max context size/i,
  /greater than the context length/i,
  /prompt is too long/i,
  /exceeds the maximum allowed input length/i,
  /`inputs`.{0,60}must (be <=|have less than)/i,
]
const FILTERED = [/content management policy/i, /content[ _]?policy/i, /input was flagged/i]
const UNKNOWN_MODEL = [
  /^(the )?model\b.{0,300}(does not exist|not exist|not found|not available)/i,
  /^(unknown|invalid|no such) model/i,
  /is not a valid model/i,
]
/** Not a matter of waiting: the request is larger than a whole minute's allowance. */
const NEVER_FITS = /request too large/i

/** How a gzip file begins (RFC 1952). */
const GZIP = [0x1f, 0x8b]

const scanner = new CompletionScanner()

/** What one attempt came to, judged by what the server answered. */
export function classify(answer: HttpAnswer): BackendResult {
  const { status, body } = answer
  if (status >= 200 && status < 300) return classifySuccess(answer)
  return classifyError(status, readUpstreamError(body.toString()), answer.retry_after_ms)
}

function classifySuccess({ status, body, retry_after_ms }: HttpAnswer): BackendResult {
  // Result files are UTF-8: what is not becomes the sign for what cannot be read.
  const bytes = isUtf8(body) ? body : Buffer.from(body.toString())
  const completion = scanner.scan(bytes)
  if (completion !== null) return { kind: 'answered', status, body: bytes, completion }

  const text = bytes.toString()
  let parsed: unknown
  try {
    parsed = JSON.parse(text)
  } catch {
    return failed(status, 'upstream_invalid_response', `${status} with ${kindOfBody(body, text)}`)
  }
  // Some proxies report errors under a 200. Only one that says what it is can be taken at its word.
  const error = upstreamErrorOf(parsed)
  const meant = error.status ?? statusOfMarks(error)
  if (meant !== null) return classifyError(meant, error, retry_after_ms)
  const fault = completionFault(parsed)
  const reason = error.message === '' ? fault : `${fault}: ${error.message}`
  return failed(status, 'upstream_invalid_response', `${status}, but ${reason}`)
}

/** What came where JSON was expected. */
function kindOfBody(body: Buffer, text: string): string {
  if (text.trim() === '') return 'an empty body'
  if (body[0] === GZIP[0] && body[1] === GZIP[1]) return 'a compressed body, which was not asked for'
  if (/^(data|event):/.test(text)) return 'a stream of events, which was not asked for'
  return 'a body that is not JSON'
}

function statusOfMarks(error: UpstreamError): number | null {
  if (has(error, TOO_LONG_MARKS) || has(error, FILTER_MARKS)) return 400
  if (has(error, MODEL_MARKS)) return 404
  if (has(error, THROTTLE_MARKS) || has(error, QUOTA_MARKS)) return 429
  return null
}

function classifyError(status: number, error: UpstreamError, retry_after_ms?: number): BackendResult {
  const refusal = refusalOf(status, error)
  if (refusal !== null) return refusal

  const said = error.message === '' ? `${status}` : `${status}: ${error.message}`
  switch (status) {
    case 429:
      if (has(error, QUOTA_MARKS)) {
        return failed(
          status,
          'upstream_unavailable',
          `the account has no quota left: ${said}`,
          retry_after_ms,
        )
      }
      return { kind: 'throttled', status, reason: said, retry_after_ms }
    case 503:
    case 529:
      return { kind: 'throttled', status, reason: said, retry_after_ms }
    case 408:
    case 504:
    case 524:
      return failed(status, 'upstream_timeout', said, retry_after_ms)
    case 401:
      // What a server says about a key may quote it.
      return failed(status, 'upstream_unavailable', '401: the server does not accept our API key')
    case 402:
    case 403:
    case 407:
      return failed(status, 'upstream_unavailable', `the server does not let us in: ${said}`)
    case 404:
    case 405:
      return failed(
        status,
        'upstream_unavailable',
        `no chat completions at this address, check base_url: ${said}`,
      )
    case 409:
    case 425:
    case 499:
      return failed(status, 'upstream_unavailable', said, retry_after_ms)
  }
  if (status < 400) {
    return failed(
      status,
      'upstream_unavailable',
      `a redirect (${status}), which is not followed: check base_url`,
    )
  }
  if (status >= 500) return failed(status, 'upstream_unavailable', said, retry_after_ms)
  return refused(status, error)
}

/** The refusals that any status may carry by mark, and a status that blames the request by words. */
function refusalOf(status: number, error: UpstreamError): BackendResult | null {
  const { message } = error
  const blamed = status === 400 || status === 413 || status === 422
  // llama.cpp and vLLM have both reported an overlong prompt as 500.
  if (
    has(error, TOO_LONG_MARKS) ||
    ((blamed || status === 500) && TOO_LONG.some((said) => said.test(message)))
  ) {
    return {
      kind: 'refused',
      status,
      code: 'context_length_exceeded',
      message: message || 'The model server found the request too long.',
      param: 'messages',
    }
  }
  if (
    has(error, FILTER_MARKS) ||
    ((blamed || status === 403) && FILTERED.some((said) => said.test(message)))
  ) {
    return {
      kind: 'refused',
      status,
      code: 'content_filter',
      message: message || 'The model server refused the content of the request.',
    }
  }
  if (
    has(error, MODEL_MARKS) ||
    ((status === 400 || status === 404) && UNKNOWN_MODEL.some((said) => said.test(message)))
  ) {
    return {
      kind: 'refused',
      status,
      code: 'model_not_found',
      message: message || 'The model server does not know the model.',
      param: 'model',
    }
  }
  if (status === 429 && NEVER_FITS.test(message)) return refused(status, error)
  return null
}

function refused(status: number, { message, param }: UpstreamError): BackendResult {
  return {
    kind: 'refused',
    status,
    code: 'upstream_rejected',
    message: message || `The model server refused the request with status ${status} and no explanation.`,
    ...(param === null ? {} : { param }),
  }
}

function failed(
  status: number | null,
  code: FailureCode,
  reason: string,
  retry_after_ms?: number,
): BackendResult {
  return { kind: 'failed', status, code, reason, retry_after_ms }
}

function has(error: UpstreamError, marks: readonly string[]): boolean {
  return error.marks.some((mark) => marks.includes(mark))
}
