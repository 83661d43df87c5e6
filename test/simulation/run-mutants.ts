// node test/simulation/run-mutants.ts [--runs 60] [--only WORDS]
// Mutation testing of the simulation: applies each mutant to a copy of the source and runs the seed that is known to find
// it, or else seeds from 1 until one violates an invariant, or the test that the mutant names. Prints a table; exits with
// 1 if a mutant survives.
import { execFile } from 'node:child_process'
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { MUTANTS, type Mutant } from './mutants.ts'

const { values } = parseArgs({
  options: { runs: { type: 'string', default: '60' }, only: { type: 'string', default: '' } },
})
const ROOT = fileURLToPath(new URL('../../', import.meta.url))
const MUTANT_MS_MAX = 900_000

interface Found {
  /** `null`: the mutant survived. A test has no seeds. */
  seed: number | 'test' | null
  /** The first violation. */
  message: string
}

const print = (text: string): void => void process.stdout.write(`${text}\n`)
print('| mutant | seeds needed | first violation |')
print('|---|---|---|')
for (const mutant of MUTANTS.filter(({ bug }) => bug.includes(values.only))) {
  const { seed, message } = await killMutant(mutant)
  print(`| ${mutant.bug} | ${seed ?? 'survived'} | ${message} |`)
  if (seed === null) process.exitCode = 1
}

async function killMutant({ file, find, replace, test, seed: known }: Mutant): Promise<Found> {
  const copy = mkdtempSync(join(tmpdir(), 'offpeak-mutant-'))
  try {
    for (const part of ['src', 'model', 'test', 'package.json'])
      cpSync(join(ROOT, part), join(copy, part), { recursive: true })
    symlinkSync(join(ROOT, 'node_modules'), join(copy, 'node_modules'))
    const source = readFileSync(join(copy, file), 'utf8')
    if (source.split(find).length !== 2)
      throw new Error(`${file} does not contain this exactly once:\n${find}`)
    writeFileSync(
      join(copy, file),
      source.replace(find, () => replace),
    )
    if (test !== undefined) {
      const known = await failuresOf(ROOT, test)
      const failed = (await failuresOf(copy, test)).filter((name) => !known.includes(name))
      return { seed: failed.length > 0 ? 'test' : null, message: failed[0] ?? `${test} passed` }
    }
    const simulate = async (first: number, runs: string): Promise<string> =>
      await run(copy, [
        join(copy, 'test/simulation/simulate.ts'),
        ...['--seed', String(first), '--runs', runs, '--jobs', '1'],
      ])
    const VIOLATION = /^seed (\d+) violates an invariant:\n- (.*)$/m
    let output = known === undefined ? '' : await simulate(known, '1')
    if (!VIOLATION.test(output)) output = await simulate(1, values.runs)
    const seed = VIOLATION.exec(output)
    if (!seed) return { seed: null, message: output.trim().split('\n').at(-1) ?? '' }
    return { seed: Number(seed[1]), message: (seed[2] ?? '').replaceAll('|', '/').slice(0, 120) }
  } finally {
    rmSync(copy, { recursive: true, force: true })
  }
}

/** The tests of a file that fail. */
async function failuresOf(cwd: string, test: string): Promise<string[]> {
  const output = await run(cwd, ['--test', '--test-force-exit', '--test-timeout=20000', test])
  return Array.from(output.matchAll(/^✖ (.*) \(/gm), ([, name]) => name ?? '').filter((name) => name !== test)
}

function run(cwd: string, args: readonly string[]): Promise<string> {
  return new Promise((resolve) => {
    execFile(process.execPath, args, { cwd, timeout: MUTANT_MS_MAX }, (_, stdout, stderr) =>
      resolve(stdout + stderr),
    )
  })
}
