// A machine on which a worker runs, as a simulation sees it: a clock that may be wrong, and an end that may
// come between any two steps. What a dead machine was waiting for never comes; what a frozen one was waiting
// for comes when it thaws. The worker's ports pass through here, so nothing it does escapes.
import type { Blobs, StoredBlob } from '../../src/blobs/blobs.ts'
import { BlobStoreFailed } from '../../src/blobs/blobs.ts'
import type { Clock } from '../../src/domain/clock.ts'
import { StatementRefused, type Store, type Writer } from '../../src/store/store.ts'
import type { SeededRandom } from './seeded-random.ts'

/** What may go wrong at each step; all zero when the storm is over. */
export interface StoreFaults {
  /** The step fails, and nothing was done. */
  fails_before: number
  /** It was done, but whoever asked is told that it failed. */
  answer_lost: number
  /** A transaction takes seconds: as if a disk, or a standby, took its time. */
  stalls: number
  /** Whoever asked for a transaction gives up waiting, and it takes effect later. */
  late: number
  /** The machine dies before or after the step. */
  dies: number
  step_ms_max: number
  /** The database takes nothing that points to new blobs: what is small still fits. */
  is_full: boolean
}

export interface MachineOptions {
  name: string
  clock: Clock
  random: SeededRandom
  /** As it is at the moment. */
  storeFaults: () => StoreFaults
  store: Store
  blobs: Blobs
  /** Called around each transaction that this machine commits. */
  observe: <T>(machine: Machine, write: () => Promise<T>) => Promise<T>
  onDeath: (machine: Machine) => void
}

const STALL_MS_MAX = 3_000
const PATIENCE_MS_MAX = 500
/** Less than would make what a transaction points to an orphan. */
const LATE_MS_MAX = 6_000

const DATABASE_AWAY = (how: string): Error => new Error(`the database: ${how}`)

export class Machine {
  readonly name: string
  readonly clock: Clock
  readonly store: Store
  readonly blobs: Blobs
  readonly #options: MachineOptions
  #state: 'alive' | 'frozen' | 'dead' = 'alive'
  #skew_ms = 0
  #thawing: (() => void)[] = []

  constructor(options: MachineOptions) {
    this.#options = options
    this.name = options.name
    const { clock, store, observe } = options
    this.clock = {
      now: () => clock.now() + this.#skew_ms,
      after: (ms, fn) => {
        let cancelled = false
        const run = (): void => {
          if (!cancelled) fn()
        }
        const cancel = clock.after(ms, () => this.#deliver(run))
        return () => {
          cancelled = true
          cancel()
        }
      },
    }
    this.store = {
      read: store.read,
      claimSql: store.claimSql,
      write: (change) => this.#write(change),
      writeAsyncCommit: (change) =>
        this.#step(() => observe(this, () => store.writeAsyncCommit(change)), DATABASE_AWAY),
      maintainHttpRequests: (now, keep_from) => store.maintainHttpRequests(now, keep_from),
      check: () => store.check(),
      migrate: () => store.migrate(),
      close: () => store.close(),
    }
    this.blobs = this.#faultyBlobs(options.blobs)
  }

  get isDead(): boolean {
    return this.#state === 'dead'
  }

  get isFrozen(): boolean {
    return this.#state === 'frozen'
  }

  die(): void {
    if (this.#state === 'dead') return
    this.#state = 'dead'
    this.#thawing = []
    this.#options.onDeath(this)
  }

  freeze(): void {
    if (this.#state === 'alive') this.#state = 'frozen'
  }

  thaw(): void {
    if (this.#state !== 'frozen') return
    this.#state = 'alive'
    const waiting = this.#thawing
    this.#thawing = []
    for (const run of waiting) this.#deliver(run)
  }

  /** Its clock is set forward, or back. */
  jump(ms: number): void {
    this.#skew_ms += ms
  }

  #deliver(run: () => void): void {
    if (this.#state === 'alive') run()
    else if (this.#state === 'frozen') this.#thawing.push(run)
  }

  /** A while on this machine; for ever, if it dies meanwhile. */
  async pass(ms: number): Promise<void> {
    await new Promise<void>((resolve) => this.clock.after(ms, resolve))
  }

  async #step<T>(work: () => Promise<T>, failure: (how: string) => Error): Promise<T> {
    const { random, storeFaults } = this.#options
    const { fails_before, answer_lost, dies, step_ms_max } = storeFaults()
    await this.pass(random.int(0, step_ms_max))
    if (random.chance(dies)) return await this.#last()
    if (random.chance(fails_before)) throw failure('it is away')
    const value = await work()
    if (random.chance(dies)) return await this.#last()
    await this.pass(random.int(0, step_ms_max))
    if (random.chance(answer_lost)) throw failure('the connection broke before its answer came')
    return value
  }

  #last(): Promise<never> {
    this.die()
    return new Promise<never>(() => {})
  }

  #write<T>(change: (tx: Writer) => Promise<T>): Promise<T> {
    const { store, observe, storeFaults } = this.#options
    const takes = async (tx: Writer): Promise<T> => {
      const value = await change(tx)
      if (await hasPoison(tx)) throw new StatementRefused(new Error('this text cannot be stored'))
      return value
    }
    const fits = async (tx: Writer): Promise<T> => {
      if (!storeFaults().is_full) return await takes(tx)
      const before = await blobRows(tx)
      const value = await takes(tx)
      if ((await blobRows(tx)) > before) throw DATABASE_AWAY('it is full')
      return value
    }
    return this.#step(async () => {
      const { random, clock } = this.#options
      const commit = () => observe(this, () => store.write(fits))
      const { stalls, late } = storeFaults()
      if (random.chance(stalls)) await this.pass(random.int(0, STALL_MS_MAX))
      if (!random.chance(late)) return await commit()
      // What has reached the database goes on there, whatever becomes of the machine.
      clock.after(random.int(0, LATE_MS_MAX), () => void commit().catch(() => {}))
      await this.pass(random.int(0, PATIENCE_MS_MAX))
      throw DATABASE_AWAY('no answer came in time')
    }, DATABASE_AWAY)
  }

  #faultyBlobs(inner: Blobs): Blobs {
    const step = <T>(doing: string, work: () => Promise<T>): Promise<T> =>
      this.#step(work, (how) => new BlobStoreFailed(doing, new Error(how)))
    return {
      async put(key, source) {
        const pieces: Uint8Array[] = []
        for await (const piece of source) pieces.push(piece)
        return await step(`writing ${key}`, () => inner.put(key, pieces))
      },
      async *read(key, range) {
        const pieces = await step(`reading ${key}`, async () => {
          const all: Buffer[] = []
          for await (const piece of inner.read(key, range)) all.push(piece)
          return all
        })
        yield* pieces
      },
      size: (key) => step(`measuring ${key}`, () => inner.size(key)),
      delete: (key) => step(`deleting ${key}`, () => inner.delete(key)),
      async *list(prefix) {
        const found = await step('listing', async () => {
          const all: StoredBlob[] = []
          for await (const blob of inner.list(prefix)) all.push(blob)
          return all
        })
        yield* found
      },
    }
  }
}

async function blobRows(tx: Writer): Promise<number> {
  const { count } = await tx
    .selectFrom('blobs')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .executeTakeFirstOrThrow()
  return Number(count)
}

/** The database takes nothing of what this entity has come to. */
export const POISON = 'user:poison'

async function hasPoison(tx: Writer): Promise<boolean> {
  const row = await tx.selectFrom('usage_days').select('day').where('entity', '=', POISON).executeTakeFirst()
  return row !== undefined
}
