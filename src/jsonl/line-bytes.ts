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
