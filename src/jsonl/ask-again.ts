// Makes the request that asks for an answer again: the bytes that were sent with another seed, or with the answer and
// its defect as further messages.
import { isRecord } from '../domain/json-record.ts'
import { membersOf } from './json-members.ts'
import { Names } from './json-scan.ts'

const NAMES = new Names('seed', 'messages', 'response_format')
/** The largest signed 32-bit seed, which every server accepts. */
const SEED_MAX = 2 ** 31 - 1
/** The limit of characters of the fault that a repair request quotes. */
const FAULT_CHARACTERS_MAX = 1_000
/** An upper bound of the tokens of the quoted fault and the messages around it. */
export const REPAIR_TOKENS_MAX = 512
/** An upper bound of the average bytes per token in any language. */
const BYTES_PER_TOKEN_MAX = 16

/** The JSON Schema that a request demands of its answer; null without one. */
export function schemaAsked(body: Buffer): object | null {
  const { response_format: span } = membersOf(body, NAMES)
  if (span === undefined) return null
  const format: unknown = JSON.parse(body.toString('utf8', span.start, span.end))
  if (!isRecord(format) || format.type !== 'json_schema' || !isRecord(format.json_schema)) return null
  const { schema } = format.json_schema
  return typeof schema === 'object' ? schema : null
}

/** The body with a seed that no earlier attempt had. `asked`: the number of reasks, this one included. */
export function withOtherSeed(body: Buffer, asked: number): Buffer {
  const { seed } = membersOf(body, NAMES)
  if (seed === undefined) return spliced(body, 1, 1, Buffer.from(`"seed":${asked},`))
  const given = Number(body.toString('utf8', seed.start, seed.end))
  const base = Number.isSafeInteger(given) && given >= 0 ? given : 0
  return spliced(body, seed.start, seed.end, Buffer.from(String((base + asked) % SEED_MAX)))
}

/** The body with `messages` appended to its messages. */
export function withMessages(body: Buffer, messages: Buffer): Buffer {
  const at = (membersOf(body, NAMES).messages?.end ?? 0) - 1
  return at < 0 ? body : spliced(body, at, at, messages)
}

/** Whether an answer is within its line's output limit, so that quoting it costs no more than was projected. */
export function isRepairable(answer: string, output_tokens_max: number): boolean {
  return Buffer.byteLength(answer) <= BYTES_PER_TOKEN_MAX * (output_tokens_max || REPAIR_TOKENS_MAX)
}

/** The messages that quote an answer and its fault, to be appended to a request. */
export function repairMessages(answer: string, fault: string): Buffer {
  const content = `${fault.slice(0, FAULT_CHARACTERS_MAX)} Answer again, with the whole answer and nothing else.`
  const messages = [
    { role: 'assistant', content: answer },
    { role: 'user', content },
  ]
  return Buffer.from(messages.map((message) => `,${JSON.stringify(message)}`).join(''))
}

function spliced(body: Buffer, start: number, end: number, by: Buffer): Buffer {
  return Buffer.concat([body.subarray(0, start), by, body.subarray(end)])
}
