// Every object's ID is a prefix plus 26 characters of Crockford base32 (a ULID in lower case): 48 bits of
// time, then 80 random bits, so IDs sort by time of creation.
//
// The request ID of a line is its batch's 26 characters plus the line's number in 7 more: the line
// is found without an index of lines.
import { encodeTime, monotonicFactory } from 'ulid'

export const ID_PREFIXES = {
  batch: 'batch_',
  file: 'file_',
  request: 'req_',
  limit: 'lim_',
  project: 'proj_',
  key: 'key_',
  worker: 'wrk_',
  task: 'task_',
  event: 'evt_',
  webhook: 'wh_',
  ledger: 'led_',
  delivery: 'dlv_',
  upload: 'upload_',
  part: 'part_',
  remote: 'rb_',
} as const

export type IdKind = keyof typeof ID_PREFIXES

/** Crockford's base32 in lower case, in the order of its values. */
export const BASE32 = '0123456789abcdefghjkmnpqrstvwxyz'
const ULID_LENGTH = 26
export const LINE_DIGITS = 7
/** The largest line number that a request ID can hold: 32^7 - 1. */
export const LINE_NUMBER_MAX = 32 ** LINE_DIGITS - 1

const nextUlid = monotonicFactory()

/** A new ID, greater than every earlier one of this process with the same or an earlier `now` (Unix ms). */
export function newId(kind: IdKind, now: number): string {
  return ID_PREFIXES[kind] + nextUlid(now).toLowerCase()
}

/** The smallest ID of a time (Unix ms), so that an index of IDs finds objects by their time. */
export function firstIdAt(kind: IdKind, ms: number): string {
  return ID_PREFIXES[kind] + encodeTime(Math.max(0, ms), 10).toLowerCase()
}

/** The time (Unix ms) at which an ID of this kind was made; null where `text` is none. */
export function timeOfId(kind: IdKind, text: string): number | null {
  if (!isId(kind, text)) return null
  const digits = text.slice(ID_PREFIXES[kind].length, -(ULID_LENGTH - 10))
  return [...digits].reduce((ms, digit) => ms * 32 + BASE32.indexOf(digit), 0)
}

/** Whether `text` has the form of an ID of this kind; says nothing about existence. */
export function isId(kind: IdKind, text: string): boolean {
  const prefix = ID_PREFIXES[kind]
  return (
    text.length === prefix.length + ULID_LENGTH && text.startsWith(prefix) && isBase32(text, prefix.length)
  )
}

/** The request ID of a line; `line` counts from 1. */
export function lineRequestId(batchId: string, line: number): string {
  return lineRequestIdPrefix(batchId) + base32(line)
}

/** The beginning of all line request IDs of a batch; `base32(line)` completes one. */
export function lineRequestIdPrefix(batchId: string): string {
  return ID_PREFIXES.request + batchId.slice(ID_PREFIXES.batch.length)
}

/** A line's number as the 7 characters that end its request ID. */
export function base32(line: number): string {
  if (!Number.isSafeInteger(line) || line < 1 || line > LINE_NUMBER_MAX) {
    throw new RangeError(`line number ${line} is outside 1..${LINE_NUMBER_MAX}`)
  }
  let digits = ''
  for (let rest = line, i = 0; i < LINE_DIGITS; i++) {
    digits = BASE32[rest % 32] + digits
    rest = Math.floor(rest / 32)
  }
  return digits
}

/** The address of a line: its batch, and its number in the input file, from 1. */
export interface LinePlace {
  batchId: string
  line: number
}

/** The batch and line of a request ID, or null when it is not the ID of a line. */
export function parseLineRequestId(id: string): LinePlace | null {
  const start = ID_PREFIXES.request.length
  if (!id.startsWith(ID_PREFIXES.request) || id.length !== start + ULID_LENGTH + LINE_DIGITS) return null
  if (!isBase32(id, start)) return null
  let line = 0
  for (const digit of id.slice(start + ULID_LENGTH)) line = line * 32 + BASE32.indexOf(digit)
  if (line === 0) return null
  return { batchId: ID_PREFIXES.batch + id.slice(start, start + ULID_LENGTH), line }
}

function isBase32(text: string, from: number): boolean {
  for (let i = from; i < text.length; i++) if (!BASE32.includes(text[i]!)) return false
  return true
}

// Background responses have the IDs of their requests, with another prefix.

const RESPONSE_PREFIX = 'resp_'

/** The ID of a single request as a response. */
export function responseId(request_id: string): string {
  return RESPONSE_PREFIX + request_id.slice(ID_PREFIXES.request.length)
}

/** The ID of a response as a single request; null where there is none. */
export function requestId(response_id: string): string | null {
  const id = ID_PREFIXES.request + response_id.slice(RESPONSE_PREFIX.length)
  return response_id.startsWith(RESPONSE_PREFIX) && parseLineRequestId(id) !== null ? id : null
}
