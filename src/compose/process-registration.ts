// A process of a service says that it is there, as long as it runs, so that nobody rekeys or moves the database
// under it; and it does not start while somebody does.

import { assertNotFrozen } from '../admin/database-freeze.ts'
import type { Config } from '../config/config.ts'
import { Session } from '../dispatch/session.ts'
import { systemClock } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import type { Stores } from './stores.ts'

/** A machine whose clock is further off than this is told so: its logs are dated by it. */
const CLOCK_OFF_MS_MAX = 1_000

export interface ProcessRegistration {
  /** Of its session. */
  readonly id: string
  /** To be called before the stores are closed. */
  end(): Promise<void>
}

/** Throws AdminCommandError where no service may run now. */
export async function announce(
  { store }: Pick<Stores, 'store'>,
  config: Pick<Config, 'worker'>,
  log: Log,
): Promise<ProcessRegistration> {
  const off_ms = systemClock.now() - store.clock.now()
  if (Math.abs(off_ms) > CLOCK_OFF_MS_MAX)
    log.warn({ off_ms }, "this machine's clock is not the database's, which is the one that counts")
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
