// node test/simulation/run-mutants.ts [--runs 200] [--only WORDS]
// Proves that the simulation finds what it is there to find: each bug is planted into a copy of the source, and
// seeds are run, from 1 on, until one breaks a promise; or the test that it names is run, until it fails. Prints a
// table; fails if a bug gets away.
import { execFile } from 'node:child_process'
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { type Mutant, PLANTS } from './mutants.ts'

const { values } = parseArgs({
  options: { runs: { type: 'string', default: '200' }, only: { type: 'string', default: '' } },
})
const ROOT = fileURLToPath(new URL('../../', import.meta.url))
const PLANT_MS_MAX = 300_000

interface Found {
  /** `null`: it got away. A test has no seeds. */
  seed: number | 'test' | null
  /** The first promise that was broken. */
  says: string
}

const print = (text: string): void => void process.stdout.write(`${text}\n`)
print('| bug | seeds needed | the simulation says |')
print('|---|---|---|')
for (const plant of PLANTS.filter(({ bug }) => bug.includes(values.only))) {
  const { seed, says } = await find(plant)
  print(`| ${plant.bug} | ${seed ?? 'not found'} | ${says} |`)
  if (seed === null) process.exitCode = 1
}

async function find({ file, take, put, test }: Mutant): Promise<Found> {
  const copy = mkdtempSync(join(tmpdir(), 'offpeak-plant-'))
  try {
    for (const part of ['src', 'test/fakes', 'test/simulation', 'package.json'])
      cpSync(join(ROOT, part), join(copy, part), { recursive: true })
    symlinkSync(join(ROOT, 'node_modules'), join(copy, 'node_modules'))
    const source = readFileSync(join(copy, file), 'utf8')
    if (source.split(take).length !== 2) throw new Error(`${file} does not have this once:\n${take}`)
    writeFileSync(
      join(copy, file),
      source.replace(take, () => put),
    )
    if (test !== undefined) {
      const failed = /^✖ (.*) \(/m.exec(await run(copy, ['--test', '--test-timeout=20000', test]))
      return { seed: failed ? 'test' : null, says: failed?.[1] ?? `${test} passed` }
    }
    const said = await run(copy, [join(copy, 'test/simulation/simulate.ts'), '--runs', values.runs])
    const seed = /^seed (\d+) breaks a promise:\n- (.*)$/m.exec(said)
    if (!seed) return { seed: null, says: said.trim().split('\n').at(-1) ?? '' }
    return { seed: Number(seed[1]), says: (seed[2] ?? '').replaceAll('|', '/').slice(0, 120) }
  } finally {
    rmSync(copy, { recursive: true, force: true })
  }
}

function run(cwd: string, args: readonly string[]): Promise<string> {
  return new Promise((resolve) => {
    execFile(process.execPath, args, { cwd, timeout: PLANT_MS_MAX }, (_, stdout, stderr) =>
      resolve(stdout + stderr),
    )
  })
}
