// Learns how long the answers of a model are, by family: lines with equal output limits, schemas and beginnings of their
// prompts. Only the order of lines follows from it (fair-queue.ts), never their limits or costs. A worker learns anew after a
// restart. Memory is bounded: in a table of families by their hashes, new families replace rare ones.
import type { ChunkLine } from './chunk-lines.ts'

const FAMILIES = 1024
/** Bytes of a prompt's beginning by which families are told apart; the last one that is known counts. */
const DEPTHS = [0, 48, 192]
/** The number of answers at which the mean of a family counts, and of the answers over which the mean is taken. */
const KNOWN_MIN = 3
const RECENT = 100

interface Prompts {
  bytes: Buffer
  lines: readonly Pick<ChunkLine, 'body' | 'prompt' | 'output_tokens_max'>[]
}

export class AnswerLengths {
  readonly #hashes = new Uint32Array(FAMILIES)
  readonly #counts = new Uint16Array(FAMILIES)
  readonly #means = new Float32Array(FAMILIES)
  /** The families of the line that was asked about last, by depth. */
  readonly #line = new Uint32Array(DEPTHS.length)

  /** Adds the tokens of a line's answer. */
  ended(of: Prompts, position: number, tokens: number): void {
    this.#hash(of, position)
    for (let i = 0; i < DEPTHS.length; i++) {
      const hash = this.#line[i]!
      const at = hash % FAMILIES
      const isOther = this.#hashes[at] !== hash
      if (isOther && this.#counts[at]! > 1) {
        this.#counts[at]!--
        continue
      }
      this.#hashes[at] = hash
      const count = isOther ? 1 : Math.min(RECENT, this.#counts[at]! + 1)
      this.#counts[at] = count
      this.#means[at] = this.#means[at]! * (1 - 1 / count) + tokens / count
    }
  }

  /** The expected tokens of a line's answer: its output limit while no line like it has ended. */
  expected(of: Prompts, position: number): number {
    this.#hash(of, position)
    let tokens = of.lines[position]!.output_tokens_max
    for (let i = 0; i < DEPTHS.length; i++) {
      const at = this.#line[i]! % FAMILIES
      if (this.#hashes[at] === this.#line[i] && this.#counts[at]! >= KNOWN_MIN) tokens = this.#means[at]!
    }
    return tokens
  }

  /** FNV-1a. The bytes beside the prompt stand for the schema and the options, which most lines of a family share. */
  #hash({ bytes, lines }: Prompts, position: number): void {
    const { body, prompt, output_tokens_max } = lines[position]!
    const beside = body.end - body.start - (prompt.end - prompt.start)
    let hash = Math.imul(Math.imul(output_tokens_max ^ 0x811c9dc5, 0x01000193) ^ beside, 0x01000193)
    let at = prompt.start
    for (let i = 0; i < DEPTHS.length; i++) {
      for (const end = Math.min(prompt.end, prompt.start + DEPTHS[i]!); at < end; at++)
        hash = Math.imul(hash ^ bytes[at]!, 0x01000193)
      this.#line[i] = hash ^ i
    }
  }
}
