import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { runOffpeak } from '../../../test/fakes/offpeak.ts'

async function scriptFor(shell: string): Promise<string> {
  const { code, out, err } = await runOffpeak(['completion', shell])
  assert.equal(code, 0, err)
  return out
}

const isMissing = (shell: string): string | false =>
  spawnSync(shell, ['--version']).error === undefined ? false : `${shell} is not installed`

/** Makes the shell run `commands` after the script, and `before` in front of it. */
async function inShell(shell: string, commands: string, before = ''): Promise<string> {
  const folder = mkdtempSync(join(tmpdir(), 'offpeak-completion-'))
  try {
    writeFileSync(join(folder, 'script'), await scriptFor(shell))
    const flags = { bash: ['--norc'], zsh: ['-f'], fish: ['--no-config'] }[shell] ?? []
    const all = `${before}\nsource ${join(folder, 'script')}\n${commands}`
    return execFileSync(shell, [...flags, '-c', all], { encoding: 'utf8', cwd: folder }).trim()
  } finally {
    rmSync(folder, { recursive: true })
  }
}

const TYPED: readonly [words: readonly string[], found: string][] = [
  [['comp'], 'completion'],
  [['batches', 'li'], 'list'],
  [['batches', 'list', '--sta'], '--status'],
  [['batches', '--json', 'list', '--sta'], '--status'],
  [['run', 'input.jsonl', '--est'], '--estimate'],
  [['batches', 'batc'], ''],
]

test('bash completes commands, and the options of the command that was typed', {
  skip: isMissing('bash'),
}, async () => {
  const lines = TYPED.map(
    ([words]) =>
      `COMP_WORDS=(offpeak ${words.join(' ')}); COMP_CWORD=${words.length}; _offpeak; echo "\${COMPREPLY[@]}"`,
  )
  const found = await inShell('bash', lines.join('\n'))
  assert.deepEqual(
    `${found}\n`.split('\n').slice(0, TYPED.length),
    TYPED.map(([, word]) => word),
  )
})

test('fish completes them with their descriptions', { skip: isMissing('fish') }, async () => {
  for (const [words, word] of TYPED) {
    const found = await inShell('fish', `complete -C "offpeak ${words.join(' ')}"`)
    assert.equal(found.split('\t')[0], word)
  }
})

test('zsh is told all that may follow, with descriptions', { skip: isMissing('zsh') }, async () => {
  // Stubs of the functions that completion in a terminal defines.
  const own = 'compdef() { :; }; _describe() { print -rl -- $found; }; _files() { print files; }'
  for (const [words, word] of TYPED) {
    const found = await inShell(
      'zsh',
      `words=(offpeak ${words.join(' ')}); CURRENT=${words.length + 1}; _offpeak`,
      own,
    )
    if (word !== '') assert.match(found, new RegExp(`^${word}:\\w`, 'm'))
  }
})

test('an unknown shell is told which there are', async () => {
  await assert.rejects(scriptFor('tcsh'), /bash, zsh, fish/)
})
