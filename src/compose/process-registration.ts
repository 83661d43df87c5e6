// Registers a process of a service for as long as it runs, so that `rekey` and `migrate-data` refuse to start; and
// refuses to start the process while one of them is running.

import { assertNotFrozen } from '../admin/database-freeze.ts'
import type { Config } from '../config/config.ts'
import { systemClock } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import { Session } from '../worker/session.ts'
import type { Stores } from './stores.ts'

/** Beyond this clock skew a warning is logged: the machine's clock dates its logs. */
const CLOCK_SKEW_MS_MAX = 1_000

export interface ProcessRegistration {
  /** The ID of its session. */
  readonly id: string
  /** Must be called before the stores are closed. */
  end(): Promise<void>
}

/** Throws AdminCommandError while an admin command keeps services off the database. */
export async function register(
  { store }: Pick<Stores, 'store'>,
  config: Pick<Config, 'worker'>,
  log: Log,
): Promise<ProcessRegistration> {
  const skewMs = systemClock.now() - store.clock.now()
  if (Math.abs(skewMs) > CLOCK_SKEW_MS_MAX)
    log.warn({ skew_ms: skewMs }, "this machine's clock differs from the database's, which is used")
  const session = new Session({
    store,
    clock: store.clock,
    log,
    leaseMs: config.worker.lease_ms,
    role: 'api',
    onRenewed: () => {},
    onLost: () => {},
  })
  await session.open()
  try {
    await assertNotFrozen(store.read)
  } catch (error) {
    await session.close()
    throw error
  }
  return {
    get id() {
      return session.id
    },
    end: () => session.close(),
  }
}
