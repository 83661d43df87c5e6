// Lists that have one table are written nowhere else in src/, and the page that says how to change them names files that exist.
import assert from 'node:assert/strict'
import { existsSync, globSync, readFileSync } from 'node:fs'
import { test } from 'node:test'
import { TERM_NAMES } from '../../src/cli/terminal/option-values.ts'
import { DATABASE_KINDS } from '../../src/config/scalars.ts'
import { FILE_PURPOSES } from '../../src/domain/file.ts'
import { LIMIT_WINDOWS, WINDOWS } from '../../src/domain/limit.ts'
import { DAY_SUMS } from '../../src/domain/line-sums.ts'
import { UPSTREAM_TYPES } from '../../src/domain/model.ts'
import { TOKEN_PARTS } from '../../src/domain/money.ts'
import { LANGUAGES } from '../../src/ledger/limit-error.ts'
import { USAGE_COLUMNS } from '../../src/store/usage.ts'
import { CreateBatch } from '../../src/wire/batch.ts'
import { LINE_STATUSES } from '../../src/wire/batch-line.ts'
import { USAGE_GROUPS, USAGE_TOTALS } from '../../src/wire/usage.ts'

const ROOT = new URL('../../', import.meta.url).pathname

const SOURCES = globSync('src/**/*.{ts,tsx}', { cwd: ROOT })
  .filter((path) => !path.includes('.test.'))
  .map((path) => ({ path, text: readFileSync(`${ROOT}${path}`, 'utf8') }))

/** The files whose code has the expression: comments and examples in Markdown do not count. */
function filesWith(pattern: RegExp): string[] {
  const has = (text: string): boolean =>
    text.split('\n').some((line) => pattern.test(line) && !/^\s*(\/\/|\/?\*)/.test(line))
  return SOURCES.filter(({ text }) => has(text))
    .map(({ path }) => path)
    .sort()
}

test('each window of limits has its words in every language', () => {
  for (const window of LIMIT_WINDOWS)
    assert.deepEqual(Object.keys(WINDOWS[window].words).sort(), [...LANGUAGES].sort(), window)
  assert.deepEqual(filesWith(/\[ *'day', *('week', *)?'month' *\]/), ['src/console/pages/usage.tsx'])
})

test('the default completion window is written once, beside those of the built-in plans and of examples', () => {
  assert.deepEqual(filesWith(/['"]24h['"]/), [
    'src/config/schema.ts',
    'src/domain/days.ts',
    'src/wire/batch.ts',
    'src/wire/project.ts',
  ])
})

test('units of durations, amounts of spend, sums of prompts and statuses of open batches are listed once', () => {
  assert.deepEqual(filesWith(/\(ms\|s\|m/), [])
  assert.deepEqual(filesWith(/'cost_nanos', 'tokens', 'requests'/), ['src/domain/money.ts'])
  assert.deepEqual(filesWith(/'long_bytes'|long_bytes: 0/), ['src/domain/tokens.ts'])
  assert.deepEqual(filesWith(/'validating', 'queued', 'in_progress', 'cancelling'/), [])
})

test('the headers of answers that are kept are one set, from which the fast look-up derives', () => {
  const { text = '' } = SOURCES.find(({ path }) => path === 'src/backends/http1/response-reader.ts') ?? {}
  assert.match(text, /of \[\.\.\.FRAMING_HEADERS, \.\.\.KEPT_HEADERS\]\)\n\s+INITIALS\[/)
  assert.deepEqual(filesWith(/RETRY_AFTER_HEADERS =/).length, 1)
})

test('each sum of a day is in usage reports, and the parts of tokens are listed once', () => {
  const shown = Object.keys(USAGE_TOTALS)
  for (const name of DAY_SUMS) assert.ok(shown.includes(name === 'cost_nanos' ? 'cost_usd' : name), name)
  assert.deepEqual(USAGE_COLUMNS.toSorted(), USAGE_GROUPS.toSorted())
  const parts = new RegExp(`'(${TOKEN_PARTS.join('|')})'`)
  assert.deepEqual(filesWith(parts), [
    'src/domain/line-sums.ts',
    'src/domain/money.ts',
    'src/jsonl/answer-scan.ts',
  ])
})

test('each field of a batch is in docs/api.md, and has an option or is given by another part of a command', () => {
  const given = [
    ...['input_file_id', 'requests', 'table', 'input_url', 'output_url', 'endpoint', 'completion_window'],
    ...['metadata', 'webhook', 'wait', 'output_expires_after'],
  ]
  assert.deepEqual(Object.keys(CreateBatch.properties).sort(), [...TERM_NAMES, ...given].sort())
  const reference = readFileSync(`${ROOT}docs/api.md`, 'utf8')
  for (const name of Object.keys(CreateBatch.properties))
    assert.match(reference, new RegExp(`\`${name}\\b`), `docs/api.md does not name ${name}`)
})

test('lists of the console, which imports no values of the API, have all that their tables have', () => {
  for (const [page, name, table] of [
    ['files.tsx', 'PURPOSES', FILE_PURPOSES],
    ['line-browser.tsx', 'LINE_STATUSES', LINE_STATUSES],
    ['usage.tsx', 'GROUPS', USAGE_GROUPS],
  ] as const) {
    const { text = '' } = SOURCES.find(({ path }) => path === `src/console/pages/${page}`) ?? {}
    const [, list = ''] = new RegExp(`const ${name}\\b[^=]*= \\[([^\\]]*)\\]`).exec(text) ?? []
    const items = [...list.matchAll(/'(\w+)'/g)].map(([, item]) => item)
    assert.deepEqual(items.sort(), [...table].sort(), page)
  }
})

test('types of upstreams and kinds of databases are told apart in their tables and their adapters alone', () => {
  const types = Object.keys(UPSTREAM_TYPES)
  assert.deepEqual(filesWith(new RegExp(`'(${types.filter((type) => type.includes('-')).join('|')})'`)), [
    'src/compose/upstreams.ts',
    'src/config/schema.ts',
    'src/domain/model.ts',
  ])
  assert.deepEqual(filesWith(/'postgres'/), ['src/compose/stores.ts', 'src/config/scalars.ts'])
  assert.deepEqual(filesWith(/database\.kind [!=]==? '/), [])
  assert.deepEqual(filesWith(new RegExp(`\\.type [!=]== '(${types.join('|')})'`)), [])
  const documented = readFileSync(`${ROOT}docs/configuration.md`, 'utf8')
  for (const name of [...types, ...DATABASE_KINDS])
    assert.match(documented, new RegExp(`\`${name}\\b`), `docs/configuration.md does not name ${name}`)
})

test('the page of common changes names files and folders that exist', () => {
  const [, section = ''] = readFileSync(`${ROOT}CONTRIBUTING.md`, 'utf8').split('\n## How to change it\n')
  const rows = section.split('\n').filter((line) => /^\| (a|an|what) /.test(line))
  assert.equal(rows.length, 10)
  for (const row of rows) {
    const paths = [...row.matchAll(/`((?:src|docs|test)\/[^`]*)`/g)].map(([, path = '']) => path)
    assert.ok(paths.length > 0, row)
    for (const path of paths) assert.ok(existsSync(`${ROOT}${path}`), `${path} does not exist: ${row}`)
  }
})
