// Resolves the names of upstreams with `discover: dns` again from time to time. A name that cannot be resolved, or that
// has no address, keeps its last ones: calls to servers that are gone fail anyway.
import { lookup } from 'node:dns/promises'
import { isDeepStrictEqual } from 'node:util'
import type { Clock } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'

/** Resolves a name to its addresses; may throw. */
type Resolve = (host: string) => Promise<readonly string[]>

const REFRESH_EVERY_MS = 5_000

/** Resolves names like other programs of this machine, with its hosts file and search domains. */
export const resolveBySystem: Resolve = async (host) =>
  (await lookup(host, { all: true, order: 'verbatim' })).map(({ address }) => address)

export interface DiscoveryOptions {
  resolve: Resolve
  everyMs?: number
  clock: Pick<Clock, 'now'>
  log: Log
  /** Called when a name of an upstream has other addresses than before. */
  onChange: () => void
}

export class Discovery {
  readonly #options: DiscoveryOptions
  readonly #addresses = new Map<string, readonly string[]>()
  #hosts: ReadonlySet<string> = new Set()
  #refreshedAt = Number.NEGATIVE_INFINITY
  #refreshing: Promise<void> | null = null
  /** Whether addresses have changed that `onChange` has not taken up. */
  #hasChanged = false

  constructor(options: DiscoveryOptions) {
    this.#options = options
  }

  /** The addresses of a name; empty until it has been resolved once. */
  of(host: string): readonly string[] {
    return this.#addresses.get(host) ?? []
  }

  /** Sets the names to resolve; new ones are resolved at once. */
  watch(hosts: ReadonlySet<string>): void {
    const added = [...hosts].some((host) => !this.#hosts.has(host))
    this.#hosts = hosts
    if (added) void this.refresh()
  }

  /** Resolves names when it is time; to be called about once a second. */
  tick(): void {
    if (
      this.#hosts.size > 0 &&
      this.#options.clock.now() - this.#refreshedAt >= (this.#options.everyMs ?? REFRESH_EVERY_MS)
    )
      void this.refresh()
  }

  /** Resolves all names now; changes have been applied when the promise resolves. */
  refresh(): Promise<void> {
    this.#refreshing ??= this.#refresh().finally(() => {
      this.#refreshing = null
    })
    return this.#refreshing
  }

  async #refresh(): Promise<void> {
    this.#refreshedAt = this.#options.clock.now()
    const changed = await Promise.all([...this.#hosts].map((host) => this.#resolve(host)))
    this.#hasChanged ||= changed.includes(true)
    if (!this.#hasChanged) return
    try {
      this.#options.onChange()
      this.#hasChanged = false
    } catch (error) {
      this.#options.log.error(
        { err: error },
        'addresses of model servers could not be taken up; it is tried again',
      )
    }
  }

  async #resolve(host: string): Promise<boolean> {
    const { resolve, log } = this.#options
    let found: readonly string[]
    try {
      found = [...new Set(await resolve(host))].sort()
    } catch {
      return false
    }
    const before = this.of(host)
    if (found.length === 0 || isDeepStrictEqual(found, before)) return false
    this.#addresses.set(host, found)
    log.info({ host, addresses: found }, 'addresses of a model server changed')
    return true
  }
}
