// Classifies a model server's HTTP response. All differences between servers are handled here.
//
// A machine-readable `code` or `type` decides before the message does. The message is read only where the status
// blames the request, and only for what servers distinguish in text alone: request too long, unknown model, filtered
// content. A problem of the configuration (wrong path, wrong key, empty account) is `failed`: no line is at fault.
import { isUtf8 } from 'node:buffer'
import { DEFAULT_ENDPOINT, type EndpointPath, endpointOf } from '../../domain/endpoint.ts'
import type { ErrorCode } from '../../domain/errors.ts'
import { type Answer, AnswerScanner } from '../../jsonl/answer-scan.ts'
import { hasByteOrderMark } from '../../jsonl/byte-lines.ts'
import type { BackendResult, FailureCode } from '../backend.ts'
import { type FailureReason, withoutAddresses } from '../failure-reason.ts'
import { accessError } from './access-errors.ts'
import { isAboutContent, isFilterCode, isFilterMessage, isWithheld } from './content-filters.ts'
import {
  parseBody,
  type Redact,
  readUpstreamError,
  type UpstreamError,
  upstreamErrorOf,
} from './upstream-error.ts'

export interface HttpAnswer {
  status: number
  /** The complete body of the server's answer. */
  body: Buffer
  /** The wait before a retry that the server asked for (ms), if any. */
  retry_after_ms?: number | undefined
  /** The `Content-Encoding` header of the server's answer, if any. */
  content_encoding?: string | undefined
}

/** Removes API keys from a server's output. */
export interface Secrets {
  /** Removes keys, pieces of keys and other header values from a text. */
  redact: Redact
  /** Removes keys from the model's own output, where only a long text is certain to be a key. */
  redactKeys: Redact
  /** Whether bytes may contain a key: fast, without false negatives. */
  mayBeIn(bytes: Buffer): boolean
}

const NO_SECRETS: Secrets = { redact: (text) => text, redactKeys: (text) => text, mayBeIn: () => false }

const TOO_LONG_CODES = [
  'context_length_exceeded',
  'exceed_context_size_error',
  'model_context_window_exceeded',
]
const MODEL_CODES = ['model_not_found', 'model_not_exist', 'unknown_model', 'model_decommissioned']
/** Codes that blame the request, whatever the status: some servers send them with a 500. */
const REQUEST_CODES = [
  'invalid_request_error',
  'badrequesterror',
  'bad_request_error',
  'unprocessableentityerror',
  'validation',
]
const THROTTLE_CODES = ['rate_limit_exceeded', 'rate_limit_error', 'overloaded_error', 'server_overloaded']

