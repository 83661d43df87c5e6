// Reads a model server's metrics, over a connection of its own: those of lines may all be busy.
import type { ServerTraffic } from '../backend.ts'
import { Exchange } from '../http1/exchange.ts'
import { HttpPool } from '../http1/http-pool.ts'
import type { HttpProxy } from '../http1/proxy.ts'
import { requestHead } from '../http1/request-head.ts'
import { ResponseMemory } from '../response-memory.ts'
import { serverAddressOf } from './server-address.ts'
import { trafficOf } from './traffic-metrics.ts'

/** What is read later than this says nothing of now. */
const TIMEOUT_MS = 900
const ANSWER_BYTES_MAX = 4 * 1024 * 1024

interface TrafficReaderOptions {
  url: string
  certificates: { ca?: Buffer; cert?: Buffer; key?: Buffer }
  proxy: HttpProxy | null
  /** The address to connect to instead of that of the URL's name; null: that one. */
  connectHostOf: (origin: string) => string | null
  /** Sent with each request to this origin. */
  headers: (origin: string) => ReadonlyMap<string, string>
}

export class TrafficReader {
  readonly #options: TrafficReaderOptions
  readonly #address: ReturnType<typeof serverAddressOf>
  readonly #pool: HttpPool

  /** Throws a TypeError for a URL that cannot be used. */
  constructor(options: TrafficReaderOptions) {
    this.#options = options
    this.#address = serverAddressOf(options.url)
    this.#pool = new HttpPool(
      {
        ...this.#address,
        connectHost: options.connectHostOf(this.#address.origin) ?? this.#address.host,
        timeout_ms: TIMEOUT_MS,
        connectTimeoutMs: TIMEOUT_MS,
        answerBytesMax: ANSWER_BYTES_MAX,
        redact: (text) => text,
        proxy: options.proxy,
        certificates: options.certificates,
        budget: new ResponseMemory(ANSWER_BYTES_MAX),
      },
      1,
    )
  }

  /** Null where nothing usable is answered in time. */
  read(): Promise<ServerTraffic | null> {
    const { proxy, headers } = this.#options
    const { authority, tls, origin, path } = this.#address
    const isForwarded = proxy !== null && !tls
    const all = new Map(headers(origin))
    if (isForwarded && proxy.authorization !== null) all.set('proxy-authorization', proxy.authorization)
    const head = requestHead(authority, `${isForwarded ? origin : ''}${path('')}`, all, 'GET')
    return new Promise((resolve) => {
      this.#pool.dispatch(
        new Exchange(head, new Uint8Array(), '', (found) => {
          resolve(found.kind === 'whole' && found.status === 200 ? trafficOf(found.body.toString()) : null)
        }),
      )
    })
  }

  close(): void {
    this.#pool.close()
  }
}
