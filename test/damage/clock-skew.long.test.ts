// Real processes with clock skew of more than a day, in both directions, on one PostgreSQL and one bucket. All times
// come from the database, so the skew has no effect.
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { withoutPostgres } from '../fakes/postgres-server.ts'
import { sharedStorage } from '../fakes/shared-storage.ts'
import { type Call, echo } from '../fakes/upstream.ts'
import type { WireBatch } from '../service.ts'
import { CrashTest } from '../support/crash-processes.ts'
import { type OffpeakProcess, until } from '../support/offpeak-process.ts'

/** On another day of the calendar than everybody else. */
const OFF_MS = 30 * 60 * 60_000
const PRELOAD = new URL('../fakes/skewed-clock.ts', import.meta.url).href
const LINES = 20
const LINE_TOKENS = 15
const TASK_PUT_OFF = 'a task failed; it is tried again'
const CHUNK_PUT_OFF = 'a chunk could not be opened; it is tried again later'
const WINDOW_S = 24 * 60 * 60

if (withoutPostgres) test('machines with clock skew', { skip: withoutPostgres }, () => {})
else {
  const storage = await sharedStorage()
  after(() => storage[Symbol.asyncDispose]())
  CrashTest.storage = () => storage.make()

  test('clock skew of hours, and clocks that are set while processes run, change nothing', async () => {
    await using service = await CrashTest.begin()
    const from_s = seconds(Math.floor)
    await service.start('api', off(-OFF_MS))
    const ahead = await service.start('worker', off(OFF_MS))
    const limit = await service.json<{ id: string }>('POST', '/v1/limits', {
      scope: 'project',
      metric: 'tokens',
      window: 'day',
      amount: 1_000_000,
    })

    // What the bucket refuses is put off for about a second, by a worker that is a day ahead. The task that
    // validates reads the upload, then the one that plans, then whoever opens the chunk.
    let reads = 0
    storage.s3.fault = ({ method, key }) => {
      if (method !== 'GET' || !key.endsWith('/upload')) return null
      const isPutOff = ahead.log.includes(reads === 0 ? TASK_PUT_OFF : CHUNK_PUT_OFF)
      if (reads !== 1 && !isPutOff) return { status: 400, code: 'InvalidRequest' }
      reads++
      return null
    }
    const first = await service.completed((await service.batchOf(LINES)).id)
    await service.checkResults(first, LINES)
    assert.equal(reads, 3)
    assert.match(ahead.log, /this machine's clock differs from the database's/)
    storage.s3.fault = () => null

    // A worker that is a day behind joins, and while lines are under way the other one's clock is set.
    const behind = await service.start('worker', off(-OFF_MS))
    const held: Call[] = []
    service.upstream.reply = (call) => void held.push(call)
    const { id } = await service.batchOf(LINES)
    await until(() => held.length > 0)
    ahead.child.kill('SIGUSR2')
    service.upstream.reply = echo
    for (const call of held) echo(call)
    const second = await service.completed(id)
    await service.checkResults(second, LINES)

    for (const batch of [first, second]) assertTimes(batch, from_s)
    await assertSameDay(service, limit.id, from_s)
    assert.deepEqual(await ends(ahead, behind), [0, 0])
  })
}

/** Every time that the API shows lies between then and now. */
function assertTimes(batch: WireBatch, from_s: number): void {
  const to_s = seconds(Math.ceil)
  const { created, expires_at, in_progress_at, completed_at } = batch
  for (const at of [created, in_progress_at, completed_at])
    assert.ok(Number(at) >= from_s && Number(at) <= to_s, `${at} is not in ${from_s} to ${to_s}`)
  assert.equal(expires_at, created + WINDOW_S)
}

/** All was billed on this day of the calendar, and counts for its cap. At midnight there is nothing to be shown. */
async function assertSameDay(service: CrashTest, limit_id: string, from_s: number): Promise<void> {
  const spent = 2 * LINES * LINE_TOKENS
  await service.json('POST', `/v1/limits/${limit_id}`, { amount: spent })
  const refused = await service.batchOf(LINES).then(() => 'it was let in', String)
  const path = '/v1/usage/entities?group_by=day'
  const { groups } = await service.json<{ groups: { day: string; total_tokens: number }[] }>('GET', path)
  const day = dayOf(seconds(Math.ceil))
  if (dayOf(from_s) !== day) return
  assert.match(refused, new RegExp(`429 .*: ${spent} tokens are used`))
  assert.deepEqual(
    groups.map((group) => [group.day, group.total_tokens]),
    [[day, spent]],
  )
}

function dayOf(unix_s: number): string {
  return new Date(unix_s * 1000).toISOString().slice(0, 10)
}

function seconds(round: (value: number) => number): number {
  return round(Date.now() / 1000)
}

function off(ms: number): NodeJS.ProcessEnv {
  return { NODE_OPTIONS: `--import=${PRELOAD}`, OFFPEAK_TEST_CLOCK_OFF_MS: String(ms) }
}

async function ends(...processes: readonly OffpeakProcess[]): Promise<(number | null)[]> {
  return await Promise.all(processes.map((one) => one.end('SIGTERM')))
}
