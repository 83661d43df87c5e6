// Reads HTTP/1.1 answers from the bytes of a connection (RFC 9112), one after the other, in pieces of any size. It is
// strict where a mistake would mix up two answers: a malformed head, two lengths or a length that is no number ends the
// connection. An answer that arrives in one piece, as nearly all do, is copied once.

import { GrowingBytes } from '../../domain/gathered-bytes.ts'
import { RETRY_AFTER_HEADERS } from '../../domain/retry-after.ts'

/** The error for an answer that is invalid HTTP, or exceeds a bound. */
export class ResponseError extends Error {
  /** The server's error message; '' where it sent none. */
  readonly words: string

  constructor(message: string, words = '') {
    super(message)
    this.words = words
  }
}

const END_OF_HEAD = Buffer.from('\r\n\r\n')
const START = 'HTTP/1.'
/** The record with which a TLS server refuses plain bytes (RFC 8446, 5.1). */
const TLS_ALERT = '\u0015\u0003'
/** The status line of a complete head; it has no lone line feed. */
const STATUS_LINE = /^HTTP\/1\.[01] [1-9]\d\d(?: [^\n]*)?(?:\r\n|$)/
const MINOR_VERSION_AT = 'HTTP/1.'.length
const STATUS_AT = 'HTTP/1.1 '.length
const ONE = 0x31
const LENGTH = /^\d{1,15}$/
const CHUNK_SIZE = /^([0-9a-f]{1,13})\s*(?:;|$)/i
const HEAD_BYTES_MAX = 64 * 1024
/** The longest line of a chunk's size with its extensions, or of one trailer, in bytes. */
const CHUNK_LINE_BYTES_MAX = 4 * 1024
/** The longest quote from a server's answer in an error, in characters, after secrets are removed. */
const QUOTED_LENGTH_MAX = 40
const NOTHING = Buffer.alloc(0)
const NO_HEADERS: Readonly<Record<string, string>> = {}
const CR = 0x0d
const LF = 0x0a
const SPACE = 0x20

/** Headers that say where an answer ends and whether its connection stays open. */
const FRAMING_HEADERS = ['content-length', 'transfer-encoding', 'connection', 'keep-alive']
/** Headers that the callers of this reader use. */
const KEPT_HEADERS: ReadonlySet<string> = new Set(['content-encoding', ...RETRY_AFTER_HEADERS])

/** The part of the answer that is read next. `close`: a body that ends with its connection. */
type Part = 'head' | 'length' | 'close' | 'chunk-size' | 'chunk' | 'chunk-end' | 'trailer' | 'done'

export class ResponseReader {
  readonly #bytes_max: number
  readonly #redact: (text: string) => string
  #part: Part = 'head'
  /** The bytes of an incomplete head or chunk line from earlier pieces. */
  readonly #begun = new GrowingBytes()
  /** Bytes of the body, or of its chunk, that are not received yet. */
  #left = 0
  /** The pieces of a body that is received in several pieces. */
  readonly #pieces = new GrowingBytes()
  #trailer_bytes = 0
  #body: Buffer = NOTHING
  #status = 0
  #keepsAlive = true
  #keepAliveS: number | null = null
  #headers = NO_HEADERS

  /** Makes a reader. `bytes_max`: of the body. `redact`: removes secrets from text that errors quote. */
  constructor(bytes_max: number, redact = (text: string): string => text) {
    this.#bytes_max = bytes_max
    this.#redact = redact
  }

  get status(): number {
    return this.#status
  }

  /** The headers of the answer that are among KEPT_HEADERS. */
  get headers(): Readonly<Record<string, string>> {
    return this.#headers
  }

  get body(): Buffer {
    return this.#body
  }

  /** The memory, in bytes, of a body that is not complete yet. */
  get gathered(): number {
    return this.#pieces.capacity
  }

