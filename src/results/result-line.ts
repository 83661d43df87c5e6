// Builds the lines of the output and error files as bytes. `custom_id` and the model's answer keep their original
// bytes; only the cost is inserted.
import type { WireError } from '../domain/errors.ts'
import type { Splice } from './splice-cost.ts'

/** What follows the response of a line that succeeded. */
export const RESULT_TAIL = ',"error":null}\n'
const TAIL = `}${RESULT_TAIL}`
const NEWLINE = 0x0a
const CARRIAGE_RETURN = 0x0d
const SPACE = 0x20

/** The line of the same batch whose answer or error a line shares. */
export interface SharedFrom {
  request_id: string
  custom_id_json: string
}

/** A member with the comma behind it; '' for a line that was sent itself. */
export function sharedFromJson(from: SharedFrom | null): string {
  return from === null ? '' : `"shared_from":{"id":"${from.request_id}","custom_id":${from.custom_id_json}},`
}

/**
 * `answer` is the JSON of the answer. Its raw line breaks, which JSON has only between tokens, become blanks,
 * because a result is one line.
 */
export function outputLine(
  request_id: string,
  custom_id_json: string,
  answer: Buffer,
  { start, end, text }: Splice,
  shared_from: SharedFrom | null = null,
): Buffer {
  const head = `{"id":"${request_id}","custom_id":${custom_id_json},${sharedFromJson(shared_from)}"response":{"status_code":200,"request_id":"${request_id}","body":`
  const headBytes = Buffer.byteLength(head)
  const line = Buffer.allocUnsafe(headBytes + answer.length - (end - start) + text.length + TAIL.length)
  let at = line.write(head)
  at += answer.copy(line, at, 0, start)
  at += line.write(text, at, 'latin1')
  at += answer.copy(line, at, end)
  blank(line, headBytes, at)
  line.write(TAIL, at, 'latin1')
  return line
}

export function errorLine(
  request_id: string,
  custom_id_json: string,
  error: WireError,
  shared_from: SharedFrom | null = null,
): Buffer {
  return asLine(
    `{"id":"${request_id}","custom_id":${custom_id_json},${sharedFromJson(shared_from)}"response":null,"error":${errorJson(error)}}`,
  )
}

/** Cached: every unfinished line of a cancelled batch ends with the same error object. */
const jsonOf = new WeakMap<WireError, string>()

export function errorJson(error: WireError): string {
  const json = jsonOf.get(error) ?? JSON.stringify(error)
  jsonOf.set(error, json)
  return json
}

/** JSON text as one line of a JSONL file, its line break included. */
export function asLine(json: string): Buffer {
  return Buffer.from(`${json}\n`)
}

function blank(line: Buffer, from: number, to: number): void {
  for (const c of [NEWLINE, CARRIAGE_RETURN]) {
    for (let at = line.indexOf(c, from); at !== -1 && at < to; at = line.indexOf(c, at + 1)) line[at] = SPACE
  }
}
