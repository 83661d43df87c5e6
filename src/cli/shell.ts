// What the program gives to every command. Functions that declare a command take all of it; the functions they
// call take only the parts they use.
import type { Clock } from '../domain/clock.ts'
import type { Launch } from './launch.ts'
import type { Terminal } from './terminal/terminal.ts'

export interface Shell {
  launch: Launch
  access: Access
  env: Environment
  terminal: Terminal
  clock: Clock
  /** Aborts at the first SIGINT or SIGTERM after it was first called. */
  interruption(): AbortSignal
  /** Sets the exit code of a command that did not throw; without a call it is 0. */
  exit(code: number): void
}

/** PATH, and the variables that name programs. */
export type Environment = Readonly<Record<string, string | undefined>>

/** OFFPEAK_BASE_URL and OFFPEAK_API_KEY, as main.ts read them. */
export interface Access {
  baseUrl: string | undefined
  apiKey: string | undefined
}
