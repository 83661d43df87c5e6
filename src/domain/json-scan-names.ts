// A closed set of short words (keys, roles, methods) that are recognised in bytes without decoding them.

interface Word<T> {
  name: T
  bytes: Uint8Array
}

export class Names<T extends string> {
  /** Index 0 stays empty: no word is. */
  #by_length: Word<T>[][] = [[]]

  constructor(...names: readonly T[]) {
    for (const name of names) {
      const bytes = new TextEncoder().encode(name)
      while (this.#by_length.length <= bytes.length) this.#by_length.push([])
      this.#by_length[bytes.length]?.push({ name, bytes })
    }
  }

  /** The word that `bytes[start, end)` spells, or null. */
  find(bytes: Buffer, start: number, end: number): T | null {
    const length = end - start
    const words = this.#by_length[length < this.#by_length.length ? length : 0]!
    for (let k = 0; k < words.length; k++) {
      const word = words[k]!
      const spelt = word.bytes
      let i = 0
      while (i < length && spelt[i] === bytes[start + i]) i++
      if (i === length) return word.name
    }
    return null
  }

  /** The same for text that is decoded already. */
  findText(text: string): T | null {
    for (const word of this.#by_length[text.length] ?? []) if (word.name === text) return word.name
    return null
  }
}
