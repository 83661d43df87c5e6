// The table of error codes. HTTP responses, lines of an error file and the details of an invalid upload all use
// it; docs/errors.md is generated from it.

import { ENDPOINT_PATHS, endpointsText } from './endpoint.ts'

export const ERROR_TYPES = [
  'invalid_request_error',
  'authentication_error',
  'permission_error',
  'rate_limit_error',
  'api_error',
] as const
type ErrorType = (typeof ERROR_TYPES)[number]

/** A place of error codes: an HTTP response, `status_details` of an uploaded file, or a line of an error file. */
export type ErrorPlace = 'http' | 'file' | 'line'

export interface ErrorRow {
  /** HTTP status; for a code of lines and files only, the status that an HTTP response would have. */
  status: number
  type: ErrorType
  places: readonly ErrorPlace[]
  /** Whether the same request may succeed later, unchanged. */
  retryable: boolean
  /** The public message of an error that is thrown without a message. */
  message: string
  /** Advice for the caller; shown in the reference, by the command line, and in `status_details`. */
  advice: string
  /** Advice for the operator of the service; shown in the reference only, never in a response. */
  operatorAdvice?: string
  /** The status and code for OpenAI's strict clients; a 422 without a status here becomes a 400. */
  openai?: { status?: number; code?: string }
}

type Texts = Pick<ErrorRow, 'message' | 'advice' | 'operatorAdvice' | 'openai'> & { retryable?: boolean }

const http = (status: number, texts: Texts): ErrorRow => row(['http'], status, texts)
const file = (status: number, texts: Texts): ErrorRow => row(['file'], status, texts)
const line = (status: number, texts: Texts): ErrorRow => row(['line'], status, texts)
const httpAndFile = (status: number, texts: Texts): ErrorRow => row(['http', 'file'], status, texts)
const httpAndLine = (status: number, texts: Texts): ErrorRow => row(['http', 'line'], status, texts)

function row(places: readonly ErrorPlace[], status: number, texts: Texts): ErrorRow {
  return { status, type: typeOf(status), places, retryable: false, ...texts }
}

function typeOf(status: number): ErrorType {
  if (status === 401) return 'authentication_error'
  if (status === 403) return 'permission_error'
  if (status === 429) return 'rate_limit_error'
  return status >= 500 ? 'api_error' : 'invalid_request_error'
}

