// The invalid lines of an uploaded file: the first ones in full, the number of all, and a summary for
// `status_details`.
import { ERRORS, type ErrorCode } from '../domain/errors.ts'

export interface LineError {
  /** From 1, including blank lines. */
  line: number
  code: ErrorCode
  message: string
  param?: string
}

export const ERRORS_LISTED_MAX = 100
/** Validation stops after this many invalid lines. */
export const ERRORS_COUNTED_MAX = 10_000

export class InvalidLines {
  /** The first ERRORS_LISTED_MAX, in order. */
  readonly list: LineError[] = []
  count = 0

  add(line: number, code: ErrorCode, message: string, param?: string): void {
    this.count++
    if (this.list.length >= ERRORS_LISTED_MAX) return
    this.list.push(param === undefined ? { line, code, message } : { line, code, message, param })
  }

  /** The union of both; no line is in both. */
  merge(other: InvalidLines): InvalidLines {
    const merged = new InvalidLines()
    const errors = [...this.list, ...other.list].sort((a, b) => a.line - b.line)
    merged.list.push(...errors.slice(0, ERRORS_LISTED_MAX))
    merged.count = this.count + other.count
    return merged
  }
}

/** The first invalid line, what is wrong with it, how to fix it, and how many more there are. */
export function describeInvalidLines(invalid: InvalidLines, read_to_end: boolean): string {
  const [first] = invalid.list
  if (first === undefined) throw new Error('there is no invalid line')
  const place = first.code === 'empty_file' ? '' : `Line ${first.line}: `
  const sentence = `${place}${first.message} ${ERRORS[first.code].advice} (${first.code})`
  const more = invalid.count - 1
  const least = read_to_end ? '' : 'at least '
  if (more === 0) return sentence
  return `${sentence} There ${more === 1 ? 'is' : 'are'} ${least}${more} more invalid ${more === 1 ? 'line' : 'lines'}.`
}
