// Splits a stream of blocks of bytes into lines, and tells the bytes of an input that belong to no line: the byte order
// mark, the CR of a CRLF, and blank lines. Validation and dispatch have to agree on them.
import { isUtf8 } from 'node:buffer'
import { GrowingBytes } from '../domain/gathered-bytes.ts'

export const LF = 0x0a
export const LINE_BREAK = Buffer.from('\n')
const CR = 0x0d

/** Whether a UTF-8 byte order mark is at `start`. */
export function hasByteOrderMark(bytes: Buffer, start: number, end: number): boolean {
  return end - start >= 3 && bytes[start] === 0xef && bytes[start + 1] === 0xbb && bytes[start + 2] === 0xbf
}

export function withoutByteOrderMark(bytes: Buffer): Buffer {
  return hasByteOrderMark(bytes, 0, bytes.length) ? bytes.subarray(3) : bytes
}

/** The end of a line without its CR; `end` excludes the line feed. */
export function withoutCr(bytes: Buffer, start: number, end: number): number {
  return end > start && bytes[end - 1] === CR ? end - 1 : end
}

/** Whether the range has only JSON whitespace. */
export function isBlank(bytes: Buffer, start: number, end: number): boolean {
  for (let at = start; at < end; at++) {
    const c = bytes[at]
    if (c !== 0x20 && c !== 0x09 && c !== CR) return false
  }
  return true
}

interface ByteLine {
  /** The line without its line break. The caller may keep the buffer. */
  line: Buffer
  /** The length of the whole line, its line break included. */
  bytes: number
}

/** Splits blocks into lines, blank ones included. A line over `bytesMax` is cut, but stays longer than `bytesMax`. */
export async function* byteLines(
  blocks: AsyncIterable<Uint8Array>,
  bytesMax = Number.POSITIVE_INFINITY,
): AsyncGenerator<ByteLine> {
  /** The beginning of the current line. */
  const open = new GrowingBytes()
  let bytes = 0
  const ended = (last: Buffer): ByteLine => {
    if (open.length > 0 && bytes <= bytesMax) open.add(last)
    const line = open.length === 0 ? last : open.take()
    const whole = { line, bytes: bytes + last.length }
    bytes = 0
    return whole
  }
  for await (const { buffer, byteOffset, byteLength } of blocks) {
    const block = Buffer.from(buffer, byteOffset, byteLength)
    let start = 0
    for (let end = block.indexOf(LF); end !== -1; end = block.indexOf(LF, start)) {
      yield ended(block.subarray(start, end))
      start = end + 1
    }
    if (start === block.length) continue
    if (bytes <= bytesMax) open.add(block, start)
    bytes += block.length - start
  }
  if (bytes > 0) yield ended(Buffer.alloc(0))
}

/** The lines of a file of JSON with their numbers from 1, without a byte order mark, the CR of a CRLF, and blank lines. */
export async function* jsonLines(
  blocks: AsyncIterable<Uint8Array>,
  bytesMax?: number,
): AsyncGenerator<{ line: Buffer; number: number }> {
  let number = 0
  for await (const { line } of byteLines(blocks, bytesMax)) {
    number++
    const start = number === 1 && hasByteOrderMark(line, 0, line.length) ? 3 : 0
    const end = withoutCr(line, start, line.length)
    if (!isBlank(line, start, end)) yield { line: line.subarray(start, end), number }
  }
}

/** Joins pieces to blocks of `bytesMin` or more; the last one may be smaller. */
export async function* inBlocks(
  pieces: AsyncIterable<readonly Buffer[]> | Iterable<readonly Buffer[]>,
  bytesMin: number,
): AsyncGenerator<Buffer> {
  const block = new GrowingBytes()
  for await (const some of pieces) {
    for (const piece of some) block.add(piece)
    if (block.length >= bytesMin) yield block.take()
  }
  if (block.length > 0) yield block.take()
}

// `LineSplitter` splits an input for validation: a line within one block is not copied, and a line that is too long is
// not buffered. Blank lines are counted and skipped; a byte order mark at the start of the file and the CR of a CRLF
// are not part of a line.

