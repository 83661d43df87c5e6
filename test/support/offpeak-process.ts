// Runs Offpeak as a real process, as users start it: a test starts, calls, stops and kills it. The process inherits
// none of the developer's settings for Offpeak, for buckets or for npm.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { setTimeout } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

/** What was compiled once is kept. */
export const OFFPEAK = fileURLToPath(new URL('../../bin/offpeak.js', import.meta.url))

/** Between two questions to another process, which has no way to tell by itself. */
const ASK_AGAIN_MS = 20

/** The environment of a test's processes, with `more` in it. */
export function cleanEnv(more: NodeJS.ProcessEnv = {}): NodeJS.ProcessEnv {
  const outer = Object.entries(process.env).filter(([name]) => !/^(OFFPEAK|AWS|npm)_/.test(name))
  return { ...Object.fromEntries(outer), ...more }
}

export interface Launch {
  /** In place of `bin/offpeak.js`. */
  main?: string
  cwd?: string
  env?: NodeJS.ProcessEnv
  /** A program in place of Node, with its arguments before ours. */
  through?: readonly [program: string, ...args: string[]]
}

export class OffpeakProcess {
  readonly child: ChildProcess
  /** Resolves with its exit code; null after a kill. */
  readonly ended: Promise<number | null>
  /** Resolves with the first line on standard output; rejects when the process ends before. */
  readonly ready: Promise<string>
  /** Lines on standard error. */
  readonly said: string[] = []
  /** Is called with each line on standard error. */
  onLine: (line: string) => void = () => {}

  constructor(args: readonly string[], { main = OFFPEAK, cwd, env = {}, through }: Launch = {}) {
    const [program = process.execPath, ...before] = through ?? []
    const command = through === undefined ? [main, ...args] : [...before, ...args]
    // A group of its own, so that it can be killed with what it has started.
    this.child = spawn(program, command, {
      ...(cwd !== undefined && { cwd }),
      env: cleanEnv(env),
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    createInterface({ input: this.child.stderr! }).on('line', (line) => {
      this.said.push(line)
      this.onLine(line)
    })
    this.ended = once(this.child, 'exit').then(([code]) => (typeof code === 'number' ? code : null))
    this.ready = Promise.race([
      once(createInterface({ input: this.child.stdout! }), 'line').then(([line]) => String(line)),
      this.ended.then(async () => {
        // Its last words may still be on their way; a child of its own may keep the pipe open.
        if (!this.child.stderr!.closed)
          await Promise.race([once(this.child.stderr!, 'close'), setTimeout(1_000)])
        throw new Error(`${args[0]} ended before it was ready: ${this.log}\n`)
      }),
    ])
    this.ready.catch(() => {})
    killAtExit.add(this.child)
    this.child.once('exit', () => killAtExit.delete(this.child))
  }

  get log(): string {
    return this.said.join('\n')
  }

  /** Where its API listens. */
  get url(): Promise<string> {
    return this.ready.then((line) => line.replace('offpeak listening on ', ''))
  }

  /** To the process alone; resolves with its exit code, null after a kill. */
  async end(signal: NodeJS.Signals): Promise<number | null> {
    this.child.kill(signal)
    return await this.ended
  }

  /** To the process and all that it started. */
  async endGroup(signal: NodeJS.Signals): Promise<number | null> {
    if (this.child.pid !== undefined) killIfThere(-this.child.pid, signal)
    return await this.ended
  }
}

/** No process outlives the tests that started it. */
const killAtExit = new Set<ChildProcess>()
process.on('exit', () => {
  for (const { pid } of killAtExit) if (pid !== undefined) killIfThere(-pid)
})

/** Asks another process until it says so. */
export async function until(ask: () => Promise<boolean> | boolean): Promise<void> {
  while (!(await ask())) await setTimeout(ASK_AGAIN_MS)
}

/** Whether the process still does anything; one that has ended may wait for ever to be looked after. */
export function isAlive(pid: number): boolean {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return stat.slice(stat.lastIndexOf(')') + 2, stat.lastIndexOf(')') + 3) !== 'Z'
  } catch {
    return false
  }
}

/** Unless the process, or with a negative number the group, has ended by itself meanwhile. */
export function killIfThere(pid: number, signal: NodeJS.Signals = 'SIGKILL'): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if (!(error instanceof Error && 'code' in error && error.code === 'ESRCH')) throw error
  }
}

/** The processes that `child` has started. */
export function childrenOf(child: Pick<ChildProcess, 'pid'>): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => parentOf(pid) === child.pid)
    .map(Number)
}

function parentOf(pid: string): number | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1])
  } catch {
    // It has ended meanwhile.
    return null
  }
}
