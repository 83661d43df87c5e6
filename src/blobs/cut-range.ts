import type { ByteRange } from './blobs.ts'

/**
 * The part of `range` that lies within `bytes` bytes, or all of them without a range; empty (`start === end`)
 * when it begins past the end. Throws a RangeError on what is no range.
 */
export function cutRange(range: ByteRange | undefined, bytes: number): ByteRange {
  if (range === undefined) return { start: 0, end: bytes }
  const { start, end } = range
  if (!Number.isSafeInteger(start) || !Number.isSafeInteger(end) || start < 0)
    throw new RangeError(`${start}..${end} is no range of bytes`)
  const cut = Math.min(start, bytes)
  return { start: cut, end: Math.max(cut, Math.min(end, bytes)) }
}
