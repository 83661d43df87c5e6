// Two Offpeaks as real processes, a front whose only upstream is a cell, before a model server in the test's process.
// Front, cell or both are killed with SIGKILL while batches run, and started again. What is checked: every line is
// answered once and billed once, here and there, and no remote batch was created twice.
//
//   node test/kill/federation.ts [--cycles 100] [--seed 1] [--lines 60]
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { echo, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { line, type WireLine } from '../service.ts'
import { seededRandom } from '../simulation/seeded-random.ts'
import { parsedLines } from '../support/api.ts'
import { Side } from './side.ts'

/** 10 tokens in, 5 out. */
const LINE_COST_NANOS = 10 * 100 + 5 * 400
const COMMON = `
rate_limit: {requests_per_minute: 0}
listen: {stop_delay: 0s}
log: {level: warn}
worker: {flush_interval: 50ms, lease: 1s, drain: 1s}
retry: {attempts_max: 5, backoff_min: 20ms, backoff_max: 500ms, outage_patience: 10m}
models:
  - id: m
    price: {input_per_mtok: 0.10, output_per_mtok: 0.40}`
/** A batch may have to survive so many kills before it is waited for. */
const OPEN_MAX = 4
const KILL_AFTER_MS_MAX = 1_000
const DOWN_MS_MAX = 200

export interface FederationRun {
  cycles: number
  seed: number
  lines: number
  folder: string
  report: (text: string) => void
}

export interface FederationSummary {
  cycles: number
  kills: Record<Kind, number>
  lines: number
  /** Lines that the model server was sent again: in flight, or not journalled yet, when the cell was killed. */
  sent_again: number
  remote_batches: number
  remote_batches_twice: number
  seconds: number
  /** In sentences. */
  violations: string[]
}

const KINDS = ['front', 'cell', 'both'] as const
type Kind = (typeof KINDS)[number]

export async function runFederation(options: FederationRun): Promise<FederationSummary> {
  const { cycles, seed, folder, report } = options
  const begun = performance.now()
  const violations: string[] = []
  const kills = { front: 0, cell: 0, both: 0 }
  const random = seededRandom(seed)
  const fault = (problem: string): void => void violations.push(problem)
  await using upstream: TestUpstream = await testUpstream((call) => {
    globalThis.setTimeout(() => echo(call), 20)
  })
  const cell = await Side.make(
    join(folder, 'cell'),
    `${COMMON}
    upstreams: [{type: openai, base_url: "${upstream.base_url}", concurrency_max: 8}]`,
    fault,
  )
  const front = await Side.make(
    join(folder, 'front'),
    `${COMMON}
    upstreams:
      - {type: openai-batch, name: cell, base_url: "${cell.url}/v1", timeout: 1s, line_metadata: true, api_key_file: ${join(cell.folder, 'offpeak-data/api-key')}}`,
    fault,
  )
  await using _cell = cell.processes
  await using _front = front.processes
  await cell.start()
  await front.start()
  const open: string[] = []
  for (let cycle = 1; cycle <= cycles && violations.length === 0; cycle++) {
    const from = performance.now()
    open.push(await front.create(Array.from({ length: options.lines }, (_, i) => line(`l${i}`))))
    await setTimeout(random.next() * KILL_AFTER_MS_MAX)
    const kind = KINDS[Math.floor(random.next() * KINDS.length)]!
    const sides = kind === 'both' ? [front, cell] : [kind === 'front' ? front : cell]
    await Promise.all(sides.map((side) => side.kill()))
    kills[kind]++
    await setTimeout(random.next() * DOWN_MS_MAX)
    await Promise.all(sides.map((side) => side.start()))
    if (open.length === OPEN_MAX || cycle === cycles)
      for (const id of open.splice(0)) {
        const found = await checkBatch(front, id, options.lines)
        violations.push(...found.map((problem) => `until cycle ${cycle}: ${problem}`))
      }
    report(`cycle ${cycle}: killed ${kind}, ${Math.round(performance.now() - from)} ms`)
  }
  await front.processes.stop()
  await cell.processes.stop()
  const done = kills.front + kills.cell + kills.both
  const lines = done * options.lines
  const { remote_batches, twice, found } = checkBoth(front, cell, lines)
  violations.push(...found)
  const sent_again = upstream.calls.length - lines
  const seconds = Math.round((performance.now() - begun) / 1000)
  return {
    cycles: done,
    kills,
    lines,
    sent_again,
    remote_batches,
    remote_batches_twice: twice,
    seconds,
    violations,
  }
}

async function checkBatch(front: Side, id: string, lines: number): Promise<string[]> {
  const batch = await front.ended(id)
  if (batch.status !== 'completed') return [`${id} has not completed: ${JSON.stringify(batch)}`]
  const found: string[] = []
  const counts = JSON.stringify(batch.request_counts)
  if (counts !== JSON.stringify({ total: lines, completed: lines, failed: 0 }))
    found.push(`${id} counts ${counts}`)
  if (Math.round(Number(batch.cost_usd) * 1e9) !== lines * LINE_COST_NANOS)
    found.push(`${id} costs ${batch.cost_usd}`)
  const { text } = await front.insist('GET', `/v1/files/${batch.output_file_id}/content`)
  const ids = parsedLines<WireLine>(String(text)).map(({ custom_id }) => custom_id)
  if (ids.length !== lines || new Set(ids).size !== lines) found.push(`${id} has ${ids.length} results`)
  return found
}

/** The books of both, and what the cell was asked. */
function checkBoth(
  front: Side,
  cell: Side,
  lines: number,
): { remote_batches: number; twice: number; found: string[] } {
  const found: string[] = []
  for (const side of [front, cell]) {
    const problem = side.books()
    if (problem !== '') found.push(`books of ${side.folder}: ${problem}`)
  }
  const there = cell.rows<{ metadata: string; completed: number; failed: number }>(
    'SELECT metadata, completed, failed FROM batches',
  )
  const names = there.map(({ metadata }) => String(JSON.parse(metadata).offpeak_remote_batch))
  const twice = names.length - new Set(names).size
  if (twice > 0) found.push(`${twice} remote batches were created twice`)
  const completed = there.reduce((sum, one) => sum + one.completed, 0)
  if (completed !== lines) found.push(`the cell has billed ${completed} lines, the front ${lines}`)
  return { remote_batches: there.length, twice, found }
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      cycles: { type: 'string', default: '100' },
      seed: { type: 'string', default: '1' },
      lines: { type: 'string', default: '60' },
    },
  })
  const say = (text: string): void => void process.stdout.write(`${text}\n`)
  const folder = mkdtempSync(join(tmpdir(), 'offpeak-federation-'))
  const [cycles, seed, lines] = [Number(values.cycles), Number(values.seed), Number(values.lines)]
  const { violations, ...summary } = await runFederation({ cycles, seed, lines, folder, report: say })
  for (const violation of violations) say(violation)
  say(JSON.stringify({ seed, ...summary, violations: violations.length }))
  if (violations.length === 0) rmSync(folder, { recursive: true })
  else say(`kept ${folder}`)
  process.exit(violations.length === 0 ? 0 : 1)
}
