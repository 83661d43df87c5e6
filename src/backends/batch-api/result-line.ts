// Reads a line of an output or error file of a batch API. The answer keeps its bytes: it is found in the line, not
// parsed and printed again.
import type { EndpointPath } from '../../domain/endpoint.ts'
import { JsonScanner } from '../../jsonl/json-scan.ts'
import { Names } from '../../jsonl/json-scan-names.ts'
import type { BackendResult } from '../backend.ts'
import { isRecord } from '../json-record.ts'
import { classify } from '../verdict/classify.ts'

const KEYS = new Names('custom_id', 'response', 'error')
const RESPONSE_KEYS = new Names('status_code', 'body')
/** The batch ended before these lines were answered. */
const UNFINISHED = ['batch_expired', 'batch_cancelled', 'input_file_deleted']

const json = new JsonScanner()

/** `custom_id` and what came of the request; null for a line that is no result. */
export function readResultLine(
  line: Buffer,
  endpoint: EndpointPath,
): { custom_id: string; result: BackendResult } | null {
  let custom_id: string | null = null
  let status: number | null = null
  let body: Buffer | null = null
  let error: Buffer | null = null
  json.open(line, 0, line.length)
  if (json.kind() !== 'object') return null
  for (let more = json.beginObject(); more; more = json.nextMember()) {
    const key = json.key(KEYS)
    if (key === 'custom_id' && json.kind() === 'string') {
      if (json.readString()) custom_id = json.decode(json.text_start, json.text_end, json.text_escaped)
    } else if (key === 'response' && json.kind() === 'object') {
      for (let inner = json.beginObject(); inner; inner = json.nextMember()) {
        const field = json.key(RESPONSE_KEYS)
        if (field === 'status_code' && json.kind() === 'number') status = json.readNumber()
        else if (field === 'body') body = bytesOfValue(line)
        else json.skipValue()
      }
    } else if (key === 'error' && json.kind() === 'object') error = bytesOfValue(line)
    else json.skipValue()
  }
  json.finish()
  if (json.fault !== null || custom_id === null) return null
  return { custom_id, result: resultOf(status, body, error, endpoint) }
}

function bytesOfValue(line: Buffer): Buffer {
  const start = json.at
  json.skipValue()
  return line.subarray(start, json.at)
}

function resultOf(
  status: number | null,
  body: Buffer | null,
  error: Buffer | null,
  endpoint: EndpointPath,
): BackendResult {
  if (body !== null && status !== null && (error === null || status >= 300))
    return classify({ status, body: Buffer.from(body) }, endpoint)
  const found: unknown = error === null ? null : JSON.parse(error.toString())
  const { code, type, message } = isRecord(found) ? found : {}
  const words = typeof message === 'string' ? message.slice(0, 300) : ''
  if (typeof code === 'string' && UNFINISHED.includes(code))
    return unfinished(`the remote batch ended before it was answered (${code})`)
  if (error !== null && type === 'invalid_request_error')
    return classify({ status: 400, body: Buffer.from(`{"error":${error.toString()}}`) }, endpoint)
  return unfinished('the remote batch has no answer to it', words)
}

/** Of a line that the batch API left without an answer. */
export function unfinished(
  reason: string,
  words: string | null = null,
): Extract<BackendResult, { kind: 'failed' }> {
  const said = words === null || words === '' ? {} : { words }
  return { kind: 'failed', status: null, code: 'upstream_unavailable', reason, ...said }
}
