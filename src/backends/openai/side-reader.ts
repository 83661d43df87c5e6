// Reads the metrics or the models of a server over a connection of its own, because the connections for lines may all
// be busy.
import { Exchange, type Exchanged } from '../http1/exchange.ts'
import { HttpPool } from '../http1/http-pool.ts'
import type { HttpProxy } from '../http1/proxy.ts'
import { ResponseMemory } from '../response-memory.ts'
import { headOf, serverAddressOf } from './server-address.ts'

const ANSWER_BYTES_MAX = 4 * 1024 * 1024

interface SideReaderOptions {
  url: string
  /** Below the URL. */
  resource: '' | '/models'
  timeout_ms: number
  answerBytesMax?: number
  certificates: { ca?: Buffer; cert?: Buffer; key?: Buffer }
  proxy: HttpProxy | null
  /** The address to connect to instead of that of the URL's name; null: that one. */
  connectHostOf?: (origin: string) => string | null
  /** Sent with each request to this origin. */
  headers: (origin: string) => ReadonlyMap<string, string>
}

export class SideReader {
  readonly #options: SideReaderOptions
  readonly #address: ReturnType<typeof serverAddressOf>
  readonly #pool: HttpPool

  /** Throws a TypeError for a URL that cannot be used. */
  constructor(options: SideReaderOptions) {
    const { timeout_ms, answerBytesMax = ANSWER_BYTES_MAX } = options
    this.#options = options
    this.#address = serverAddressOf(options.url)
    this.#pool = new HttpPool(
      {
        ...this.#address,
        connectHost: options.connectHostOf?.(this.#address.origin) ?? this.#address.host,
        timeout_ms,
        connectTimeoutMs: timeout_ms,
        answerBytesMax,
        redact: (text) => text,
        proxy: options.proxy,
        certificates: options.certificates,
        budget: new ResponseMemory(answerBytesMax),
      },
      1,
    )
  }

  read(): Promise<Exchanged> {
    const { proxy, headers, resource } = this.#options
    const head = headOf(this.#address, resource, headers(this.#address.origin), proxy, 'GET')
    return new Promise((resolve) => this.#pool.dispatch(new Exchange(head, new Uint8Array(), '', resolve)))
  }

  close(): void {
    this.#pool.close()
  }
}
