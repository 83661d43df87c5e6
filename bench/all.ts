// The whole suite, one scenario after the other, each in processes of its own and with its own baseline. What it
// prints is what the scenarios print; their JSON is gathered in a file where one is named.
//
//   npm run bench [-- --only dispatch,prefix] [--json results.jsonl]
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { appendFileSync, writeFileSync } from 'node:fs'
import { availableParallelism, cpus, loadavg } from 'node:os'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'

interface Scenario {
  name: string
  file: string
  args?: readonly string[]
}

/** Sizes are such that all of it ends within five minutes on two cores that have nothing else to do. */
const SCENARIOS: readonly Scenario[] = [
  { name: 'dispatch-1k', file: 'dispatch.ts', args: ['--lines', '60000', '--rounds', '2'] },
  {
    name: 'dispatch-8k',
    file: 'dispatch.ts',
    args: ['--lines', '20000', '--bytes', '8192', '--rounds', '2'],
  },
  { name: 'stages', file: 'stages.ts', args: ['--lines', '30000'] },
  { name: 'saturation', file: 'saturation.ts' },
  { name: 'ingest', file: 'ingest.ts', args: ['50'] },
  { name: 'upload', file: 'upload.ts' },
  { name: 'flat', file: 'memory.ts' },
  { name: 'small', file: 'small.ts' },
  { name: 'reads', file: 'reads.ts' },
  { name: 'console', file: 'console.ts', args: ['--lines', '20000', '--rounds', '2'] },
  { name: 'console-pages', file: 'console-pages.ts' },
  { name: 'prefix', file: 'prefix.ts' },
  {
    name: 'prefix-replicas',
    file: 'prefix.ts',
    args: ['--replicas', '4', '--prefixes', '200', '--lines', '10000', '--latency-ms', '100'],
  },
  { name: 'live', file: 'live.ts', args: ['--engine', 'h100'] },
]

const { values } = parseArgs({ options: { only: { type: 'string' }, json: { type: 'string' } } })
const only = values.only?.split(',')
const unknown = only?.filter((name) => !SCENARIOS.some((scenario) => scenario.name === name)) ?? []
if (unknown.length > 0)
  throw new Error(
    `no scenario is called ${unknown.join(', ')}; there are ${SCENARIOS.map(({ name }) => name)}`,
  )

if (values.json !== undefined) writeFileSync(values.json, '')
console.log(`${cpus()[0]?.model}, ${availableParallelism()} cores, Node ${process.version}`)
const failed: string[] = []
for (const scenario of SCENARIOS) if (only?.includes(scenario.name) ?? true) await run(scenario)
if (failed.length > 0) {
  console.error(`failed: ${failed.join(', ')}`)
  process.exitCode = 1
}

async function run({ name, file, args = [] }: Scenario): Promise<void> {
  // What else the machine does is part of every number below.
  console.log(`\n── ${name} (load ${loadavg()[0]?.toFixed(1)} before it)`)
  const path = fileURLToPath(new URL(file, import.meta.url))
  const begun = performance.now()
  const child = spawn(process.execPath, [path, ...args], { stdio: ['ignore', 'pipe', 'inherit'] })
  let printed = ''
  child.stdout.on('data', (piece: Buffer) => {
    printed += piece
    process.stdout.write(piece)
  })
  const [code] = await once(child, 'close')
  if (code !== 0) failed.push(name)
  console.log(`${name} took ${((performance.now() - begun) / 1000).toFixed(0)} s`)
  if (values.json === undefined) return
  for (const line of printed.split('\n')) if (line.startsWith('{')) appendFileSync(values.json, `${line}\n`)
}
