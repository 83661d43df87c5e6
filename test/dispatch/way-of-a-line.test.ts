// The way of a line of an ordinary batch through src/dispatch and src/servers, as V8 counts the calls: whatever a batch costs as a whole
// drops out, since two batches are compared that differ in their number of lines.
import assert from 'node:assert/strict'
import { Session } from 'node:inspector/promises'
import { test } from 'node:test'
import { workerWorld } from '../support/worker-world.ts'

const SRC = new URL('../../src/', import.meta.url).href
/** Lines of the two batches. */
const SIZES = [10, 30] as const
/** By folder: files that act on a line or hold what is known of it, and those that know its server. */
const FILES_MAX = { dispatch: 12, servers: 3 }
/** By file, the functions by which a line comes there: once when it is placed, sent and ended. */
const VISITS: Readonly<Record<string, readonly string[]>> = {
  'line-state.ts': ['next'],
  'lines.ts': ['begin', 'answered'],
  'gates/pauses.ts': ['until'],
  'gates/limits/reserved-funds.ts': ['until', 'covers', 'ended'],
  'gates/retries.ts': ['until', 'hasMissed', 'attemptOf'],
  'senders/lane.ts': ['prefersServers', '#next', 'answered'],
  'senders/fair-queue.ts': ['#nextOf'],
  'senders/routes.ts': ['chooseServer'],
  'senders/sender.ts': ['#send', '#onResult'],
}
const VISITS_MAX = 3

function isIn(url: string, folder: keyof typeof FILES_MAX): boolean {
  return url.startsWith(`${SRC}${folder}/`)
}

/** By file and function, how often it was called while a batch of one chunk was answered. */
async function callsFor(session: Session, lines: number): Promise<Map<string, number>> {
  await using world = await workerWorld({ chunks: 1, lines, concurrency: 1_000 })
  await session.post('Profiler.takePreciseCoverage')
  await world.worker.start()
  await world.until(() => world.server.inFlight.length === lines, 10)
  for (const attempt of [...world.server.inFlight]) await attempt.answer()
  await world.until(() => world.ended.length > 0, 10)
  const calls = new Map<string, number>()
  const { result } = await session.post('Profiler.takePreciseCoverage')
  for (const { url, functions } of result)
    for (const { functionName, ranges } of isIn(url, 'dispatch') || isIn(url, 'servers') ? functions : []) {
      const name = `${url.slice(SRC.length)} ${functionName}`
      calls.set(name, (calls.get(name) ?? 0) + ranges[0]!.count)
    }
  return calls
}

test('a line is placed, sent and ended once, on a way through few files', async () => {
  const session = new Session()
  session.connect()
  await session.post('Profiler.enable')
  await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false })
  const [few, many] = [await callsFor(session, SIZES[0]), await callsFor(session, SIZES[1])]
  session.disconnect()
  const perLine = new Map(
    [...many].map(([name, count]) => [name, (count - (few.get(name) ?? 0)) / (SIZES[1] - SIZES[0])]),
  )
  const visits = Object.entries(VISITS)
  const names = visits.flatMap(([file, functions]) => functions.map((name) => `dispatch/${file} ${name}`))
  assert.deepEqual(
    Object.fromEntries(names.map((name) => [name, perLine.get(name)])),
    Object.fromEntries(names.map((name) => [name, 1])),
  )
  for (const [file, functions] of visits) assert.ok(functions.length <= VISITS_MAX, file)
  const files = [
    ...new Set([...perLine].filter(([, calls]) => calls > 0.5).map(([name]) => name.split(' ', 1)[0]!)),
  ]
  for (const [folder, max] of Object.entries(FILES_MAX)) {
    const own = files.filter((file) => file.startsWith(`${folder}/`))
    assert.ok(own.length <= max, own.sort().join(', '))
  }
})
