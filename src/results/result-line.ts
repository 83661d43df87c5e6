// Writes the lines of the output and error files as bytes. `custom_id` and the model's answer keep their original
// bytes; only the cost is inserted: parsing and printing an answer would change numbers, escapes and the order of keys.
import { ENDPOINTS, type EndpointPath } from '../domain/endpoint.ts'
import type { WireError } from '../domain/errors.ts'
import { LINE_DIGITS } from '../domain/ids.ts'
import type { TokenUsage } from '../domain/money.ts'
import type { CostPlace } from '../jsonl/answer-scan.ts'
import type { ByteWriter } from './byte-writer.ts'

/** What follows the response of a line that succeeded. */
export const RESULT_TAIL = ',"error":null}\n'
const NEWLINE = 0x0a
const CARRIAGE_RETURN = 0x0d
const SPACE = 0x20

/** The line of the same batch whose answer or error a line shares. */
export interface SharedFrom {
  request_id: string
  custom_id_json: string
}

/** More bytes than a result line has beside its custom_id, its answer or error, and the line that it shares. */
export const RESULT_BYTES_MAX = 600

/** A member with the comma behind it; '' for a line that was sent itself. */
export function sharedFromJson(from: SharedFrom | null): string {
  return from === null ? '' : `"shared_from":{"id":"${from.request_id}","custom_id":${from.custom_id_json}},`
}

/**
 * `answer` is the JSON of the answer. Its raw line breaks, which JSON has only between tokens, become blanks,
 * because a result is one line. `request_id`: its prefix and the number of the line. The cost (nano-dollars) goes to its
 * place, with the usage where the answer has none.
 */
export function writeOutputLine(
  out: ByteWriter,
  requestIdPrefix: string,
  line: number,
  custom_id_json: string,
  answer: Buffer,
  place: CostPlace,
  cost_nanos: number,
  usage: TokenUsage,
  endpoint: EndpointPath,
  shared_from: SharedFrom | null,
): void {
  writeHead(out, requestIdPrefix, line, custom_id_json, shared_from)
  out.ascii('"response":{"status_code":200,"request_id":"')
  out.ascii(requestIdPrefix)
  out.base32(line, LINE_DIGITS)
  out.ascii('","body":')
  const from = out.at
  out.copy(answer, 0, place.start)
  writeCost(out, place, cost_nanos, usage, endpoint)
  out.copy(answer, place.end, answer.length)
  if (answer.includes(NEWLINE) || answer.includes(CARRIAGE_RETURN)) blankLineBreaks(out.bytes, from, out.at)
  out.ascii('}')
  out.ascii(RESULT_TAIL)
}

export function writeErrorLine(
  out: ByteWriter,
  requestIdPrefix: string,
  line: number,
  custom_id_json: string,
  error: WireError,
  shared_from: SharedFrom | null,
): void {
  writeHead(out, requestIdPrefix, line, custom_id_json, shared_from)
  out.ascii('"response":null,"error":')
  out.text(errorJson(error))
  out.ascii('}\n')
}

function writeHead(
  out: ByteWriter,
  requestIdPrefix: string,
  line: number,
  custom_id_json: string,
  shared_from: SharedFrom | null,
): void {
  out.ascii('{"id":"')
  out.ascii(requestIdPrefix)
  out.base32(line, LINE_DIGITS)
  out.ascii('","custom_id":')
  out.text(custom_id_json)
  out.ascii(',')
  if (shared_from !== null) out.text(sharedFromJson(shared_from))
}

function writeCost(
  out: ByteWriter,
  { kind, comma }: CostPlace,
  cost_nanos: number,
  usage: TokenUsage,
  endpoint: EndpointPath,
): void {
  if (comma && (kind === 'member' || kind === 'usage_member')) out.ascii(',')
  if (kind === 'usage_member') out.ascii('"usage":')
  const isWhole = kind === 'usage' || kind === 'usage_member'
  if (isWhole) {
    // As the endpoint names the counts.
    const { input, output } = ENDPOINTS[endpoint].usage
    out.ascii('{')
    writeCount(out, input, usage.prompt_tokens)
    if (output !== null) writeCount(out, output, usage.completion_tokens)
    writeCount(out, 'total_tokens', usage.total_tokens)
  }
  if (kind !== 'cost') out.ascii('"cost_usd":')
  out.usd(cost_nanos)
  if (isWhole) out.ascii('}')
}

function writeCount(out: ByteWriter, name: string, count: number): void {
  out.ascii('"')
  out.ascii(name)
  out.ascii('":')
  out.count(count)
  out.ascii(',')
}

/** Cached: every unfinished line of a cancelled batch ends with the same error object. */
const jsonOf = new WeakMap<WireError, string>()

export function errorJson(error: WireError): string {
  const json = jsonOf.get(error) ?? JSON.stringify(error)
  jsonOf.set(error, json)
  return json
}

function blankLineBreaks(bytes: Buffer, from: number, to: number): void {
  for (let at = from; at < to; at++)
    if (bytes[at] === NEWLINE || bytes[at] === CARRIAGE_RETURN) bytes[at] = SPACE
}