  /** Whether the server allows the connection to be used again. */
  get keepsAlive(): boolean {
    return this.#keepsAlive
  }

  /** The seconds after which the server closes an idle connection; null where it sends none. */
  get keepAliveS(): number | null {
    return this.#keepAliveS
  }

  /** Whether any byte of the answer has arrived. */
  get hasBegun(): boolean {
    return this.#part !== 'head' || this.#begun.length > 0
  }

  /** Resets the reader for the next answer. */
  reset(): void {
    this.#part = 'head'
    this.#begun.clear()
    this.#pieces.clear()
    this.#trailer_bytes = 0
    this.#body = NOTHING
  }

  /**
   * Reads the first `length` bytes of `bytes`, which may be overwritten afterwards. Returns the number of bytes used
   * when the answer is complete, null when more are needed. Throws a ResponseError.
   */
  read(bytes: Buffer, length: number): number | null {
    let at = 0
    while (at < length) {
      at = this.#readPart(bytes, at, length)
      if (this.#part === 'done') return at
    }
    return null
  }

  /** Ends the answer with its connection. Returns whether the answer is then complete. */
  end(): boolean {
    if (this.#part === 'head' && this.#begun.length > 0) this.#checkStart(this.#begun.view, true)
    if (this.#part !== 'close') return false
    this.#finish()
    return true
  }

  #readPart(bytes: Buffer, at: number, length: number): number {
    switch (this.#part) {
      case 'head':
        return this.#readHead(bytes, at, length)
      case 'length':
      case 'chunk':
        return this.#readBody(bytes, at, length)
      case 'close':
        this.#keep(bytes, at, length)
        return length
      default:
        return this.#readLine(bytes, at, length)
    }
  }

  #readHead(bytes: Buffer, at: number, length: number): number {
    const before = this.#begun.length
    if (before > 0) {
      this.#begun.add(bytes, at, length, HEAD_BYTES_MAX)
      const joined = this.#begun.view
      if (joined.indexOf(END_OF_HEAD, Math.max(0, before - END_OF_HEAD.length)) === -1) {
        this.#checkHeadSize(joined.length)
        this.#checkStart(joined, false)
        return length
      }
      this.#begun.clear()
      // The rest of this piece is read from the copy, from where the head ended.
      const end = this.#readHead(joined, 0, joined.length)
      return at + end - before
    }
    const end = indexOfHeadEnd(bytes, at, length)
    if (end === -1 || end - at > HEAD_BYTES_MAX) {
      this.#checkHeadSize(end === -1 ? length - at : end - at)
      this.#begun.add(bytes, at, length, HEAD_BYTES_MAX)
      this.#checkStart(this.#begun.view, false)
      return length
    }
    this.#parseHead(bytes.toString('latin1', at, end))
    const start = end + END_OF_HEAD.length
    // An interim answer (1xx) is followed by the real one.
    if (this.#status < 200) {
      this.#part = 'head'
      return start
    }
    if (this.#part === 'length' && length - start >= this.#left) {
      this.#body = Buffer.allocUnsafe(this.#left)
      bytes.copy(this.#body, 0, start, start + this.#left)
      this.#part = 'done'
      return start + this.#left
    }
    return start
  }

  #checkHeadSize(bytes: number): void {
    if (bytes > HEAD_BYTES_MAX) throw new ResponseError(`the head is larger than ${HEAD_BYTES_MAX} bytes`)
  }

  /** Rejects bytes that cannot become a head. Quotes no incomplete line, which may end within a secret. */
  #checkStart(begun: Buffer, whole: boolean): void {
    const said = begun.toString('latin1', 0, START.length)
    const lineEnd = begun.indexOf(LF)
    const line = begun.toString('latin1', 0, lineEnd !== -1 ? lineEnd : whole ? begun.length : said.length)
    if (lineEnd !== -1 && begun[lineEnd - 1] !== CR) throw this.#notHttp(line)
    if (whole ? !said.startsWith(START) : !START.startsWith(said)) throw this.#notHttp(line)
  }

