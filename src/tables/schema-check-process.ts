// The process that checks answers by JSON Schemas. A schema may take any time and memory, so V8 ends a check that takes
// too long, the process has a small heap, and its parent can kill it. It exits after its parent, at the latest when its
// current check has been ended.
import { createContext, Script } from 'node:vm'
import { Compile } from 'typebox/schema'
import { Settings } from 'typebox/system'
import { shortened } from '../domain/text.ts'

/** A message to the process. Numbers identify schemas. Times are CPU times, so that a busy machine fails no answer. */
export type ToProcess =
  | { begin: number; schema: string; compileMs: number }
  | { check: number; answers: readonly string[]; answerMs: number }
  | { end: number }

/** The violation for which an answer is marked; null: none. */
export type Verdict = string | null

/**
 * A message to the parent. `begun`: the error of the schema, or null. `verdicts`: for the first answers that were
 * checked within a turn.
 */
export type FromProcess = 'loaded' | { begun?: string | null; verdicts?: Verdict[]; cpuMs: number }

/** The wall time in ms of a turn, after which the parent has to send the remaining answers again. */
const TURN_MS = 200
const SHOWN_CHARACTERS = 500

/** Only the first error is reported: the number of errors has no bound. */
Settings.Set({ maxErrors: 1 })

type Check = (answer: unknown, progress: Progress) => Verdict

/** The state of a check, kept in case it is stopped at its time limit. */
interface Progress {
  isWrong: boolean
}

const checks = new Map<number, Check>()

process.on('message', (message: ToProcess) => {
  const begun = cpuMs()
  if ('begin' in message) {
    const reason = begin(message.begin, message.schema, message.compileMs)
    send({ begun: reason, cpuMs: cpuMs() - begun })
  } else if ('check' in message) {
    const check = checks.get(message.check)
    const verdicts = check && verdictsOn(check, message.answers, message.answerMs)
    if (verdicts) send({ verdicts, cpuMs: cpuMs() - begun })
  } else checks.delete(message.end)
})
process.once('disconnect', () => process.exit())
// Only the parent process ends this one.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {})
send('loaded')

function send(message: FromProcess): void {
  process.send?.(message)
}

function begin(id: number, schema: string, compileMs: number): string | null {
  let reason: string | null = `it takes more than ${seconds(compileMs)} to prepare`
  within(compileMs, () => {
    try {
      checks.set(id, checkBy(JSON.parse(schema)))
      reason = null
    } catch (error) {
      reason = `it is no JSON Schema, or nests too deeply: ${shortened(String(error), SHOWN_CHARACTERS)}`
    }
  })
  return reason
}

function checkBy(schema: object): Check {
  const whole = Compile(schema)
  // A first check compiles the patterns.
  whole.Check({})
  return (answer, progress) => {
    if (whole.Check(answer)) return null
    progress.isWrong = true
    const [, [first]] = whole.Errors(answer)
    if (first === undefined) return 'not_schema: the answer is not as the schema says'
    const { instancePath, message, params } = first
    const names = instancePath.slice(1).replaceAll('/', '.')
    const what = `${names === '' ? 'the answer' : names} ${message}${allowed(params)}`
    return `not_schema: ${shortened(what, SHOWN_CHARACTERS)}`
  }
}

function allowed(params: object): string {
  if ('allowedValues' in params) return `: ${JSON.stringify(params.allowedValues)}`
  return 'additionalProperties' in params ? `: ${JSON.stringify(params.additionalProperties)}` : ''
}

function verdictsOn(check: Check, answers: readonly string[], answerMs: number): Verdict[] {
  const verdicts: Verdict[] = []
  const turnEnds = performance.now() + TURN_MS
  while (verdicts.length < answers.length && performance.now() < turnEnds) {
    const first = verdicts.length
    const progress: Progress = { isWrong: false }
    const isDone = within(answerMs, () => {
      for (let isFirst = true; verdicts.length < answers.length; isFirst = false) {
        if (!isFirst && performance.now() >= turnEnds) return
        progress.isWrong = false
        verdicts.push(verdictOn(check, answers[verdicts.length] ?? '', progress))
      }
    })
    // An answer that was not the first of its turn is tried again with the whole time.
    if (isDone || verdicts.length > first) continue
    const reason = `not_checked: the answer could not be checked by the schema within ${seconds(answerMs)}`
    verdicts.push(progress.isWrong ? 'not_schema: the answer is not as the schema says' : reason)
  }
  return verdicts
}

function verdictOn(check: Check, answer: string, progress: Progress): Verdict {
  try {
    return check(JSON.parse(answer), progress)
  } catch (error) {
    return `not_checked: the answer could not be checked by the schema: ${shortened(String(error), SHOWN_CHARACTERS)}`
  }
}

function seconds(ms: number): string {
  return `${ms / 1000} s`
}

let job = (): void => {}
const CONTEXT = createContext({ run: () => job() })
const RUN = new Script('run()')

/** Runs `act` with a limit of CPU time; returns whether it ended. Restarts it if other processes had the CPU. */
function within(ms: number, act: () => void): boolean {
  for (let wallMs = ms; ; ) {
    const begun = cpuMs()
    if (withinWall(wallMs, act)) return true
    const usedMs = cpuMs() - begun
    if (usedMs > ms * CPU_SHARE) return false
    wallMs = Math.ceil((wallMs * 1.2 * ms) / Math.max(usedMs, ms / 20))
  }
}

/** The share of the CPU below which a stopped check is restarted. */
const CPU_SHARE = 0.7

function cpuMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}

function withinWall(ms: number, act: () => void): boolean {
  let isDone = false
  job = () => {
    act()
    isDone = true
  }
  try {
    RUN.runInContext(CONTEXT, { timeout: ms })
  } catch (error) {
    // V8 makes the error in the other context: it is no Error of this one.
    if (Object(error).code !== 'ERR_SCRIPT_EXECUTION_TIMEOUT') throw error
  }
  return isDone
}
