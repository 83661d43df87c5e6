// A closed set of short words (keys, roles, methods) that are recognised in bytes without decoding them.

interface Word<T> {
  name: T
  bytes: Buffer
}

export class Names<T extends string> {
  #by_length: Word<T>[][] = []

  constructor(...names: readonly T[]) {
    for (const name of names) {
      const bytes = Buffer.from(name)
      while (this.#by_length.length <= bytes.length) this.#by_length.push([])
      this.#by_length[bytes.length]?.push({ name, bytes })
    }
  }

  /** The word that `bytes[start, end)` spells, or null. */
  find(bytes: Buffer, start: number, end: number): T | null {
    const length = end - start
    if (length >= this.#by_length.length) return null
    for (const word of this.#by_length[length]!) {
      let i = 0
      while (i < length && word.bytes[i] === bytes[start + i]) i++
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
