// What keeps an answer that came with a 200 from being a chat completion, in words.
import { isRecord } from '../json-record.ts'

/** `value` is the answer, parsed, which the scanner did not take for a completion. */
export function completionFault(value: unknown): string {
  if (!isRecord(value)) return 'the answer is not a JSON object'
  const { choices } = value
  if (!Array.isArray(choices)) return 'the answer has no choices'
  if (choices.length === 0) return 'the list of choices is empty'
  for (const choice of choices) {
    if (!isRecord(choice) || !isRecord(choice.message)) return 'a choice has no message'
    const { finish_reason } = choice
    if (finish_reason === 'abort' || finish_reason === 'error')
      return `generation broke off (${finish_reason})`
  }
  return 'the answer is nested too deep'
}
