// Checks rules that neither the type checker nor the linter can: the layers of imports, file names, the
// source of time, and that generated pages match their tables.
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path/posix'
import { describe, test } from 'node:test'
import { errorsPage, limitsPage, statesPage } from '../../docs/generate.ts'
import { MODELS } from '../../model/checks.ts'
import { edge, LINE_STEPS, REMOTE_BATCH_STEPS } from '../../model/steps.ts'
import { LINE_STATES, LINE_TRANSITIONS } from '../../src/dispatch/line-state.ts'
import {
  BATCH_STATUSES,
  BATCH_TRANSITIONS,
  isTerminal,
  REMOTE_BATCH_STATES,
  REMOTE_BATCH_TRANSITIONS,
} from '../../src/domain/batch.ts'
import { FILE_STATUSES, FILE_TRANSITIONS } from '../../src/domain/file.ts'
import { GROUPS } from '../support/test-groups.ts'

const ROOT = new URL('../../', import.meta.url).pathname

/** The folders of src/ from the bottom up: a folder may import those of lower layers only. */
const LAYERS: readonly (readonly string[])[] = [
  ['domain'],
  ['jsonl'],
  ['wire', 'config', 'blobs', 'backends', 'tables'],
  ['store', 'engines'],
  ['ledger', 'leases'],
  ['notify', 'progress'],
  ['lifecycle'],
  ['results'],
  ['audit', 'maintenance'],
  ['intake', 'admin'],
  ['servers'],
  ['dispatch'],
  ['worker'],
  ['metrics'],
  ['http', 'cli', 'console'],
]

const REMOTE_BATCH_EDGES = REMOTE_BATCH_STATES.flatMap((from) =>
  REMOTE_BATCH_TRANSITIONS[from].map((to) => edge(from, to)),
)

const ADAPTERS = [
  'store/sqlite',
  'store/postgres',
  'blobs/disk',
  'blobs/s3',
  'blobs/key-services',
  'backends/openai',
  'backends/sim',
]

/** Files that may read the system's time or set timers of their own, and why. */
const MAY_TELL_TIME = new Map([
  ['src/domain/clock.ts', 'the only source of time'],
  [
    'src/store/sqlite/store.ts',
    'the clock of the database, which decides on leases: SQLite runs in this process',
  ],
  ['src/backends/http1/connection.ts', 'a real socket times out in real time; Retry-After may be a date'],
  ['src/console/browser-clock.ts', 'the clock and the timers of a browser'],
  ['src/backends/http1/http-pool.ts', 'how long a real connection has been idle'],
])

/** Themselves loaded when needed. */
const MAY_LOAD = ['src/blobs/s3/', 'src/blobs/key-services/aws-kms.ts ', 'src/store/postgres/']

/** Packages that a process does not load to start: each costs milliseconds of every start, and memory for good. */
const NOT_AT_START: Readonly<Record<string, readonly string[]>> = {
  'src/main.ts': ['kysely', 'yaml', 'fastify', 'pino', 'prom-client'],
  'src/compose/worker-process.ts': ['typebox', 'yaml', 'fastify', 'commander', 'cli-progress'],
}

const VAGUE_NAMES = /^(utils?|helpers?|commons?|types?|interfaces?|managers?|services?|misc|shared|lib)$/

/** `cleanEnv`, a test that sets variables and restores them, fakes that are told by them, and scripts beside services. */
const MAY_READ_ENVIRONMENT = [
  ...['test/support/offpeak-process.ts', 'test/engines/engines.test.ts', 'test/fakes/engine-server.ts'],
  ...['test/hosts/hosts.ts', 'test/hosts/serve-part.ts', 'test/schemathesis/seed.ts'],
]

/** Pages that may name files of other versions, and the reference that is made for a package. */
const NO_PAGES = ['CHANGELOG.md', 'docs/api-reference.md']

/** A path of sources or pages, perhaps only its end, or anything in one of the folders of the repository. */
const NAMED_FILE =
  /(?<![\w./~-])(?:(?:[\w.*-]+\/)*[\w*-][\w.*-]*\.(?:ts|md|tla|cfg|py)|(?:bench|deploy|docs|examples|model|src|test)\/[\w./-]*\w\/?)(?![\w*/-])/g

/** What a reader of the page makes, finds in a package, or has in a cluster. */
const MADE_BY_READERS = ['batch.ts', 'agent.py', 'task.py', 'docs/api-reference.md', 'deploy/offpeak-api']

