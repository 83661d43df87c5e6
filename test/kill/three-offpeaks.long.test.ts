// A front and two cells as real processes, of which one cell is killed in the middle of its batches.
import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { setTimeout } from 'node:timers/promises'
import { type Call, echo, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { line } from '../service.ts'
import { Side } from './side.ts'

/** 10 tokens in, 5 out. */
const LINE_COST_USD = (10 * 0.1 + 5 * 0.4) / 1e6
const LINES = 10
/** Lines that a cell has in flight. */
const CONCURRENCY = 4
const METADATA = { entity: 'user:7', tags: 'nightly', conversation: 'thread-1' }
const COMMON = `
rate_limit: {requests_per_minute: 0}
listen: {stop_delay: 0s}
log: {level: info}
worker: {flush_interval: 50ms, lease: 3s, drain: 1s}`
const MODEL = `
models:
  - id: m
    price: {input_per_mtok: 0.10, output_per_mtok: 0.40}
    upstreams:`

test('lines of a cell that is killed finish at the other one and are billed once; what it still has is cancelled', async () => {
  await using world = await makeWorld('1s')
  const { front, a, b } = world
  await world.complete(await world.createAll())
  const before = a.lines()
  await world.killInMidBatch(a)
  assert.equal(a.lines(), before + 1, 'a line that the front has not read')
  await world.complete(world.open)
  const all = 2 * world.batches * LINES
  assert.equal(b.lines(), all - before, 'the other cell has answered the rest')
  assert.equal(b.server.calls.length, b.lines())
  assert.deepEqual([front.side.books(), b.side.books()], ['', ''])
  const { said, isWell } = front.side.doctor('remote')
  assert.match(said, /cell-a .*cannot be reached/)
  assert.match(said, /cell-a .*given up/)
  assert.ok(!isWell)

  await a.side.start()
  const open = (statuses: string): number =>
    a.side.rows(`SELECT id FROM batches WHERE status IN (${statuses})`).length
  await world.until(() => open("'validating', 'queued', 'in_progress'") === 0)
  // Lines that were in flight are sent again before the cancel, and end.
  a.answer()
  await world.until(() => open("'cancelling'") === 0)
  const unread = a.lines() - before
  assert.ok(unread <= 1 + CONCURRENCY)
  await world.until(() => front.side.rows("SELECT id FROM remote_batches WHERE state <> 'done'").length === 0)
  const report: Report = JSON.parse(front.side.doctor('remote', '--json').said)
  const atA = report.upstreams.find(({ upstream }) => upstream === 'cell-a')
  assert.deepEqual([atA?.answered, atA?.remote_answered], [before, before + unread])
  assert.match(String(report.differences[0]?.problem), /given up; \d lines? that it answered there/)
  assert.equal(a.side.books(), '')
  assert.equal(await world.cost(), all * LINE_COST_USD)
})

test('a cell that comes back in time finishes its batches, and no line is answered twice', async () => {
  await using world = await makeWorld('10m')
  const { front, a, b } = world
  await world.killInMidBatch(a)
  a.answer()
  await a.side.start()
  await world.complete(world.open)
  assert.equal(a.lines() + b.lines(), world.batches * LINES)
  assert.equal(b.server.calls.length, b.lines())
  assert.deepEqual([front.side.books(), a.side.books(), b.side.books()], ['', '', ''])
  assert.doesNotMatch(front.side.doctor('remote').said, /given up: /)

  // The record of a line at the cell names the line here, and whose it is.
  const [batch] = world.open
  const { data: lines } = await front.side.ask('GET', `/v1/batches/${batch}/lines`)
  const [{ id, custom_id }] = lines as [{ id: string; custom_id: string }]
  const record = await front.side.ask('GET', `/v1/requests/${id}`)
  const [{ upstream, remote_batch }] = record.attempts as [{ upstream: string; remote_batch: string }]
  const cell = upstream === 'cell-a' ? a : b
  const there = await cell.side.ask('GET', `/v1/batches/${remote_batch}/lines?custom_id=${id}`)
  const [line] = there.data as [{ id: string }]
  const seen = await cell.side.ask('GET', `/v1/requests/${line.id}`)
  const { entity, tags, conversation } = seen
  assert.deepEqual({ custom_id: seen.custom_id, entity, tags, conversation }, { custom_id: id, ...METADATA })
  assert.equal(record.custom_id, custom_id)
})

interface Report {
  upstreams: { upstream: string; answered: number; remote_answered: number }[]
  differences: { problem: string }[]
}

interface Cell {
  side: Side
  server: TestUpstream
  /** Billed lines. */
  lines: () => number
  /** Its server answers the first call from now on, and no other before `answer`. */
  answerOne: () => void
  answer: () => void
}

async function makeWorld(patience: string) {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-cells-'))
  const faults: string[] = []
  const fault = (problem: string): void => void faults.push(problem)
  const stack = new AsyncDisposableStack()
  const makeCell = async (name: string): Promise<Cell> => {
    const server = stack.use(await testUpstream())
    const upstream = `{type: openai, base_url: "${server.base_url}", concurrency_max: ${CONCURRENCY}}`
    const side = await Side.make(join(folder, name), `${COMMON}${MODEL} [${upstream}]`, fault)
    stack.use(side.processes)
    await side.start()
    const lines = (): number =>
      side.rows<{ n: number }>('SELECT coalesce(sum(completed), 0) AS n FROM batches')[0]!.n
    let held: Call[] = []
    return {
      side,
      server,
      lines,
      answerOne() {
        const calls = server.calls.length
        server.reply = (call) => {
          if (call.index === calls) echo(call)
          else held.push(call)
        }
      },
      answer() {
        server.reply = echo
        for (const call of held) echo(call)
        held = []
      },
    }
  }
  const [a, b] = [await makeCell('a'), await makeCell('b')]
  const upstreamOf = (name: string, { side }: Cell): string =>
    `\n      - {type: openai-batch, name: ${name}, base_url: "${side.url}/v1", timeout: 500ms, line_metadata: true, api_key_file: ${join(side.folder, 'offpeak-data/api-key')}}`
  const side = await Side.make(
    join(folder, 'front'),
    `${COMMON}
retry: {attempts_max: 5, backoff_min: 20ms, backoff_max: 100ms, outage_patience: ${patience}}${MODEL}${upstreamOf('cell-a', a)}${upstreamOf('cell-b', b)}`,
    fault,
  )
  stack.use(side.processes)
  await side.start()
  const batches = 4
  const all: string[] = []
  const world = {
    front: { side },
    a,
    b,
    batches,
    open: [] as string[],
    async until(condition: () => boolean): Promise<void> {
      while (!condition()) await setTimeout(50)
    },
    /** Batches of a chunk each, for either cell. */
    async createAll(): Promise<string[]> {
      world.open = []
      for (let i = 0; i < batches; i++) {
        const lines = Array.from({ length: LINES }, (_, k) => ({ ...line(`l${i}-${k}`), metadata: METADATA }))
        world.open.push(await side.create(lines))
      }
      all.push(...world.open)
      return world.open
    },
    async complete(ids: readonly string[]): Promise<void> {
      for (const id of ids) {
        const batch = await side.ended(id)
        const counts = { total: LINES, completed: LINES, failed: 0 }
        assert.deepEqual([batch.status, batch.request_counts], ['completed', counts])
        assert.equal(batch.cost_usd, LINES * LINE_COST_USD)
      }
    },
    async cost(): Promise<number> {
      const found = await Promise.all(all.map((id) => side.ask('GET', `/v1/batches/${id}`)))
      return found.reduce((sum, { cost_usd }) => sum + Math.round(Number(cost_usd) * 1e9), 0) / 1e9
    },
    /** Batches are created, and the cell is killed when it has finished one line and has others in flight. */
    async killInMidBatch(cell: Cell): Promise<void> {
      const [lines, calls] = [cell.lines(), cell.server.calls.length]
      cell.answerOne()
      await world.createAll()
      await world.until(() => cell.lines() > lines && cell.server.calls.length > calls + 1)
      await cell.side.kill()
    },
    async [Symbol.asyncDispose]() {
      await stack.disposeAsync()
      assert.deepEqual(faults, [])
      await rm(folder, { recursive: true, force: true })
    },
  }
  return world
}
