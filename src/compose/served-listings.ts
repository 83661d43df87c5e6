// Asks the servers of the configured models which models they serve: at the start and from time to time, because
// servers are restarted with other context windows and load adapters while they run. The answers are stored in the data
// folder, so that a restarted service knows the adapters of servers that are down.
import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import {
  LISTED_MAX,
  type ListedModel,
  type ListOptions,
  listUpstreamModels,
} from '../backends/openai/server-facts.ts'
import { makeFolder } from '../blobs/folders.ts'
import type { Config, ServerUpstream } from '../config/config.ts'
import { listingUpstreams, withServedModels } from '../config/upstream-models.ts'
import { type Clock, every } from '../domain/clock.ts'
import { isRecord } from '../domain/json-record.ts'
import type { Log } from '../domain/log.ts'
import { secretsOf } from './upstreams.ts'

const FILE = 'served-models.json'
/** The time in ms for which the start waits for servers that have never answered. */
const FIRST_WAIT_MS = 1_000
const ASK_EVERY_MS = 60_000
/** The interval in ms of asking for models while a server does not answer. */
const ASK_AGAIN_MS = 5_000
const TIMEOUT_MS = 5_000

export class ServedListings {
  readonly #file: string
  readonly #listings: Map<string, readonly ListedModel[]>
  readonly #clock: Clock
  #end: (() => Promise<void>) | null = null

  constructor(data_dir: string, clock: Clock) {
    this.#clock = clock
    this.#file = join(data_dir, FILE)
    this.#listings = new Map(readListings(this.#file))
  }

  /** Adds the known facts from servers to a configuration. */
  complete(config: Config): Config {
    return withServedModels(config, this.#listings)
  }

  /** Asks the servers if one has never answered, and waits for a limited time. */
  async start(config: Config): Promise<void> {
    if ([...listingUpstreams(config).keys()].some((url) => !this.#listings.has(url))) await this.ask(config)
  }

  /** Asks all servers. Resolves when all have answered, or after FIRST_WAIT_MS. */
  async ask(config: Config): Promise<void> {
    await this.#ask(config, FIRST_WAIT_MS)
  }

  /** Asks the servers regularly until `stop`; reads `config` before, and calls `onAnswered` after each time. */
  watch(config: () => Config, onAnswered: () => void, log: Pick<Log, 'error'>): void {
    let waitMs = ASK_AGAIN_MS
    const look = async (): Promise<void> => {
      waitMs = (await this.#ask(config(), TIMEOUT_MS)) ? ASK_AGAIN_MS : ASK_EVERY_MS
      if (this.#end !== null) onAnswered()
    }
    const failed = (err: unknown): void =>
      log.error({ err }, 'the models of the servers could not be taken up; it is tried again')
    this.#end = every(this.#clock, () => waitMs, look, failed)
  }

  stop(): void {
    void this.#end?.()
    this.#end = null
  }

  /** Asks all servers; returns whether a server has never answered. */
  async #ask(config: Config, timeout_ms: number): Promise<boolean> {
    const before = JSON.stringify([...this.#listings])
    const servers = [...listingUpstreams(config)]
    await Promise.all(
      servers.map(async ([base_url, upstream]) => {
        try {
          this.#listings.set(base_url, await listUpstreamModels(base_url, optionsOf(upstream, timeout_ms)))
        } catch {
          // The last answer of the server still counts; lines report its error.
        }
      }),
    )
    if (JSON.stringify([...this.#listings]) !== before) this.#write()
    return servers.some(([base_url]) => !this.#listings.has(base_url))
  }

  #write(): void {
    const next = `${this.#file}.${process.pid}`
    try {
      makeFolder(dirname(this.#file))
      writeFileSync(next, JSON.stringify([...this.#listings]))
      renameSync(next, this.#file)
    } catch {
      // The next start asks for the list again.
      rmSync(next, { force: true })
    }
  }
}

/** A log for this purpose: the senders of lines warn of unusable secrets. */
const QUIET: Pick<Log, 'warn'> = { warn() {} }

function optionsOf(upstream: ServerUpstream, timeout_ms: number): ListOptions {
  const { api_key, headers, proxy } = upstream
  const { keyFile, certificates } = secretsOf(upstream, QUIET)
  return { api_key: keyFile ? keyFile.read() : api_key, headers, proxy, certificates, timeout_ms }
}

function readListings(file: string): [string, ListedModel[]][] {
  try {
    const found: unknown = JSON.parse(readFileSync(file, 'utf8'))
    const isListing = (one: unknown): one is [string, ListedModel[]] =>
      Array.isArray(one) && typeof one[0] === 'string' && Array.isArray(one[1]) && one[1].every(isRecord)
    return Array.isArray(found)
      ? found.filter(isListing).map(([url, listed]) => [url, listed.slice(0, LISTED_MAX)])
      : []
  } catch {
    return []
  }
}
