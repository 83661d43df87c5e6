// An engine as a process: started, watched and stopped with everything that it has started. guard-script.ts keeps the promise
// that nothing of it remains, however the worker ends.
import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { constants } from 'node:os'
import { basename } from 'node:path'
import type { Duplex } from 'node:stream'
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

export const launchEngine: LaunchEngine = ({ command, env }) => {
  const lines: string[] = []
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
  const pipe = child.stdio[3] as Duplex
  let status = ''
  pipe.on('data', (piece: Buffer) => {
    status += piece.toString()
  })
  pipe.on('error', () => {})
  pipe.on('end', () => pipe.destroy())
  for (const output of [child.stdout, child.stderr])
    eachLine(output, (text) => {
      lines.push(visible(text).slice(0, LINE_LENGTH_MAX))
      if (lines.length > LINES_KEPT) lines.shift()
    })
  const exited = new Promise<string>((resolve) => {
    child.on('error', (error) => resolve(`could not be started: ${error.message}`))
    const outputRead = Promise.withResolvers<void>()
    child.on('close', () => outputRead.resolve())
    child.on('exit', async (code, signal) => {
      // Where the guard itself was killed, its watcher ends the rest when the pipe ends.
      pipe.end()
      const cancel = systemClock.after(OUTPUT_MS_MAX, () => outputRead.resolve())
      await outputRead.promise
      cancel()
      pipe.destroy()
      resolve(howItEnded(status.trim(), code, signal, command[0] ?? ''))
    })
  })
  return {
    pid: child.pid,
    exited,
    lastLines: () => lines,
    async stop() {
      pipe.end()
      await exited
    },
  }
}

/** Without the settings of the service, which hold secrets. */
function ownEnvironment(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('OFFPEAK_')))
}

function eachLine(stream: NodeJS.ReadableStream | null, tell: (line: string) => void): void {
  let rest = ''
  stream?.on('data', (piece: Buffer) => {
    const pieces = (rest + piece.toString()).split(/\r\n|\n|\r/)
    rest = (pieces.pop() ?? '').slice(-LINE_LENGTH_MAX)
    for (const line of pieces) if (line.trim() !== '') tell(line)
  })
  stream?.on('end', () => {
    if (rest.trim() !== '') tell(rest)
  })
}

/** `status` is the engine's, as the shell reports it; without one the guard was killed. */
function howItEnded(status: string, code: number | null, signal: string | null, program: string): string {
  const found = status === '' ? code : Number(status)
  if (found === 127) return `could not be started: there is no program ${basename(program)} on the PATH`
  if (found === 126) return `could not be started: ${program} is not executable`
  if (found === null) return `was killed by ${signal}`
  const name = Object.entries(constants.signals).find(([, number]) => number === found - 128)?.[0]
  return found > 128 && name !== undefined ? `was killed by ${name}` : `exited with ${found}`
}
