// What keeps an answer that came with a 200 from being one of its endpoint, in words.
import type { AnswerShape } from '../../domain/endpoint.ts'
import { isRecord } from '../json-record.ts'

/** `value` is the answer, parsed, which the scanner did not take for one. */
export function answerFault(value: unknown, answer: AnswerShape): string {
  if (!isRecord(value)) return 'the answer is not a JSON object'
  const entries = value[answer.list]
  if (!Array.isArray(entries)) return `the answer has no ${answer.list}`
  const { status } = value
  if (answer.statuses !== null && status !== undefined && !answer.statuses.includes(String(status)))
    return 'the status of the answer is none of an answer'
  if (entries.length === 0) return `the list of ${answer.list} is empty`
  const indexes = new Set<unknown>()
  for (const entry of entries) {
    const fault = entryFault(entry, answer)
    if (fault !== null) return fault
    const { finish_reason = null, index = null } = entry
    if (finish_reason !== null && typeof finish_reason !== 'string') return 'a finish_reason is no text'
    if (finish_reason === 'abort' || finish_reason === 'error')
      return `generation broke off (${finish_reason})`
    if (index === null) continue
    if (!Number.isInteger(index) || Number(index) < 0)
      return `the index of one of the ${answer.list} is no count`
    if (indexes.has(index)) return `two of the ${answer.list} have the same index`
    indexes.add(index)
  }
  return 'the answer is nested too deep'
}

function entryFault(entry: unknown, { list, entry: wanted }: AnswerShape): string | null {
  if (!isRecord(entry)) return `one of the ${list} is not an object`
  if (wanted === null) return null
  const found = entry[wanted.key]
  const kind = Array.isArray(found) ? 'array' : typeof found
  if (!wanted.kinds.some((one) => one === kind)) return `one of the ${list} has no ${wanted.key}`
  return isRecord(found) ? messageFault(found) : null
}

function messageFault(message: Record<string, unknown>): string | null {
  const { role = null, content = null, tool_calls = null } = message
  if (Object.keys(message).length === 0) return 'a message is empty'
  if (role !== null && typeof role !== 'string') return 'the role of a message is no text'
  if (content !== null && typeof content !== 'string' && !Array.isArray(content))
    return 'the content of a message is neither text nor parts'
  if (tool_calls !== null && !Array.isArray(tool_calls)) return 'the tool calls of a message are no list'
  return null
}
