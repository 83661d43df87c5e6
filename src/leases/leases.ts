// A worker's session, and the chunks and tasks that it claims under it. The session is opened at start and renewed by
// heartbeats; a worker that could not renew it in time has lost all its leases and opens a new one.
import { every } from '../domain/clock.ts'
import { Slots } from '../domain/project-queue.ts'
import { type Fenced, releaseChunk } from '../store/chunks.ts'
import type { ChunkRow, SessionRole, TaskRow } from '../store/schema.ts'
import type { Ports, Writer } from '../store/store.ts'
import {
  closeSession,
  leasedChunks,
  leasedTasks,
  lockSession,
  openSession,
  releaseTask,
  renewSession,
} from '../store/workers.ts'

/** The number of renewals within a lease: it survives two failed ones. */
const RENEWALS_PER_LEASE = 3
/** The longest time between renewals: a waiting reason can name a missing worker before its lease expires. */
const RENEW_MS_MAX = 2_000

/** A time by the system's clock (Unix ms) and by the steady clock. */
interface Moment {
  wall: number
  steady: number
}

interface SessionOptions extends Pick<Ports, 'store' | 'clock' | 'log'> {
  leaseMs: number
  /** The role of the process; `api`: it sends no lines. */
  role?: SessionRole
  /** Called when the lease is certainly valid again: sending may continue. */
  onRenewed: () => void
  /** Called when the session expired, and with it all its leases. A new session is open already. */
  onLost: () => void
}

export class Session {
  readonly #options: SessionOptions
  #id: string | null = null
  #endRenewals = async (): Promise<void> => {}
  #closed = false
  /** The time at which the last successful renewal was requested, by either clock. */
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
    const { clock } = this.#options
    return { wall: clock.now(), steady: clock.steady() }
  }

  async open(): Promise<void> {
    const { store, clock, log, leaseMs, role } = this.#options
    this.#renewedAt = this.#now()
    this.#id = await store.write((tx) => openSession(tx, leaseMs, clock.now(), role))
    const renewMs = Math.min(leaseMs / RENEWALS_PER_LEASE, RENEW_MS_MAX)
    const failed = (err: unknown): void =>
      log.error({ err, worker: this.#id }, 'the lease could not be renewed')
    this.#endRenewals = every(clock, renewMs, () => this.#renew(), failed)
  }

  /** Requeues everything that is still leased, after `handOver`, in one transaction. */
  async close(handOver?: (tx: Writer) => Promise<void>): Promise<void> {
    this.#closed = true
    // A renewal may be opening another session.
    await this.#endRenewals()
    const id = this.#id
    if (id === null) return
    await this.#options.store.write(async (tx) => {
      await handOver?.(tx)
      await closeSession(tx, id)
    })
  }

  async #renew(): Promise<void> {
    const { store, clock, log, leaseMs, role, onLost, onRenewed } = this.#options
    const id = this.id
    const requestedAt = this.#now()
    const isRenewed = await store.write((tx) => renewSession(tx, id, leaseMs))
    if (!isRenewed && !this.#closed) {
      log.warn({ worker: id }, 'worker lease expired before it was renewed; requeued its work')
      this.#id = await store.write(async (tx) => {
        await closeSession(tx, id)
        return await openSession(tx, leaseMs, clock.now(), role)
      })
      onLost()
    }
    const wasCertain = this.isCertain
    this.#renewedAt = requestedAt
    if (!wasCertain) onRenewed()
  }
}

// A claim whose answer was lost may have taken effect, or take effect long after it timed out: the worker then has leases
// that it does not know of, which no other worker can claim while its session lives. So after the first claim without an
// answer, such stray leases are looked for at intervals.
//
// Claims run one at a time, and strays are looked for between two of them: a lease whose claim has not been answered yet
// is not taken for a stray. Strays are released by their epoch, so that a release which takes effect late ends no other
// lease.

const RELEASE_INTERVAL_MS = 5_000

