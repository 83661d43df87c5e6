// The previous release as it was published: built from the commit that fixtures/releases.json names, packed, and
// cached. It runs on the packages of this clone. Types are not checked again.
import { execFileSync } from 'node:child_process'
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const CACHE = join(ROOT, 'node_modules/.cache/offpeak-releases')
const SOURCES = ['src', 'bin', 'package.json', 'tsconfig.json', 'tsconfig.build.json']

export interface Release {
  version: string
  commit: string
}

/** The last release before this version; or why it is not to be had here. */
export function previousRelease(): Release | { missing: string } {
  const { version }: { version: string } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'))
  const releases: Release[] = JSON.parse(readFileSync(join(ROOT, 'test/fixtures/releases.json'), 'utf8'))
  const release = releases.filter((each) => each.version !== version).at(-1)
  if (!release) return { missing: 'there is no earlier release' }
  if (existsSync(packed(release))) return release
  try {
    git('cat-file', '-e', `${release.commit}^{commit}`)
    return release
  } catch {
    return {
      missing: `needs the commit of ${release.version} (${release.commit}), which is not in this clone`,
    }
  }
}

/** Installs the release into `folder`; returns what starts it. */
export function install(release: Release, folder: string): string {
  if (!existsSync(packed(release))) pack(release)
  mkdirSync(folder, { recursive: true })
  execFileSync('tar', ['-xzf', packed(release), '-C', folder])
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'))
  return join(folder, 'package/bin/offpeak.js')
}

function packed({ version, commit }: Release): string {
  return join(CACHE, `offpeak-${version}-${commit.slice(0, 12)}.tgz`)
}

function pack(release: Release): void {
  const folder = mkdtempSync(join(tmpdir(), 'offpeak-release-'))
  try {
    const sources = execFileSync('git', ['archive', release.commit, ...SOURCES], {
      cwd: ROOT,
      maxBuffer: 2 ** 28,
    })
    execFileSync('tar', ['-x', '-C', folder], { input: sources })
    symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'))
    const tsc = join(ROOT, 'node_modules/.bin/tsc')
    // Compiled for an older target, as 0.1.0 was, no build can use a bucket: the compiler renames a key called "Bucket".
    execFileSync(tsc, ['--noCheck', '--target', 'esnext', '-p', 'tsconfig.build.json'], { cwd: folder })
    execFileSync('npm', ['pack', '--ignore-scripts', '--silent'], { cwd: folder })
    mkdirSync(CACHE, { recursive: true })
    // By a copy and a rename: the temporary folder may be another file system, and another test may pack as well.
    const copy = `${packed(release)}.${process.pid}`
    copyFileSync(join(folder, `offpeak-${release.version}.tgz`), copy)
    renameSync(copy, packed(release))
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

function git(...args: string[]): void {
  execFileSync('git', args, { cwd: ROOT, stdio: 'ignore' })
}
