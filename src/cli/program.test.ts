import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { test } from 'node:test'
import { Command } from 'commander'
import { launchOnly } from '../../test/fakes/launch-only.ts'
import { systemClock } from '../domain/clock.ts'
import { loadCommands } from './program.ts'
import type { Shell } from './shell.ts'

async function namesAdded(name: string | undefined): Promise<string[]> {
  const program = new Command('offpeak')
  for (const add of await loadCommands(name)) add(program, shell)
  return program.commands.map((command) => command.name())
}

test('a call of one command loads its file alone, and each command is found by its name', async () => {
  const all = await namesAdded(undefined)
  for (const name of all) {
    const added = await namesAdded(name)
    assert.ok(added.includes(name), name)
    assert.ok(added.length <= 3, `${name} loads ${added}`)
  }
  assert.deepEqual(await namesAdded('no-such-command'), all, 'suggestions need all names')
  assert.deepEqual(await namesAdded('--help'), all)
})

test('every function that adds a command is among them', async () => {
  const folder = new URL('./commands/', import.meta.url)
  const adding = readdirSync(folder)
    .filter((file) => !file.includes('.test.'))
    .flatMap((file) => [
      ...readFileSync(new URL(file, folder), 'utf8').matchAll(/^export function add[A-Z]\w*\(program/gm),
    ])
  assert.equal((await loadCommands(undefined)).length, adding.length)
})

test('docs/ name every command and every option', async () => {
  const program = new Command('offpeak')
  for (const add of await loadCommands(undefined)) add(program, shell)
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

const shell: Shell = {
  launch: launchOnly(),
  access: { baseUrl: undefined, apiKey: undefined },
  env: {},
  terminal: { stdout: process.stdout, stderr: process.stderr },
  clock: systemClock,
  interruption: () => new AbortController().signal,
  exit: () => assert.fail(),
}