type Leased = Pick<ChunkRow, 'batch_id' | 'idx' | 'epoch'> | Pick<TaskRow, 'id'>

interface LeasesOptions extends Pick<Ports, 'store' | 'clock'> {
  session: { readonly id: string }
}

export class Leases {
  readonly #options: LeasesOptions
  /** The names of the chunks and tasks that this worker knows it has leased. */
  readonly #known = new Set<string>()
  /** The time of the next search for stray leases, by the steady clock; null: every claim was answered. */
  #releaseAt: number | null = null
  readonly #turns = new Slots(1)

  constructor(options: LeasesOptions) {
    this.#options = options
  }

  /** Causes a search for stray leases, since a lease could not be ended. */
  suspect(): void {
    this.#releaseAt = Number.NEGATIVE_INFINITY
  }

  /** Forgets a chunk or a task that the worker claimed and has finished. */
  forget(leased: Leased): void {
    this.#known.delete(nameOf(leased))
  }

  /** Notes the end of a lease: if a commit whose answer was lost has changed the row, the chunk is a stray. */
  ended(how: Fenced): void {
    if (how !== 'accepted') this.suspect()
  }

  /** Whether a search for stray leases is due, which any claim does. */
  get isReleaseDue(): boolean {
    return this.#releaseAt !== null && this.#options.clock.steady() >= this.#releaseAt
  }

  /** Runs a claim under the session, which may have ended. Returned rows are leased until they are forgotten. */
  claim<T extends Leased>(
    choose: (tx: Writer, worker_id: string) => Promise<readonly T[]>,
  ): Promise<readonly T[]> {
    return this.#turns.run(async () => {
      const { store, session } = this.#options
      const { id } = session
      try {
        if (this.isReleaseDue) await this.#release(id)
        const found = await store.write(async (tx) =>
          (await lockSession(tx, id)) ? await choose(tx, id) : undefined,
        )
        for (const one of found ?? []) this.#known.add(nameOf(one))
        return found ?? []
      } catch (error) {
        this.suspect()
        throw error
      }
    })
  }

  /** Searches for stray leases, if that is due, while nothing else may be claimed for long. */
  async releaseStrays(): Promise<void> {
    if (this.isReleaseDue) await this.claim(async () => [])
  }

  async #release(worker_id: string): Promise<void> {
    const { store, clock } = this.#options
    const isStray = (leased: Leased): boolean => !this.#known.has(nameOf(leased))
    const chunks = (await leasedChunks(store.read, worker_id)).filter(isStray)
    const tasks = (await leasedTasks(store.read, worker_id)).filter(isStray)
    if (chunks.length + tasks.length > 0)
      await store.write(async (tx) => {
        for (const chunk of chunks) await releaseChunk(tx, chunk)
        for (const task of tasks) await releaseTask(tx, task)
      })
    this.#releaseAt = clock.steady() + RELEASE_INTERVAL_MS
  }
}

/** The name of a claim: a chunk that was claimed again has another epoch. */
function nameOf(leased: Leased): string {
  return 'idx' in leased ? `${leased.batch_id} ${leased.idx} ${leased.epoch}` : leased.id
}

// Each part of a worker that claims does so in rounds.

/** Runs one round at a time; a call during a round starts one more after it. */
export class Rounds {
  readonly #round: () => Promise<void>
  #running: Promise<void> | null = null
  #isAskedAgain = false
  #isClosed = false

  constructor(round: () => Promise<void>) {
    this.#round = round
  }

  get isClosed(): boolean {
    return this.#isClosed
  }

  start(): void {
    if (this.#isClosed) return
    this.#isAskedAgain = this.#running !== null
    this.#running ??= this.#round().finally(() => {
      this.#running = null
      if (this.#isAskedAgain) this.start()
    })
  }

  /** Resolves when the last round has ended. */
  async close(): Promise<void> {
    this.#isClosed = true
    await this.#running
  }
}
