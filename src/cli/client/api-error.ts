// A refusal by the API as one sentence: what it said, where, and what the table of errors advises.
import { Value } from 'typebox/value'
import { ERRORS } from '../../domain/errors.ts'
import { visible } from '../../domain/visible-text.ts'
import { Failure } from '../terminal/failure.ts'
import { ErrorAnswer } from './shapes.ts'

export interface Answer {
  status: number
  /** The request ID of the service, null when something else answered. */
  requestId: string | null
  text: string
}

export class ApiError extends Failure {
  readonly status: number
  /** Null when the answer is not one of the API's errors. */
  readonly code: string | null

  /** `call` names what was tried: `GET /v1/files/file_x`. */
  constructor(call: string, answer: Answer) {
    const error = readError(answer.text)
    const place = [
      error === null ? String(answer.status) : `${answer.status} ${error.code}`,
      call,
      ...(error?.param ? [`parameter ${error.param}`] : []),
      ...(answer.requestId === null ? [] : [`request ${answer.requestId}`]),
    ]
    const what = error === null ? `the server's answer is not one of Offpeak's` : error.message
    const advice = error === null ? 'Check OFFPEAK_BASE_URL.' : adviceFor(error.code)
    super(visible(`${what} (${place.join(', ')})${advice === null ? '' : ` ${advice}`}`))
    this.name = 'ApiError'
    this.status = answer.status
    this.code = error?.code ?? null
  }
}

/** The code of an error answer, null when it is none. */
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

/** What the reader should do about an error code; null for one that this version does not know. */
export function adviceFor(code: string): string | null {
  const row = Object.entries(ERRORS).find(([name]) => name === code)
  return row === undefined ? null : row[1].advice
}

/** Whether the same line may succeed unchanged; an unknown code is given the benefit of the doubt. */
export function mayRetry(code: string): boolean {
  const row = Object.entries(ERRORS).find(([name]) => name === code)
  return row === undefined || row[1].retryable
}
