// The expiry that a caller requests for a file, in the form of the OpenAI API: a number of seconds after creation.
// It can only shorten the retention of the plan.
import { ApiError } from '../domain/errors.ts'

const ANCHOR = 'expires_after[anchor]'
/** 317 years: more than any retention. */
export const EXPIRES_AFTER_S_MAX = 9_999_999_999
const SECONDS = 'expires_after[seconds]'

/** Gathers the two fields of a form, in any order. */
export class ExpiresAfter {
  /** After creation; infinite if the caller requests none. */
  ms = Number.POSITIVE_INFINITY

  /** False for other fields. Throws invalid_request. */
  take(name: string, value: unknown): boolean {
    if (name === ANCHOR) {
      if (value !== 'created_at') throw refuse(ANCHOR, 'must be "created_at"')
      return true
    }
    if (name !== SECONDS) return false
    if (typeof value !== 'string' || !/^[1-9]\d{0,9}$/.test(value))
      throw refuse(SECONDS, 'must be a whole number of seconds, at least 1')
    if (this.ms !== Number.POSITIVE_INFINITY) throw refuse(SECONDS, 'is given twice')
    this.ms = Number(value) * 1000
    return true
  }
}

function refuse(param: string, problem: string): ApiError {
  return new ApiError('invalid_request', `\`${param}\` ${problem}.`, { param })
}
