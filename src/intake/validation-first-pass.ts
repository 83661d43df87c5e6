// The first pass over an uploaded file: scans each line, builds the index, and collects the hashes of custom_ids that
// may be duplicates.
import type { FileIndex } from '../jsonl/file-index.ts'
import { LineScanner } from '../jsonl/line-scan.ts'
import { hashCustomId, type IdHash } from './custom-id-hash.ts'
import { HashSet64 } from './custom-id-set.ts'
import { FileIndexer } from './file-indexer.ts'
import { ERRORS_COUNTED_MAX, InvalidLines } from './invalid-lines.ts'
import type { LineSink } from './line-split.ts'

export interface ValidationLimits {
  lines_max: number
  line_bytes_max: number
}

const BLANK_ENTITY = '`metadata.entity` is blank. Name an entity, or leave the key out.'

export class FirstPass implements LineSink {
  readonly bad = new InvalidLines()
  /** Requests so far, including invalid ones. */
  line_count = 0
  /** Reading on is pointless. */
  stopped = false
  /** The number of lines whose custom_id has a hash that occurred before, and those hashes. */
  collisions = 0
  readonly collided = new HashSet64()
  last_collision_line = 0

  #scanner = new LineScanner()
  #ids = new HashSet64()
  #indexer = new FileIndexer()
  #hash: IdHash
  #limits: ValidationLimits

  constructor(limits: ValidationLimits, hash: IdHash) {
    this.#limits = limits
    this.#hash = hash
  }

  /** The memory of the custom_ids. */
  get ids_bytes(): number {
    return this.#ids.bytes
  }

  index(): FileIndex {
    return this.#indexer.finish()
  }

  line(
    bytes: Buffer,
    start: number,
    end: number,
    number: number,
    byte_start: number,
    byte_end: number,
  ): void {
    if (!this.#counts(number)) return
    const line = this.#scanner.scan(bytes, start, end)
    if (!line.ok) {
      this.bad.add(number, line.code, line.message, line.param)
      return
    }
    if (line.entity_is_blank) {
      this.bad.add(number, 'invalid_metadata', BLANK_ENTITY, 'metadata.entity')
      return
    }
    hashCustomId(line, this.#hash)
    if (!this.#ids.add(this.#hash.lo, this.#hash.hi)) this.#addCollision(number)
    if (this.bad.count === 0) this.#indexer.add(line, number, byte_start, byte_end)
  }

  tooLong(number: number): void {
    if (!this.#counts(number)) return
    this.bad.add(number, 'line_too_long', `The line is longer than ${this.#limits.line_bytes_max} bytes.`)
  }

  notUtf8(number: number): void {
    if (this.#counts(number)) this.bad.add(number, 'invalid_utf8', 'The line is not valid UTF-8.')
  }

  /** Counts a request; false when it is not checked any more. */
  #counts(number: number): boolean {
    if (this.stopped) return false
    if (this.bad.count + this.collisions >= ERRORS_COUNTED_MAX) {
      this.stopped = true
      return false
    }
    if (this.line_count === this.#limits.lines_max) {
      this.bad.add(
        number,
        'too_many_lines',
        `The file contains more than ${this.#limits.lines_max} requests.`,
      )
      this.stopped = true
      return false
    }
    this.line_count++
    return true
  }

  #addCollision(number: number): void {
    this.collisions++
    this.collided.add(this.#hash.lo, this.#hash.hi)
    this.last_collision_line = number
  }
}
