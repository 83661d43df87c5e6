// Creating commands keep their Idempotency-Key in a file until they have ended. A command that is repeated after its answer was
// lost, could not be read, or was interrupted sends the same key, and gets the batch of the first call; a command that ended
// leaves nothing, so that the next one creates another batch.
import { hash, randomUUID } from 'node:crypto'
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { isRecord, parsedJson } from '../../domain/json-record.ts'
import type { Environment, Shell } from '../shell.ts'
import { hasCode, Interrupted } from '../terminal/failure.ts'
import { writeLine } from '../terminal/terminal.ts'
import { ApiError, worthRetrying } from './client.ts'
import type { Connection } from './connect.ts'
import { Unreadable } from './read-answer.ts'

/** The time in ms for which a key is reused: services keep keys for a day at least. */
const KEPT_MS = 23 * 3_600_000

/** Calls `create` with an Idempotency-Key. Equal texts in `call` get the same key, until such a call has ended. */
export async function createOnce<T>(
  { env, clock, terminal }: Pick<Shell, 'env' | 'clock' | 'terminal'>,
  { target, client }: Pick<Connection, 'target' | 'client'>,
  call: unknown,
  create: (key: string) => Promise<T>,
): Promise<T> {
  const name = hash('sha256', JSON.stringify([target, client.keyHash, call])).slice(0, 32)
  const folder = stateFolder(env, 'calls')
  const path = join(folder, name)
  const earlier = await readKept(path, clock.now())
  if (earlier?.isRunning) return await create(newKey())
  if (earlier !== null)
    writeLine(
      terminal.stderr,
      'The same call was interrupted before; it is repeated, and creates nothing twice.',
    )
  const key = earlier?.key ?? newKey()
  try {
    await mkdir(folder, { recursive: true, mode: 0o700 })
    await writeFile(path, JSON.stringify({ key, pid: process.pid, at: clock.now() }), { mode: 0o600 })
  } catch {
    // Without such a folder, only the calls of this command share the key.
  }
  const done = await create(key).catch(async (error: unknown) => {
    if (!mayHaveCreated(error)) await rm(path, { force: true })
    throw error
  })
  await rm(path, { force: true })
  return done
}

/** The folder of state that commands share. */
export function stateFolder(env: Environment, name: string): string {
  return join(env.XDG_STATE_HOME || join(env.HOME || homedir(), '.local', 'state'), 'offpeak', name)
}

function newKey(): string {
  return `cli-${randomUUID()}`
}

function mayHaveCreated(error: unknown): boolean {
  if (error instanceof ApiError) return worthRetrying(error.status, error.code)
  return error instanceof Interrupted || error instanceof Unreadable
}

async function readKept(path: string, now: number): Promise<{ key: string; isRunning: boolean } | null> {
  const kept = parsedJson(await readFile(path, 'utf8').catch(() => ''))
  if (!isRecord(kept)) return null
  const { key, pid, at } = kept
  if (typeof key !== 'string' || typeof pid !== 'number' || Number(at) + KEPT_MS < now) return null
  return { key, isRunning: pid !== process.pid && isRunning(pid) }
}

function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch (error) {
    return !hasCode(error, 'ESRCH')
  }
}
