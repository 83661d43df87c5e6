// How well a server of fixed capacity is kept busy by a service that was told nothing of it: 256 slots, 100 to
// 300 ms a line, a 429 for what finds no slot; in mid-run half of the slots go away, and later come back. The
// ideal is the time in which those slots, never idle, do the same work. Beside it: where slots stood empty, and why.
//
//   node bench/saturation.ts [--lines 20000] [--slots 256] [--phase-s 6]
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { BatchClient, writeLines } from './batch-client.ts'
import { startControlled } from './controlled-process.ts'
import { idealEnd, lostSlots, type SlotReport, work } from './lost-slots.ts'
import { start } from './processes.ts'

const { values } = parseArgs({
  options: {
    lines: { type: 'string', default: '20000' },
    slots: { type: 'string', default: '256' },
    'phase-s': { type: 'string', default: '6' },
  },
})
const GOAL = 0.95
const lines = Number(values.lines)
const slots = Number(values.slots)
const phase_ms = Number(values['phase-s']) * 1000

const here = (file: string): string => fileURLToPath(new URL(file, import.meta.url))
const folder = mkdtempSync(join(tmpdir(), 'offpeak-bench-'))
const upstream = await startControlled(here('./slotted-upstream.ts'), [values.slots])
const config = join(folder, 'offpeak.yaml')
writeFileSync(
  config,
  `
rate_limit: {requests_per_minute: 0}
log: {level: error}
models: [{id: bench, upstreams: [{type: openai, base_url: "${upstream.first}"}]}]
`,
)
const data = join(folder, 'data')
const args = ['serve', '--port', '0', '--data', data, '--config', config]
const service = await start(here('../bin/offpeak.js'), args)
const url = service.first.replace('offpeak listening on ', '')
const client = new BatchClient(url, readFileSync(join(data, 'api-key'), 'utf8').trim())
const input = join(folder, 'input.jsonl')
await writeLines(input, lines, 400)
const file = await client.upload(input, 50)

const before = await ask()
const begun = performance.now()
const { id } = await client.create(file)
const changes = changeCapacity()
await client.completed(id, 20)
const taken_ms = performance.now() - begun
changes.stop()
const report = await ask()
const work_ms = work(report, before.now, report.now)
const ideal_ms = idealEnd(report, before.now, work_ms) - before.now
const ratio = round(ideal_ms / taken_ms, 3)
const refused_share = round(report.refused / report.served, 4)
const lost = lostSlots(report, before.now, before.now + taken_ms)
console.table(lost)
console.table([
  {
    lines,
    'ideal s': round(ideal_ms / 1000, 2),
    'taken s': round(taken_ms / 1000, 2),
    'ideal ÷ taken': ratio,
    goal: GOAL,
    'refused with 429': report.refused,
    'of the answered': refused_share,
  },
])
const { served, refused } = report
const row = { slots, phase_ms, work_ms, ideal_ms, taken_ms, ratio, served, refused, refused_share, lost }
console.log(JSON.stringify({ bench: 'saturation', ...row }))
await service.stop()
await upstream.stop()
rmSync(folder, { recursive: true })

/** Half of the slots go after one phase, and are back after the next. */
function changeCapacity(): { stop: () => void } {
  const ended = new AbortController()
  const run = async (): Promise<void> => {
    await setTimeout(phase_ms, undefined, { signal: ended.signal })
    upstream.tell(`slots ${slots / 2}`)
    await setTimeout(phase_ms, undefined, { signal: ended.signal })
    upstream.tell(`slots ${slots}`)
  }
  run().catch(() => {})
  return { stop: () => ended.abort() }
}

async function ask(): Promise<SlotReport> {
  return JSON.parse(await upstream.ask('report'))
}

function round(value: number, digits: number): number {
  return Number(value.toFixed(digits))
}
