// Remembers the single requests that `gather` has made, so that an equal call of a later run, or of a client that stopped
// waiting, gets the answer that is paid for already. The file has a line for each request: the hash of its endpoint and
// body, its number among equal ones, and its ID.
import { once } from 'node:events'
import { createWriteStream, type WriteStream } from 'node:fs'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { firstIdAt } from '../../domain/ids.ts'

/** The time in ms for which requests are remembered: no built-in plan keeps results for longer. */
const KEPT_MS = 400 * 86_400_000
const LINE = /^([\w-]{43}) (\d{1,6}) (req_\w+)$/

/** A request among several equal ones, with its number and ID. */
export interface EqualRequest {
  hash: string
  /** The number among equal requests, from 0. A crash may lose an ID, but not the number: the next run reuses it. */
  number: number
  /** The ID of the request; undefined: it may not have been created. */
  id: string | undefined
  /** Whether an earlier run created the request. */
  isEarlier: boolean
}

export class KnownRequests {
  /** The requests by hash: the next number, and the requests that no call has. */
  readonly #byHash = new Map<string, { count: number; free: EqualRequest[] }>()
  readonly #file: WriteStream
  #failure: Error | null = null

  private constructor(file: WriteStream) {
    this.#file = file
    file.on('error', (error) => (this.#failure ??= error))
  }

  /** Opens the file. `isFresh`: no call gets a request of an earlier run. */
  static async open(path: string, isFresh: boolean, now: number): Promise<KnownRequests> {
    // Without such a folder, writing fails, and `close` returns the error.
    await mkdir(dirname(path), { recursive: true, mode: 0o700 }).catch(() => {})
    const text = await readFile(path, 'utf8').catch(() => '')
    const oldest = firstIdAt('request', now - KEPT_MS)
    const requests = text.split('\n').flatMap((line) => {
      const [, hash = '', number, id = ''] = LINE.exec(line) ?? []
      return id < oldest ? [] : [{ hash, number: Number(number), id, isEarlier: true }]
    })
    const kept = requests.map(lineOf).join('')
    // A crash may have cut off the last line.
    if (kept !== text) await writeFile(path, kept, { mode: 0o600 })
    const known = new KnownRequests(createWriteStream(path, { flags: 'a', mode: 0o600 }))
    for (const [hash, equal] of Map.groupBy(requests, ({ hash }) => hash)) {
      const made = new Map(equal.map((request) => [request.number, request]))
      const count = equal.reduce((most, { number }) => Math.max(most, number), 0) + 1
      const lost = Array.from({ length: count }, (_, number) => newRequest(hash, number))
      const free = [...(isFresh ? [] : made.values()), ...lost.filter(({ number }) => !made.has(number))]
      known.#byHash.set(hash, { count, free })
    }
    return known
  }

  /** Takes a request that no other call has, preferably a created one. */
  take(hash: string): EqualRequest {
    const equal = this.#byHash.get(hash) ?? { count: 0, free: [] }
    this.#byHash.set(hash, equal)
    return equal.free.shift() ?? newRequest(hash, equal.count++)
  }

  /** Leaves a request to the next equal call. */
  release(request: EqualRequest): void {
    this.#byHash.get(request.hash)?.free.unshift(request)
  }

  /** Stores a request that has got its ID. */
  remember(request: EqualRequest): void {
    if (this.#failure === null) this.#file.write(lineOf(request))
  }

  /** Closes the file. Returns the error that kept requests from being stored; null: none. */
  async close(): Promise<Error | null> {
    if (this.#failure !== null) return this.#failure
    const closed = once(this.#file, 'close')
    this.#file.end()
    await closed.catch(() => {})
    return this.#failure
  }
}

function newRequest(hash: string, number: number): EqualRequest {
  return { hash, number, id: undefined, isEarlier: false }
}

function lineOf({ hash, number, id }: EqualRequest): string {
  return `${hash} ${number} ${id}\n`
}
