// A moment in the reader's zone, with UTC on hover and for machines.

import type { VNode } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { every, now } from '../browser-clock.ts'
import { dateTime, relative, utc } from '../format.ts'

/** `at`: Unix seconds. */
export function Time({ at, short }: { at: number; short?: boolean }): VNode {
  const [, tick] = useState(0)
  useEffect(() => (short ? every(15_000, () => tick((last) => last + 1)) : undefined), [short])
  const title = short ? `${dateTime(at, now())} · ${utc(at)}` : utc(at)
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={title}>
      {short ? relative(at, now()) : dateTime(at, now())}
    </time>
  )
}
