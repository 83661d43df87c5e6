// Which lines of a file a batch API means when it takes none of them. An error is judged by its code: what is about
// timing, capacity, keys or the state of the file is no line's fault, and passes. Whatever else comes with a status that
// blames the request is about lines, whether the batch API names them or not.
import type { BlamedLine } from '../batch-api/batch-api.ts'
import { isRecord } from '../json-record.ts'
import { MESSAGE_LENGTH_MAX } from '../verdict/upstream-error.ts'

const BLAMES_REQUEST = [400, 413, 422]
/** Codes and types, without what separates their words, of what is not about lines. */
const PASSES =
  /notprocessed|file(?:notfound|expired|deleted)|notready|pending|inprogress|processing|conflict|idempoten|ratelimit|toomany|quota|budget|billing|insufficient|tokenlimit|requestlimit|capacity|overload|unavailable|timeout|servererror|apierror|apikey|auth|permission|region|maintenance/i
/** As this service names lines in files (remote/request-file.ts). */
const CUSTOM_ID = /\breq_[0-9a-z]{33}\b/g
const NUMBER = /\blines?(?: number)?[ :#]*(\d{1,7})\b/gi
const NAMED_MAX = 1_000

/** Of an answer to a call; `codes`: the error's `code` and `type`. */
export function blamedByCall(
  status: number,
  codes: readonly string[],
  message: string,
): readonly BlamedLine[] | null {
  if (!BLAMES_REQUEST.includes(status) || codes.some(passes)) return null
  return namedIn(message, message)
}

/** Of a batch that has failed: its `errors` or `error`. `redact`: strikes secrets out of what callers get to read. */
export function blamedByBatch(
  { errors, error }: Record<string, unknown>,
  redact: (text: string) => string,
): readonly BlamedLine[] | null {
  const data = isRecord(errors) ? errors.data : errors
  const list = Array.isArray(data) ? data : [data ?? error]
  const found: BlamedLine[] = []
  let isSaid = false
  for (const one of list.slice(0, NAMED_MAX)) {
    const { code = '', message = one, line } = isRecord(one) ? one : {}
    if (typeof message !== 'string' || message === '') continue
    if (typeof code === 'string' && passes(code)) return null
    isSaid = true
    const words = redact(message).slice(0, MESSAGE_LENGTH_MAX)
    if (Number.isSafeInteger(line)) found.push({ custom_id: null, line: Number(line), message: words })
    else found.push(...namedIn(message, words))
  }
  return isSaid ? found : null
}

function passes(code: string): boolean {
  return PASSES.test(code.replace(/[^a-z]/gi, ''))
}

function namedIn(text: string, message: string): BlamedLine[] {
  const ids = [...new Set(text.match(CUSTOM_ID) ?? [])].slice(0, NAMED_MAX)
  if (ids.length > 0) return ids.map((custom_id) => ({ custom_id, line: null, message }))
  const numbers = new Set(Array.from(text.matchAll(NUMBER), ([, number]) => Number(number)))
  return [...numbers].slice(0, NAMED_MAX).map((line) => ({ custom_id: null, line, message }))
}
