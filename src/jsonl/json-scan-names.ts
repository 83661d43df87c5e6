// A closed set of short words (keys, roles, methods) that are recognised in bytes without decoding them.

interface Word<T> {
  name: T
  bytes: Uint8Array
  /** One bit of a set of these words. */
  bit: number
}

/** In UTF-8, the longest character that folds to an ASCII letter is the Kelvin sign, of three bytes. */
const FOLDED_BYTES_MAX = 3

export class Names<T extends string> {
  /** Index 0 stays empty: no word is. */
  #by_length: Word<T>[][] = [[]]

  /** At most 32 of them, in lower case. */
  constructor(...names: readonly T[]) {
    for (const [i, name] of names.entries()) {
      const bytes = new TextEncoder().encode(name)
      while (this.#by_length.length <= bytes.length) this.#by_length.push([])
      this.#by_length[bytes.length]?.push({ name, bytes, bit: 1 << i })
    }
  }

  /** The word that `bytes[start, end)` spells, or null. */
  find(bytes: Buffer, start: number, end: number): Word<T> | null {
    const length = end - start
    const words = this.#by_length[length < this.#by_length.length ? length : 0]!
    for (let k = 0; k < words.length; k++) {
      const word = words[k]!
      const spelt = word.bytes
      let i = 0
      while (i < length && spelt[i] === bytes[start + i]) i++
      if (i === length) return word
    }
    return null
  }

  /** The same for text that is decoded already. */
  findText(text: string): Word<T> | null {
    for (const word of this.#by_length[text.length] ?? []) if (word.name === text) return word
    return null
  }

  /** The word that `bytes[start, end)`, which is none, would spell for a reader that disregards case; or null. */
  findFolded(bytes: Buffer, start: number, end: number): Word<T> | null {
    const length = end - start
    if (length >= this.#by_length.length * FOLDED_BYTES_MAX) return null
    for (let i = start; i < end; i++) {
      if (bytes[i]! >= 0x80) return this.findFoldedText(bytes.toString('utf8', start, end))
    }
    const words = this.#by_length[length < this.#by_length.length ? length : 0]!
    for (let k = 0; k < words.length; k++) {
      const spelt = words[k]!.bytes
      let i = 0
      while (i < length && spelt[i] === lower(bytes[start + i]!)) i++
      if (i === length) return words[k]!
    }
    return null
  }

  /** The same for text that is decoded already; Unicode's folding, by which \u017f is an s and \u212a a k. */
  findFoldedText(text: string): Word<T> | null {
    if (text.length >= this.#by_length.length) return null
    return this.findText(text.toUpperCase().toLowerCase())
  }
}

function lower(byte: number): number {
  return byte >= 0x41 && byte <= 0x5a ? byte | 0x20 : byte
}
