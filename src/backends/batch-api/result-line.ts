// Reads a result line of a batch API, in OpenAI's form (`response`, `error`) or Anthropic's (`result`). The answer
// keeps its bytes: it is cut out of the line, not parsed and printed again.
import { endingOf } from '../../domain/batch.ts'
import type { EndpointPath } from '../../domain/endpoint.ts'
import type { ErrorCode } from '../../domain/errors.ts'
import { ID_PREFIXES } from '../../domain/ids.ts'
import { isRecord } from '../../domain/json-record.ts'
import { JsonScanner, Names } from '../../jsonl/json-scan.ts'
import { type BackendResult, unanswered } from '../backend.ts'
import { classify } from '../verdict/classify.ts'

const KEYS = new Names('custom_id', 'response', 'error', 'result')
const RESPONSE_KEYS = new Names('status_code', 'body')
const RESULT_KEYS = new Names('type', 'message', 'error')
/** Whether a line with this code or result was not answered before its batch, or it alone, was ended. */
const isUnfinished = (code: string): boolean =>
  ['expired', 'canceled'].includes(code) || endingOf(code) !== null
/** The code of a line that another Offpeak does not send because of a spending limit. */
export const OVER_LIMIT: ErrorCode = 'usage_limit_exceeded'
/** The HTTP status of each error type of Anthropic, whose errors have no status; 500 for others. */
const STATUSES: Readonly<Record<string, number>> = {
  invalid_request_error: 400,
  authentication_error: 401,
  billing_error: 402,
  permission_error: 403,
  not_found_error: 404,
  request_too_large: 413,
  rate_limit_error: 429,
  timeout_error: 504,
  overloaded_error: 529,
}
const NO_ANSWER = 'the remote batch has no answer to it'

const json = new JsonScanner()

/** The custom_id of a request that also carries the name of its batch: as long as Anthropic allows. */
export function idInBatch(custom_id: string, name: string): string {
  return `${custom_id}-${name.slice(ID_PREFIXES.remote.length)}`
}

interface ReadResult {
  custom_id: string
  /** The name of the batch; null where the custom_id does not carry it. */
  batch: string | null
  result: BackendResult
}

/** Reads a result line; null if the line is not a result. */
export function readResultLine(line: Buffer, endpoint: EndpointPath): ReadResult | null {
  let id: string | null = null
  const found: FoundResult = { status: null, ended: null, body: null, error: null }
  json.open(line, 0, line.length)
  if (json.kind() !== 'object') return null
  for (let more = json.beginObject(); more; more = json.nextMember()) {
    const key = json.key(KEYS)
    if (key === 'custom_id' && json.kind() === 'string') id = json.readText()
    else if (key === 'response' && json.kind() === 'object') {
      for (let inner = json.beginObject(); inner; inner = json.nextMember()) {
        const field = json.key(RESPONSE_KEYS)
        if (field === 'status_code') found.status = statusIn(bytesOfValue(line).toString('latin1'))
        else if (field === 'body') found.body = bytesOfValue(line)
        else json.skipValue()
      }
    } else if (key === 'result' && json.kind() === 'object') {
      for (let inner = json.beginObject(); inner; inner = json.nextMember()) {
        const field = json.key(RESULT_KEYS)
        if (field === 'type' && json.kind() === 'string') found.ended = json.readText()
        else if (field === 'message') found.body = bytesOfValue(line)
        else if (field === 'error') found.error = bytesOfValue(line)
        else json.skipValue()
      }
    } else if (key === 'error' && json.kind() === 'object') found.error = bytesOfValue(line)
    else json.skipValue()
  }
  json.finish()
  if (json.fault !== null || id === null) return null
  const [custom_id = '', token] = id.split('-')
  const batch = token === undefined ? null : ID_PREFIXES.remote + token
  const result =
    found.ended === null ? resultOf(found, endpoint) : resultEndedAs(found.ended, found, endpoint)
  return { custom_id, batch, result }
}

interface FoundResult {
  status: number | null
  /** The end of the request, where the result names it in words. */
  ended: string | null
  body: Buffer | null
  error: Buffer | null
}

function bytesOfValue(line: Buffer): Buffer {
  const start = json.at
  json.skipValue()
  return line.subarray(start, json.at)
}

function resultEndedAs(ended: string, { body, error }: FoundResult, endpoint: EndpointPath): BackendResult {
  if (ended === 'succeeded' && body !== null)
    return classify({ status: 200, body: Buffer.from(body) }, endpoint)
  if (ended === 'errored' && error !== null) {
    const found: unknown = JSON.parse(error.toString())
    const { error: inner } = isRecord(found) ? found : {}
    const { type, message, details } = isRecord(inner) ? inner : isRecord(found) ? found : {}
    if (isRecord(details) && details.error_code === OVER_LIMIT) return overLimit(message)
    const status = typeof type === 'string' && Object.hasOwn(STATUSES, type) ? STATUSES[type]! : 500
    return classify({ status, body: error }, endpoint)
  }
  return isUnfinished(ended) ? endedBefore(ended) : unfinished(NO_ANSWER)
}

/** The status in the JSON of a `status_code`, a number or its text. */
function statusIn(value: string): number | null {
  const [, status] = /^"?(\d{3})"?$/.exec(value) ?? []
  return status === undefined ? null : Number(status)
}

function resultOf({ status, body, error }: FoundResult, endpoint: EndpointPath): BackendResult {
  const found: unknown = error === null ? null : JSON.parse(error.toString())
  const { code, type, message } = isRecord(found) ? found : {}
  // Some batch APIs give an answer an error without content, or no status.
  const isError = Boolean(code || type || message)
  if (body !== null && (!isError || (status !== null && status >= 300)))
    return classify({ status: status ?? 200, body: Buffer.from(body) }, endpoint)
  if (code === OVER_LIMIT) return overLimit(message)
  if (typeof code === 'string' && isUnfinished(code)) return endedBefore(code)
  if (error !== null && type === 'invalid_request_error')
    return classify({ status: 400, body: Buffer.from(`{"error":${error.toString()}}`) }, endpoint)
  return unfinished(NO_ANSWER, wordsOf(message))
}

/** The result of a line that another Offpeak has not sent: its limit's window may end, or the limit be raised. */
function overLimit(message: unknown): BackendResult {
  const reason = 'the batch API has reached a spending limit'
  return { kind: 'throttled', status: 429, reason, words: wordsOf(message), isOverLimit: true }
}

function wordsOf(message: unknown): string {
  return typeof message === 'string' ? message.slice(0, 300) : ''
}

function endedBefore(code: string): BackendResult {
  return unfinished(`the remote batch ended before it was answered (${code})`)
}

/** The result of a line that the batch API did not answer. */
export function unfinished(reason: string, words: string | null = null): ReturnType<typeof unanswered> {
  return unanswered('upstream_unavailable', reason, words ? { words } : {})
}
