// Shows the key figures and facts of a page, and moments in the reader's zone, with UTC on hover and for machines.
import type { ComponentChildren, VNode } from 'preact'
import { every, now } from '../browser-clock.ts'
import { Cell, useCell } from '../cell.ts'
import { compact, count, dateTime, relative, usd, usdExact, utc } from '../format.ts'

interface FigureProps {
  title: string
  value: ComponentChildren
  note?: ComponentChildren
  exact?: string
}

export function Figures({ figures }: { figures: readonly (FigureProps | null)[] }): VNode {
  return (
    <dl class="figures">
      {figures
        .filter((figure) => figure !== null)
        .map(({ title, value, note, exact }) => (
          <div class="figure" key={title}>
            <dt>{title}</dt>
            <dd title={exact}>
              {value}
              {note ? <div class="note">{note}</div> : null}
            </dd>
          </div>
        ))}
    </dl>
  )
}

export function Facts({ facts }: { facts: readonly (readonly [string, ComponentChildren])[] }): VNode {
  const shown = facts.filter(([, value]) => value !== null && value !== undefined && value !== '')
  return <dl class="facts">{shown.flatMap(([title, value]) => [<dt>{title}</dt>, <dd>{value}</dd>])}</dl>
}

/** Money, rounded, and exact on hover. */
export function costFigure(title: string, value: number, note?: ComponentChildren): FigureProps {
  return { title, value: usd(value), exact: usdExact(value), note }
}

/** A large number, rounded, and exact on hover. */
export function amountFigure(title: string, value: number, note?: ComponentChildren): FigureProps {
  return { title, value: compact(value), exact: count(value), note }
}

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
