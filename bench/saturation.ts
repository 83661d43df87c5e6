// How well a server of fixed capacity is kept busy by a service that was told nothing of it: 256 slots, 100 to
// 300 ms a line, a 429 for what finds no slot; in mid-run half of the slots go away, and later come back. The
// ideal is the time in which those slots, never idle, do the same work. Beside it: where slots stood empty, and why.
//
//   node bench/saturation.ts [--lines 20000] [--slots 256] [--phase-s 6]
import { setTimeout } from 'node:timers/promises'
import { Bench, option, rounded, runBatch } from './harness.ts'

/** Slots count as all taken when so many are. */
const FULL = 0.97

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

// Where the slots of a model server stood empty: told from how many were busy when, and sorted by cause.

/** The report of `slotted-upstream.ts`; times are milliseconds since its start. */
interface SlotReport {
  /** When the report was made. */
  now: number
  served: number
  refused: number
  step_ms: number
  /** Busy slot-milliseconds, and requests refused, by steps of `step_ms`. */
  busy_ms: number[]
  apiErrors: number[]
  /** How many slots there were from when on. */
  changes: { at: number; slots: number }[]
}

interface Lost {
  cause: string
  /** How long it lasted. */
  ms: number
  /** Slot-seconds that stood empty. */
  slot_s: number
  refused: number
}

/** Busy slot-milliseconds between two times. */
function work(report: SlotReport, from: number, to: number): number {
  return integral(report, from, to, (busy) => busy)
}

/** Slots times milliseconds between two times: `at` is when that much work would be done at the earliest. */
function idealEnd({ changes }: SlotReport, from: number, work_ms: number): number {
  let left = work_ms
  let at = from
  for (const [i, { slots }] of changes.entries()) {
    const until = changes[i + 1]?.at ?? Number.POSITIVE_INFINITY
    if (until <= at) continue
    const here = (until - at) * slots
    if (here >= left) return at + left / slots
    left -= here
    at = until
  }
  return at
}

/** Between two times, what stood empty and why. */
function lostSlots(report: SlotReport, begun: number, ended: number): Lost[] {
  const { changes, step_ms, busy_ms } = report
  const busyAt = (step: number): number => (busy_ms[step] ?? 0) / step_ms
  const firstStep = (from: number, to: number, is: (busy: number) => boolean): number => {
    for (let step = Math.ceil(from / step_ms); step * step_ms < to; step++)
      if (is(busyAt(step))) return step * step_ms
    return to
  }
  const lastStep = (is: (busy: number) => boolean): number => {
    let step = Math.floor(ended / step_ms)
    while (step > 0 && !is(busyAt(step))) step--
    return Math.min(ended, (step + 1) * step_ms)
  }
  const last = changes.at(-1)!
  const sent = firstStep(begun, ended, (busy) => busy > 0)
  const dry = Math.max(
    last.at,
    lastStep((busy) => busy >= FULL * last.slots),
  )
  const answered = lastStep((busy) => busy > 0)

  const lost: Lost[] = []
  const note = (cause: string, slots: number, from: number, to: number): void => {
    const empty = (busy: number): number => Math.max(0, slots - busy)
    let refused = 0
    for (let step = Math.ceil(from / step_ms); step * step_ms < to; step++)
      refused += report.apiErrors[step] ?? 0
    const slot_s = Math.round(integral(report, from, to, empty) / 100) / 10
    lost.push({ cause, ms: Math.round(to - from), slot_s, refused })
  }
  note('until the first line is sent', changes[0]!.slots, begun, sent)
  for (const [i, { at, slots }] of changes.entries()) {
    const from = Math.max(at, sent)
    const to = Math.min(changes[i + 1]?.at ?? dry, dry)
    if (from >= to) continue
    const full = firstStep(from, to, (busy) => busy >= FULL * slots)
    const what = i === 0 ? 'cold' : slots < changes[i - 1]!.slots ? 'fewer' : 'more'
    note(`finding ${slots} slots (${what})`, slots, from, full)
    note(`${slots} slots found, and kept full`, slots, full, to)
  }
  note('nothing left to send', last.slots, dry, answered)
  note('the last answer is in', last.slots, answered, ended)
  return lost
}

/** Sums what `of` makes of the busy slots, times milliseconds. */
function integral(
  { step_ms, busy_ms }: SlotReport,
  from: number,
  to: number,
  of: (busy: number) => number,
): number {
  let sum = 0
  for (let step = Math.floor(from / step_ms); step * step_ms < to; step++) {
    const share = Math.min(to, (step + 1) * step_ms) - Math.max(from, step * step_ms)
    sum += of((busy_ms[step] ?? 0) / step_ms) * share
  }
  return sum
}
