// Shows the key figures of a page.
import type { ComponentChildren, VNode } from 'preact'
import { compact, count, usd, usdExact } from '../format.ts'

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