export const ERRORS = {
  // Malformed requests
  invalid_request: httpAndLine(400, {
    message: 'The request is malformed.',
    advice: 'Fix the parameter that `param` names and send the request again.',
  }),
  invalid_json: httpAndFile(400, {
    message: 'The text is not valid JSON.',
    advice: 'Write each object with a JSON library; in an input file, write one object per line.',
  }),
  invalid_multipart: http(400, {
    message: 'The multipart form is malformed or incomplete.',
    advice: 'Send `multipart/form-data` with the fields `purpose` and `file`.',
  }),
  unknown_endpoint: http(404, {
    openai: { code: 'unknown_url' },
    message: 'There is no such endpoint.',
    advice: 'Compare the method and the path with the API reference.',
  }),
  method_not_allowed: http(405, {
    openai: { code: 'method_not_supported' },
    message: 'This path does not support this method.',
    advice: 'Use one of the methods in the `Allow` header.',
  }),
  request_timeout: http(408, {
    retryable: true,
    message: 'The request did not arrive in time.',
    advice: 'Send the request again over a faster connection.',
  }),
  payload_too_large: http(413, {
    message: 'The request body is too large.',
    advice: 'Make the body smaller; split a large input file into several files.',
    operatorAdvice: '`limits.file_bytes_max` sets the maximum size of an upload.',
  }),
  range_not_satisfiable: http(416, {
    message: 'The range lies outside the file.',
    advice: 'Request bytes within the size that `Content-Range` gives.',
  }),
  unsupported_media_type: http(415, {
    message: 'This endpoint does not accept the content type or encoding of the body.',
    advice:
      'Send JSON as UTF-8 with `Content-Type: application/json` and files as `multipart/form-data`; compress neither.',
  }),

  // Access
  invalid_signature: http(401, {
    message:
      'The signature of the webhook request is missing, wrong, or older than five minutes. It is made as Standard Webhooks say, with the `webhook_secret` of an upstream.',
    advice:
      'Set `webhook_secret` or `webhook_secret_env` of the upstream to the secret that the batch API shows for this webhook, and check the clocks.',
  }),
  invalid_api_key: http(401, {
    message:
      'No valid API key was given. Send "Authorization: Bearer <API_KEY>" with a key that was issued for this region and has not been revoked.',
    advice: 'Check the key, or ask the operator of the service for a new one.',
    operatorAdvice: '`offpeak keys list` lists the keys; `offpeak keys create` creates one.',
  }),
  cross_site_request: http(403, {
    message: 'A call of a signed-in browser that changes something needs the header `X-Offpeak-Console: 1`.',
    advice: 'Send the header from a page of this service, or authenticate with `Authorization: Bearer`.',
  }),
  missing_scope: http(403, {
    message: 'The API key lacks a scope.',
    advice: 'Use a key that has the scope that the message names.',
  }),
  unknown_project: http(403, {
    message: 'The token names no project of this service.',
    advice:
      'Use a token that names a project, or ask the operator of the service to create the project that it names.',
    operatorAdvice:
      '`auth.jwt.project` says which claim names the project; `offpeak apply` and `POST /v1/projects` create one.',
  }),
  plan_lacks_feature: http(403, {
    message: 'The plan of this project does not include the requested feature.',
    advice: 'Request what the plan includes, or ask the operator of the service for another plan.',
    operatorAdvice: '`plans` sets what each plan includes.',
  }),
  bucket_not_allowed: httpAndFile(403, {
    message: 'The project may not use this place in a bucket.',
    advice:
      'Use a URL under a prefix that the message names, or ask the operator of the service for another.',
    operatorAdvice: '`buckets` sets the prefixes that each project may read and write.',
  }),

  // Objects that do not exist
  file_not_found: http(404, {
    message: 'There is no such file.',
    advice: 'Check the ID against the list of files; deleted and expired files are not listed.',
  }),
  content_not_kept: http(410, {
    message:
      'The content of this file was destroyed: its batch keeps results only until they are fetched, and its input until it ends (`retention`).',
    advice:
      'Use the copy that you have fetched. Counts, usage and cost stay: read the batch. To run lines again, upload them again.',
    operatorAdvice: '`plans.<name>.retention` sets how long results are kept.',
    openai: { status: 404 },
  }),
  batch_not_found: http(404, {
    message: 'There is no such batch.',
    advice: 'Check the ID against the list of batches of this project.',
  }),
  limit_not_found: http(404, {
    message: 'There is no such limit.',
    advice: 'Check the ID against the list of limits of this project.',
  }),
  event_not_found: http(404, {
    message: 'There is no such event.',
    advice: 'Check the ID against the list of events of this project; old events are deleted.',
  }),
  webhook_not_found: http(404, {
    message: 'There is no such webhook.',
    advice: 'Check the ID against the list of webhooks of this project.',
  }),
  request_not_found: http(404, {
    message: 'There is no record of this request.',
    advice: 'Check the ID; it is in the header `X-Service-Request-Id` and in each result line.',
  }),
  key_not_found: http(404, {
    message: 'There is no such API key.',
    advice: 'Check the ID; it begins with `key_`.',
  }),
  project_not_found: http(404, {
    message: 'There is no such project.',
    advice: 'Check the ID; it begins with `proj_`. Other projects need a key with the scope `operator`.',
  }),
  project_exists: http(409, {
    message: 'There is a project of this name already.',
    advice: 'Choose another name, or use the project that has it.',
  }),
  line_not_found: http(404, {
    message: 'The batch has no such line.',
    advice:
      'Line numbers are those of the input file, from 1; blank lines count and are no lines of the batch.',
  }),
  model_not_found: httpAndLine(404, {
    message: 'There is no such model.',
    advice: 'Choose a model that `GET /v1/models` lists.',
  }),
  endpoint_mismatch: line(400, {
    message: "The line's `url` is not the `endpoint` of its batch.",
    advice: 'Put the line into a batch whose `endpoint` is its `url`.',
  }),
  endpoint_not_supported: line(400, {
    message: 'The model does not serve this endpoint.',
    advice: 'Choose a model that serves it: `GET /v1/models` shows the `endpoints` of each.',
    operatorAdvice: 'List what the model serves in `models[].endpoints`.',
  }),
  cursor_not_found: http(404, {
    message: 'The object that the cursor names no longer exists.',
    advice: 'Start the list again from its beginning.',
  }),

  // Conflicts with the current state
  idempotency_key_reused: http(409, {
    message: 'This Idempotency-Key was used before with a different request.',
    advice: 'Use a new key for each different request.',
  }),
  idempotency_in_progress: http(409, {
    retryable: true,
    message: 'The first request with this Idempotency-Key is still being processed.',
    advice: 'Wait a moment and send the same request again.',
  }),
  idempotency_cache_not_requested: http(409, {
    message: 'This request already succeeded, and Idempotency-Mode: implicit does not replay its result.',
    advice: 'Read the recorded result: `GET /v1/requests/{original_request_id}`.',
  }),
  file_not_processed: http(422, {
    message: 'The input file has not been processed.',
    advice:
      'Wait until the status of the file is `processed`; if it is `error`, fix the file and upload it again.',
  }),
  batch_not_retryable: http(422, {
    message: 'The batch has no failed lines that can be sent again.',
    advice: 'Follow the message: wait until the batch has ended, or choose other codes.',
  }),
  batch_not_cancellable: http(422, {
    openai: { status: 409 },
    message: 'The batch has already ended.',
    advice: 'Read the results of the batch; there is nothing left to cancel.',
  }),
  batch_not_deletable: http(422, {
    message: 'The batch has not ended yet.',
    advice: 'Cancel the batch, and delete it when it has ended.',
  }),
  upload_not_found: http(404, {
    message: 'There is no such upload.',
    advice: 'Check the ID against the list of uploads.',
  }),
  upload_not_pending: http(422, {
    message: 'The upload has ended.',
    advice: 'Create another upload; a completed one has a file.',
  }),
  upload_mismatch: http(422, {
    message: 'The parts do not make up the content that was announced.',
    advice: 'Send the missing parts, or name the parts in the right order; the upload stays pending.',
  }),
  upload_completing: http(409, {
    retryable: true,
    message: 'Another call is completing the upload.',
    advice: 'Wait for the time that `Retry-After` gives, then read the upload: it may have its file.',
  }),
  batch_not_pausable: http(422, {
    message: 'The batch has already ended, or is being cancelled.',
    advice: 'Read the results of the batch; there is nothing left to pause or resume.',
  }),
  batch_not_exportable: http(422, {
    message: 'The batch has no `output_url`.',
    advice: 'Give an `output_url` in the body.',
  }),
  file_not_deletable: http(422, {
    message: 'The file cannot be deleted now.',
    advice: 'Try again after the batch that writes the file has ended.',
  }),
  webhook_disabled: http(422, {
    message: 'The webhook is disabled, so nothing is sent to it.',
    advice: 'Enable the webhook: `POST /v1/webhooks/{webhook_id}` with `{"enabled": true}`.',
  }),

  // Rates, limits and quotas
  rate_limit_exceeded: http(429, {
    retryable: true,
    message: 'The API key has sent too many requests.',
    advice: 'Wait for the time that `Retry-After` gives, then send the request again.',
  }),
  usage_limit_exceeded: httpAndLine(429, {
    openai: { code: 'insufficient_quota' },
    message: 'A spending limit was reached.',
    advice: 'Raise the limit that `limit_id` names, or wait until `resets_at`.',
  }),

  quota_exceeded: http(429, {
    openai: { code: 'insufficient_quota' },
    message: 'A quota of the project is used up.',
    advice: 'Follow the advice in the message; `GET /v1/quotas` shows each quota and how much of it is used.',
    operatorAdvice: '`plans.<name>.quotas` sets the quotas of a plan.',
  }),

  // Errors of the service
  internal_error: httpAndLine(500, {
    retryable: true,
    message: 'The service failed to process the request.',
    advice: 'Retry with backoff; report the request ID if the error persists.',
  }),
  content_damaged: http(500, {
    message: 'Stored content is damaged or missing.',
    advice:
      'Ask the operator of the service to restore what the message names. Content that was deleted during the call is not shown again.',
    operatorAdvice: 'Restore the blob from a backup: `offpeak doctor` says what is lost without it.',
  }),
  service_unavailable: http(503, {
    retryable: true,
    message: 'The service cannot accept requests at the moment.',
    advice: 'Retry with backoff, and wait at least as long as `Retry-After` says.',
  }),

  // Invalid input files
  input_url_failed: file(422, {
    message: 'The input could not be read from its bucket.',
    advice: 'Follow the message, and create the batch again.',
    operatorAdvice: 'The credentials of `buckets` must allow HEAD and GET of the object.',
  }),
  empty_file: file(400, {
    message: 'The file contains no request.',
    advice: 'Write one request per line, each as a JSON object.',
  }),
  too_many_lines: file(400, {
    message: 'The file contains too many lines.',
    advice: 'Split the file into several files.',
    operatorAdvice: '`limits.lines_max` sets the maximum number of lines.',
  }),
  line_too_long: file(400, {
    message: 'The line is too long.',
    advice: 'Shorten the request.',
    operatorAdvice: '`limits.line_bytes_max` sets the maximum size of a line.',
  }),
  invalid_utf8: file(400, {
    message: 'The line is not valid UTF-8.',
    advice: 'Save the file as UTF-8.',
  }),
  not_an_object: file(400, {
    message: 'The line is not one JSON object.',
    advice: 'Write one object per line, without an enclosing array or trailing commas.',
  }),
  nesting_too_deep: file(400, {
    message: 'The JSON is nested too deeply.',
    advice: 'Nest at most 100 levels.',
  }),
  missing_field: file(400, {
    message: 'A required field is missing.',
    advice: 'Give every line `custom_id`, `method`, `url` and `body`.',
  }),
  invalid_custom_id: file(400, {
    message: '`custom_id` must be a string of 1 to 512 characters.',
    advice: 'Give each line a different string of 1 to 512 characters.',
  }),
  duplicate_custom_id: file(400, {
    message: '`custom_id` must be unique within the file.',
    advice: 'Change the `custom_id` of one of the two lines, or remove the line.',
  }),
  invalid_method: file(400, {
    message: '`method` must be "POST".',
    advice: 'Write `"method": "POST"`.',
  }),
  invalid_url: file(400, {
    message: `\`url\` must be ${endpointsText(ENDPOINT_PATHS)}.`,
    advice: 'Write the endpoint that the line is for, such as `"url": "/v1/chat/completions"`.',
  }),
  invalid_body: file(400, {
    message: '`body` must be an object.',
    advice: 'Put the chat-completion request into `body`.',
  }),
  invalid_metadata: file(400, {
    message:
      '`metadata` must be an object of at most 16 strings, with keys of at most 64 and values of at most 512 characters.',
    advice: 'Reduce `metadata` to at most 16 short strings.',
  }),
  streaming_not_supported: file(400, {
    message: 'Batches do not support streaming.',
    advice: 'Remove `stream` and `stream_options` from the body, or set them to false.',
  }),

  // Failed lines
  context_length_exceeded: line(422, {
    message: 'The input and max_tokens together exceed the context window of the model.',
    advice: 'Shorten the messages or lower `max_tokens`, then resubmit the line.',
  }),
  content_filter: line(400, {
    message: 'The model server rejected the content of the request.',
    advice: 'Change the content, then resubmit the line.',
  }),
  upstream_rejected: line(400, {
    message: 'The model server rejected the request.',
    advice: 'Fix the body of the line; the message contains the reason that the server gave.',
  }),
  upstream_unavailable: line(503, {
    retryable: true,
    message: 'The model server did not complete the request.',
    advice: 'Resubmit the line later, or on another model.',
  }),
  upstream_invalid_response: line(503, {
    retryable: true,
    message: 'The response of the model server is not a chat completion.',
    advice: 'Resubmit the line later, or on another model.',
    operatorAdvice: 'The audit record of the line lists each attempt; check the log of the model server.',
  }),
  upstream_timeout: line(503, {
    retryable: true,
    message: 'The model server did not respond in time.',
    advice: 'Resubmit the line, or lower its `max_tokens`.',
    operatorAdvice: 'The `timeout` of the upstream sets how long a response may take.',
  }),
  batch_expired: line(503, {
    retryable: true,
    message: 'The completion window ended before the line was finished.',
    advice: 'Resubmit the line in a new batch; it was not billed.',
  }),
  batch_cancelled: line(409, {
    retryable: true,
    message: 'The batch was cancelled before the line was finished.',
    advice: 'Resubmit the line in a new batch if it is still wanted; it was not billed.',
  }),
  request_cancelled: line(409, {
    retryable: true,
    message: 'The request was cancelled before it was finished.',
    advice: 'Send the request again if it is still wanted; what had not been sent was not billed.',
  }),
  input_file_deleted: line(409, {
    message: 'The input file was deleted before the line was finished.',
    advice: 'Upload the file again and create a new batch; the line was not billed.',
  }),
}

