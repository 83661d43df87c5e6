// Writes text into a buffer piece by piece. Each line has a result and an audit record; as composed strings they would
// be built, copied and encoded, which costs twice the time and three times their size on the heap.
import { BASE32 } from '../domain/ids.ts'
import { NANOS_PER_USD } from '../domain/money.ts'

const POINT = 0x2e
const NANO_DIGITS = 9
const ASCII_MAX = 0x7f
/** The length up to which a loop copies text: a call of the runtime's encoder costs a few dozen characters. */
const LOOP_MAX = 48

export class ByteWriter {
  bytes: Buffer = Buffer.alloc(0)
  at = 0

  /** Writes text of ASCII characters only. */
  ascii(text: string): void {
    if (text.length > LOOP_MAX) {
      this.at += this.bytes.write(text, this.at, 'latin1')
      return
    }
    const { bytes } = this
    let at = this.at
    for (let i = 0; i < text.length; i++) bytes[at++] = text.charCodeAt(i)
    this.at = at
  }

  text(text: string): void {
    const { bytes } = this
    let at = this.at
    if (text.length <= LOOP_MAX) {
      let i = 0
      for (; i < text.length; i++) {
        const c = text.charCodeAt(i)
        if (c > ASCII_MAX) break
        bytes[at++] = c
      }
      if (i === text.length) {
        this.at = at
        return
      }
    }
    this.at += bytes.write(text, this.at)
  }

  copy(from: Buffer, start: number, end: number): void {
    from.copy(this.bytes, this.at, start, end)
    this.at += end - start
  }

  /** Writes the last `digits` digits of a whole number in Crockford's base 32, as in IDs. */
  base32(value: number, digits: number): void {
    this.#digits(value, digits, 32)
  }

  /** Writes nano-dollars as a number of USD, without trailing zeros. */
  usd(nanos: number): void {
    const whole = Math.floor(nanos / NANOS_PER_USD)
    this.count(whole)
    let rest = nanos - whole * NANOS_PER_USD
    if (rest === 0) return
    let digits = NANO_DIGITS
    for (; rest % 10 === 0; digits--) rest /= 10
    this.bytes[this.at++] = POINT
    this.#digits(rest, digits, 10)
  }

  /** Writes a whole number that is not negative, in decimal. */
  count(value: number): void {
    if (value > 0xffff_ffff) {
      this.ascii(String(value))
      return
    }
    this.#digits(value, digitsOf(value), 10)
  }

  /** Writes the last `digits` digits of a whole number. */
  #digits(value: number, digits: number, base: 10 | 32): void {
    const { bytes } = this
    let rest = value
    for (let at = this.at + digits - 1; at >= this.at; at--) {
      const higher = Math.floor(rest / base)
      bytes[at] = BASE32.charCodeAt(rest - higher * base)
      rest = higher
    }
    this.at += digits
  }
}

/** The number of decimal digits of a whole number that is not negative. */
export function digitsOf(value: number): number {
  let digits = 1
  for (let power = 10; power <= value; power *= 10) digits++
  return digits
}
