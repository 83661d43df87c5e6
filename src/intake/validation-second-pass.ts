// The second pass over a file in which custom_ids have equal hashes: compares the IDs themselves, and names the line
// that used an ID first.
import { LineScanner } from '../jsonl/line-scan.ts'
import { hashCustomId, type IdHash } from './custom-id-hash.ts'
import type { HashSet64 } from './custom-id-set.ts'
import { InvalidLines } from './invalid-lines.ts'
import type { LineSink } from './line-split.ts'

const SHOWN_CHARACTERS_MAX = 80

export class SecondPass implements LineSink {
  readonly bad = new InvalidLines()
  stopped = false

  /** IDs whose hash collides; the first pass bounds their number. */
  #firstLines = new Map<string, number>()
  #scanner = new LineScanner()
  #collided: HashSet64
  #lastLine: number
  #hash: IdHash

  /** `collided` are the hashes that occur twice, `lastLine` the last line with one of them. */
  constructor(collided: HashSet64, lastLine: number, hash: IdHash) {
    this.#collided = collided
    this.#lastLine = lastLine
    this.#hash = hash
  }

  line(bytes: Buffer, start: number, end: number, number: number): void {
    if (number > this.#lastLine) {
      this.stopped = true
      return
    }
    const line = this.#scanner.scan(bytes, start, end)
    if (!line.ok) return
    hashCustomId(line, this.#hash)
    if (!this.#collided.has(this.#hash.lo, this.#hash.hi)) return
    const id = line.custom_id
    const first = this.#firstLines.get(id)
    if (first === undefined) this.#firstLines.set(id, number)
    else {
      const message = `The custom_id ${shown(id)} was already used on line ${first}.`
      this.bad.add(number, 'duplicate_custom_id', message, 'custom_id')
    }
  }

  // The first pass has reported these lines; they have no custom_id to compare.
  tooLong(): void {}
  notUtf8(): void {}
}

function shown(id: string): string {
  return JSON.stringify(id.length <= SHOWN_CHARACTERS_MAX ? id : `${id.slice(0, SHOWN_CHARACTERS_MAX)}…`)
}
