// A worker's session: opened at start, renewed while the worker lives. A worker that could not renew in time
// (it slept, or the database was away) has lost everything it held, and begins again with a new session.
import type { Clock } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import { closeSession, openSession, renewSession } from '../store/leases.ts'
import type { SessionRole } from '../store/schema.ts'
import type { Store } from '../store/store.ts'

/** A lease survives two renewals that fail. */
const RENEWALS_PER_LEASE = 3
/** Who asks why nothing moves is to hear of a worker that is gone before the lease has run out. */
const RENEW_MS_MAX = 2_000

export interface SessionOptions {
  store: Store
  clock: Clock
  log: Log
  leaseMs: number
  /** `api`: of a process that sends nothing. */
  role?: SessionRole
  /** The lease holds for certain again: what was held back meanwhile may go on. */
  onRenewed: () => void
  /** The session has ended by itself: what was held under it is lost. A new one is open already. */
  onLost: () => void
}

export class Session {
  readonly #options: SessionOptions
  #id: string | null = null
  #cancel: (() => void) | null = null
  #renewing: Promise<void> | null = null
  #closed = false
  /** When the last renewal that succeeded was asked for. */
  #renewedAt = 0

  constructor(options: SessionOptions) {
    this.#options = options
  }

  get id(): string {
    if (this.#id === null) throw new Error('the session is not open')
    return this.#id
  }

  /**
   * Whether the lease cannot have run out yet. The database alone knows when it does; a worker that froze, or
   * cannot reach the database, sends nothing new meanwhile, for others may have taken over what it held.
   */
  get isCertain(): boolean {
    const { clock, leaseMs } = this.#options
    return clock.now() - this.#renewedAt < leaseMs
  }

  async open(): Promise<void> {
    const { store, clock, leaseMs, role } = this.#options
    this.#renewedAt = clock.now()
    this.#id = await store.write((tx) => openSession(tx, store.claimSql, leaseMs, clock.now(), role))
    this.#schedule()
  }

  /** Gives back everything that is still held. */
  async close(): Promise<void> {
    this.#closed = true
    this.#cancel?.()
    // It may be opening another one.
    await this.#renewing
    const id = this.#id
    if (id !== null) await this.#options.store.write((tx) => closeSession(tx, id))
  }

  #schedule(): void {
    const { clock, leaseMs } = this.#options
    if (this.#closed) return
    this.#cancel = clock.after(Math.min(leaseMs / RENEWALS_PER_LEASE, RENEW_MS_MAX), () => {
      this.#renewing = this.#renew()
    })
  }

  async #renew(): Promise<void> {
    const { store, clock, log, leaseMs, role, onLost, onRenewed } = this.#options
    const id = this.id
    const askedAt = clock.now()
    try {
      const alive = await store.write((tx) => renewSession(tx, store.claimSql, id, leaseMs))
      if (!alive && !this.#closed) {
        log.warn(
          { worker: id },
          'the lease ran out before it was renewed; what this worker held is done again',
        )
        this.#id = await store.write(async (tx) => {
          // Nobody need wait until somebody notices.
          await closeSession(tx, id)
          return await openSession(tx, store.claimSql, leaseMs, clock.now(), role)
        })
        onLost()
      }
      const wasCertain = this.isCertain
      this.#renewedAt = askedAt
      if (!wasCertain) onRenewed()
    } catch (error) {
      log.error({ err: error, worker: id }, 'the lease could not be renewed')
    }
    this.#schedule()
  }
}
