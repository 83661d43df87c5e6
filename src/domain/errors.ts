// The one table of error codes. HTTP answers, lines of an error file and the details of a refused upload
// all draw on it; docs/errors.md is generated from it.

export type ErrorType =
  | 'invalid_request_error'
  | 'authentication_error'
  | 'permission_error'
  | 'rate_limit_error'
  | 'api_error'

/** Where a code may appear: an HTTP answer, `status_details` of an uploaded file, a line of an error file. */
export type ErrorPlace = 'http' | 'file' | 'line'

export interface ErrorRow {
  /** HTTP status; for codes that only lines and files meet, the status an HTTP answer would have had. */
  status: number
  type: ErrorType
  places: readonly ErrorPlace[]
  /** Whether the same request may succeed later, unchanged. */
  retryable: boolean
  /** The public message where the raiser gives none. */
  message: string
  /** What the caller should do; shown in the reference, by the command line, and in `status_details`. */
  advice: string
  /** What whoever runs the service can do; for the reference only, never part of an answer. */
  operatorAdvice?: string
}

const invalid = 'invalid_request_error'

/** Typed against ErrorRow entry by entry, so that each code keeps its literal name. */
function table<K extends string>(rows: Record<K, ErrorRow>): Readonly<Record<K, ErrorRow>> {
  return rows
}

const http = ['http'] as const
const file = ['file'] as const
const line = ['line'] as const

