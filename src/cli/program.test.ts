import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { cp, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { Command } from 'commander'
import { launchOnly } from '../../test/fakes/launch-only.ts'
import { capturedTerminal } from '../../test/fakes/terminal.ts'
import { systemClock } from '../domain/clock.ts'
import { COMMANDS, runProgram } from './program.ts'
import type { Shell } from './shell.ts'

test('every function that adds a command is called', () => {
  const folder = new URL('./commands/', import.meta.url)
  const adding = readdirSync(folder)
    .filter((file) => !file.includes('.test.'))
    .flatMap((file) => [
      ...readFileSync(new URL(file, folder), 'utf8').matchAll(/^export function add[A-Z]\w*\(program/gm),
    ])
  assert.equal(COMMANDS.length, adding.length)
})

test('docs/ name every command and every option', () => {
  const program = new Command('offpeak')
  for (const add of COMMANDS) add(program, shell)
  const pages = ['cli', 'tables', 'operations', 'configuration', 'simulator', 'endpoints', 'upgrading']
  const text = pages.map((name) => readFileSync(new URL(`../../docs/${name}.md`, import.meta.url), 'utf8'))
  const words = new Set(text.join('\n').match(/[\w-]+/g))
  const unnamed = (command: Command, path: string): string[] => [
    ...command.options.map(({ long }) => long ?? '').filter((name) => !words.has(name)),
    ...command.commands.flatMap((one) => unnamed(one, `${path} ${one.name()}`)),
    ...(words.has(command.name()) ? [] : [path]),
  ]
  assert.deepEqual(unnamed(program, 'offpeak'), [])
})

test('a quiet command prints its result alone, and errors all the same', async () => {
  const run = async (...args: string[]) => {
    const terminal = capturedTerminal()
    const code = await runProgram(args, { ...shell, terminal, version: '1.2.3', withStack: false })
    return { code, out: terminal.out(), err: terminal.err() }
  }
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-quiet-'))
  try {
    const table = join(folder, 'rows.csv')
    await writeFile(table, 'text\na\nb\n')
    const prepare = [
      'prepare',
      table,
      '--model',
      'm',
      '--prompt',
      '{{text}}',
      '-o',
      join(folder, 'out.jsonl'),
    ]
    assert.match((await run(...prepare)).err, /2 lines/)
    assert.deepEqual(await run(...prepare, '--quiet'), { code: 0, out: '', err: '' })
    const failed = await run('-q', ...prepare)
    assert.match(failed.err, /unknown option '-q'/)
    const missing = await run(...prepare.slice(0, 1), join(folder, 'none.csv'), ...prepare.slice(2), '-q')
    assert.deepEqual([missing.code, missing.out], [1, ''])
    assert.match(missing.err, /none\.csv/)
  } finally {
    await rm(folder, { recursive: true })
  }
})

test('-v, -V and --version print the version', async () => {
  for (const name of ['-v', '-V', '--version']) {
    const terminal = capturedTerminal()
    assert.equal(await runProgram([name], { ...shell, terminal, version: '1.2.3', withStack: false }), 0)
    assert.equal(terminal.out(), '1.2.3\n')
  }
})

test('the version is printed without loading the program', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-version-'))
  try {
    await cp(new URL('../../bin', import.meta.url), join(folder, 'bin'), { recursive: true })
    await writeFile(join(folder, 'package.json'), '{"version":"1.2.3","type":"module"}')
    for (const name of ['-v', '-V', '--version'])
      assert.equal(
        execFileSync(process.execPath, [join(folder, 'bin/offpeak.js'), name], { encoding: 'utf8' }),
        '1.2.3\n',
      )
  } finally {
    await rm(folder, { recursive: true })
  }
})

test('what was compiled is kept in the cache of the user, unless it cannot be', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-cache-'))
  try {
    await cp(new URL('../../bin', import.meta.url), join(folder, 'bin'), { recursive: true })
    await mkdir(join(folder, 'dist'))
    await writeFile(join(folder, 'package.json'), '{"version":"1.2.3","type":"module"}')
    await writeFile(join(folder, 'dist/main.js'), 'console.log("started")')
    const start = (env: NodeJS.ProcessEnv): string =>
      execFileSync(process.execPath, [join(folder, 'bin/offpeak.js'), 'help'], { encoding: 'utf8', env })
    assert.equal(start({ HOME: folder }), 'started\n')
    assert.ok(existsSync(join(folder, '.cache/offpeak')))
    assert.equal(start({ XDG_CACHE_HOME: join(folder, 'xdg') }), 'started\n')
    assert.ok(existsSync(join(folder, 'xdg/offpeak')))
    assert.equal(start({}), 'started\n')
    assert.equal(start({ HOME: join(folder, 'package.json') }), 'started\n')
  } finally {
    await rm(folder, { recursive: true })
  }
})

const shell: Shell = {
  launch: launchOnly(),
  access: { baseUrl: undefined, apiKey: undefined },
  env: {},
  terminal: { stdout: process.stdout, stderr: process.stderr },
  clock: systemClock,
  interruption: () => new AbortController().signal,
  exit: () => assert.fail(),
}
