// Finds the columns for the answers of a batch, if its first request asks for a JSON schema.
import { isRecord } from '../domain/json-record.ts'
import { parseExact, print } from './json.ts'

/** The property names of the schema in a request (the value of a line's `input`); null where it has none. */
export function schemaColumns(input: unknown): string[] | null {
  const body = isRecord(input) ? input.body : null
  const { properties } = objectOf(schemaOf(body))
  return isRecord(properties) && Object.keys(properties).length > 0 ? Object.keys(properties) : null
}

/** The JSON schema of the answers that a request asks for. */
export function schemaOf(body: unknown): unknown {
  const { response_format, output_config } = objectOf(body)
  return (
    objectOf(objectOf(response_format).json_schema).schema ?? objectOf(objectOf(output_config).format).schema
  )
}

/** The choices of an answer. A message of Anthropic's API is shown like the only choice of a chat. */
export function choicesOf(answer: unknown): Record<string, unknown>[] {
  const { choices, type, stop_reason } = objectOf(answer)
  if (type === 'message') return [{ message: answer, finish_reason: stop_reason }]
  return Array.isArray(choices) ? choices.filter(isRecord) : []
}

/** The text of a message's content, or of its parts. */
export function textOfContent(content: unknown): string | null {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return null
  const texts = content.map((part) => objectOf(part).text).filter((text) => typeof text === 'string')
  return texts.length === 0 ? null : texts.join('')
}

export interface AnswerRow {
  line: number
  custom_id: string
  /** The cells in the order of the columns; `error`: why the answer does not fit them. */
  cells: readonly string[]
  error: string | null
}

const LINE_DIGITS = 7

/** The row of a parsed result line. The line's request ID ends with its number, in base 32. */
export function answerRow(result: unknown, columns: readonly string[]): AnswerRow {
  const { id, custom_id, response, error } = objectOf(result)
  const row = { line: lineOfRequest(String(id)), custom_id: String(custom_id) }
  const nothing = columns.map(() => '')
  if (isRecord(error)) return { ...row, cells: nothing, error: `${error.code}: ${error.message}` }
  const { message, finish_reason } = choicesOf(objectOf(response).body)[0] ?? {}
  const answer = parseExact(textOfContent(objectOf(message).content) ?? '')
  if (!isRecord(answer)) return { ...row, cells: nothing, error: `not_json (${finish_reason})` }
  return { ...row, cells: columns.map((name) => cellText(answer[name])), error: null }
}

const BASE32 = '0123456789abcdefghjkmnpqrstvwxyz'

/** The line number at the end of a line's request ID. */
export function lineOfRequest(id: string): number {
  return [...id.slice(-LINE_DIGITS)].reduce((sum, digit) => sum * 32 + BASE32.indexOf(digit), 0)
}

function cellText(value: unknown): string {
  if (value === undefined || value === null) return ''
  return typeof value === 'string' ? value : print(value).replaceAll(/\s*\n\s*/g, ' ')
}

/** The members of a value if it is an object, else none. */
export const objectOf = (value: unknown): Record<string, unknown> => (isRecord(value) ? value : {})