export type ErrorCode = keyof typeof ERRORS

export const ERROR_CODES = Object.keys(ERRORS).filter(isErrorCode)

export function isErrorCode(code: unknown): code is ErrorCode {
  return typeof code === 'string' && Object.hasOwn(ERRORS, code)
}

/** The status and the code that strict clients of OpenAI's API get. */
export function openaiError(code: ErrorCode): { status: number; code: string } {
  const { status, openai }: ErrorRow = ERRORS[code]
  return { status: status === 422 ? 400 : status, code, ...openai }
}

/** Details that a code may have on the wire; times in Unix seconds. */
export interface ErrorDetails {
  param?: string
  limit_id?: string
  quota?: string
  never_fits?: true
  resets_at?: number
  original_request_id?: string
}

/** The `error` object, the same in HTTP responses and in lines of an error file. */
export interface WireError extends ErrorDetails {
  type: ErrorType
  code: ErrorCode
  message: string
}

export function wireError(code: ErrorCode, message?: string, details: ErrorDetails = {}): WireError {
  const row = ERRORS[code]
  return { type: row.type, code, message: message ?? row.message, ...details }
}

/** An error whose message names the problem, its place and its fix. Commands print only the message. */
export class ExplainedError extends Error {}

/**
 * An error that is returned to the caller. Any other thrown error is logged, and the caller gets `internal_error`
 * without its text.
 */
export class ApiError extends ExplainedError {
  readonly code: ErrorCode
  readonly details: ErrorDetails
  /** Seconds for `Retry-After`; undefined if unknown. */
  readonly retryAfterS: number | undefined
  /** The language of the message (RFC 5646). */
  readonly language: string

  constructor(
    code: ErrorCode,
    message?: string,
    details: ErrorDetails = {},
    retryAfter_s?: number,
    language = 'en',
  ) {
    super(message ?? ERRORS[code].message)
    this.name = 'ApiError'
    this.code = code
    this.details = details
    this.retryAfterS = retryAfter_s
    this.language = language
  }

  get status(): number {
    return ERRORS[this.code].status
  }

  toWire(): WireError {
    return wireError(this.code, this.message, this.details)
  }
}

/** An invalid_request: `message` describes the problem with the parameter `param`. */
export function invalidParam(param: string, message: string): ApiError {
  return new ApiError('invalid_request', message, { param })
}

/** The text of something that was thrown, which need not be an Error. */
export function messageOf(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : String(thrown)
}
