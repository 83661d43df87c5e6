// Cuts a stream of byte blocks into lines, wherever the blocks happen to end. A line that lies within one
// block is not copied; a line without end is not buffered. Blank lines are counted and passed over; a byte
// order mark at the start of the file and the CR of a CRLF belong to no line.
import { isUtf8 } from 'node:buffer'
import { hasByteOrderMark, isBlank, LF, withoutCr } from '../jsonl/line-bytes.ts'

/** Told of every line that is not blank. `number` counts from 1, blank lines included. */
export interface LineSink {
  /**
   * A line of valid UTF-8 is `bytes[start, end)`, lent for the time of the call. In the stream it takes
   * `byte_start` to `byte_end`, its line break included.
   */
  line(bytes: Buffer, start: number, end: number, number: number, byte_start: number, byte_end: number): void
  tooLong(number: number): void
  notUtf8(number: number): void
}

/** A byte order mark and a CR come on top of what a line may have. */
const EXTRA_BYTES_MAX = 4

export class LineSplitter {
  #line_bytes_max: number
  #sink: LineSink
  /** Lines begun so far. */
  #number = 1
  /** Where in the stream the next block begins. */
  #offset = 0
  /** The beginning of a line whose end is still to come. */
  #held = Buffer.allocUnsafe(4096)
  #held_bytes = 0
  /** Inside a line that is already known to be too long. */
  #skipping = false

  constructor(line_bytes_max: number, sink: LineSink) {
    this.#line_bytes_max = line_bytes_max
    this.#sink = sink
  }

  /** Takes the next block of the stream. It may be reused afterwards. */
  push(block: Buffer): void {
    let start = 0
    if (this.#held_bytes > 0 || this.#skipping) {
      const newline = block.indexOf(LF)
      if (newline < 0) {
        this.#hold(block, 0, block.length)
        this.#offset += block.length
        return
      }
      this.#hold(block, 0, newline + 1)
      start = newline + 1
      this.#finishHeld(this.#offset + start)
    }
    const end = block.lastIndexOf(LF) + 1
    if (end > start) this.#lines(block, start, end)
    if (Math.max(start, end) < block.length) this.#hold(block, Math.max(start, end), block.length)
    this.#offset += block.length
  }

  /** The stream is over; a last line needs no line break. */
  end(): void {
    if (this.#held_bytes > 0 || this.#skipping) this.#finishHeld(this.#offset)
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

  #finishHeld(byte_end: number): void {
    if (this.#skipping) {
      this.#sink.tooLong(this.#number++)
    } else {
      const held = this.#held
      const length = this.#held_bytes
      const end = held[length - 1] === LF ? length - 1 : length
      this.#line(held, 0, end, false, byte_end - length, byte_end)
    }
    this.#held_bytes = 0
    this.#skipping = false
  }

  #line(bytes: Buffer, from: number, to: number, clean: boolean, byte_start: number, byte_end: number): void {
    const start = byte_start === 0 && hasByteOrderMark(bytes, from, to) ? from + 3 : from
    const end = withoutCr(bytes, start, to)
    const number = this.#number++
    if (end - start > this.#line_bytes_max) this.#sink.tooLong(number)
    else if (isBlank(bytes, start, end)) return
    else if (!clean && !isUtf8(bytes.subarray(start, end))) this.#sink.notUtf8(number)
    else this.#sink.line(bytes, start, end, number, byte_start + start - from, byte_end)
  }

  /** Keeps bytes of the unfinished line, unless it is too long to be accepted. */
  #hold(block: Buffer, start: number, end: number): void {
    if (this.#skipping) return
    const bytes = this.#held_bytes + end - start
    const line_break = block[end - 1] === LF ? 1 : 0
    if (bytes - line_break > this.#line_bytes_max + EXTRA_BYTES_MAX) {
      this.#skipping = true
      return
    }
    if (bytes > this.#held.length) {
      const grown = Buffer.allocUnsafe(Math.max(bytes, 2 * this.#held.length))
      this.#held.copy(grown, 0, 0, this.#held_bytes)
      this.#held = grown
    }
    block.copy(this.#held, this.#held_bytes, start, end)
    this.#held_bytes = bytes
  }
}
