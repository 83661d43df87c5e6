// Runs all test files but the long ones in a few processes, for `npm test`. A file on its own spends most of its time
// on starting a process and loading the whole service; the files of a group share both. Their folders lie in memory
// where there is plenty: hundreds of services start on a new database. The processes that tests start load the service from
// a cache of compiled modules, in half of the CPU time.
import { existsSync, globSync, statfsSync, writeSync } from 'node:fs'
import { enableCompileCache, flushCompileCache } from 'node:module'
import { beforeEach, test } from 'node:test'
import { fileURLToPath } from 'node:url'

const ROOT = new URL('../../', import.meta.url)

const COMPILED = fileURLToPath(new URL('node_modules/.cache/compiled/', ROOT))

const MEMORY = '/dev/shm'
const MEMORY_BYTES_MIN = 1024 ** 3

/** Twice what a test may take: see `--test-timeout` in package.json. */
const STUCK_MS = 120_000

/** IDs of one process never go back in time: these tests read the time from IDs, so no other may come before them. */
const TIMES_OF_IDS = ['src/audit/http-record.test.ts', 'src/http/routes/list-requests.test.ts']

/** The name of each file in test/groups/, and its test files relative to the repository. */
export const GROUPS = groups()

export type GroupName = keyof ReturnType<typeof groups>

/** Loads the test files of a group. No test runs before all are loaded: loading blocks the process. */
export async function runGroup(name: GroupName): Promise<void> {
  if (existsSync(MEMORY)) {
    const { bavail, bsize } = statfsSync(MEMORY)
    if (bavail * bsize >= MEMORY_BYTES_MIN) process.env.TMPDIR ??= MEMORY
  }
  process.env.NODE_COMPILE_CACHE ??= COMPILED
  enableCompileCache(process.env.NODE_COMPILE_CACHE)
  endIfStuck(name)
  const loaded = Promise.withResolvers<void>()
  test(`the files of the group "${name}" are loaded`, () => loaded.promise)
  for (const file of GROUPS[name]) await import(new URL(file, ROOT).href)
  flushCompileCache()
  loaded.resolve()
}

/** Ends the process with an error if no test has begun for long: clean-up that waits for ever has no time limit of its own,
 * and a handle that is left open keeps the process after its last test. The error names both. */
function endIfStuck(name: GroupName): void {
  let last = 'none'
  const stuck = setTimeout(() => {
    const open = process.getActiveResourcesInfo().join(', ')
    const after = `The group "${name}" has begun no test for ${STUCK_MS / 1000} s after "${last}".`
    writeSync(process.stderr.fd, `${after} It is kept open by: ${open || 'nothing'}.\n`)
    process.exit(1)
  }, STUCK_MS).unref()
  beforeEach((context) => {
    last = context.name
    stuck.refresh()
  })
}

function groups() {
  const service = files('test/**/*.test.ts')
  const units = files('{src,bench}/**/*.test.ts').filter((file) => !file.startsWith('src/http/'))
  // Files of one folder wait for the same things: they are dealt out. The groups run in the order of their names, so the last
  // ones are as long as each other.
  const part = (all: string[], number: number, of: number): string[] =>
    all.filter((_, i) => i % of === number - 1)
  return {
    'service-1': part(service, 1, 3),
    'service-2': part(service, 2, 3),
    'service-3': part(service, 3, 3),
    'units-1': part(units, 1, 2),
    'units-2': part(units, 2, 2),
    http: files('src/http/**/*.test.ts'),
    'times-of-ids': TIMES_OF_IDS,
  }
}

function files(pattern: string): string[] {
  const exclude = ['**/*.long.test.ts', ...TIMES_OF_IDS]
  return globSync(pattern, { cwd: ROOT.pathname, exclude }).sort()
}
