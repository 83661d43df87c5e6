#!/usr/bin/env node
// Starts the command line: from the build, or in a clone whose sources have changed since, from these.
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import module from 'node:module'
import { fileURLToPath } from 'node:url'

const [major, minor] = process.versions.node.split('.').map(Number)
if (major < 24 || (major === 24 && minor < 15)) {
  console.error(
    `offpeak needs Node 24.15 or newer, and this is Node ${process.versions.node}: install a newer one from nodejs.org, or let` +
      ' npm bring one along: npx -p node@26 -p PACKAGE offpeak … (in a clone, "npx offpeak" uses the one of "npm ci").',
  )
  process.exit(1)
}
// Answered without loading the commands, which takes longer than all the rest.
if (process.argv.length === 3 && ['-v', '-V', '--version'].includes(process.argv[2])) {
  console.log(JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')).version)
  process.exit(0)
}
// Objects of a few hundred lines are alive at any time: in a larger young generation fewer of them are copied, and fewer
// become old before they are garbage (docs/decisions/0035-heap-flags.md).
const HEAP = ['--max-semi-space-size=16']
// glibc creates a memory arena for each thread, of which two are enough, and raises its thresholds after large buffers
// are freed, which fragments the heap. All of this is read when a process starts, so a service starts itself anew; its
// workers get the same.
const ALLOCATOR = {
  MALLOC_ARENA_MAX: '2',
  MALLOC_MMAP_THRESHOLD_: String(256 * 1024),
  MALLOC_TRIM_THRESHOLD_: String(1024 * 1024),
}
const startsService = ['serve', 'api', 'worker', 'run'].includes(process.argv[2] ?? '')
const isStartedAnew = HEAP.every((flag) => process.execArgv.includes(flag))
if (startsService && process.platform === 'linux' && !isStartedAnew)
  process.execve?.(
    process.execPath,
    [process.execPath, ...HEAP, ...process.execArgv, ...process.argv.slice(1)],
    { ...ALLOCATOR, ...process.env },
  )
// What V8 has compiled, and in a clone what was left of the types, is read from the user's cache the next time. It is in
// nobody else's reach, unlike the folder for temporary files; where it cannot be written, everything is compiled anew.
const { XDG_CACHE_HOME, HOME, NODE_COMPILE_CACHE } = process.env
const caches = XDG_CACHE_HOME || (HOME && `${HOME}/.cache`)
if (caches && !NODE_COMPILE_CACHE) module.enableCompileCache(`${caches}/offpeak`)
const built = new URL('../dist/main.js', import.meta.url)
const sources = new URL('../src/', import.meta.url)
await import(isBuilt() ? built.href : new URL('main.ts', sources).href)

/** A package has no sources; in a clone, dist/ is as new as `npm ci` or `npm run build`, and stale once a source has changed. */
function isBuilt() {
  if (!existsSync(sources)) return true
  const changedMs = (path) => statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0
  const builtMs = changedMs(built)
  const root = fileURLToPath(new URL('..', import.meta.url))
  const names = readdirSync(sources, { recursive: true }).filter((name) => !name.endsWith('.test.ts'))
  const files = ['build.ts', 'package-lock.json', 'src', ...names.map((name) => `src/${name}`)]
  return files.every((file) => changedMs(root + file) < builtMs)
}
