// The second reading, of a file whose first one met custom_ids with equal hashes: compares the ids
// themselves and names the line that used an id first.
import { LineScanner } from '../jsonl/line-scan.ts'
import { hashCustomId, type IdHash } from './custom-id-hash.ts'
import type { HashSet64 } from './custom-id-set.ts'
import { InvalidLines } from './invalid-lines.ts'
import type { LineSink } from './line-split.ts'

const SHOWN_CHARACTERS_MAX = 80

export class SecondPass implements LineSink {
  readonly bad = new InvalidLines()
  stopped = false

  /** Only ids under suspicion: as many as the first reading bounds. */
  #first_lines = new Map<string, number>()
  #scanner = new LineScanner()
  #suspects: HashSet64
  #last_line: number
  #hash: IdHash

  /** `suspects` are the hashes met twice, `last_line` the last line that has one of them. */
  constructor(suspects: HashSet64, last_line: number, hash: IdHash) {
    this.#suspects = suspects
    this.#last_line = last_line
    this.#hash = hash
  }

  line(bytes: Buffer, start: number, end: number, number: number): void {
    if (number > this.#last_line) {
      this.stopped = true
      return
    }
    const line = this.#scanner.scan(bytes, start, end)
    if (!line.ok) return
    hashCustomId(line, this.#hash)
    if (!this.#suspects.has(this.#hash.lo, this.#hash.hi)) return
    const id = line.custom_id
    const first = this.#first_lines.get(id)
    if (first === undefined) this.#first_lines.set(id, number)
    else {
      const message = `The custom_id ${shown(id)} was already used on line ${first}.`
      this.bad.add(number, 'duplicate_custom_id', message, 'custom_id')
    }
  }

  // Lines that the first reading has reported have no custom_id to compare.
  tooLong(): void {}
  notUtf8(): void {}
}

function shown(id: string): string {
  return JSON.stringify(id.length <= SHOWN_CHARACTERS_MAX ? id : `${id.slice(0, SHOWN_CHARACTERS_MAX)}…`)
}
