// npm run crash -- --cycles N [--seed S] [--store sqlite|postgres] [--patience N]
// Kills the real processes N times while they work, and holds what they leave behind to what is promised. Prints a
// table; ends with exit code 1 if a promise was broken, and names the seed.
import { parseArgs } from 'node:util'
import { crashRun } from './crash-run.ts'

const { values } = parseArgs({
  options: {
    cycles: { type: 'string', default: '50' },
    seed: { type: 'string', default: '1' },
    store: { type: 'string', default: 'sqlite' },
    /** Cycles between two moments of rest, at which everything is judged. */
    rest: { type: 'string', default: '25' },
    /** Multiplies the times after which a start, a call or a stop counts as failed; for a busy machine. */
    patience: { type: 'string', default: '1' },
  },
})
const print = (line: string): void => void process.stdout.write(`${line}\n`)
const { store } = values
if (store !== 'sqlite' && store !== 'postgres') throw new Error('--store is sqlite or postgres')
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => process.exit(130))

const seed = Number(values.seed)
const cycles = Number(values.cycles)
const [rest_every, patience] = [Number(values.rest), Number(values.patience)]
const report = await crashRun({ cycles, seed, store, rest_every, patience, tell: print })
const counted = (counts: Record<string, number>): string =>
  Object.entries(counts)
    .sort(([, a], [, b]) => b - a)
    .map(([what, count]) => `${count} ${what}`)
    .join(', ')
const rows: [string, string | number][] = [
  ['store', store],
  ['seed, cycles', `${seed}, ${cycles}`],
  ['killed with SIGKILL', counted(report.kills)],
  ['batches', counted(report.batches)],
  ['lines', report.lines],
  ['calls at the model server', report.calls],
  [
    'sent again, of so many in flight at kills',
    `${report.sent_again.count} of ${report.sent_again.in_flight}`,
  ],
  ['sent again without a reason', report.sent_again.unexplained.length],
  ['leases that expired under a running worker', report.leases_lost],
  ['`serve` ended itself: its worker crashed too often', report.gave_up],
  ['batches refused because of a cap', report.refused],
  ['calls that clients retried', report.retried],
  ['ready again after a kill, worst', `${report.worst_ready_ms} ms`],
  ['a call with its retries, worst', `${report.worst_outage_ms} ms`],
  ['no call at the model server, worst', `${report.worst_gap_ms} ms`],
  ['the whole machine was suspended', `${report.still_ms} ms`],
  ['SIGTERM to exit code 0', `${report.stop_ms} ms`],
  ['took', `${report.seconds} s`],
  ['violations', report.violations.length],
]
print(`\n| | |\n|---|---|\n${rows.map(([name, value]) => `| ${name} | ${value} |`).join('\n')}`)
if (report.violations.length > 0) {
  print(`\nreplay: npm run crash -- --seed ${seed} --cycles ${cycles} --store ${store}`)
  process.exitCode = 1
}
