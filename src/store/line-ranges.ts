// Line numbers in ascending order, as runs of consecutive ones: which lines of a chunk a batch API has.
import type { RemoteBatchRow } from './schema.ts'

/** Pairs of first and last line number. */
export type LineRanges = [first: number, last: number][]

/** `lines` in ascending order. */
export function rangesOf(lines: Iterable<number>): LineRanges {
  const ranges: LineRanges = []
  for (const line of lines) {
    const last = ranges.at(-1)
    if (last && last[1] === line - 1) last[1] = line
    else ranges.push([line, line])
  }
  return ranges
}

/** The lines that a batch at a batch API was made of. */
export function* linesOf(row: Pick<RemoteBatchRow, 'lines'>): Generator<number> {
  const ranges: LineRanges = JSON.parse(row.lines)
  for (const [first, last] of ranges) for (let line = first; line <= last; line++) yield line
}
