// npm run simulate -- --seed N --runs K [--day] [--counts] [--trace]
// Runs the seeds N to N+K-1 and stops at the first seed with a violated invariant. The same seed replays the same
// run.
import { parseArgs } from 'node:util'
import { violations } from './invariants.ts'
import { Tally } from './tally.ts'
import { simulateDay, simulateRun } from './world.ts'

const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: '1' },
    runs: { type: 'string', default: '100' },
    /** Runs of a day with opening hours. */
    day: { type: 'boolean', default: false },
    /** Prints the events of each run. */
    trace: { type: 'boolean', default: false },
    /** Prints how often each fault happened, and how much was checked. */
    counts: { type: 'boolean', default: false },
  },
})
const print = (text: string): void => void process.stdout.write(`${text}\n`)
const first = Number(values.seed)
const runs = Number(values.runs)
const begun = performance.now()
const counts = new Tally()
let seed = first

function report(found: readonly string[]): void {
  const list = found.slice(0, 10).map((one) => `- ${one.slice(0, 400)}`)
  print(`seed ${seed} violates an invariant:\n${list.join('\n')}`)
  print(`replay: npm run simulate -- --seed ${seed} --runs 1${values.day ? ' --day' : ''}`)
  process.exitCode = 1
}

// An uncaught exception would end a real process.
process.on('uncaughtException', (error) => {
  report([`uncaught exception: ${error.stack ?? error}`])
  process.exit()
})

for (; seed < first + runs && process.exitCode !== 1; seed++) {
  await (values.day ? simulateDay : simulateRun)(seed, async (run) => {
    const found = await violations(run)
    counts.add(run.tally)
    if (values.trace || found.length > 0) print(run.trace.join('\n'))
    if (found.length > 0) report(found)
  })
}
if (values.counts) print(counts.lines().join('\n'))
const seconds = ((performance.now() - begun) / 1000).toFixed(1)
if (process.exitCode !== 1) print(`${runs} seeds from ${first} in ${seconds} s: no violation`)
