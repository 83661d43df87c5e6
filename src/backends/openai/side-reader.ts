// Reads what a model server shows beside its answers, over a connection of its own: those of lines may all be busy.
import { Exchange, type Exchanged, requestHead } from '../http1/exchange.ts'
import { HttpPool } from '../http1/http-pool.ts'
import type { HttpProxy } from '../http1/proxy.ts'
import { ResponseMemory } from '../response-memory.ts'
import { serverAddressOf } from './server-address.ts'

const ANSWER_BYTES_MAX = 4 * 1024 * 1024

interface SideReaderOptions {
  url: string
  /** Below the URL. */
  resource: '' | '/models'
  timeout_ms: number
  certificates: { ca?: Buffer; cert?: Buffer; key?: Buffer }
  proxy: HttpProxy | null
  /** The address to connect to instead of that of the URL's name; null: that one. */
  connectHostOf: (origin: string) => string | null
  /** Sent with each request to this origin. */
  headers: (origin: string) => ReadonlyMap<string, string>
}

export class SideReader {
  readonly #options: SideReaderOptions
  readonly #address: ReturnType<typeof serverAddressOf>
  readonly #pool: HttpPool

  /** Throws a TypeError for a URL that cannot be used. */
  constructor(options: SideReaderOptions) {
    const { timeout_ms } = options
    this.#options = options
    this.#address = serverAddressOf(options.url)
    this.#pool = new HttpPool(
      {
        ...this.#address,
        connectHost: options.connectHostOf(this.#address.origin) ?? this.#address.host,
        timeout_ms,
        connectTimeoutMs: timeout_ms,
        answerBytesMax: ANSWER_BYTES_MAX,
        redact: (text) => text,
        proxy: options.proxy,
        certificates: options.certificates,
        budget: new ResponseMemory(ANSWER_BYTES_MAX),
      },
      1,
    )
  }

  read(): Promise<Exchanged> {
    const { proxy, headers, resource } = this.#options
    const { authority, tls, origin, path } = this.#address
    const isForwarded = proxy !== null && !tls
    const all = new Map(headers(origin))
    if (isForwarded && proxy.authorization !== null) all.set('proxy-authorization', proxy.authorization)
    const head = requestHead(authority, `${isForwarded ? origin : ''}${path(resource)}`, all, 'GET')
    return new Promise((resolve) => this.#pool.dispatch(new Exchange(head, new Uint8Array(), '', resolve)))
  }

  close(): void {
    this.#pool.close()
  }
}
