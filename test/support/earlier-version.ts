// An earlier version of the program, from the history of the repository: its sources in a folder of their own, on the
// packages of this one.
import { execFileSync } from 'node:child_process'
import { mkdirSync, readdirSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const MIGRATIONS = 'src/store/migrations'

/** The commit before the first migration behind `migration` (its number, such as 0003); or why there is none to be had. */
export function versionAt(migration: string): { commit: string } | { missing: string } {
  const later = readdirSync(join(ROOT, MIGRATIONS)).filter(
    (name) => /^\d{4}-.*\.ts$/.test(name) && name.slice(0, 4) > migration,
  )
  if (later.length === 0)
    return { missing: `needs a migration after ${migration}: no earlier schema can be upgraded to this one` }
  try {
    if (git('rev-parse', '--is-shallow-repository') === 'true')
      return { missing: 'needs the history of the repository, and this clone is shallow' }
    const added = git(
      'log',
      '--reverse',
      '--diff-filter=A',
      '--format=%H',
      '--',
      ...later.map((name) => `${MIGRATIONS}/${name}`),
    )
    const [first] = added.split('\n').filter(Boolean)
    if (first === undefined) return { missing: `needs the migrations after ${migration} in the history` }
    return { commit: git('rev-parse', '--verify', `${first}^`) }
  } catch {
    return { missing: 'needs the history of the repository, and this is no clone of it' }
  }
}

/** Puts the sources of `commit` into `folder`; returns what starts the program. */
export function extract(commit: string, folder: string): string {
  mkdirSync(folder, { recursive: true })
  const archive = execFileSync('git', ['archive', commit, 'src', 'bin', 'package.json'], {
    cwd: ROOT,
    maxBuffer: 2 ** 28,
  })
  execFileSync('tar', ['-x', '-C', folder], { input: archive })
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'))
  return join(folder, 'bin/offpeak.js')
}

function git(...args: string[]): string {
  return execFileSync('git', args, {
    cwd: ROOT,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'ignore'],
  }).trim()
}
