// The suite: each scenario in a process of its own, one after the other. What it prints goes to standard error; at the end
// one table has every figure with its goal and verdict. The load before each scenario is part of every number.
//
//   npm run bench [-- --only dispatch-1k,prefix] [--json results.jsonl]
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { appendFileSync, writeFileSync } from 'node:fs'
import { availableParallelism, cpus, loadavg } from 'node:os'
import { fileURLToPath } from 'node:url'
import { withoutBrowser } from '../test/console/chromium.ts'
import { type Figure, option, printFigures, rejectUnknownOptions } from './harness.ts'

/** Sizes are such that all of it ends within five minutes on two cores that have nothing else to do. */
const SCENARIOS: Readonly<Record<string, readonly [file: string, ...args: string[]]>> = {
  'dispatch-1k': ['dispatch.ts', '--lines', '60000', '--rounds', '2'],
  'dispatch-8k': ['dispatch.ts', '--lines', '20000', '--bytes', '8192', '--rounds', '2'],
  saturation: ['saturation.ts'],
  ingest: ['ingest.ts', '--megabytes', '50'],
  upload: ['upload.ts'],
  memory: ['memory.ts'],
  small: ['small.ts'],
  reads: ['reads.ts'],
  console: ['console.ts', '--lines', '20000', '--rounds', '2'],
  'console-pages': ['console-pages.ts'],
  orders: ['orders.ts', '--documents', '4000', '--cached', '400'],
  prefix: ['prefix.ts'],
  'prefix-replicas': [
    ...(['prefix.ts', '--replicas', '4', '--prefixes', '200'] as const),
    ...['--lines', '10000', '--latency-ms', '100'],
  ],
  ramp: ['ramp.ts'],
  tail: ['tail.ts', '--lines', '10000', '--slots', '64'],
  live: ['live.ts', '--engine', 'h100', '--seeds', '1', '--draws', '0'],
}

const ALL = Object.keys(SCENARIOS).join()
const only = option('only', ALL)
const json = option('json', '')
rejectUnknownOptions()
const chosen = only.split(',')
const unknown = chosen.filter((name) => SCENARIOS[name] === undefined)
if (unknown.length > 0)
  throw new Error(`no scenario is called ${unknown}; there are ${Object.keys(SCENARIOS).join(', ')}`)

/** The one that needs a browser; named with --only, it fails without one. */
const IN_A_BROWSER = 'console-pages'
const leavesOut = withoutBrowser !== false && only === ALL
if (json !== '') writeFileSync(json, '')
const figures: Figure[] = []
const failed: string[] = []
for (const [name, [file, ...args]] of Object.entries(SCENARIOS))
  if (chosen.includes(name) && !(leavesOut && name === IN_A_BROWSER)) await run(name, file, args)
console.log(`${cpus()[0]?.model}, ${availableParallelism()} cores, Node ${process.version}`)
printFigures(figures)
if (leavesOut) console.log(`left out: ${IN_A_BROWSER} (${withoutBrowser})`)
if (failed.length > 0) {
  console.error(`failed: ${failed.join(', ')}`)
  process.exitCode = 1
}

async function run(name: string, file: string, args: readonly string[]): Promise<void> {
  const load = loadavg()[0]?.toFixed(1)
  console.error(`\n── ${name} (load ${load} before it)`)
  const path = fileURLToPath(new URL(file, import.meta.url))
  const child = spawn(process.execPath, [path, ...args], { stdio: ['ignore', 'pipe', 'inherit'] })
  let printed = ''
  child.stdout.on('data', (piece: Buffer) => {
    printed += piece
    process.stderr.write(piece)
  })
  const [code] = await once(child, 'close')
  if (code !== 0) failed.push(name)
  for (const line of printed.split('\n').filter((text) => text.startsWith('{"bench"'))) {
    if (json !== '') appendFileSync(json, `${line}\n`)
    const found: { figures: Figure[] } = JSON.parse(line)
    figures.push(...found.figures.map((figure) => ({ ...figure, what: `${name}: ${figure.what}` })))
  }
}
