// The command line in this process, against the service of a test.
import assert from 'node:assert/strict'
import { rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type ProgramOptions, runProgram } from '../../src/cli/program.ts'
import type { Launch } from '../../src/cli/shell.ts'
import { systemClock } from '../../src/domain/clock.ts'
import type { TestService } from '../service.ts'
import { capturedTerminal } from './terminal.ts'

/** Of the services and of the command line in tests. */
export const TEST_VERSION = '0.0.0-test'
/** Where creating commands keep what they have not ended. */
const STATE = join(tmpdir(), `offpeak-test-state-${process.pid}`)
process.once('exit', () => rmSync(STATE, { recursive: true, force: true }))

export interface Ended {
  code: number
  out: string
  err: string
}

export async function offpeak(service: TestService, ...args: string[]): Promise<Ended> {
  return await offpeakWith(service, {}, args)
}

/** Interrupted, as by Ctrl-C, when `signal` aborts. */
export async function offpeakUntil(
  service: TestService,
  signal: AbortSignal,
  ...args: string[]
): Promise<Ended> {
  return await offpeakWith(service, { interruption: () => signal }, args)
}

export async function offpeakWith(
  service: TestService,
  more: Partial<ProgramOptions>,
  args: readonly string[],
): Promise<Ended> {
  return await runOffpeak(args, { access: { baseUrl: service.url, apiKey: service.key }, ...more })
}

/** Without a service: the command may start what `more.launch` has. `columns`: the width of a screen; without it, a pipe. */
export async function runOffpeak(
  args: readonly string[],
  { columns, ...more }: Partial<ProgramOptions> & { columns?: number | undefined } = {},
): Promise<Ended> {
  const terminal = capturedTerminal(columns)
  const code = await runProgram(args, {
    launch: launchOnly(),
    access: { baseUrl: undefined, apiKey: undefined },
    terminal,
    clock: systemClock,
    interruption: () => new AbortController().signal,
    version: TEST_VERSION,
    env: { XDG_STATE_HOME: STATE },
    withStack: false,
    ...more,
  })
  return { code, out: terminal.out(), err: terminal.err() }
}

/** What the command prints for scripts; it must end well. */
export async function offpeakJson<T>(service: TestService, ...args: string[]): Promise<T> {
  const { code, out, err } = await offpeak(service, ...args, '--json')
  assert.equal(code, 0, err)
  return JSON.parse(out)
}

const never = (): never => assert.fail('nothing else is to be started')
const nothing = {
  loadConfig: never,
  serve: never,
  reload: never,
  shownConfig: never,
  keys: never,
  sim: never,
  doctor: never,
  adminCommands: never,
}

/** What a command may start: what its test names, and nothing else. */
export function launchOnly(parts: Partial<Launch> = {}): Launch {
  return { ...nothing, ...parts }
}
