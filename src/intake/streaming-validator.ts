// Validates a file while it arrives. Its only positive result is a valid file and its index. For an invalid line or
// two custom_ids with equal hashes it gives up, and the file is validated from its blob, with messages for each line.
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

  /** The memory of the custom_ids. */
  get ids_bytes(): number {
    return this.#first.ids_bytes
  }

  /** Reads the next block of the file. False: the result will be null, so reading on is pointless. */
  push(block: Buffer): boolean {
    this.#splitter.push(block)
    return !this.#inDoubt
  }

  /** Call it after the last block. Null: the file has to be validated from its blob. */
  end(): ValidFile | null {
    this.#splitter.end()
    const { line_count } = this.#first
    if (this.#inDoubt || line_count === 0) return null
    return { line_count, index_json: JSON.stringify(this.#first.index()) }
  }

  get #inDoubt(): boolean {
    return this.#first.stopped || this.#first.bad.count > 0 || this.#first.collisions > 0
  }
}
