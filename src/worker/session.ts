// A worker's session: opened at start and renewed by heartbeats. A worker that could not renew its session in time
// has lost all its leases and opens a new session.
import { type Clock, steadyClock } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import { closeSession, openSession, renewSession } from '../store/leases.ts'
import type { SessionRole } from '../store/schema.ts'
import type { Store } from '../store/store.ts'

/** A lease survives two failed renewals. */
const RENEWALS_PER_LEASE = 3
/** So that a waiting reason can name a missing worker before its lease expires. */
const RENEW_MS_MAX = 2_000

/** A time by the system's clock (Unix ms), and by one that is never set back. */
interface Moment {
  wall: number
  steady: number
}

interface SessionOptions {
  store: Store
  clock: Clock
  /** Never set back, unlike the system time. */
  steadyClock?: Pick<Clock, 'now'> | undefined
  log: Log
  leaseMs: number
  /** `api`: the process sends no lines. */
  role?: SessionRole
  /** The lease is certainly valid again: sending may continue. */
  onRenewed: () => void
  /** The session expired, and with it all its leases. A new session is open already. */
  onLost: () => void
}

export class Session {
  readonly #options: SessionOptions
  #id: string | null = null
  #cancel: (() => void) | null = null
  #renewing: Promise<void> | null = null
  #closed = false
  /** When the last successful renewal was requested, by either clock. */
  #renewedAt: Moment = { wall: 0, steady: 0 }

  constructor(options: SessionOptions) {
    this.#options = options
  }

  get id(): string {
    if (this.#id === null) throw new Error('the session is not open')
    return this.#id
  }

  /**
   * Whether the lease cannot have expired yet. Only the database decides when it expires; a worker that was suspended,
   * or cannot reach the database, sends no new lines, because other workers may have claimed its chunks. Both clocks
   * count: the system time may be set back, and the steady one may pause while the machine sleeps.
   */
  get isCertain(): boolean {
    const { leaseMs } = this.#options
    const now = this.#now()
    return now.wall - this.#renewedAt.wall < leaseMs && now.steady - this.#renewedAt.steady < leaseMs
  }

  #now(): Moment {
    const { clock, steadyClock: steady = steadyClock } = this.#options
    return { wall: clock.now(), steady: steady.now() }
  }

  async open(): Promise<void> {
    const { store, clock, leaseMs, role } = this.#options
    this.#renewedAt = this.#now()
    this.#id = await store.write((tx) => openSession(tx, store.claimSql, leaseMs, clock.now(), role))
    this.#schedule()
  }

  /** Requeues everything that is still leased. */
  async close(): Promise<void> {
    this.#closed = true
    this.#cancel?.()
    // A renewal may be opening another session.
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
    const requestedAt = this.#now()
    try {
      const isRenewed = await store.write((tx) => renewSession(tx, store.claimSql, id, leaseMs))
      if (!isRenewed && !this.#closed) {
        log.warn({ worker: id }, 'worker lease expired before it was renewed; requeued its work')
        this.#id = await store.write(async (tx) => {
          await closeSession(tx, id)
          return await openSession(tx, store.claimSql, leaseMs, clock.now(), role)
        })
        onLost()
      }
      const wasCertain = this.isCertain
      this.#renewedAt = requestedAt
      if (!wasCertain) onRenewed()
    } catch (error) {
      log.error({ err: error, worker: id }, 'the lease could not be renewed')
    }
    this.#schedule()
  }
}