/** All other test code is in test/. */
function isTestCode(path: string): boolean {
  return path.endsWith('.test.ts')
}

interface SourceFile {
  path: string
  text: string
  /** Paths from the root of the repository; packages are left out. */
  imports: string[]
}

const SOURCES: SourceFile[] = globSync('src/**/*.{ts,tsx}', { cwd: ROOT })
  .map((path) => path.replaceAll('\\', '/'))
  .filter((path) => !isTestCode(path))
  .sort()
  .map((path) => {
    const text = readFileSync(join(ROOT, path), 'utf8')
    return { path, text, imports: importsOf(text).map((target) => join(dirname(path), target)) }
  })

/** Relative imports and re-exports, of types and values, static and dynamic. */
function importsOf(text: string): string[] {
  const statement = /^\s*(?:import|export)\b[^'"`;=]*?\bfrom\s*['"](\.[^'"]+)['"]/gm
  const bare = /^\s*import\s*['"](\.[^'"]+)['"]/gm
  const dynamic = /\bimport\(\s*['"](\.[^'"]+)['"]/g
  return [statement, bare, dynamic].flatMap((pattern) =>
    [...text.matchAll(pattern)].map((match) => match[1]!),
  )
}

/** Static imports and re-exports of values. */
const LOADING = /^(?:import|export) (?!type\b)(?:[^'";=]*? from )?'([^']+)'/gm

/** `src/store/sqlite/claim.ts` is in `store`; src/main.ts and src/compose/ are the composition root. */
function folderOf(path: string): string {
  const [, first, ...rest] = path.split('/')
  return rest.length === 0 || first === 'compose' ? 'root' : first!
}

/** The source without comments. */
function code(text: string): string {
  return text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/(^|\s)\/\/.*$/gm, '')
}

describe('the structure of src/', () => {
  test('every form of import is recognized', () => {
    const text = [
      `import a from './a.ts'`,
      `import type { B } from "../b.ts"`,
      `import {\n  c,\n  type D,\n} from './c.ts'`,
      `export { e } from './e.ts'`,
      `import './f.ts'`,
      `const g = await import('./g.ts')`,
      `import fs from 'node:fs'`,
    ].join('\n')
    assert.deepEqual(importsOf(text).sort(), ['../b.ts', './a.ts', './c.ts', './e.ts', './f.ts', './g.ts'])
  })

  test('a folder imports only folders of lower layers', () => {
    const wrong: string[] = []
    for (const { path, imports } of SOURCES) {
      const from = folderOf(path)
      if (from === 'root') continue
      const layer = LAYERS.findIndex((folders) => folders.includes(from))
      if (layer < 0) {
        wrong.push(`${path}: src/${from}/ is in no layer`)
        continue
      }
      const allowed = LAYERS.slice(0, layer).flat()
      for (const target of imports) {
        const to = target.startsWith('src/') ? folderOf(target) : target
        if (to !== from && !allowed.includes(to)) wrong.push(`${path} imports ${target}`)
      }
    }
    assert.deepEqual(wrong, [])
  })

  test('modules of Node and packages that take much memory are loaded when needed', () => {
    const wrong = SOURCES.flatMap(({ path, text }) =>
      [...code(text).matchAll(/^import (?!type\b).*from '(node:https?2?|node:tls|undici|@aws-sdk\/.*|pg)'/gm)]
        .map(([, name = '']) => `${path} imports ${name}`)
        .filter((line) => !MAY_LOAD.some((allowed) => line.startsWith(allowed))),
    )
    assert.deepEqual(wrong, [])
  })

  test('a process starts without packages that it does not use', () => {
    const texts = new Map(SOURCES.map(({ path, text }) => [path, text]))
    const loaded = new Map<string, string>()
    const load = (path: string): void => {
      for (const [, target = ''] of code(texts.get(path) ?? '').matchAll(LOADING)) {
        const name = target.startsWith('.')
          ? join(dirname(path), target)
          : target.replace(/^([^@/]+)\/.*/, '$1')
        if (loaded.has(name)) continue
        loaded.set(name, path)
        load(name)
      }
    }
    for (const [entry, packages] of Object.entries(NOT_AT_START)) {
      loaded.clear()
      load(entry)
      assert.ok(loaded.has('src/domain/errors.ts'), 'imports are found')
      const wrong = packages.filter((name) => loaded.has(name))
      assert.deepEqual(
        wrong.map((name) => `${loaded.get(name)} loads ${name} into ${entry}`),
        [],
      )
    }
  })

  /** Modules that a browser can run: they import nothing but each other. They become part of its script. */
  const SHARED_WITH_CONSOLE = [
    'src/domain/batch.ts',
    'src/domain/days.ts',
    'src/domain/entity.ts',
    'src/domain/event.ts',
    'src/domain/json-record.ts',
    'src/domain/limit.ts',
    'src/domain/server-state.ts',
    'src/domain/waiting-text.ts',
    'src/tables/column-order.ts',
  ]

  test('the console runs in a browser: of the rest of src/ it uses types and a few tables', () => {
    const wrong: string[] = []
    for (const { path, text } of SOURCES.filter(({ path }) => path.startsWith('src/console/'))) {
      const values = importsOf(text.replace(/^\s*import\s+type\b[^'"]*['"][^'"]+['"]/gm, ''))
      for (const target of values.map((target) => join(dirname(path), target)))
        if (!target.startsWith('src/console/') && !SHARED_WITH_CONSOLE.includes(target))
          wrong.push(`${path} imports ${target}`)
    }
    assert.deepEqual(wrong, [])
    for (const { path, imports } of SOURCES.filter(({ path }) => SHARED_WITH_CONSOLE.includes(path)))
      assert.deepEqual(
        imports.filter((target) => !SHARED_WITH_CONSOLE.includes(target)),
        [],
        path,
      )
  })

  test('only the composition root imports an adapter', () => {
    const wrong: string[] = []
    for (const { path, imports } of SOURCES) {
      if (folderOf(path) === 'root') continue
      for (const target of imports) {
        const adapter = ADAPTERS.find((folder) => target.startsWith(`src/${folder}/`))
        if (adapter !== undefined && !path.startsWith(`src/${adapter}/`))
          wrong.push(`${path} imports ${target}`)
      }
    }
    assert.deepEqual(wrong, [])
  })

  test('every exception is still needed', () => {
    const paths = new Set(SOURCES.map(({ path }) => path))
    assert.deepEqual(
      [...MAY_TELL_TIME.keys()].filter((path) => !paths.has(path)),
      [],
    )
  })

  test('there is no import cycle, also not through types', () => {
    const graph = new Map(SOURCES.map(({ path, imports }) => [path, imports]))
    const done = new Set<string>()
    const cycles: string[] = []
    const visit = (path: string, trail: readonly string[]): void => {
      if (trail.includes(path)) cycles.push([...trail.slice(trail.indexOf(path)), path].join(' → '))
      if (done.has(path) || trail.includes(path)) return
      for (const target of graph.get(path) ?? []) visit(target, [...trail, path])
      done.add(path)
    }
    for (const path of graph.keys()) visit(path, [])
    assert.deepEqual(cycles, [])
  })

  test('no file has a vague name', () => {
    const vague = SOURCES.map(({ path }) => path).filter((path) =>
      path.split('/').some((part) => VAGUE_NAMES.test(basename(part, '.ts'))),
    )
    assert.deepEqual(vague, [])
  })

  test('every file begins with a comment that says what it is for', () => {
    const support = globSync('test/support/*.ts', { cwd: ROOT })
    const texts = support.map((path) => ({ path, text: readFileSync(join(ROOT, path), 'utf8') }))
    const bare = [...SOURCES, ...texts].filter(({ text }) => !text.startsWith('//'))
    assert.deepEqual(
      bare.map(({ path }) => path),
      [],
    )
  })

  test('no module has a default export', () => {
    const wrong = SOURCES.filter(({ text }) => /^\s*export\s+default\b|\bas\s+default\b/m.test(code(text)))
    assert.deepEqual(
      wrong.map(({ path }) => path),
      [],
    )
  })

  test('time comes from a clock', () => {
    const timeSource = /\bDate\.now\b|\bnew Date\(\s*\)|\bDate\(\s*\)|\bset(Timeout|Interval)\b|node:timers/
    const wrong = SOURCES.filter(({ path }) => !MAY_TELL_TIME.has(path)).filter(({ text }) =>
      timeSource.test(code(text)),
    )
    assert.deepEqual(
      wrong.map(({ path }) => path),
      [],
    )
  })
})

describe('pages that follow tables', () => {
  const page = readFileSync(join(ROOT, 'docs/state-machine.md'), 'utf8')
  const [batches = '', files = '', remoteBatches = '', lines = ''] = page.split(/^## /m).slice(1)

  test('tests take nothing of the environment that they run in for Offpeak', () => {
    const tests = globSync(['test/**/*.ts', 'src/**/*.test.ts'], { cwd: ROOT })
    const whole =
      /\.\.\.process\.env\b|\((process\.env)\)|= process\.env$|process\.env\.OFFPEAK_(?!TEST_|HOSTS_)/m
    const wrong = tests.filter((path) => whole.test(code(readFileSync(join(ROOT, path), 'utf8'))))
    assert.deepEqual(wrong.sort(), [...MAY_READ_ENVIRONMENT].sort())
    // A process that is started without an environment inherits all of it.
    const starts = tests.filter((path) => {
      const text = readFileSync(join(ROOT, path), 'utf8')
      const isStarted = /new URL\('[./]*(?:(?:src\/)?main\.ts|bin\/offpeak\.js)'|\[OFFPEAK\b/.test(text)
      return isStarted && !/\bcleanEnv\(|\benv\b/.test(text)
    })
    assert.deepEqual(starts, [])
  })

  test('npm test runs each test file once, but for the long ones', () => {
    const grouped = Object.values(GROUPS).flat()
    const all = globSync('{src,test,bench}/**/*.test.ts', { cwd: ROOT, exclude: ['**/*.long.test.ts'] })
    assert.deepEqual(grouped.sort(), all.sort())
    const files = Object.keys(GROUPS).map((name) => `test/groups/${name}.ts`)
    assert.deepEqual(globSync('test/groups/*', { cwd: ROOT }).sort(), files.sort())
    for (const [name, file] of Object.keys(GROUPS).map((name) => [name, `test/groups/${name}.ts`] as const))
      assert.ok(readFileSync(join(ROOT, file), 'utf8').includes(`runGroup('${name}')`), file)
  })

  test('every file that a page names exists', () => {
    const tree = globSync('{*,.ci/*,{bench,bin,deploy,docs,examples,model,src,test}/**/*}', { cwd: ROOT })
    const ends = new Set(tree.flatMap((path) => path.split('/').map((_, i, all) => all.slice(i).join('/'))))
    const exists = (path: string): boolean =>
      path.includes('*')
        ? globSync([path, `{src,test}/**/${path}`], { cwd: ROOT }).length > 0
        : ends.has(path)
    const wrong: string[] = []
    for (const page of tree.filter((path) => path.endsWith('.md') && !NO_PAGES.includes(path))) {
      const text = readFileSync(join(ROOT, page), 'utf8')
      const named = Array.from(text.matchAll(NAMED_FILE), ([path]) => path.replace(/^(\.\.\/)+|\/$/g, ''))
      const linked = Array.from(text.matchAll(/\]\((?!https?:)([^)#\s]+)/g), ([, path = '']) =>
        join(dirname(page), path).replace(/\/$/, ''),
      )
      const missing = [
        ...named.filter((path) => !exists(path)),
        ...linked.filter((path) => !tree.includes(path)),
      ]
      wrong.push(
        ...missing.filter((path) => !MADE_BY_READERS.includes(path)).map((path) => `${page}: ${path}`),
      )
    }
    assert.deepEqual(wrong, [])
  })

  test('every heading that a page links to exists', () => {
    const text = (page: string) => readFileSync(join(ROOT, page), 'utf8').replace(/^```.*?^```/gms, '')
    const anchors = (page: string) => [
      ...Array.from(text(page).matchAll(/^#+ (.*)$/gm), ([, heading = '']) =>
        heading
          .toLowerCase()
          .replace(/[^\p{L}\p{N} _-]/gu, '')
          .replaceAll(' ', '-'),
      ),
      ...Array.from(text(page).matchAll(/<a id="([^"]+)">/g), ([, id]) => id),
    ]
    const pages = globSync(['*.md', '{bench,deploy,docs,examples,model}/**/*.md'], { cwd: ROOT })
    const wrong = pages.flatMap((page) =>
      Array.from(text(page).matchAll(/\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)/g))
        .filter(([, path = '', anchor]) => !anchors(path ? join(dirname(page), path) : page).includes(anchor))
        .map(([link]) => `${page}: ${link}`),
    )
    assert.deepEqual(wrong, [])
  })

  test('every variable of the environment that the service reads is in the docs', () => {
    const docs = globSync('docs/*.md', { cwd: ROOT }).map((path) => readFileSync(join(ROOT, path), 'utf8'))
    const words = new Set(docs.join('\n').match(/[A-Z0-9_]+/g))
    const reads =
      /(?:\benv\??\.|\benv(?:ironment)?\??\[['"]|\bvariable\(['"]|['"](?=(?:OFFPEAK|AWS|OTEL)_))([A-Z][A-Z0-9_]+)\b/g
    const read = SOURCES.flatMap(({ text }) =>
      Array.from(code(text).matchAll(reads), ([, name = '']) => name),
    )
    assert.ok(read.length > 20, 'variables are found')
    assert.deepEqual(
      read.filter((name) => !words.has(name)),
      [],
    )
  })

  test('docs/errors.md, and the windows in docs/limits.md, are what npm run docs writes', () => {
    assert.equal(readFileSync(join(ROOT, 'docs/errors.md'), 'utf8'), errorsPage())
    assert.equal(readFileSync(join(ROOT, 'docs/limits.md'), 'utf8'), limitsPage())
  })

  test('the picture of docs/state-machine.md is what npm run docs draws', () => {
    assert.equal(page, statesPage())
  })

  test('docs/state-machine.md has exactly the transitions of a batch', () => {
    const moves = BATCH_STATUSES.flatMap((from) => BATCH_TRANSITIONS[from].map((to) => `${from} → ${to}`))
    assertTransitions(batches, moves, BATCH_STATUSES.filter(isTerminal))
  })

  test('docs/state-machine.md has exactly the transitions of a file', () => {
    const moves = FILE_STATUSES.flatMap((from) => FILE_TRANSITIONS[from].map((to) => `${from} → ${to}`))
    const terminal = FILE_STATUSES.filter((status) => FILE_TRANSITIONS[status].length === 0)
    assertTransitions(files, moves, terminal)
  })

  test('docs/state-machine.md has exactly the transitions of a remote batch', () => {
    assertTransitions(remoteBatches, REMOTE_BATCH_EDGES, ['done'])
  })

  test('docs/state-machine.md has exactly the transitions of a line', () => {
    const rows = lines.matchAll(/^\| `([a-z ]+)` \| [^|]+ \| ([^|]*)\|$/gm)
    const drawn = Array.from(rows, ([, from, cell = '']) => [
      from,
      Array.from(cell.matchAll(/`([a-z ]+)`/g), ([, to]) => to),
    ])
    assert.deepEqual(Object.fromEntries(drawn), LINE_TRANSITIONS)
  })

  test('model/Steps.tla has exactly the transitions of a remote batch and of a line', () => {
    const modelled = REMOTE_BATCH_STEPS.map(({ from, to }) => edge(from, to))
    assert.deepEqual(modelled.sort(), REMOTE_BATCH_EDGES.sort())
    const edges = LINE_STATES.flatMap((from) => LINE_TRANSITIONS[from].map((to) => edge(from, to)))
    assert.deepEqual([...LINE_STEPS].sort(), edges.sort())
  })

  test('each constant of a model that is a guard is taken out by npm run model', () => {
    for (const [model, { guards }] of Object.entries(MODELS)) {
      const cfg = readFileSync(join(ROOT, `model/${model}.cfg`), 'utf8')
      const named = Array.from(cfg.matchAll(/^ {2}(\w+) = TRUE$/gm), ([, name]) => name)
      assert.deepEqual(Object.keys(guards), named, model)
    }
  })

  /** Diagram, table and prose of a section match the code. */
  function assertTransitions(section: string, moves: readonly string[], terminal: readonly string[]): void {
    const arrows = [...section.matchAll(/^ {2}(\w+|\[\*\]) --> (\w+|\[\*\])$/gm)]
    const drawn = arrows.filter(([, from, to]) => from !== '[*]' && to !== '[*]')
    const ends = arrows.filter(([, , to]) => to === '[*]')
    const rows = [...section.matchAll(/^\| `(\w+)` \| [^|]+ \| `(\w+)` \| [^|]+ \|$/gm)]
    if (section.includes('mermaid')) {
      assert.deepEqual(drawn.map(([, from, to]) => `${from} → ${to}`).sort(), [...moves].sort())
      assert.deepEqual(ends.map(([, from]) => from).sort(), [...terminal].sort())
    }
    assert.deepEqual(rows.map(([, from, to]) => `${from} → ${to}`).sort(), [...moves].sort())
    const sentence = section.split('\n\n').find((paragraph) => paragraph.includes(' are terminal'))
    for (const status of terminal)
      assert.ok(sentence?.includes(`\`${status}\``), `${status} is called terminal`)
  }
})
