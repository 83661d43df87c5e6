// An error answer of the API as a message: what it says, of which call, and the advice from the table of errors.
import Type from 'typebox'
import { Value } from 'typebox/value'
import { ERRORS, type ErrorCode, isErrorCode } from '../../domain/errors.ts'
import { visible } from '../../domain/text.ts'
import { orNull } from '../../wire/shape.ts'
import { Failure } from '../terminal/failure.ts'

// Shapes of answers that the command line needs and src/wire does not have, or has in a stricter form. Other fields
// of an answer are kept, and shown by --json.

/** An object that is shown unchanged. */
export const AnyObject = Type.Object({})

/** A page of any list; its items are checked one by one. */
export const ListPage = Type.Object({
  data: Type.Array(Type.Unknown()),
  has_more: Type.Boolean(),
  next_cursor: orNull(Type.String()),
})

/** An error of the API of any version, with codes that this version may not know. */
const ErrorAnswer = Type.Object({
  error: Type.Object({
    code: Type.String(),
    message: Type.String(),
    param: Type.Optional(orNull(Type.String())),
  }),
})

/** A line of an output or error file. */
export const ResultLine = Type.Object({
  custom_id: Type.String(),
  error: orNull(Type.Object({ code: Type.String(), message: Type.String() })),
})

interface Answer {
  status: number
  /** The service's request ID; null when another server answered. */
  requestId: string | null
  text: string
}

export class ApiError extends Failure {
  readonly status: number
  /** Null when the answer is not an error object of the API. */
  readonly code: string | null

  /** `call` is the method and path: `GET /v1/files/file_x`. */
  constructor(call: string, answer: Answer) {
    const error = readError(answer.text)
    const place = [
      error === null ? String(answer.status) : `${answer.status} ${error.code}`,
      call,
      ...(error?.param ? [`parameter ${error.param}`] : []),
      ...(answer.requestId === null ? [] : [`request ${answer.requestId}`]),
    ]
    const what = error === null ? 'the answer does not come from an Offpeak server' : error.message
    const advice = error === null ? 'Check OFFPEAK_BASE_URL.' : adviceFor(error.code)
    super(visible(`${what.replace(/\.$/, '')} (${place.join(', ')}).${advice === null ? '' : ` ${advice}`}`))
    this.name = 'ApiError'
    this.status = answer.status
    this.code = error?.code ?? null
  }
}

/** The code in an error answer; null when `text` is not an error object. */
export function errorCode(text: string): string | null {
  return readError(text)?.code ?? null
}

function readError(text: string) {
  let parsed: unknown
  try {
    parsed = JSON.parse(text)
  } catch {
    return null
  }
  return Value.Check(ErrorAnswer, parsed) ? parsed.error : null
}

/** Where the table's advice names calls and fields of the API. Null: the message says it all. */
const ADVICE: Partial<Record<ErrorCode, string | null>> = {
  invalid_request: null,
  method_not_allowed: 'Check OFFPEAK_BASE_URL.',
  range_not_satisfiable: null,
  context_length_exceeded: null,
  request_not_found: 'Check the ID; each line of a result file has one.',
  model_not_found: 'Choose a model that "offpeak models list" shows.',
  endpoint_not_supported:
    'Choose a model that serves it; "offpeak models get ID" shows the `endpoints` of one.',
  idempotency_cache_not_requested: null,
  upload_completing: 'Wait a moment, then look whether the file is there.',
  webhook_disabled: 'Delete the webhook, and create it again.',
  rate_limit_exceeded: 'Wait a moment and run the command again.',
  usage_limit_exceeded: 'Raise the limit with "offpeak limits set", or wait until its window ends.',
  quota_exceeded:
    'Follow the advice in the message; "offpeak quotas" shows each quota and how much of it is used.',
  service_unavailable: 'Wait a moment and run the command again.',
}

/** The advice for an error code; null when there is none, or this version does not know the code. */
export function adviceFor(code: string): string | null {
  if (!isErrorCode(code)) return null
  const here = ADVICE[code]
  return here === undefined ? ERRORS[code].advice : here
}
