#!/usr/bin/env node
// Starts the command line: from the build, or in a clone whose sources have changed since, from these.
import { chmodSync, existsSync, mkdirSync, readFileSync, statSync } from 'node:fs'
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
// become old before they are garbage. The old ones are collected whenever they have doubled
// (docs/decisions/0035-heap-flags.md).
const HEAP = ['--max-semi-space-size=16', '--heap-growing-percent=100']
// glibc creates a memory arena for each thread, of which two are enough, and raises its thresholds after large buffers
// are freed, which fragments the heap. All of this is read when a process starts, so a service starts itself anew; its
// workers get the same.
const ALLOCATOR = {
  MALLOC_ARENA_MAX: '2',
  MALLOC_MMAP_THRESHOLD_: String(256 * 1024),
  MALLOC_TRIM_THRESHOLD_: String(1024 * 1024),
}
// What V8 has compiled, and in a clone what was left of the types, is read from the user's cache the next time, by worker
// processes as well. It is in nobody else's reach, unlike the folder for temporary files; where it cannot be written,
// everything is compiled anew.
const { XDG_CACHE_HOME, HOME } = process.env
const caches = XDG_CACHE_HOME || (HOME && `${HOME}/.cache`)
if (caches && !process.env.NODE_COMPILE_CACHE) {
  process.env.NODE_COMPILE_CACHE = `${caches}/offpeak`
  closeToOthers(process.env.NODE_COMPILE_CACHE)
}
const startsService = ['serve', 'api', 'worker', 'run'].includes(process.argv[2] ?? '')
const isStartedAnew = HEAP.every((flag) => process.execArgv.includes(flag))
if (startsService && process.platform === 'linux' && !isStartedAnew)
  process.execve?.(
    process.execPath,
    [process.execPath, ...HEAP, ...process.execArgv, ...process.argv.slice(1)],
    { ...ALLOCATOR, ...process.env },
  )
// SIGHUP asks a service for a reload: one that comes while it starts is told again to its handler.
if (['serve', 'api', 'worker'].includes(process.argv[2])) {
  let early = false
  process.on('SIGHUP', () => {
    early ||= process.listenerCount('SIGHUP') === 1
  })
  process.on('newListener', (event) => {
    if (event === 'SIGHUP' && early) setImmediate(() => process.emit('SIGHUP'))
    if (event === 'SIGHUP') early = false
  })
}
if (process.env.NODE_COMPILE_CACHE) module.enableCompileCache()
// Node makes it as open as the umask lets it.
closeToOthers(module.getCompileCacheDir())
const root = new URL('..', import.meta.url)
await import(new URL(isBuilt() ? 'dist/main.js' : 'src/main.ts', root).href)

/** Makes the folder, for this user alone whatever the umask is. Where it is not this user's, everything is compiled anew. */
function closeToOthers(folder) {
  if (!folder) return
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 })
    chmodSync(folder, 0o700)
  } catch {
    process.env.NODE_DISABLE_COMPILE_CACHE = '1'
  }
}

/** A package has no sources; in a clone, dist/ is as new as `npm ci` or `npm run build`, and stale once one of its sources has changed. */
function isBuilt() {
  if (!existsSync(new URL('src', root))) return true
  const list = fileURLToPath(new URL('dist/sources.json', root))
  if (!existsSync(list)) return false
  const changedMs = (path) => statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? Number.POSITIVE_INFINITY
  const builtMs = changedMs(list)
  const folder = fileURLToPath(root)
  return JSON.parse(readFileSync(list, 'utf8')).every((file) => changedMs(folder + file) < builtMs)
}
