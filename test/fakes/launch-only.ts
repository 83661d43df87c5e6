// What a command may start: what its test names, and nothing else.
import assert from 'node:assert/strict'
import type { Launch } from '../../src/cli/shell.ts'

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

export function launchOnly(parts: Partial<Launch> = {}): Launch {
  return { ...nothing, ...parts }
}
