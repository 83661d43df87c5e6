// How a command ends that does not succeed: its errors with the message for the user, the exit code, and signals.
import { once } from 'node:events'
import { BlobStoreFailed } from '../../blobs/blobs.ts'
import { type Clock, every } from '../../domain/clock.ts'
import { ExplainedError, messageOf } from '../../domain/errors.ts'
import { withoutUrlSecrets } from '../../domain/text.ts'

export const EXIT_FAILED = 1
/** The exit code of a dry run that found a difference from the described state. */
export const EXIT_DRIFT = 2
/** The exit code of a batch that finished with some failed lines. */
export const EXIT_LINES_FAILED = 3
/** The exit code of a run that sent nothing, because it has finished before or another process runs it. */
export const EXIT_NOT_SENT = 4
/** The exit code by which shells report SIGINT. */
export const EXIT_INTERRUPTED = 130

/** The error of a command for a reason that its user can fix. */
export class Failure extends ExplainedError {
  readonly exitCode: number

  constructor(message: string, exitCode: number = EXIT_FAILED, options?: ErrorOptions) {
    super(message, options)
    this.name = 'Failure'
    this.exitCode = exitCode
  }
}

/** The error wherever a command waits when the user interrupts it. */
export class Interrupted extends Failure {
  constructor(message = 'interrupted') {
    super(message, EXIT_INTERRUPTED)
    this.name = 'Interrupted'
  }
}

/** The text to print for `error`, with its stack if `withStack`. */
export function failureText(error: unknown, withStack: boolean): string {
  const stack = withStack && error instanceof Error && error.stack !== undefined ? `\n${error.stack}` : ''
  return withoutUrlSecrets(`offpeak: ${sentence(error)}${stack}`)
}

function sentence(error: unknown): string {
  if (error instanceof ExplainedError) return error.message
  // A folder is created with its parents: on ENOENT, none can be created, as on a read-only file system.
  if (isFileError(error) && error.code === 'ENOENT' && error.syscall === 'mkdir')
    return `this folder cannot be made here: ${error.path}; choose another place, or make the file system writable`
  if (error instanceof BlobStoreFailed)
    return error.isFull
      ? `${error.message}; free space there`
      : `${error.message}; check \`blobs\` in the configuration, and for a bucket the identity and permissions of this process`
  if (isFileError(error)) return `${FILE_ERRORS.get(error.code) ?? error.code}: ${error.path}`
  if (hasCode(error, 'EACCES'))
    return `this user may not listen on this port (${messageOf(error)}); choose another --port, from 1024 up`
  if (hasCode(error, 'EADDRINUSE')) {
    return `another program already listens on this address (${messageOf(error)}); choose another --port, or --port 0 for any free port`
  }
  if (['EADDRNOTAVAIL', 'EAFNOSUPPORT', 'ENOTFOUND', 'EAI_AGAIN'].some((code) => hasCode(error, code)))
    return `this machine does not have this address (${messageOf(error)}); choose another --host`
  return `unexpected error: ${messageOf(error)}; run the command with OFFPEAK_LOG_LEVEL=debug to see the stack`
}

const FILE_ERRORS = new Map([
  ['ENOENT', 'there is no such file or folder'],
  ['EACCES', 'permission denied (choose another place, or give this user the right to it)'],
  ['EMFILE', 'the process may open no more files (raise the limit: ulimit -n, LimitNOFILE)'],
  ['EISDIR', 'expected a file, found a folder'],
  ['EEXIST', 'expected a folder, found a file'],
  ['ENOTDIR', 'part of this path is a file, not a folder'],
  ['ENOSPC', 'no space is left on the disk (free some, or choose another place)'],
  ['EDQUOT', 'no more space is allowed to this user on the disk (free some, or choose another place)'],
  ['EROFS', 'the file system is read-only'],
])

function isFileError(error: unknown): error is Error & { code: string; path: string; syscall?: unknown } {
  return (
    error instanceof Error &&
    'code' in error &&
    typeof error.code === 'string' &&
    'path' in error &&
    typeof error.path === 'string'
  )
}

/** The result of a write to the open file at `path`, which errors name that come of open files. */
export async function writing<T>(path: string, written: Promise<T>): Promise<T> {
  try {
    return await written
  } catch (error) {
    throw Object.assign(Object(error), { path })
  }
}

/** Whether `error` is a system error with this code. */
export function hasCode(error: unknown, code: string): boolean {
  return error instanceof Error && 'code' in error && error.code === code
}

// SIGINT and SIGTERM: the first signal starts a graceful shutdown, the second ends the process at once. Under npm two
// things differ: npm forwards a terminal's Ctrl-C to a process that already received it, and a SIGTERM to npm ends
// the shell between npm and the command, which can notice only that its parent process has exited.

/** The parts of Node's `process` that signal handlers use. */
interface SignalSource {
  readonly ppid: number
  on(signal: 'SIGINT' | 'SIGTERM', listener: () => void): unknown
  exit(code: number): never
}

interface InterruptionOptions {
  clock: Clock
  /** Whether npx or an npm script started the process. */
  underNpm: boolean
}

/** The time in ms within which npm forwards the first signal as a second one. */
const PASSED_ON_MS = 300
const LOOK_FOR_PARENT_MS = 250

/** Returns a function whose first call installs the handlers. Without a call, signals end the process as usual. */
export function interruption(source: SignalSource, options: InterruptionOptions): () => AbortSignal {
  const { clock, underNpm } = options
  let controller: AbortController | undefined
  return () => {
    if (controller !== undefined) return controller.signal
    const asked = new AbortController()
    let askedAt = 0
    const onSignal = (): void => {
      const now = clock.now()
      if (!asked.signal.aborted) {
        askedAt = now
        asked.abort()
      } else if (!underNpm || now - askedAt > PASSED_ON_MS) source.exit(EXIT_INTERRUPTED)
    }
    source.on('SIGINT', onSignal)
    source.on('SIGTERM', onSignal)
    if (underNpm) whenOrphaned(source, clock, asked)
    controller = asked
    return asked.signal
  }
}

function whenOrphaned(source: SignalSource, clock: Clock, asked: AbortController): void {
  const parent = source.ppid
  every(clock, LOOK_FOR_PARENT_MS, () => {
    if (source.ppid !== parent) asked.abort()
    return !asked.signal.aborted
  })
}

export async function aborted(signal: AbortSignal): Promise<void> {
  if (!signal.aborted) await once(signal, 'abort')
}
