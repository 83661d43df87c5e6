// Shows a moment in the reader's zone, with UTC on hover and for machines.

import type { VNode } from 'preact'
import { every, now } from '../browser-clock.ts'
import { Cell, useCell } from '../cell.ts'
import { dateTime, relative, utc } from '../format.ts'

/** One timer for all that a page shows. */
const shownAt = new Cell(now())
every(15_000, () => shownAt.set(now()))

/** `at`: Unix seconds. */
export function Time({ at, short }: { at: number; short?: boolean }): VNode {
  useCell(shownAt)
  const title = short ? `${dateTime(at, now())} · ${utc(at)}` : utc(at)
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={title}>
      {short ? relative(at, now()) : dateTime(at, now())}
    </time>
  )
}
