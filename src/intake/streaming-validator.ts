// Reads a file while it is still arriving. It knows one good answer: all of it is in order, and this is its
// index. Whatever else a file may be, a bad line or two custom_ids with equal hashes, is for the validation that
// comes afterwards, which can read it again and has the words for it.
import { type IdHash, SeededHash } from './custom-id-hash.ts'
import { LineSplitter } from './line-split.ts'
import type { ValidationLimits } from './validation-first-pass.ts'
import { FirstPass } from './validation-first-pass.ts'

export interface ValidFile {
  line_count: number
  /** The file's index, as it is stored. */
  index_json: string
}

export class StreamingValidator {
  readonly #first: FirstPass
  readonly #splitter: LineSplitter

  constructor(limits: ValidationLimits, hash: IdHash = new SeededHash()) {
    this.#first = new FirstPass(limits, hash)
    this.#splitter = new LineSplitter(limits.line_bytes_max, this.#first)
  }

  /** What it remembers of the file: custom_ids, in eight bytes each and the room to find them. */
  get ids_bytes(): number {
    return this.#first.ids_bytes
  }

  /** Takes the next block of the file. False: no good answer will come, reading on is pointless. */
  push(block: Buffer): boolean {
    this.#splitter.push(block)
    return !this.#inDoubt
  }

  /** The file is complete. Null: it takes another look. */
  end(): ValidFile | null {
    this.#splitter.end()
    const { line_count } = this.#first
    if (this.#inDoubt || line_count === 0) return null
    return { line_count, index_json: JSON.stringify(this.#first.index()) }
  }

  get #inDoubt(): boolean {
    return this.#first.stopped || this.#first.bad.count > 0 || this.#first.suspicions > 0
  }
}