  #parseHead(head: string): void {
    let lineEnd = head.indexOf('\r\n')
    if (lineEnd === -1) lineEnd = head.length
    if (!STATUS_LINE.test(head)) throw this.#notHttp(head.slice(0, lineEnd))
    this.#status = Number(head.slice(STATUS_AT, STATUS_AT + 3))
    if (this.#status === 101) throw new ResponseError('the server changed to another protocol, unasked')
    this.#keepsAlive = head.charCodeAt(MINOR_VERSION_AT) === ONE
    this.#keepAliveS = null
    this.#headers = NO_HEADERS
    let content_length: string | null = null
    let transfer_encoding: string | null = null
    let options = ''
    for (let at = lineEnd + 2; at < head.length; at = lineEnd + 2) {
      lineEnd = head.indexOf('\r\n', at)
      if (lineEnd === -1) lineEnd = head.length
      const colon = head.indexOf(':', at)
      if (
        colon === -1 ||
        colon > lineEnd ||
        !isNameEnd(head.charCodeAt(at)) ||
        !isNameEnd(head.charCodeAt(colon - 1))
      )
        throw this.#notHttp(head.slice(at, lineEnd))
      if (!mayMatter(head.charCodeAt(at), colon - at)) continue
      const name = head.slice(at, colon).toLowerCase()
      let valueStart = colon + 1
      while (head.charCodeAt(valueStart) === SPACE) valueStart++
      const raw = head.slice(valueStart, lineEnd)
      const value = isBlank(raw.charCodeAt(raw.length - 1)) || isBlank(raw.charCodeAt(0)) ? raw.trim() : raw
      if (name === 'content-length') {
        if (content_length !== null && content_length !== value)
          throw new ResponseError('the answer has two lengths')
        content_length = value
      } else if (name === 'transfer-encoding') {
        // Several headers of this name are one list (RFC 9110, section 5.3).
        const coding = value.toLowerCase()
        transfer_encoding = transfer_encoding === null ? coding : `${transfer_encoding}, ${coding}`
      } else if (name === 'connection') options += `,${value.toLowerCase()}`
      else if (name === 'keep-alive') this.#keepAliveS = timeoutOf(value)
      else if (KEPT_HEADERS.has(name)) this.#headers = { ...this.#headers, [name]: value }
    }
    if (options !== '') this.#readConnection(options.split(','))
    this.#frame(content_length, transfer_encoding)
  }

