// npm run simulate -- --seed N --runs K [--day] [--all] [--jobs J] [--counts] [--trace]
// Runs the seeds N to N+K-1 in J threads and stops at the first seed with a violated invariant, or goes on with --all. The
// same seed replays the same run.
import { availableParallelism } from 'node:os'
import { parseArgs } from 'node:util'
import { isMainThread, parentPort, Worker } from 'node:worker_threads'
import { violations } from './invariants.ts'
import { Tally } from './tally.ts'
import { simulateDay, simulateRun } from './world.ts'

const VIOLATIONS_SHOWN = 10

interface Order {
  seed: number
  isDay: boolean
}

interface Outcome {
  seed: number
  found: string[]
  trace: string[]
  counts: [string, number][]
}

async function simulate({ seed, isDay }: Order): Promise<Outcome> {
  const outcome: Outcome = { seed, found: [], trace: [], counts: [] }
  await (isDay ? simulateDay : simulateRun)(seed, async (run) => {
    outcome.found = await violations(run)
    outcome.trace = run.trace
    outcome.counts = run.tally.entries()
  })
  return outcome
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      seed: { type: 'string', default: '1' },
      runs: { type: 'string', default: '100' },
      jobs: { type: 'string', default: String(availableParallelism()) },
      /** Runs of a day with opening hours. */
      day: { type: 'boolean', default: false },
      /** Goes on after a violation. */
      all: { type: 'boolean', default: false },
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
  const failed: number[] = []
  let next = first
  let done = 0

  const report = ({ seed, found, trace, counts: entries }: Outcome): void => {
    done++
    for (const [what, count] of entries) counts.count(what, count)
    if (values.trace || (found.length > 0 && !values.all)) print(trace.join('\n'))
    if (found.length === 0) return
    failed.push(seed)
    const list = found.slice(0, VIOLATIONS_SHOWN).map((one) => `- ${one.slice(0, 400)}`)
    print(`seed ${seed} violates an invariant:\n${list.join('\n')}`)
    print(`replay: npm run simulate -- --seed ${seed} --runs 1${values.day ? ' --day' : ''}`)
  }

  const take = (): Order | null =>
    next < first + runs && (values.all || failed.length === 0) ? { seed: next++, isDay: values.day } : null

  /** A thread that simulates one seed after the other; an uncaught exception ends it, as it would end a real process. */
  const thread = (): Promise<void> =>
    new Promise((resolve) => {
      const worker = new Worker(new URL(import.meta.url))
      let order = take()
      const go = (): void => {
        if (order) worker.postMessage(order)
        else void worker.terminate().then(() => resolve())
      }
      worker.on('message', (outcome: Outcome) => {
        report(outcome)
        order = take()
        go()
      })
      worker.on('error', (error) => {
        const found = [`uncaught exception: ${error instanceof Error ? error.stack : error}`]
        if (order) report({ seed: order.seed, found, trace: [], counts: [] })
        resolve(values.all && next < first + runs ? thread() : undefined)
      })
      go()
    })

  await Promise.all(Array.from({ length: Math.min(Number(values.jobs), runs) }, thread))
  if (values.counts) print(counts.lines().join('\n'))
  const seconds = (performance.now() - begun) / 1000
  const how =
    failed.length === 0 ? 'no violation' : `violations in ${failed.sort((a, b) => a - b).join(', ')}`
  const cpu = process.cpuUsage()
  const cpuSeconds = ((cpu.user + cpu.system) / 1e6 / Math.max(1, done)).toFixed(2)
  const speed = `${Math.round((60 * done) / seconds)} seeds per minute, ${cpuSeconds} s of CPU each`
  print(`${done} seeds from ${first} in ${seconds.toFixed(1)} s (${speed}): ${how}`)
  if (failed.length > 0) process.exitCode = 1
}

if (isMainThread) await main()
else
  parentPort?.on('message', (order: Order) => {
    // What is thrown here is uncaught in the thread, and so an error of it.
    void simulate(order).then((outcome) => parentPort?.postMessage(outcome))
  })