/** Receives every line that is not blank. `number` counts from 1, including blank lines. */
export interface LineSink {
  /**
   * A line of valid UTF-8 is `bytes[start, end)`, valid during the call. In the stream it takes
   * `byte_start` to `byte_end`, its line break included.
   */
  line(bytes: Buffer, start: number, end: number, number: number, byte_start: number, byte_end: number): void
  tooLong(number: number): void
  notUtf8(number: number): void
}

/** The bytes of a byte order mark and a CR, which do not count for the length of a line. */
const EXTRA_BYTES_MAX = 4

export class LineSplitter {
  #lineBytesMax: number
  #sink: LineSink
  /** Lines begun so far, from 1. */
  #number = 1
  /** The offset of the next block in the stream. */
  #offset = 0
  /** The beginning of the current line, from earlier blocks. */
  #partial = Buffer.allocUnsafe(4096)
  #partialBytes = 0
  /** Whether the current line is already too long. */
  #skipping = false

  constructor(line_bytes_max: number, sink: LineSink) {
    this.#lineBytesMax = line_bytes_max
    this.#sink = sink
  }

  /** Reads the next block of the stream. The block may be reused afterwards. */
  push(block: Buffer): void {
    let start = 0
    if (this.#partialBytes > 0 || this.#skipping) {
      const newline = block.indexOf(LF)
      if (newline < 0) {
        this.#keep(block, 0, block.length)
        this.#offset += block.length
        return
      }
      this.#keep(block, 0, newline + 1)
      start = newline + 1
      this.#finishPartial(this.#offset + start)
    }
    const end = block.lastIndexOf(LF) + 1
    if (end > start) this.#lines(block, start, end)
    if (Math.max(start, end) < block.length) this.#keep(block, Math.max(start, end), block.length)
    this.#offset += block.length
  }

  /** Ends the stream; the last line may lack its line break. */
  end(): void {
    if (this.#partialBytes > 0 || this.#skipping) this.#finishPartial(this.#offset)
  }

  /** Passes on the whole lines in `block[start, end)`. */
  #lines(block: Buffer, start: number, end: number): void {
    const clean = isUtf8(start === 0 && end === block.length ? block : block.subarray(start, end))
    let from = start
    while (from < end) {
      const newline = block.indexOf(LF, from)
      this.#line(block, from, newline, clean, this.#offset + from, this.#offset + newline + 1)
      from = newline + 1
    }
  }

  #finishPartial(byte_end: number): void {
    if (this.#skipping) {
      this.#sink.tooLong(this.#number++)
    } else {
      const partial = this.#partial
      const length = this.#partialBytes
      const end = partial[length - 1] === LF ? length - 1 : length
      this.#line(partial, 0, end, false, byte_end - length, byte_end)
    }
    this.#partialBytes = 0
    this.#skipping = false
  }

  #line(bytes: Buffer, from: number, to: number, clean: boolean, byte_start: number, byte_end: number): void {
    const start = byte_start === 0 && hasByteOrderMark(bytes, from, to) ? from + 3 : from
    const end = withoutCr(bytes, start, to)
    const number = this.#number++
    if (end - start > this.#lineBytesMax) this.#sink.tooLong(number)
    else if (isBlank(bytes, start, end)) return
    else if (!clean && !isUtf8(bytes.subarray(start, end))) this.#sink.notUtf8(number)
    else this.#sink.line(bytes, start, end, number, byte_start + start - from, byte_end)
  }

  /** Keeps bytes of the unfinished line, unless it is too long to be accepted. */
  #keep(block: Buffer, start: number, end: number): void {
    if (this.#skipping) return
    const bytes = this.#partialBytes + end - start
    const lineBreak = block[end - 1] === LF ? 1 : 0
    if (bytes - lineBreak > this.#lineBytesMax + EXTRA_BYTES_MAX) {
      this.#skipping = true
      return
    }
    if (bytes > this.#partial.length) {
      const grown = Buffer.allocUnsafe(Math.max(bytes, 2 * this.#partial.length))
      this.#partial.copy(grown, 0, 0, this.#partialBytes)
      this.#partial = grown
    }
    block.copy(this.#partial, this.#partialBytes, start, end)
    this.#partialBytes = bytes
  }
}