  #readConnection(options: string[]): void {
    const said = options.map((option) => option.trim())
    if (said.includes('close')) this.#keepsAlive = false
    else if (said.includes('keep-alive')) this.#keepsAlive = true
  }

  /** Decides how the body ends (RFC 9112, section 6.3). */
  #frame(content_length: string | null, transfer_encoding: string | null): void {
    if (transfer_encoding !== null) {
      if (transfer_encoding !== 'chunked')
        throw new ResponseError('the transfer encoding is not known', this.#quoted(transfer_encoding))
      if (content_length !== null) throw new ResponseError('the answer has a length and is chunked, too')
      this.#part = 'chunk-size'
      return
    }
    if (this.#status === 204 || this.#status === 304) content_length = '0'
    if (content_length === null) {
      this.#part = 'close'
      this.#keepsAlive = false
      return
    }
    if (!LENGTH.test(content_length))
      throw new ResponseError('its length is no number', this.#quoted(content_length))
    this.#left = Number(content_length)
    if (this.#left > this.#bytes_max) throw this.#tooLarge()
    this.#part = 'length'
  }

  #readBody(bytes: Buffer, at: number, length: number): number {
    const end = Math.min(length, at + this.#left)
    this.#keep(bytes, at, end)
    this.#left -= end - at
    if (this.#left === 0) {
      if (this.#part === 'length') this.#finish()
      else this.#part = 'chunk-end'
    }
    return end
  }

  #keep(bytes: Buffer, at: number, end: number): void {
    if (this.#pieces.length + end - at > this.#bytes_max) throw this.#tooLarge()
    const most = this.#part === 'length' ? this.#pieces.length + this.#left : this.#bytes_max
    this.#pieces.add(bytes, at, end, most)
  }

  /** Reads the lines around chunks: sizes, the line breaks after chunks, trailers. */
  #readLine(bytes: Buffer, at: number, length: number): number {
    const found = bytes.subarray(0, length).indexOf(LF, at)
    const end = found === -1 ? length : found + 1
    if (this.#begun.length + end - at > CHUNK_LINE_BYTES_MAX)
      throw new ResponseError('a line between chunks does not end')
    let line = bytes.subarray(at, end)
    if (found === -1 || this.#begun.length > 0) {
      this.#begun.add(bytes, at, end, CHUNK_LINE_BYTES_MAX)
      if (found === -1) return length
      line = this.#begun.view
      this.#begun.clear()
    }
    if (line.at(-2) !== CR) throw new ResponseError('a line between chunks does not end as it should')
    this.#takeLine(line.toString('latin1', 0, line.length - 2))
    return end
  }

  #takeLine(line: string): void {
    if (this.#part === 'chunk-size') {
      const size = CHUNK_SIZE.exec(line)
      if (size === null) throw new ResponseError('the size of a chunk is no number', this.#quoted(line))
      this.#left = Number.parseInt(size[1] ?? '', 16)
      this.#part = this.#left === 0 ? 'trailer' : 'chunk'
    } else if (this.#part === 'chunk-end') {
      if (line !== '') throw new ResponseError('a chunk is longer than its size')
      this.#part = 'chunk-size'
    } else if (line === '') this.#finish()
    else {
      this.#trailer_bytes += line.length
      this.#checkHeadSize(this.#trailer_bytes)
    }
  }

  #finish(): void {
    this.#body = this.#pieces.take()
    this.#part = 'done'
  }

  #tooLarge(): ResponseError {
    return new ResponseError(`the answer is larger than ${this.#bytes_max} bytes`)
  }

  #notHttp(line: string): ResponseError {
    if (line.startsWith(TLS_ALERT))
      return new ResponseError('the server speaks TLS; write https:// in `base_url`')
    return new ResponseError('the answer does not match the HTTP/1.1 protocol', this.#quoted(line))
  }

  #quoted(said: string): string {
    return JSON.stringify(this.#redact(said).slice(0, QUOTED_LENGTH_MAX))
  }
}

function indexOfHeadEnd(bytes: Buffer, at: number, length: number): number {
  const end = bytes.indexOf(END_OF_HEAD, at)
  return end === -1 || end + END_OF_HEAD.length > length ? -1 : end
}

/** Whether a character is part of a header's name: a name has no blanks before or after it. */
function isNameEnd(c: number): boolean {
  return c > 0x20 && c !== 0x3a && c < 0x7f
}

/** A bit for each first letter of the headers in FRAMING_HEADERS and KEPT_HEADERS, by the length of the name. */
const INITIALS: number[] = []
for (const name of [...FRAMING_HEADERS, ...KEPT_HEADERS])
  INITIALS[name.length] = (INITIALS[name.length] ?? 0) | (1 << (name.charCodeAt(0) & 0x1f))

/** Whether a header whose name has this first letter and this length may be needed; other headers are skipped. */
function mayMatter(first: number, length: number): boolean {
  return ((INITIALS[length] ?? 0) & (1 << (first & 0x1f))) !== 0
}

function isBlank(c: number): boolean {
  return c <= SPACE || c >= 0x80
}

function timeoutOf(value: string): number | null {
  const timeout = /(?:^|[\s,])timeout=(\d{1,6})/i.exec(value)
  return timeout === null ? null : Number(timeout[1])
}
