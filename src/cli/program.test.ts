import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { cp, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { Command } from 'commander'
import { launchOnly } from '../../test/fakes/offpeak.ts'
import { capturedTerminal } from '../../test/fakes/terminal.ts'
import { systemClock } from '../domain/clock.ts'
import { COMMANDS, runProgram } from './program.ts'
import type { Shell } from './shell.ts'

/** Options of most commands, which the beginning of docs/cli.md describes. */
const EVERYWHERE = ['--json', '--config', '--data']

test('every function that adds a command is called', () => {
  const folder = new URL('./commands/', import.meta.url)
  const adding = readdirSync(folder)
    .filter((file) => !file.includes('.test.'))
    .flatMap((file) => [
      ...readFileSync(new URL(file, folder), 'utf8').matchAll(/^export function add[A-Z]\w*\(program/gm),
    ])
  assert.equal(COMMANDS.length, adding.length)
})

test('docs/cli.md names every command, and beside it each of its options', () => {
  const program = new Command('offpeak')
  for (const add of COMMANDS) add(program, shell)
  const page = readFileSync(new URL('../../docs/cli.md', import.meta.url), 'utf8')
  const [lead = '', ...sections] = page.split(/^## (?=offpeak )/m)
  const wrong: string[] = []
  const check = (command: Command, path: string): void => {
    const [first = ''] = path.split(' ')
    const section = sections.find((text) => new RegExp(`^offpeak .*\\b${first}\\b`).test(text)) ?? lead
    // The rows and items of the section that begin with the command; else the section.
    const own = section
      .split(/\n(?=\| |- |\n)/)
      .filter((part) => new RegExp(`^[|-] .*\`${path}\\b`).test(part))
      .join('\n')
    const text = own === '' && path === first ? section : own
    if (!text.includes(path)) wrong.push(path)
    for (const { long, short } of command.options) {
      const isNamed = [long, short].some((name) => name && new RegExp(`${name}\\b(?!-)`).test(text))
      if (!isNamed && !EVERYWHERE.includes(long!)) wrong.push(`${path} ${long}`)
    }
    for (const one of command.commands) check(one, `${path} ${one.name()}`)
  }
  for (const command of program.commands) check(command, command.name())
  assert.deepEqual(wrong, [])
  for (const name of EVERYWHERE) assert.ok(lead.includes(name), name)
})

test('a quiet command prints its result alone, and errors all the same', async () => {
  const run = async (...args: string[]) => {
    const terminal = capturedTerminal()
    const code = await runProgram(args, { ...shell, terminal, withStack: false })
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
    assert.equal(await runProgram([name], { ...shell, terminal, withStack: false }), 0)
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
  version: '1.2.3',
  interruption: () => new AbortController().signal,
  exit: () => assert.fail(),
}
