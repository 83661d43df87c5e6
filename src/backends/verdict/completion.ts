// Tells a chat completion from everything else that comes with a 200. Only what the service itself reads is
// looked at; the rest is the caller's and passes through.
import type { ChatCompletion } from '../backend.ts'
import { isRecord } from '../json-record.ts'

/** Finish reasons of a generation that broke off on the server's side: its text is not the answer. */
const BROKEN_OFF: ReadonlySet<unknown> = new Set(['abort', 'error'])

/** The answer, or what keeps `value` from being one. A usage that does not count properly is made null. */
export function readCompletion(value: unknown): ChatCompletion | string {
  if (!isRecord(value)) return 'the answer is not a JSON object'
  const { choices } = value
  if (!Array.isArray(choices)) return 'the answer has no choices'
  if (choices.length === 0) return 'the list of choices is empty'
  for (const choice of choices) {
    if (!isRecord(choice) || !isRecord(choice.message)) return 'a choice has no message'
    if (BROKEN_OFF.has(choice.finish_reason)) return `generation broke off (${choice.finish_reason})`
  }
  const completion: ChatCompletion = Object.assign(value, { choices, usage: readUsage(value.usage) })
  return completion
}

function readUsage(usage: unknown): ChatCompletion['usage'] {
  if (!isRecord(usage)) return null
  const { prompt_tokens, completion_tokens, total_tokens } = usage
  if (!isCount(prompt_tokens) || !isCount(completion_tokens)) return null
  const total = isCount(total_tokens) ? total_tokens : prompt_tokens + completion_tokens
  return Object.assign(usage, { prompt_tokens, completion_tokens, total_tokens: total })
}

function isCount(value: unknown): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0
}
