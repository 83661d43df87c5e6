// Writes the pages that are made from code: `npm run docs`. A test fails when one of them is out of date.
import { writeFileSync } from 'node:fs'
import { ERRORS, type ErrorRow } from '../src/domain/errors.ts'

const GROUPS = [
  {
    title: 'Answers of the API',
    place: 'http',
    lead: 'Every refusal has the body `{"error": {"type", "code", "message", "param"?}}`; branch on `code`.',
  },
  {
    title: 'Uploaded files',
    place: 'file',
    lead: 'An upload that does not validate has the status `error`, and `status_details` names the first bad line.',
  },
  {
    title: 'Lines of a batch',
    place: 'line',
    lead: 'A line that fails is in the error file, its `error` shaped like that of an answer. It is not billed.',
  },
] as const

/** docs/errors.md as the table of codes makes it. */
export function errorsPage(): string {
  const parts = [
    '# Error codes',
    'Made from `src/domain/errors.ts` by `npm run docs`; edit the table there.',
    'Retry, with exponential backoff, only what says so; for everything else the same request would fail again.',
  ]
  for (const { title, place, lead } of GROUPS) {
    const rows = Object.entries<ErrorRow>(ERRORS).filter(([, row]) => row.places.includes(place))
    parts.push(`## ${title}`, lead, table(rows))
  }
  return `${parts.join('\n\n')}\n`
}

function table(rows: readonly [string, ErrorRow][]): string {
  const lines = rows.map(
    ([code, row]) =>
      `| \`${code}\` | ${row.status} | \`${row.type}\` | ${row.retryable ? 'yes' : 'no'} | ${cell(row.message)} | ${cell(row.operatorAdvice === undefined ? row.advice : `${row.advice} *Operators:* ${row.operatorAdvice}`)} |`,
  )
  return [
    '| code | status | type | retry | message | what to do |',
    '|---|---|---|---|---|---|',
    ...lines,
  ].join('\n')
}

function cell(text: string): string {
  return text.replaceAll('|', '\\|').replaceAll('<', '\\<')
}

if (import.meta.main) writeFileSync(new URL('errors.md', import.meta.url), errorsPage())
