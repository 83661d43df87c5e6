// An independent log of the calls that reached the model server: one line per call, written on arrival and before the
// response, so that a test which kills the service can count what was sent, and how often.

import { once } from 'node:events'
import { createWriteStream, type WriteStream } from 'node:fs'

export class CallLog {
  readonly #file: WriteStream
  #lines = ''
  #scheduled = false
  #error: Error | undefined

  /** Appends to `path`. */
  constructor(path: string) {
    this.#file = createWriteStream(path, { flags: 'a' })
    this.#file.on('error', (error) => {
      this.#error ??= error
    })
  }

  /** `{"at": Unix ms, "sha256": of the body, "fate": "answer" | "refused" | "over_capacity" | a fault, "user"?}` */
  add(at: number, sha256: string, fate: string, body: Uint8Array): void {
    const user = userOf(body)
    this.#lines += `{"at":${at},"sha256":"${sha256}","fate":"${fate}"${user}}\n`
    if (this.#scheduled) return
    this.#scheduled = true
    // One write for everything that arrived in this turn of the event loop.
    setImmediate(() => this.#flush())
  }

  /** Throws when a line could not be written: a log with gaps proves nothing. */
  async close(): Promise<void> {
    this.#flush()
    if (this.#error === undefined && !this.#file.closed) {
      this.#file.end()
      await once(this.#file, 'close')
    }
    if (this.#error !== undefined) throw this.#error
  }

  #flush(): void {
    this.#scheduled = false
    if (this.#lines !== '') this.#file.write(this.#lines)
    this.#lines = ''
  }
}

const USER = /"user"\s*:\s*("(?:[^"\\]|\\.){1,256}")/

/** The `user` that a request carries, the one field of it that is meant as a mark: found, not parsed. */
function userOf(body: Uint8Array): string {
  const match = USER.exec(Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString('utf8'))
  return match?.[1] === undefined ? '' : `,"user":${match[1]}`
}
