// The results of a batch as CSV, put together in the browser from pages of result lines. Where answers are JSON
// objects, each of their keys is a column.
import type { BatchObject } from '../wire/batch.ts'
import { fetchApi, pathWith } from './api.ts'
import { isObject, parseExact } from './exact-json.ts'

const PAGE_LINES = 2_000

interface Row {
  custom_id: string
  status: 'completed' | 'failed'
  error_code: string
  error_message: string
  answer: string
  finish_reason: string
  prompt_tokens: string
  completion_tokens: string
  cost_usd: string
  /** The keys of the answer, where it is an object. */
  columns: ReadonlyMap<string, string>
}

const FIXED = [
  'custom_id',
  'status',
  'error_code',
  'error_message',
  'answer',
  'finish_reason',
  'prompt_tokens',
  'completion_tokens',
  'cost_usd',
] as const

/** Told how many lines have been read. */
export async function downloadCsv(batch: BatchObject, onProgress: (lines: number) => void): Promise<void> {
  const rows: Row[] = []
  let after = '0'
  for (let more = true; more; ) {
    const query = { after, limit: PAGE_LINES, contiguous: 'true' }
    const response = await fetchApi('GET', pathWith(`/v1/batches/${batch.id}/results`, query))
    for (const line of (await response.text()).split('\n'))
      if (line !== '') rows.push(rowOf(parseExact(line)))
    onProgress(rows.length)
    after = response.headers.get('x-next-after') ?? after
    more = response.headers.get('x-has-more') === 'true'
  }
  save(`${batch.id}.csv`, csvOf(rows))
}

export function rowOf(line: unknown): Row {
  const { custom_id, response, error } = objectOf(line)
  const { choices, usage } = objectOf(objectOf(response).body)
  const choice = objectOf(Array.isArray(choices) ? choices[0] : null)
  const { content } = objectOf(choice.message)
  const answer = typeof content === 'string' ? content : ''
  const parsed = answer.startsWith('{') ? parseExact(answer) : null
  const failure = objectOf(error)
  const tokens = objectOf(usage)
  return {
    custom_id: textOf(custom_id),
    status: isObject(error) ? 'failed' : 'completed',
    error_code: textOf(failure.code),
    error_message: textOf(failure.message),
    answer,
    finish_reason: textOf(choice.finish_reason),
    prompt_tokens: textOf(tokens.prompt_tokens),
    completion_tokens: textOf(tokens.completion_tokens),
    cost_usd: textOf(tokens.cost_usd),
    columns: new Map(
      isObject(parsed) ? Object.entries(parsed).map(([name, value]) => [name, textOf(value)]) : [],
    ),
  }
}

/** `answer.` stands before a column that would be called like one of ours. */
function csvOf(rows: readonly Row[]): string[] {
  const names = [...new Set(rows.flatMap(({ columns }) => [...columns.keys()]))]
  const titles = names.map((name) => (FIXED.some((fixed) => fixed === name) ? `answer.${name}` : name))
  const record = (cells: readonly string[]): string => `${cells.map(quoted).join(',')}\r\n`
  return [
    record([...FIXED, ...titles]),
    ...rows.map((row) =>
      record([...FIXED.map((name) => row[name]), ...names.map((name) => row.columns.get(name) ?? '')]),
    ),
  ]
}

/** An apostrophe keeps spreadsheets from running a text as a formula; numbers stay numbers. */
function quoted(text: string): string {
  const plain = /^[=+\-@\t\r]/.test(text) && !/^-?\d+(\.\d+)?(e[+-]?\d+)?$/i.test(text) ? `'${text}` : text
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain
}

function objectOf(value: unknown): Record<string, unknown> {
  return isObject(value) ? value : {}
}

function textOf(value: unknown): string {
  if (value === undefined || value === null) return ''
  return typeof value === 'string' ? value : JSON.stringify(value)
}

function save(name: string, parts: string[]): void {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(new Blob(['\ufeff', ...parts], { type: 'text/csv' }))
  link.download = name
  link.click()
  URL.revokeObjectURL(link.href)
}
