// Writes the pages that are made from code: `npm run docs`. A test fails when one that is kept in the tree is out of
// date; api-reference.md and the man page are not kept, they are made for each package.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { CONFIG_FILE } from '../src/config/schema.ts'
import { RULES, type Shape } from '../src/config/shape.ts'
import { BATCH_TRANSITIONS, isNotRun, REMOTE_BATCH_TRANSITIONS } from '../src/domain/batch.ts'
import { ERRORS, type ErrorPlace, type ErrorRow, isErrorCode, openaiError } from '../src/domain/errors.ts'
import { FILE_TRANSITIONS } from '../src/domain/file.ts'
import { LIMIT_WINDOWS } from '../src/domain/limit.ts'

const GROUPS = [
  {
    title: 'Answers of the API',
    place: 'http',
    lead: 'Every error response has the body `{"error": {"type", "code", "message", "param"?}}`; branch on `code`.',
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
    'A [strict client](api.md#strict-openai-clients) is told the status, and where it is named the code, of the column `strict`.',
    'Retry, with exponential backoff, only what says so; for everything else the same request would fail again.',
  ]
  for (const { title, place, lead } of GROUPS) {
    const rows = Object.entries<ErrorRow>(ERRORS).filter(([, row]) => row.places.includes(place))
    parts.push(`## ${title}`, lead, table(rows, place))
  }
  return `${parts.join('\n\n')}\n`
}

function table(rows: readonly [string, ErrorRow][], place: ErrorPlace): string {
  const lines = rows.map(
    ([code, row]) =>
      `| \`${code}\` | ${row.status} | ${strictOf(code, place)} | \`${row.type}\` | ${row.retryable ? 'yes' : 'no'} | ${cell(row.message)} | ${cell(row.operatorAdvice === undefined ? row.advice : `${row.advice} *Operators:* ${row.operatorAdvice}`)} |`,
  )
  return [
    '| code | status | strict | type | retry | message | what to do |',
    '|---|---|---|---|---|---|---|',
    ...lines,
  ].join('\n')
}

/** What strict clients are told: of a line that was never answered, no status. */
function strictOf(name: string, place: ErrorPlace): string {
  if (!isErrorCode(name) || place === 'file' || (place === 'line' && isNotRun(name, 0))) return '–'
  const { status, code } = openaiError(name)
  return code === name ? `${status}` : `${status} \`${code}\``
}

function cell(text: string): string {
  return text.replaceAll('|', '\\|').replaceAll('<', '\\<')
}

type Transitions = Readonly<Record<string, readonly string[]>>

/** docs/state-machine.md with the picture of what happens to a batch, as the tables of transitions make it. */
export function statesPage(): string {
  const picture = [
    'stateDiagram-v2',
    ...within('its input file', 'file', FILE_TRANSITIONS),
    '  file --> validating: a batch is created',
    ...arrows(BATCH_TRANSITIONS).map((line) => `  ${line}`),
    ...within('its lines at a batch API', 'remote', REMOTE_BATCH_TRANSITIONS),
    '  in_progress --> remote: a chunk is handed over',
  ]
  const page = readFileSync(new URL('state-machine.md', import.meta.url), 'utf8')
  return page.replace(/(?<=^```mermaid\n).*?(?=^```$)/ms, `${picture.join('\n')}\n`)
}

/** From the first state to those that nothing follows. */
function arrows(transitions: Transitions, prefix = ''): string[] {
  const states = Object.entries(transitions)
  const first = `[*] --> ${prefix}${states[0]?.[0]}`
  const moves = states.flatMap(([from, all]) => all.map((to) => `${prefix}${from} --> ${prefix}${to}`))
  return [
    first,
    ...moves,
    ...states.flatMap(([from, all]) => (all.length === 0 ? [`${prefix}${from} --> [*]`] : [])),
  ]
}

/** States of their own, whose names others may have too. */
function within(title: string, id: string, transitions: Transitions): string[] {
  const names = Object.keys(transitions).map((state) => `    ${id}_${state}: ${state}`)
  return [
    `  state "${title}" as ${id} {`,
    ...names,
    ...arrows(transitions, `${id}_`).map((line) => `    ${line}`),
    '  }',
  ]
}

/** docs/limits.md with the windows of limits, as their table has them. */
export function limitsPage(): string {
  const windows = LIMIT_WINDOWS.map((window) => `\`${window}\``).join(', ')
  const page = readFileSync(new URL('limits.md', import.meta.url), 'utf8')
  return page.replace(/(?<=^\| `window` \| )[^:]*/m, windows)
}

/** docs/offpeak.schema.json: the schema of the configuration, with the meanings of docs/configuration.md. */
export function configSchema(): string {
  const page = readFileSync(new URL('configuration.md', import.meta.url), 'utf8')
  const rows = page.matchAll(/^\| `([^`]+)` \|[^|]*\| [^|]+ \| ([^|]+) \|$/gm)
  const meanings = new Map([...rows].map(([, key, meaning]) => [key, meaning]))
  const schema = JSON.stringify(describeKeys(CONFIG_FILE, '', meanings), null, 2)
  return `${schema.replace('{', '{\n  "$schema": "http://json-schema.org/draft-07/schema#",')}\n`
}

/** `shape` with a description for each key that `meanings` knows. */
function describeKeys(
  shape: Shape,
  path: string,
  meanings: ReadonlyMap<string | undefined, string | undefined>,
): Shape {
  const inside = (one: Shape, steps: string) => describeKeys(one, path + steps, meanings)
  const { properties, additionalProperties: item, items, anyOf } = shape
  const description = meanings.get(path)
  return {
    ...shape,
    ...(description && { description }),
    ...(properties && {
      properties: Object.fromEntries(
        Object.entries(properties).map(([key, one]) => [key, inside(one, path === '' ? key : `.${key}`)]),
      ),
    }),
    ...(item && { additionalProperties: inside(item, '.<name>') }),
    ...(items && { items: inside(items, '[]') }),
    ...(anyOf && !items && !shape[RULES].parse && { anyOf: anyOf.map((one) => inside(one, '')) }),
  }
}

if (import.meta.main) {
  writeFileSync(new URL('errors.md', import.meta.url), errorsPage())
  writeFileSync(new URL('state-machine.md', import.meta.url), statesPage())
  writeFileSync(new URL('limits.md', import.meta.url), limitsPage())
  writeFileSync(new URL('offpeak.schema.json', import.meta.url), configSchema())
  // Loads the whole service, which those who import this file do not need.
  const { apiReference } = await import('./generate-api.ts')
  writeFileSync(new URL('api-reference.md', import.meta.url), await apiReference())
  const { manPage } = await import('./generate-man.ts')
  const { version }: { version: string } = JSON.parse(
    readFileSync(new URL('../package.json', import.meta.url), 'utf8'),
  )
  mkdirSync(new URL('../man', import.meta.url), { recursive: true })
  writeFileSync(new URL('../man/offpeak.1', import.meta.url), await manPage(version))
}