/** The words about too long requests of OpenAI, vLLM, SGLang, llama.cpp, Ollama, LM Studio, TGI, LiteLLM and hosts. */
const TOO_LONG = [
  /\bContextWindowExceededError\b/,
  /maximum context length/i,
  /longer than the (model's context length|maximum model length)/i,
  /exceeds?\b.{0,40}\bcontext (size|length|window|limit)/i,
  /larger than the max context size/i,
  /greater than the context length/i,
  /(prompt|input) is too long/i,
  /(prompt|input) length\b.{0,40}exceeds/i,
  /maximum prompt length/i,
  /number of tokens in the prompt cannot exceed/i,
  /loaded with context length of only/i,
  /exceeds the maximum allowed input length/i,
  /`inputs`.{0,60}must (be <=|have less than)/i,
  /input (token count|tokens)( \(\d+\))? exceeds?\b/i,
  /maximum input length (is|of) \d+/i,
  /exceeds? (the )?context limit/i,
  /greater than [`']?(max_model_len|max_total_tokens)/i,
]
/** Words about unknown models, matched at the beginning of the server's own message. */
const UNKNOWN_MODEL = [
  /^(the )?model\b.{0,300}(does not exist|not exist|not found|not available)/i,
  /^(unknown|invalid|no such) model/i,
  /^\S+: invalid model name passed/i,
  /is not a valid model/i,
  /^model: \S+$/,
  /^you passed in model=.{0,300} no healthy deployments for this model/i,
]
/** The prefix of an error that a proxy or a runtime passes on from another server. */
const WRAPPED =
  /^(?:(?:litellm\.)?\w*(?:Error|Exception)(?::| -)\s*|(?:rpc error: )?code = \w+ desc = |Input validation error: |Error code: \d+ - |\d{3}: |b?['"]?\{['"](?:error|message)['"]:\s*)+['"]?/

/** Words about requests that a server cannot serve, seen with a 500. */
const REFUSED = [
  // llama.cpp, Ollama, llama-cpp-python, and vLLM's words for the same
  /\b(image|audio|video) input (is not supported|detected, but)/i,
  /missing data required for (image|audio) input/i,
  /does not support (image|audio|video|vision|multimodal)/i,
  /is not a multimodal model/i,
  /at most 0 (image|audio|video)/i,
  // schemas and grammars that a server cannot follow
  /schema conversion failed/i,
  /failed to (parse|convert|compile|initialize) .{0,40}(grammar|schema|samplers)/i,
  /^Failed to initialize samplers/i,
  /^(Unrecognized|Unsupported) (schema|ref|pattern|type)\b/i,
  /^Pattern must start with/i,
  /^Error resolving ref\b/i,
  /^(Only user, system|Conversation roles must alternate|Unsupported (role|content) )/i,
  // gRPC's word for a fault of the request, as LocalAI passes it on
  /\bcode = InvalidArgument\b/,
]
/** Words about a request that exceeds the rate limit of a whole minute: waiting does not help. */
const NEVER_FITS = /request too large/i

/** Statuses of a proxy whose server is unreachable; the last ones are Cloudflare's. */
const GATEWAY_STATUSES: readonly number[] = [502, 503, 504, 520, 521, 522, 523, 524, 525, 526, 530]
/** Codes of LiteLLM for a server that is unreachable. */
const GATEWAY_CODES = ['all_deployments_in_cooldown']
const GATEWAY_WORDS = /\b(\w+Exception - Connection error\.|Cannot connect to host )/

/** Statuses of a path that the server does not have, or was started without. */
const NOT_OFFERED = [404, 405, 501]

/** Words about a missing object in the request (not its path): a stored response, conversation, prompt, file, … */
const MISSING_OBJECT =
  /\b(with|for) (the )?id\b|\bno such (?!model|url|path|route|endpoint)\w+|\b(response|conversation|prompt|file|item|image|container|vector store|document)\b(?: \S{1,200})? (was |is )?(not found|does not exist|could not be found|has expired)/i

const GZIP = [0x1f, 0x8b]
/** The most bytes of a body that are read to describe it. */
const BEGINNING_BYTES = 1024
const ENCODING_LENGTH_MAX = 40

const scanner = new AnswerScanner()

/** Classifies the answer to one attempt. Never throws, whatever the server sends. */
export function classify(
  given: HttpAnswer,
  endpoint: EndpointPath,
  secrets: Secrets = NO_SECRETS,
): BackendResult {
  const { body: bytes } = given
  // Servers on .NET may begin with a byte order mark, which is no part of JSON (RFC 8259, section 8.1).
  const answer = hasByteOrderMark(bytes, 0, bytes.length) ? { ...given, body: bytes.subarray(3) } : given
  const { status, body } = answer
  const encoding = encodingOf(answer, secrets.redact)
  if (status >= 200 && status < 300) {
    if (encoding === null) return classifySuccess(answer, endpoint, secrets)
    return {
      ...failed(status, 'upstream_invalid_response', { reason: `${status}, but ${compressed(encoding)}` }),
      operatorReason: `${compressed(encoding)}, though the request says "Accept-Encoding: identity": switch compression off in the server, or in the proxy before it`,
    }
  }
  const error =
    encoding === null
      ? readUpstreamError(body, secrets.redact)
      : { message: compressed(encoding), codes: [], status: null, param: null, isJson: false }
  return classifyError(status, error, endpoint, answer.retry_after_ms)
}

function classifySuccess(
  { status, body, retry_after_ms }: HttpAnswer,
  endpoint: EndpointPath,
  secrets: Secrets,
): BackendResult {
  // Result files are UTF-8: invalid bytes become U+FFFD.
  const text = isUtf8(body) ? body : Buffer.from(body.toString())
  const { mayBeBare, list } = endpointOf(endpoint).answer
  const isBare = mayBeBare && /^\s*\[/.test(text.toString('latin1', 0, BEGINNING_BYTES))
  const bytes = isBare ? Buffer.concat([Buffer.from(`{"${list}":`), text, Buffer.from('}')]) : text
  const found = scanner.scan(bytes, endpoint)
  if (found !== null) return answered(status, bytes, found, endpoint, secrets)
  if (scanner.isWrongForm) return wrongForm(status, scanner.fault)

  const parsed = parseBody(bytes)
  if (parsed === undefined)
    return failed(status, 'upstream_invalid_response', { reason: `${status} with ${kindOfBody(bytes)}` })
  // Some proxies report errors with status 200. Only an error with a known status or code is trusted.
  const error = upstreamErrorOf(parsed, secrets.redact)
  const meant = error.status ?? statusOfCodes(error) ?? (isAboutContent(parsed, error) ? 400 : null)
  if (meant !== null || accessError(status, error) !== null)
    return classifyError(meant ?? status, error, endpoint, retry_after_ms)
  if (isWithheld(parsed, endpoint))
    return refused(status, 'content_filter', 'withheld the content of its answer', error.message)
  return failed(status, 'upstream_invalid_response', {
    reason: `${status}, but ${scanner.fault}`,
    ...(error.message === '' ? {} : { words: error.message }),
  })
}

/**
 * The answer with the response's own bytes, unless they contain a key; outside the content, all secrets are removed.
 */
function answered(
  status: number,
  body: Buffer,
  found: Answer,
  endpoint: EndpointPath,
  secrets: Secrets,
): BackendResult {
  if (!secrets.mayBeIn(body)) return { kind: 'answered', status, body, answer: found }
  const { start, end } = found.content
  const bytes = Buffer.concat([
    redacted(body.subarray(0, start), secrets.redact),
    redacted(body.subarray(start, end), secrets.redactKeys),
    redacted(body.subarray(end), secrets.redact),
  ])
  const answer = scanner.scan(bytes, endpoint)
  if (answer !== null) return { kind: 'answered', status, body: bytes, answer }
  return {
    ...failed(status, 'upstream_invalid_response', {
      reason: `${status}, but the answer had to be withheld`,
    }),
    operatorReason: 'the answer quotes the API key of the upstream',
  }
}

function redacted(bytes: Buffer, redact: Redact): Buffer {
  return Buffer.from(redact(bytes.toString()))
}

/** The compression of the body; null: none. Some servers compress without a header. */
function encodingOf({ body, content_encoding = '' }: HttpAnswer, redact: Redact): string | null {
  const said = content_encoding.trim().toLowerCase()
  if (said !== '' && said !== 'identity') return redact(said).slice(0, ENCODING_LENGTH_MAX)
  return body[0] === GZIP[0] && body[1] === GZIP[1] ? 'gzip' : null
}

function compressed(encoding: string): string {
  return `the server compressed its answer (${encoding}), which was not asked for`
}

/** The kind of an answer's body that is not JSON, in words for an error. */
function kindOfBody(body: Buffer): string {
  const text = body.toString('utf8', 0, BEGINNING_BYTES)
  if (text.trim() === '') return 'an empty body'
  if (/^(data|event):/.test(text)) return 'a stream of events, which was not asked for'
  if (/^\s*[[{]/.test(text)) return 'JSON that is not whole, not an answer, or nested too deep'
  return 'a body that is not JSON'
}

function statusOfCodes(error: UpstreamError): number | null {
  if (has(error, TOO_LONG_CODES) || error.codes.some(isFilterCode)) return 400
  if (has(error, MODEL_CODES)) return 404
  if (has(error, THROTTLE_CODES)) return 429
  return null
}

function classifyError(
  status: number,
  error: UpstreamError,
  path: EndpointPath,
  retry_after_ms?: number,
): BackendResult {
  const denied = accessError(status, error)
  if (denied !== null) {
    const { reason, advice, quotesKey } = denied
    return unusable(status, reason, `${status}: ${advice}`, quotesKey ? '' : error.message, retry_after_ms)
  }
  const apiError = apiErrorOf(status, error)
  if (apiError !== null) return apiError
  if (status === 404 && error.isJson && isAboutRequest(error)) return rejected(status, error)
  // Every server has chat completions: a server without them has another address.
  if (path !== DEFAULT_ENDPOINT && error.isJson && NOT_OFFERED.includes(status))
    return refused(status, 'endpoint_not_supported', `does not offer ${path} for this model`, error.message)

  const said = { reason: `${status}`, ...(error.message === '' ? {} : { words: error.message }) }
  const gateway = gatewayOf(status, error)
  switch (status) {
    case 429:
      return { kind: 'throttled', status, ...said, retry_after_ms, ...gateway }
    case 503:
    case 529:
      return { kind: 'throttled', status, ...said, retry_after_ms, ...gateway }
    case 408:
    case 504:
    case 524:
      return { ...failed(status, 'upstream_timeout', said, retry_after_ms), ...gateway }
    case 401:
      // The server's message may quote the key.
      return unusable(
        status,
        'the server does not admit this service',
        '401: check the API key of the upstream',
      )
    case 402:
    case 403:
    case 407:
    case 412:
    case 511:
      return unusable(
        status,
        'the server does not admit this service',
        `${status}: check the API key of the upstream and what its account may do`,
        error.message,
      )
    case 404:
    case 405:
      return unusable(
        status,
        `the server does not offer ${path}`,
        `nothing at this address offers ${path} (${status}): check base_url`,
        error.message,
      )
    case 421:
    case 426:
    case 495:
    case 496:
    case 497:
      return unusable(
        status,
        'the server does not take requests as they are sent',
        `${status}: check the protocol and the port of base_url, and the client certificate`,
        error.message,
      )
    case 409:
    // TGI: the server failed while it generated.
    case 424:
    case 425:
    case 499:
      return failed(status, 'upstream_unavailable', said, retry_after_ms)
  }
  if (status < 400)
    return unusable(
      status,
      'the server answered with a redirect',
      `a redirect (${status}), which is not followed: check base_url`,
    )
  if (status >= 500) return { ...failed(status, 'upstream_unavailable', said, retry_after_ms), ...gateway }
  return rejected(status, error)
}

function gatewayOf(status: number, error: UpstreamError): { isOfGateway?: true } {
  const isSaid = has(error, GATEWAY_CODES) || (status === 500 && GATEWAY_WORDS.test(error.message))
  return isSaid || GATEWAY_STATUSES.includes(status) ? { isOfGateway: true } : {}
}

/** The result for a server that cannot be used as configured: only operators get the message and the advice. */
function unusable(
  status: number,
  reason: string,
  operatorReason: string,
  words = '',
  retry_after_ms?: number,
): BackendResult {
  const why = { reason: `${reason} (${status})`, operatorReason, ...(words === '' ? {} : { words }) }
  return { ...failed(status, 'upstream_unavailable', why, retry_after_ms), refusesService: true }
}

/** Recognises errors of the request: by code with any status, by words where the status blames the request. */
function apiErrorOf(status: number, error: UpstreamError): BackendResult | null {
  const { message } = error
  const own = message.replace(WRAPPED, '')
  const says = (patterns: readonly RegExp[]): boolean => patterns.some((pattern) => pattern.test(own))
  // Only the server's own words count: the page of a proxy says nothing about the request.
  const disguised = status === 500 && error.isJson
  const blamed = status === 400 || status === 413 || status === 422 || disguised
  if (has(error, TOO_LONG_CODES) || (blamed && TOO_LONG.some((pattern) => pattern.test(message))))
    return refused(status, 'context_length_exceeded', 'found the request too long', message, 'messages')
  if (error.codes.some(isFilterCode) || ((blamed || status === 403) && isFilterMessage(message)))
    return refused(status, 'content_filter', 'refused the content of the request', message)
  // With a 500, a model that is "not available" may be so only for a while.
  const unknown = (blamed || status === 404) && says(UNKNOWN_MODEL)
  if (has(error, MODEL_CODES) || (unknown && !(disguised && /not available/i.test(own))))
    return refused(status, 'model_not_found', 'does not know the model', message, 'model')
  if (disguised && (has(error, REQUEST_CODES) || says(REFUSED))) return rejected(status, error)
  return status === 429 && NEVER_FITS.test(message) ? rejected(status, error) : null
}

/** Whether a 404 is about an object that the request names, other than the model. */
function isAboutRequest({ param, message }: UpstreamError): boolean {
  return (param !== null && param !== 'model') || MISSING_OBJECT.test(message)
}

function rejected(status: number, { message, param }: UpstreamError): BackendResult {
  const what = `refused the request with status ${status}${message === '' ? ' and no explanation' : ''}`
  return refused(status, 'upstream_rejected', what, message, param)
}

/** The result for a complete answer without use: the server would give the same again. */
export function wrongForm(status: number, fault: string): BackendResult & { kind: 'refused' } {
  const message = `The model server answered with status ${status}, but ${fault}.`
  return { kind: 'refused', status, code: 'upstream_invalid_response', message }
}

/** Fails a line with a message that quotes the server. */
function refused(
  status: number,
  code: ErrorCode,
  what: string,
  words: string,
  param: string | null = null,
): BackendResult {
  const message = `The model server ${what}${words === '' ? '' : `: "${withoutAddresses(words)}"`}.`
  return { kind: 'refused', status, code, message, ...(param === null ? {} : { param }) }
}

function failed(
  status: number | null,
  code: FailureCode,
  why: FailureReason,
  retry_after_ms?: number,
): BackendResult & { kind: 'failed' } {
  return { kind: 'failed', status, code, ...why, retry_after_ms }
}

function has(error: UpstreamError, codes: readonly string[]): boolean {
  return error.codes.some((code) => codes.includes(code))
}
