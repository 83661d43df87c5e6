// Positions in a line, the bytes between lines, and short texts that many lines repeat.
import type { JsonScanner } from './json-scan.ts'

/** A run of bytes: `start` inclusive, `end` exclusive, both indexes into the buffer that was scanned. */
export interface Span {
  start: number
  end: number
}

export function setSpan(span: Span, start: number, end: number): void {
  span.start = start
  span.end = end
}

/** Texts that are longer are not worth comparing before decoding. */
const REMEMBERED_BYTES_MAX = 64

/**
 * Decodes a string, or hands out the previous one again if the bytes are the same: models and entities
 * repeat from line to line, and equal strings that are one string also compare fast later.
 */
export class RepeatedText {
  #bytes = Buffer.alloc(REMEMBERED_BYTES_MAX)
  #length = -1
  #text = ''

  /** Steps over the value ahead; null where it is no string. */
  read(json: JsonScanner): string | null {
    return json.readString() ? this.readSpan(json, json.text_start, json.text_end, json.text_escaped) : null
  }

  readSpan(json: JsonScanner, start: number, end: number, escaped: boolean): string {
    const length = end - start
    const bytes = json.bytes
    if (length === this.#length && !escaped) {
      let i = 0
      while (i < length && this.#bytes[i] === bytes[start + i]) i++
      if (i === length) return this.#text
    }
    const text = json.decode(start, end, escaped)
    if (!escaped && length <= REMEMBERED_BYTES_MAX) {
      bytes.copy(this.#bytes, 0, start, end)
      this.#length = length
      this.#text = text
    }
    return text
  }
}

// The bytes of an input that belong to no line: the byte order mark, the CR of a CRLF, and blank lines. Validation and
// dispatch have to agree on them.
export const LF = 0x0a
const CR = 0x0d

/** Whether a UTF-8 byte order mark stands at `start`. */
export function hasByteOrderMark(bytes: Buffer, start: number, end: number): boolean {
  return end - start >= 3 && bytes[start] === 0xef && bytes[start + 1] === 0xbb && bytes[start + 2] === 0xbf
}

/** Where the line that ends before `end`, line feed not included, really ends. */
export function withoutCr(bytes: Buffer, start: number, end: number): number {
  return end > start && bytes[end - 1] === CR ? end - 1 : end
}

/** Nothing but JSON's whitespace. */
export function isBlank(bytes: Buffer, start: number, end: number): boolean {
  for (let at = start; at < end; at++) {
    const c = bytes[at]
    if (c !== 0x20 && c !== 0x09 && c !== CR) return false
  }
  return true
}
