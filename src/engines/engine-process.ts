// An engine as a process: started, watched and stopped with everything that it has started. guard-script.ts keeps the promise
// that nothing of it remains, however the worker ends.
import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { Socket } from 'node:net'
import { constants } from 'node:os'
import { basename } from 'node:path'
import type { Duplex, Readable } from 'node:stream'
import { systemClock } from '../domain/clock.ts'
import { visible } from '../domain/visible-text.ts'
import { GUARD_SCRIPT } from './guard-script.ts'

/** Lines of output that are kept for messages. */
const LINES_KEPT = 20
const LINE_LENGTH_MAX = 300
/** Tenths of a second between SIGTERM and SIGKILL. */
const STOP_TENTHS = 50
/** For the rest of its output, once it has exited. */
const OUTPUT_MS_MAX = 500

export interface EngineOrder {
  command: readonly string[]
  /** Added to the environment of this process. */
  env: Readonly<Record<string, string>>
}

export interface EngineProcess {
  readonly pid: number | undefined
  /** Resolves when the process has exited: "exited with 1". Never rejects. */
  readonly exited: Promise<string>
  /** The last lines of its output, the last one last. */
  lastLines(): readonly string[]
  /** Resolves when no process of it is left. */
  stop(): Promise<void>
}

export type LaunchEngine = (order: EngineOrder) => EngineProcess

/** What its owner has of an engine: who closes them stops it. */
export interface EngineEnds {
  /** The other end of the guard's fd 3. */
  control: Duplex
  output: readonly [stdout: Readable, stderr: Readable]
}

/** How its process ended, as far as that is seen from outside. */
interface Exit {
  code: number | null
  signal: string | null
  error?: Error
}

export const launchEngine: LaunchEngine = (order) => {
  const { pid, ends, exit } = spawnEngine(order)
  return engineProcess(pid, order.command[0] ?? '', ends, exit)
}

export function spawnEngine({ command, env }: EngineOrder): {
  pid: number | undefined
  ends: EngineEnds
  exit: Promise<Exit>
} {
  const child = spawn(
    '/bin/sh',
    ['-c', GUARD_SCRIPT, 'engine-guard', randomUUID(), String(STOP_TENTHS), ...command],
    {
      env: { ...ownEnvironment(), ...env },
      // A session and a process group of its own: Ctrl-C in a terminal is the worker's business.
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe', 'pipe'],
    },
  )
  const exit = new Promise<Exit>((resolve) => {
    child.on('error', (error) => resolve({ code: null, signal: null, error }))
    child.on('exit', (code, signal) => resolve({ code, signal }))
  })
  const { pid, stdout, stderr } = child
  if (stdout === null || stderr === null) throw new Error('an engine was started without pipes')
  return { pid, ends: { control: child.stdio[3] as Duplex, output: [stdout, stderr] }, exit }
}

/** An engine that another process has started, whose ends this one has as three file descriptors from `fd` on. */
export function inheritedEngine(
  pid: number | undefined,
  program: string,
  fd: number,
  read: readonly string[],
): EngineProcess {
  const end = (at: number): Socket => {
    const socket = new Socket({ fd: fd + at })
    // What the other process has read already.
    if (read[at]) socket.unshift(read[at])
    return socket
  }
  const [control, stdout, stderr] = [end(0), end(1), end(2)]
  const exit = once(control, 'end').then(
    () => ({ code: null, signal: null }),
    () => ({ code: null, signal: null }),
  )
  return engineProcess(pid, program, { control, output: [stdout, stderr] }, exit)
}

function engineProcess(
  pid: number | undefined,
  program: string,
  { control, output }: EngineEnds,
  exit: Promise<Exit>,
): EngineProcess {
  const lines: string[] = []
  let status = ''
  control.on('data', (piece: Buffer) => {
    status += piece.toString()
  })
  control.on('error', () => {})
  control.on('end', () => control.destroy())
  for (const stream of output)
    eachLine(stream, (text) => {
      lines.push(visible(text).slice(0, LINE_LENGTH_MAX))
      if (lines.length > LINES_KEPT) lines.shift()
    })
  const outputRead = Promise.all(
    output.map((stream) => new Promise((resolve) => stream.on('close', resolve))),
  )
  const exited = exit.then(async ({ code, signal, error }) => {
    if (error) return `could not be started: ${error.message}`
    // Where the guard itself was killed, its watcher ends the rest when the pipe ends.
    control.end()
    const late = Promise.withResolvers<void>()
    const cancel = systemClock.after(OUTPUT_MS_MAX, () => late.resolve())
    await Promise.race([outputRead, late.promise])
    cancel()
    control.destroy()
    return howItEnded(status.trim(), code, signal, program)
  })
  return {
    pid,
    exited,
    lastLines: () => lines,
    async stop() {
      control.end()
      await exited
    },
  }
}

/** Without the settings of the service, which hold secrets. */
function ownEnvironment(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('OFFPEAK_')))
}

function eachLine(stream: Readable, tell: (line: string) => void): void {
  let rest = ''
  stream.on('data', (piece: Buffer) => {
    const pieces = (rest + piece.toString()).split(/\r\n|\n|\r/)
    rest = (pieces.pop() ?? '').slice(-LINE_LENGTH_MAX)
    for (const line of pieces) if (line.trim() !== '') tell(line)
  })
  stream.on('error', () => {})
  stream.on('end', () => {
    if (rest.trim() !== '') tell(rest)
  })
}

/** `status` is the engine's, as the shell reports it; without one the guard was killed. */
function howItEnded(status: string, code: number | null, signal: string | null, program: string): string {
  const found = status === '' ? code : Number(status)
  if (found === 127) return `could not be started: there is no program ${basename(program)} on the PATH`
  if (found === 126) return `could not be started: ${program} is not executable`
  if (found === null) return signal === null ? 'exited' : `was killed by ${signal}`
  const name = Object.entries(constants.signals).find(([, number]) => number === found - 128)?.[0]
  return found > 128 && name !== undefined ? `was killed by ${name}` : `exited with ${found}`
}
