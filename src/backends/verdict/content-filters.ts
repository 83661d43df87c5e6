// How providers say that a filter withheld the content of a request or of its answer: as an error, or with status 200 as
// an answer that has no content. The same request meets the same filter again, so such a line fails once.
import { type AnswerShape, type EndpointPath, endpointOf } from '../../domain/endpoint.ts'
import { isRecord } from '../../domain/json-record.ts'
import type { UpstreamError } from './upstream-error.ts'

/** Codes of content filters, without case and punctuation: OpenAI, Azure, DashScope, Volcengine, Bedrock. */
const CODES = [
  ...['contentfilter', 'contentfiltered', 'contentpolicyviolation', 'responsibleaipolicyviolation'],
  ...['imagecontentpolicyviolation', 'moderationblocked', 'datainspectionfailed', 'guardrailintervened'],
]
const CODE_ENDING = /sensitivecontentdetected$/
const WORDS = [
  /\bContentPolicyViolationError\b/,
  /content management policy/i,
  /content filtering policy/i,
  /content[ _]?policy/i,
  /input was flagged/i,
  /\bflagged as potentially violating\b/i,
  /violated .{0,40}moderation policy/i,
  /rejected as a result of (our|the) safety system/i,
  // xAI, DeepSeek, Moonshot, DashScope
  /^content violates usage guidelines/i,
  /^content exists risk\b/i,
  /\brequest was rejected because it was considered high risk\b/i,
  /^(<\d+> ?)?(\w+\.\w+: )?(input|output)( text)? data may contain inappropriate content/i,
]

/** Reasons for which content filters end or block an answer: OpenAI, Gemini, Zhipu, Bedrock, Anthropic. */
const REASON =
  /^(content_?filter|(image_)?safety|prohibited_content|recitation|blocklist|spii|sensitive|guardrail_intervened)/i
/** Codes of invalid content for which a response may fail; content filters have such codes as well. */
const ABOUT_CONTENT = /^(invalid_(prompt|image|base64_image)|image_|empty_image|unsupported_image)/

export function isFilterCode(code: string): boolean {
  const plain = code.toLowerCase().replace(/[^a-z0-9]/g, '')
  return CODES.includes(plain) || CODE_ENDING.test(plain)
}

export function isFilterMessage(message: string): boolean {
  return WORDS.some((pattern) => pattern.test(message))
}

/** Whether the error in an answer with status 200 is about the content of its request. */
export function isAboutContent(answer: unknown, { codes, message }: UpstreamError): boolean {
  const isFailed = isRecord(answer) && answer.status === 'failed'
  return isFilterMessage(message) || (isFailed && codes.some((code) => ABOUT_CONTENT.test(code)))
}

/** Whether a content filter withheld the content of an answer that has none. */
export function isWithheld(answer: unknown, path: EndpointPath): boolean {
  if (!isRecord(answer)) return false
  const { answer: shape } = endpointOf(path)
  const entries = answer[shape.list]
  if (shape.entry !== null && Array.isArray(entries) && entries.length > 0) {
    const empty = entries.filter((one) => !hasContent(one, shape))
    return empty.length > 0 && empty.every(isFiltered)
  }
  const { prompt_filter_results, promptFeedback, incomplete_details, stop_reason } = answer
  const reasons = [
    isRecord(promptFeedback) ? promptFeedback.blockReason : undefined,
    isRecord(incomplete_details) ? incomplete_details.reason : undefined,
    stop_reason,
  ]
  return isFiltering(prompt_filter_results) || reasons.some(isReason)
}

function hasContent(entry: unknown, { entry: named }: AnswerShape): boolean {
  if (named === null || !isRecord(entry)) return true
  const content = entry[named.key]
  return isRecord(content) ? Object.keys(content).length > 0 : (content ?? null) !== null
}

function isFiltered(entry: unknown): boolean {
  return isRecord(entry) && (isReason(entry.finish_reason) || isFiltering(entry.content_filter_results))
}

function isReason(reason: unknown): boolean {
  return typeof reason === 'string' && (reason === 'refusal' || REASON.test(reason))
}

/** Whether the results of filters name one that filtered, or name none. */
function isFiltering(results: unknown): boolean {
  const text = JSON.stringify(results ?? null)
  return text !== 'null' && (text.includes('"filtered":true') || !text.includes('"filtered"'))
}
