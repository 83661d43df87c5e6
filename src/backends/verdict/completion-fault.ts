// What keeps an answer that came with a 200 from being a chat completion, in words.
import { isRecord } from '../json-record.ts'

/** `value` is the answer, parsed, which the scanner did not take for a completion. */
export function completionFault(value: unknown): string {
  if (!isRecord(value)) return 'the answer is not a JSON object'
  const { choices } = value
  if (!Array.isArray(choices)) return 'the answer has no choices'
  if (choices.length === 0) return 'the list of choices is empty'
  const indexes = new Set<unknown>()
  for (const choice of choices) {
    if (!isRecord(choice) || !isRecord(choice.message)) return 'a choice has no message'
    const { role = null, content = null, tool_calls = null } = choice.message
    if (Object.keys(choice.message).length === 0) return 'a message is empty'
    if (role !== null && typeof role !== 'string') return 'the role of a message is no text'
    if (content !== null && typeof content !== 'string' && !Array.isArray(content))
      return 'the content of a message is neither text nor parts'
    if (tool_calls !== null && !Array.isArray(tool_calls)) return 'the tool calls of a message are no list'
    const { finish_reason = null, index = null } = choice
    if (finish_reason !== null && typeof finish_reason !== 'string') return 'a finish_reason is no text'
    if (finish_reason === 'abort' || finish_reason === 'error')
      return `generation broke off (${finish_reason})`
    if (index === null) continue
    if (!Number.isInteger(index) || Number(index) < 0) return 'the index of a choice is no count'
    if (indexes.has(index)) return 'two choices have the same index'
    indexes.add(index)
  }
  return 'the answer is nested too deep'
}
