// A simulated machine that runs a worker. Its clock may be skewed, and it may crash between any two steps. Timers
// of a crashed machine never fire; those of a suspended machine fire when it resumes. The worker reaches the store
// and the blobs only through its machine, which injects the faults.
import type { Blobs, StoredBlob } from '../../src/blobs/blobs.ts'
import { BlobStoreFailed } from '../../src/blobs/blobs.ts'
import type { Clock } from '../../src/domain/clock.ts'
import type { Reader, Store, Writer } from '../../src/store/store.ts'
import type { SeededRandom } from './seeded-random.ts'
import type { Tally } from './tally.ts'

/** Probabilities of the faults at each step. */
export interface StoreFaults {
  /** The step fails and has no effect. */
  failsBefore: number
  /** The step takes effect, and the caller gets an error. */
  answerLost: number
  /** A transaction takes seconds, as with a slow disk or standby. */
  stalls: number
  /** The caller of a transaction times out, and the transaction takes effect later. */
  late: number
  /** The machine crashes before or after the step. */
  crashes: number
  stepMsMax: number
  /** The disk is full: transactions that add blob rows fail, smaller ones succeed. */
  isFull: boolean
}

export const NO_STORE_FAULTS: StoreFaults = {
  failsBefore: 0,
  answerLost: 0,
  stalls: 0,
  late: 0,
  crashes: 0,
  stepMsMax: 2,
  isFull: false,
}

export interface MachineOptions {
  name: string
  clock: Clock
  random: SeededRandom
  /** The current faults. */
  storeFaults: () => StoreFaults
  store: Store
  blobs: Blobs
  /** Called around each transaction that this machine commits. */
  observe: <T>(machine: Machine, write: () => Promise<T>) => Promise<T>
  onCrash: (machine: Machine) => void
  tally: Tally
}

const STALL_MS_MAX = 3_000
const TIMEOUT_MS_MAX = 500
/** Shorter than the age at which the blobs of a transaction count as orphans. */
const LATE_MS_MAX = 6_000

const databaseError = (how: string): Error => new Error(`the database: ${how}`)

export class Machine {
  readonly name: string
  readonly clock: Clock
  readonly store: Store
  readonly blobs: Blobs
  readonly #options: MachineOptions
  #state: 'running' | 'suspended' | 'crashed' = 'running'
  #skewMs = 0
  #delayed: (() => void)[] = []
  /** Since when it has been running without a break (Unix ms). */
  runsSince: number

  constructor(options: MachineOptions) {
    this.#options = options
    this.name = options.name
    const { clock, store, observe } = options
    this.runsSince = clock.now()
    this.clock = {
      now: () => clock.now() + this.#skewMs,
      steady: () => clock.now(),
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
      soon: (fn) => queueMicrotask(() => this.#deliver(fn)),
    }
    this.store = {
      read: ownReader(store.read),
      write: (change) => this.#write(change),
      writeAsyncCommit: (change) =>
        this.#step(() => observe(this, () => store.writeAsyncCommit(change)), databaseError),
      get failing() {
        return store.failing
      },
      check: () => store.check(),
      migrate: () => store.migrate(),
      close: () => store.close(),
      [Symbol.asyncDispose]: () => store.close(),
    }
    this.blobs = this.#faultyBlobs(options.blobs)
  }

  get isCrashed(): boolean {
    return this.#state === 'crashed'
  }

  get isSuspended(): boolean {
    return this.#state === 'suspended'
  }

  crash(): void {
    if (this.#state === 'crashed') return
    this.#state = 'crashed'
    this.#delayed = []
    this.#options.onCrash(this)
  }

  suspend(): void {
    if (this.#state === 'running') this.#state = 'suspended'
  }

  resume(): void {
    if (this.#state !== 'suspended') return
    this.#state = 'running'
    this.runsSince = this.#options.clock.now()
    const waiting = this.#delayed
    this.#delayed = []
    for (const run of waiting) this.#deliver(run)
  }

  /** Sets its clock forward or back. */
  jump(ms: number): void {
    this.#skewMs += ms
  }

  #deliver(run: () => void): void {
    if (this.#state === 'running') run()
    else if (this.#state === 'suspended') this.#delayed.push(run)
  }

  /** Waits on this machine's clock; never resolves if the machine crashes first. */
  async pass(ms: number): Promise<void> {
    await new Promise<void>((resolve) => this.clock.after(ms, resolve))
  }

  async #step<T>(work: () => Promise<T>, failure: (how: string) => Error): Promise<T> {
    const { random, storeFaults, tally } = this.#options
    const { failsBefore, answerLost, crashes, stepMsMax } = storeFaults()
    tally.count('checked: steps of stores')
    await this.pass(random.int(0, stepMsMax))
    if (random.chance(crashes)) return await this.#last()
    if (random.chance(failsBefore)) {
      tally.count('stores: unreachable')
      throw failure('it is not reachable')
    }
    const value = await work()
    if (random.chance(crashes)) return await this.#last()
    await this.pass(random.int(0, stepMsMax))
    if (random.chance(answerLost)) {
      tally.count('stores: lost the answer')
      throw failure('the connection broke before its answer came')
    }
    return value
  }

  #last(): Promise<never> {
    this.#options.tally.count('machines: crashed in a step of a store')
    this.crash()
    return new Promise<never>(() => {})
  }

  #write<T>(change: (tx: Writer) => Promise<T>): Promise<T> {
    const { store, observe, storeFaults } = this.#options
    const fits = async (tx: Writer): Promise<T> => {
      if (!storeFaults().isFull) return await change(tx)
      const before = await blobRows(tx)
      const value = await change(tx)
      if ((await blobRows(tx)) > before) {
        this.#options.tally.count('stores: full')
        throw databaseError('it is full')
      }
      return value
    }
    return this.#step(async () => {
      const { random, clock, tally } = this.#options
      const commit = () => observe(this, () => store.write(fits))
      const { stalls, late } = storeFaults()
      if (random.chance(stalls)) {
        tally.count('stores: stalled')
        await this.pass(random.int(0, STALL_MS_MAX))
      }
      if (!random.chance(late)) return await commit()
      tally.count('stores: took effect late')
      // The database finishes a transaction that it has received, even if the machine crashes.
      clock.after(random.int(0, LATE_MS_MAX), () => void commit().catch(() => {}))
      await this.pass(random.int(0, TIMEOUT_MS_MAX))
      throw databaseError('no answer came in time')
    }, databaseError)
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

/** What is kept by a reader is a process's own: a read that a crash ended would never end for the machines after it. */
function ownReader(read: Reader): Reader {
  return new Proxy(read, {
    get(of, name) {
      const value = Reflect.get(of, name, of)
      return typeof value === 'function' ? value.bind(of) : value
    },
  })
}
