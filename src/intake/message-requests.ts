// Reads the requests of a message batch from the body of the call that creates it: {"requests": [{"custom_id",
// "params"}, …]}. Each becomes a line of an input file while the body still arrives, and `params` keeps its bytes.
// Memory holds a piece of the body and one request.
import { createHash } from 'node:crypto'
import { ApiError, invalidParam } from '../domain/errors.ts'
import { GrowingBytes } from '../domain/gathered-bytes.ts'
import { inBlocks } from '../jsonl/byte-lines.ts'
import { JsonScanner, Names, type Span } from '../jsonl/json-scan.ts'
import type { HoldBytes } from './incoming.ts'
import { withoutLineBreaks } from './inline-lines.ts'

const REQUESTS_MAX = 100_000
export const MESSAGE_BODY_BYTES_MAX = 256 * 1024 * 1024
/** Bytes that are stored at once. */
const BLOCK_BYTES = 256 * 1024

/** The body before its first request and after its last one, in Latin-1. */
const HEAD = /^(?:\xef\xbb\xbf)?[ \t\r\n]*\{[ \t\r\n]*"requests"[ \t\r\n]*:[ \t\r\n]*\[/
const TAIL = /^[ \t\r\n]*\}[ \t\r\n]*$/
const AROUND_BYTES_MAX = 1024

const FIELDS = new Names('custom_id', 'params')
const KEY_CHARACTERS_MAX = 60
const LINE_MIDDLE = Buffer.from(',"method":"POST","url":"/v1/messages","body":')
const LINE_BEGIN = Buffer.from('{"custom_id":')
const LINE_END = Buffer.from('}\n')

const QUOTE = 0x22
const BACKSLASH = 0x5c
const COMMA = 0x2c
const OPENING: readonly number[] = [0x7b, 0x5b]
const CLOSING: readonly number[] = [0x7d, 0x5d]
const CLOSE_BRACKET = 0x5d
const BLANKS: readonly number[] = [0x20, 0x09, 0x0a, 0x0d]

export class MessageRequests {
  readonly #body: AsyncIterable<Buffer>
  readonly #hash = createHash('sha256')
  readonly #json = new JsonScanner()
  /** Bytes before or after the array; null while the array is read. */
  #around: Buffer | null = Buffer.alloc(0)
  #isTail = false
  /** The element that may follow in the array. */
  #next: 'first' | 'request' | 'comma' = 'first'
  readonly #requestBytesMax: number
  /** The received beginning of the current request; the fields below are the scanner's state in it. */
  readonly #open = new GrowingBytes()
  #depth = 0
  #inString = false
  #escaped = false
  #count = 0

  constructor(body: AsyncIterable<Buffer>, requestBytesMax: number) {
    this.#body = body
    this.#requestBytesMax = requestBytesMax
  }

  /** The SHA-256 of the whole body, hex; available once all lines have been read. */
  sha256(): string {
    return this.#hash.digest('hex')
  }

  /** The lines, to be read once. Throws invalid_json, invalid_request, payload_too_large, and the errors of `hold`. */
  lines(hold: HoldBytes): AsyncGenerator<Buffer> {
    return inBlocks(this.#lines(hold), BLOCK_BYTES)
  }

  async *#lines(hold: HoldBytes): AsyncGenerator<Buffer[]> {
    let bytes = 0
    for await (const piece of this.#body) {
      bytes += piece.length
      if (bytes > MESSAGE_BODY_BYTES_MAX) throw tooLarge('The request body', MESSAGE_BODY_BYTES_MAX)
      this.#hash.update(piece)
      for (const request of this.#requestsIn(piece)) yield this.#lineOf(request)
      hold(this.#open.capacity)
    }
    if (!this.#isTail || !TAIL.test(this.#around?.toString('latin1') ?? '')) throw otherBody()
    if (this.#count === 0) throw notSoMany('none')
  }

  /** The requests whose last byte is in `piece`. */
  *#requestsIn(piece: Buffer): Generator<Buffer> {
    let from = 0
    if (this.#around !== null) {
      this.#around = Buffer.concat([this.#around, piece])
      const head = this.#isTail ? null : HEAD.exec(this.#around.toString('latin1', 0, AROUND_BYTES_MAX))
      if (head === null) {
        if (this.#around.length > AROUND_BYTES_MAX) throw otherBody()
        return
      }
      piece = this.#around
      from = head[0].length
      this.#around = null
    }
    let start = from
    for (let i = from; i < piece.length; i++) {
      const c = piece[i]!
      if (this.#inString) {
        if (this.#escaped) this.#escaped = false
        else if (c === BACKSLASH) this.#escaped = true
        else if (c === QUOTE) this.#inString = false
      } else if (this.#depth === 0) {
        if (c === CLOSE_BRACKET && this.#next !== 'request') {
          this.#isTail = true
          this.#around = piece.subarray(i + 1)
          if (this.#around.length > AROUND_BYTES_MAX) throw otherBody()
          return
        }
        this.#step(c)
        if (this.#depth > 0) start = i
      } else if (c === QUOTE) this.#inString = true
      else if (OPENING.includes(c)) this.#depth++
      else if (CLOSING.includes(c) && --this.#depth === 0) yield this.#ended(piece.subarray(start, i + 1))
    }
    if (this.#depth === 0) return
    const most = this.#requestBytesMax
    if (this.#open.length + piece.length - start > most) throw tooLarge(`\`${this.#name()}\``, most)
    this.#open.add(piece, start, piece.length, most + piece.length)
  }

  /** Handles a byte between two requests. */
  #step(c: number): void {
    if (BLANKS.includes(c)) return
    if (c === COMMA && this.#next === 'comma') this.#next = 'request'
    else if (OPENING[0] === c && this.#next !== 'comma') {
      if (this.#count === REQUESTS_MAX) throw notSoMany(`more than ${REQUESTS_MAX}`)
      this.#next = 'comma'
      this.#depth = 1
    } else throw invalid('invalid_json', this.#name(), 'must be an object, with a comma before the next one.')
  }

  #ended(last: Buffer): Buffer {
    if (this.#open.length === 0) return last
    this.#open.add(last)
    return this.#open.take()
  }

  #lineOf(request: Buffer): Buffer[] {
    const json = this.#json
    const spans: Partial<Record<'custom_id' | 'params', Span>> = {}
    json.open(request, 0, request.length)
    for (let more = json.beginObject(); more; more = json.nextMember()) {
      const key = json.key(FIELDS)
      if (key === null) {
        const name = json.decode(json.key_start, json.key_end, json.key_escaped).slice(0, KEY_CHARACTERS_MAX)
        throw invalid('invalid_request', `${this.#name()}.${name}`, 'is no field of a request.')
      }
      if (json.kind() !== (key === 'params' ? 'object' : 'string'))
        throw invalid('invalid_request', `${this.#name()}.${key}`, `must be ${KINDS[key]}.`)
      const start = json.at
      json.skipValue()
      spans[key] = { start, end: json.at }
    }
    json.finish()
    if (json.fault !== null) throw invalid('invalid_json', this.#name(), `is not valid: ${json.fault.what}.`)
    const { custom_id, params } = spans
    if (!custom_id || !params) {
      const missing = custom_id ? 'params' : 'custom_id'
      throw invalid(
        'invalid_request',
        `${this.#name()}.${missing}`,
        `is required; it must be ${KINDS[missing]}.`,
      )
    }
    this.#count++
    const bytesOf = ({ start, end }: Span): Buffer => withoutLineBreaks(request.subarray(start, end))
    return [LINE_BEGIN, bytesOf(custom_id), LINE_MIDDLE, bytesOf(params), LINE_END]
  }

  #name(): string {
    return `requests[${this.#count}]`
  }
}

const KINDS = { custom_id: 'a string', params: 'an object' }

function invalid(code: 'invalid_json' | 'invalid_request', param: string, what: string): ApiError {
  return new ApiError(code, `\`${param}\` ${what}`, { param })
}

/** The error of a body that is missing or has another form. */
export function otherBody(): ApiError {
  const message = 'The body must be {"requests": [{"custom_id": …, "params": {…}}, …]}, with no other field.'
  return invalidParam('requests', message)
}

function notSoMany(found: string): ApiError {
  const message = `\`requests\` must hold 1 to ${REQUESTS_MAX} requests, not ${found}.`
  return invalidParam('requests', message)
}

function tooLarge(what: string, bytes: number): ApiError {
  return new ApiError('payload_too_large', `${what} is larger than ${bytes} bytes.`)
}
