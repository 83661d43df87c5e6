// What every command is given by the program it belongs to. Only the functions that declare a command see it
// whole; whatever they call gets the parts it uses.
import type { Clock } from '../domain/clock.ts'
import type { Launch } from './launch.ts'
import type { Terminal } from './terminal/terminal.ts'

export interface Shell {
  launch: Launch
  access: Access
  terminal: Terminal
  clock: Clock
  /** Aborts at the first SIGINT or SIGTERM after it was first called. */
  interruption(): AbortSignal
  /** The exit code of a command that ended well; 0 unless it is called. */
  exit(code: number): void
}

/** OFFPEAK_BASE_URL and OFFPEAK_API_KEY, as main.ts found them. */
export interface Access {
  baseUrl: string | undefined
  apiKey: string | undefined
}
