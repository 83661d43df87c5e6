// How well a server of fixed capacity is kept busy by a service that was told nothing of it: 256 slots, 100 to
// 300 ms a line, a 429 for what finds no slot; in mid-run half of the slots go away, and later come back. The
// ideal is the time in which those slots, never idle, do the same work. Beside it: where slots stood empty, and why.
//
//   node bench/saturation.ts [--lines 20000] [--slots 256] [--phase-s 6]
import { setTimeout } from 'node:timers/promises'
import { Bench, option, rounded, runBatch } from './harness.ts'
import { idealEnd, lostSlots, type SlotReport, work } from './lost-slots.ts'

const lines = option('lines', 20_000)
const slots = option('slots', 256)
const phaseMs = option('phase-s', 6) * 1000
await using bench = new Bench('saturation')
const upstream = await bench.start('./slotted-upstream.ts', [String(slots)])
const service = await bench.service(
  `models: [{id: bench, upstreams: [{type: openai, base_url: "${upstream.first}"}]}]`,
)
const file = await service.client.upload(await bench.lines(lines, 400), 50)

const before = await ask()
const changes = new AbortController()
changeCapacity(changes.signal).catch(() => {})
const { seconds } = await runBatch(service, file, { askMs: 20 })
changes.abort()
const report = await ask()
const idealMs = idealEnd(report, before.now, work(report, before.now, report.now)) - before.now
console.table(lostSlots(report, before.now, before.now + seconds * 1000))
console.log(
  `${rounded(idealMs / 1000)} s at best, ${rounded(seconds)} s taken, ${report.refused} of ${report.served} refused with 429`,
)
bench.figure('ideal ÷ taken', idealMs / 1000 / seconds, { atLeast: 0.975 })
bench.figure('refused with 429 ÷ answered', report.refused / report.served)

/** Half of the slots go after one phase, and are back after the next. */
async function changeCapacity(signal: AbortSignal): Promise<void> {
  for (const now of [slots / 2, slots]) {
    await setTimeout(phaseMs, undefined, { signal })
    upstream.tell(`slots ${now}`)
  }
}

async function ask(): Promise<SlotReport> {
  return JSON.parse(await upstream.ask('report'))
}