export const ERRORS = table({
  // Requests that cannot be understood
  invalid_request: {
    status: 400,
    type: invalid,
    places: ['http', 'line'],
    retryable: false,
    message: 'The request is malformed.',
    advice: 'Mend the parameter that `param` names and send the request again.',
  },
  invalid_json: {
    status: 400,
    type: invalid,
    places: ['http', 'file'],
    retryable: false,
    message: 'This is not valid JSON.',
    advice: 'Write each object with a JSON library; in an input file, one object per line.',
  },
  invalid_multipart: {
    status: 400,
    type: invalid,
    places: http,
    retryable: false,
    message: 'The multipart form is broken or incomplete.',
    advice: 'Send `multipart/form-data` with the fields `purpose` and `file`.',
  },
  unknown_endpoint: {
    status: 404,
    type: invalid,
    places: http,
    retryable: false,
    message: 'There is no such endpoint.',
    advice: 'Compare method and path with the API reference.',
  },
  method_not_allowed: {
    status: 405,
    type: invalid,
    places: http,
    retryable: false,
    message: 'This path does not support the method.',
    advice: 'Use one of the methods in the `Allow` header.',
  },
  request_timeout: {
    status: 408,
    type: invalid,
    places: http,
    retryable: true,
    message: 'The request did not arrive in time.',
    advice: 'Send the request again over a faster connection.',
  },
  payload_too_large: {
    status: 413,
    type: invalid,
    places: http,
    retryable: false,
    message: 'The request body is too large.',
    advice: 'Make the body smaller; split a large input file into several.',
    operatorAdvice: '`limits.file_bytes_max` sets the limit of uploads.',
  },
  range_not_satisfiable: {
    status: 416,
    type: invalid,
    places: http,
    retryable: false,
    message: 'The range lies outside the file.',
    advice: 'Ask for bytes that `Content-Range` says are there.',
  },
  unsupported_media_type: {
    status: 415,
    type: invalid,
    places: http,
    retryable: false,
    message: 'The content type is not supported here.',
    advice:
      'Send JSON as UTF-8 with `Content-Type: application/json`, files as `multipart/form-data`, neither compressed.',
  },

  // Access
  invalid_api_key: {
    status: 401,
    type: 'authentication_error',
    places: http,
    retryable: false,
    message:
      'No valid API key was given. Send "Authorization: Bearer <API_KEY>" with a key that was issued for this region and has not been revoked.',
    advice: 'Check the key, or get a new one from whoever runs the service.',
    operatorAdvice: '`offpeak keys list` shows the keys, `offpeak keys create` makes one.',
  },
  missing_scope: {
    status: 403,
    type: 'permission_error',
    places: http,
    retryable: false,
    message: 'The API key lacks a scope.',
    advice: 'Use a key that has the scope named in the message.',
  },
  plan_lacks_feature: {
    status: 403,
    type: 'permission_error',
    places: http,
    retryable: false,
    message: 'The plan of this project does not include this.',
    advice: 'Choose what the plan includes, or ask for another plan.',
    operatorAdvice: '`plans` sets what each plan includes.',
  },

  // Objects that do not exist
  file_not_found: {
    status: 404,
    type: invalid,
    places: http,
    retryable: false,
    message: 'There is no such file.',
    advice: 'List the files; a deleted or expired file is gone.',
  },
  batch_not_found: {
    status: 404,
    type: invalid,
    places: http,
    retryable: false,
    message: 'There is no such batch.',
    advice: 'List the batches of this project.',
  },
  limit_not_found: {
    status: 404,
    type: invalid,
    places: http,
    retryable: false,
    message: 'There is no such limit.',
    advice: 'List the limits of this project.',
  },
  event_not_found: {
    status: 404,
    type: invalid,
    places: http,
    retryable: false,
    message: 'There is no such event.',
    advice: 'List the events of this project; old ones are forgotten.',
  },
  webhook_not_found: {
    status: 404,
    type: invalid,
    places: http,
    retryable: false,
    message: 'There is no such webhook.',
    advice: 'List the webhooks of this project.',
  },
  request_not_found: {
    status: 404,
    type: invalid,
    places: http,
    retryable: false,
    message: 'There is no record of such a request.',
    advice: 'Check the ID; it is in the header X-Service-Request-Id and in each result line.',
  },
  model_not_found: {
    status: 404,
    type: invalid,
    places: ['http', 'line'],
    retryable: false,
    message: 'There is no such model.',
    advice: 'Choose a model that `GET /v1/models` lists.',
  },
  cursor_not_found: {
    status: 404,
    type: invalid,
    places: http,
    retryable: false,
    message: 'The object that the cursor names no longer exists.',
    advice: 'Start the list again from its beginning.',
  },

  // Requests that cannot be done as things stand
  idempotency_key_reused: {
    status: 409,
    type: invalid,
    places: http,
    retryable: false,
    message: 'This Idempotency-Key was used before with a different request.',
    advice: 'Use one key per job; for a different request, a new key.',
  },
  idempotency_in_progress: {
    status: 409,
    type: invalid,
    places: http,
    retryable: true,
    message: 'The first request with this Idempotency-Key is still being processed.',
    advice: 'Wait a moment and send the same request again.',
  },
  idempotency_cache_not_requested: {
    status: 409,
    type: invalid,
    places: http,
    retryable: false,
    message: 'This request already succeeded, and Idempotency-Mode: implicit does not replay its result.',
    advice: 'Read the recorded result: `GET /v1/requests/{original_request_id}`.',
  },
  file_not_processed: {
    status: 422,
    type: invalid,
    places: http,
    retryable: false,
    message: 'The input file is not processed.',
    advice: 'Wait until the file is `processed`; if it is in `error`, mend it and upload it again.',
  },
  batch_not_cancellable: {
    status: 422,
    type: invalid,
    places: http,
    retryable: false,
    message: 'The batch has already ended.',
    advice: 'Nothing is left to cancel; read its results.',
  },
  file_not_deletable: {
    status: 422,
    type: invalid,
    places: http,
    retryable: false,
    message: 'The file cannot be deleted now.',
    advice: 'Try again once the batch that writes it has ended.',
  },
  webhook_disabled: {
    status: 422,
    type: invalid,
    places: http,
    retryable: false,
    message: 'The webhook is disabled, so nothing is sent to it.',
    advice: 'Enable it again: `POST /v1/webhooks/{webhook_id}` with `{"enabled": true}`.',
  },

  // Too much
  rate_limit_exceeded: {
    status: 429,
    type: 'rate_limit_error',
    places: http,
    retryable: true,
    message: 'Too many requests.',
    advice: 'Wait as long as `Retry-After` says.',
  },
  usage_limit_exceeded: {
    status: 429,
    type: 'rate_limit_error',
    places: ['http', 'line'],
    retryable: false,
    message: 'A spending limit was reached.',
    advice: 'Raise the limit that `limit_id` names, or wait until `resets_at`.',
  },

  quota_exceeded: {
    status: 429,
    type: 'rate_limit_error',
    places: http,
    retryable: false,
    message: 'A quota of the project is used up.',
    advice: 'Make room as the message says; `GET /v1/quotas` shows each quota and what is used of it.',
    operatorAdvice: '`plans.<name>.quotas` sets the quotas of a plan.',
  },

  // Our side
  internal_error: {
    status: 500,
    type: 'api_error',
    places: ['http', 'line'],
    retryable: true,
    message: 'Something went wrong on our side.',
    advice: 'Try again with backoff; report the request ID if it stays.',
  },
  service_unavailable: {
    status: 503,
    type: 'api_error',
    places: http,
    retryable: true,
    message: 'The service cannot take requests just now.',
    advice: 'Try again with backoff, honouring `Retry-After`.',
  },

  // An uploaded file that does not validate
  empty_file: {
    status: 400,
    type: invalid,
    places: file,
    retryable: false,
    message: 'The file holds no request.',
    advice: 'Write one JSON object per line.',
  },
  too_many_lines: {
    status: 400,
    type: invalid,
    places: file,
    retryable: false,
    message: 'The file holds too many lines.',
    advice: 'Split it into several files.',
    operatorAdvice: '`limits.lines_max` sets the limit.',
  },
  line_too_long: {
    status: 400,
    type: invalid,
    places: file,
    retryable: false,
    message: 'The line is too long.',
    advice: 'Shorten the request.',
    operatorAdvice: '`limits.line_bytes_max` sets the limit.',
  },
  invalid_utf8: {
    status: 400,
    type: invalid,
    places: file,
    retryable: false,
    message: 'The line is not valid UTF-8.',
    advice: 'Save the file as UTF-8.',
  },
  not_an_object: {
    status: 400,
    type: invalid,
    places: file,
    retryable: false,
    message: 'The line is not one JSON object.',
    advice: 'One object per line, without a wrapping array or trailing commas.',
  },
  nesting_too_deep: {
    status: 400,
    type: invalid,
    places: file,
    retryable: false,
    message: 'The JSON is nested too deeply.',
    advice: 'Nest at most 100 levels.',
  },
  missing_field: {
    status: 400,
    type: invalid,
    places: file,
    retryable: false,
    message: 'A required field is missing.',
    advice: 'Give every line `custom_id`, `method`, `url` and `body`.',
  },
  invalid_custom_id: {
    status: 400,
    type: invalid,
    places: file,
    retryable: false,
    message: '`custom_id` must be a string of 1 to 512 characters.',
    advice: 'Give each line a short string of its own.',
  },
  duplicate_custom_id: {
    status: 400,
    type: invalid,
    places: file,
    retryable: false,
    message: '`custom_id` must be unique within the file.',
    advice: 'Rename or remove one of the two lines.',
  },
  invalid_method: {
    status: 400,
    type: invalid,
    places: file,
    retryable: false,
    message: '`method` must be "POST".',
    advice: 'Write `"method": "POST"`.',
  },
  invalid_url: {
    status: 400,
    type: invalid,
    places: file,
    retryable: false,
    message: '`url` must be "/v1/chat/completions".',
    advice: 'Write `"url": "/v1/chat/completions"`.',
  },
  invalid_body: {
    status: 400,
    type: invalid,
    places: file,
    retryable: false,
    message: '`body` must be an object.',
    advice: 'Put the chat-completion request into `body`.',
  },
  invalid_metadata: {
    status: 400,
    type: invalid,
    places: file,
    retryable: false,
    message: '`metadata` must be an object of at most 16 strings, keys to 64 and values to 512 characters.',
    advice: 'Keep `metadata` to short strings.',
  },
  streaming_not_supported: {
    status: 400,
    type: invalid,
    places: file,
    retryable: false,
    message: 'Streaming does not exist in batches.',
    advice: 'Remove `stream` and `stream_options` from the body.',
  },

  // A line that fails alone
  context_length_exceeded: {
    status: 422,
    type: invalid,
    places: line,
    retryable: false,
    message: 'The input and max_tokens together exceed the context window of the model.',
    advice: 'Shorten the messages or lower `max_tokens`, then resubmit the line.',
  },
  content_filter: {
    status: 400,
    type: invalid,
    places: line,
    retryable: false,
    message: 'The model server refused the content of the request.',
    advice: 'Change the content before you resubmit the line.',
  },
  upstream_rejected: {
    status: 400,
    type: invalid,
    places: line,
    retryable: false,
    message: 'The model server refused the request.',
    advice: 'Read its reason in the message and mend the body.',
  },
  upstream_unavailable: {
    status: 503,
    type: 'api_error',
    places: line,
    retryable: true,
    message: 'The model server could not answer.',
    advice: 'Resubmit the line later, or on another model.',
  },
  upstream_invalid_response: {
    status: 503,
    type: 'api_error',
    places: line,
    retryable: true,
    message: 'The model server gave an answer that is not a chat completion.',
    advice: 'Resubmit the line later, or on another model.',
    operatorAdvice: 'The audit record of the line shows each attempt; look at the log of the model server.',
  },
  upstream_timeout: {
    status: 503,
    type: 'api_error',
    places: line,
    retryable: true,
    message: 'The model server did not answer in time.',
    advice: 'Resubmit the line, or lower its `max_tokens`.',
    operatorAdvice: 'The timeout of the upstream sets how long an answer may take.',
  },
  batch_expired: {
    status: 503,
    type: 'api_error',
    places: line,
    retryable: true,
    message: 'The completion window closed before the line was finished.',
    advice: 'Resubmit the line in a new batch; it was not billed.',
  },
  batch_cancelled: {
    status: 409,
    type: invalid,
    places: line,
    retryable: true,
    message: 'The batch was cancelled before the line was answered.',
    advice: 'Resubmit the line in a new batch if it is still wanted; it was not billed.',
  },
  input_file_deleted: {
    status: 409,
    type: invalid,
    places: line,
    retryable: false,
    message: 'The input file was deleted before the line was answered.',
    advice: 'Upload the file again and create a new batch; the line was not billed.',
  },
})

export type ErrorCode = keyof typeof ERRORS

/** What may accompany a code on the wire; times in Unix seconds. */
export interface ErrorDetails {
  param?: string
  limit_id?: string
  quota?: string
  resets_at?: number
  original_request_id?: string
}

/** The `error` object of the wire, the same in HTTP answers and in lines of an error file. */
export interface WireError extends ErrorDetails {
  type: ErrorType
  code: ErrorCode
  message: string
}

export function wireError(code: ErrorCode, message?: string, details: ErrorDetails = {}): WireError {
  const row = ERRORS[code]
  return { type: row.type, code, message: message ?? row.message, ...details }
}

/**
 * A refusal that the caller is meant to read. Whatever else is thrown is a fault of ours: it is logged and
 * shown as `internal_error`, its text never.
 */
export class ApiError extends Error {
  readonly code: ErrorCode
  readonly details: ErrorDetails
  /** Seconds for `Retry-After`, where one is known. */
  readonly retryAfterS: number | undefined
  /** What the message is written in (RFC 5646). */
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
