// How a command ends other than well: one sentence for the person at the keyboard, and an exit code.

import { AdminCommandError } from '../../admin/admin-command-error.ts'
import { MasterKeyError } from '../../blobs/master-key.ts'
import { ConfigError } from '../../config/config-error.ts'
import { ApiError } from '../../domain/errors.ts'
import { DatabaseFailure, SchemaMismatch } from '../../store/store.ts'

export const EXIT_FAILED = 1
/** The work is done, but some of its lines failed. */
export const EXIT_LINES_FAILED = 3
/** As shells report the end by SIGINT. */
export const EXIT_INTERRUPTED = 130

/** Its message says what went wrong, where, and how to mend it. */
export class Failure extends Error {
  readonly exitCode: number

  constructor(message: string, exitCode: number = EXIT_FAILED, options?: ErrorOptions) {
    super(message, options)
    this.name = 'Failure'
    this.exitCode = exitCode
  }
}

/** Thrown from wherever a command waits when the user asks it to end. */
export class Interrupted extends Failure {
  constructor(message = 'interrupted') {
    super(message, EXIT_INTERRUPTED)
    this.name = 'Interrupted'
  }
}

/** What is printed for `error`; the stack only when `withStack`. */
export function failureText(error: unknown, withStack: boolean): string {
  const stack = withStack && error instanceof Error && error.stack !== undefined ? `\n${error.stack}` : ''
  return `offpeak: ${sentence(error)}${stack}`
}

export function exitCode(error: unknown): number {
  return error instanceof Failure ? error.exitCode : EXIT_FAILED
}

function sentence(error: unknown): string {
  if (SPOKEN.some((kind) => error instanceof kind)) return message(error)
  if (isFileError(error)) return `${FILE_ERRORS.get(error.code) ?? error.code}: ${error.path}`
  if (hasCode(error, 'EADDRINUSE')) {
    return `another program listens there already (${message(error)}); choose another --port, or 0 for any`
  }
  if (hasCode(error, 'EADDRNOTAVAIL'))
    return `this machine has no such address (${message(error)}); choose another --host`
  return `unexpected error: ${message(error)}; run it with OFFPEAK_LOG_LEVEL=debug to see where it comes from`
}

/** Their messages are written for whoever is at the keyboard. */
const SPOKEN = [
  Failure,
  ConfigError,
  ApiError,
  MasterKeyError,
  SchemaMismatch,
  DatabaseFailure,
  AdminCommandError,
]

const FILE_ERRORS = new Map([
  ['ENOENT', 'there is no such file or folder'],
  ['EACCES', 'permission denied'],
  ['EISDIR', 'this is a folder, a file is needed'],
  ['EEXIST', 'this is a file, a folder is needed'],
  ['ENOTDIR', 'part of this path is a file, not a folder'],
  ['ENOSPC', 'no space is left on the device'],
  ['EROFS', 'the file system is read-only'],
])

function isFileError(error: unknown): error is Error & { code: string; path: string } {
  return (
    error instanceof Error &&
    'code' in error &&
    typeof error.code === 'string' &&
    'path' in error &&
    typeof error.path === 'string'
  )
}

/** Whether `error` is one of the system's with this code. */
export function hasCode(error: unknown, code: string): boolean {
  return error instanceof Error && 'code' in error && error.code === code
}

function message(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
