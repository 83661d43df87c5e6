// Draws the frame of a page, its sections, key figures and facts, and moments in the reader's zone, with UTC on hover and
// for machines. The heading of a page gets the focus when a link has led to the page, and names the window.
import type { ComponentChildren, VNode } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import { every, now } from '../browser-clock.ts'
import { Cell, useCell } from '../cell.ts'
import { compact, count, dateTime, relative, usd, usdExact, utc } from '../format.ts'
import { keepList, keptList } from '../kept.ts'
import { health } from '../problems.ts'
import { currentAddress } from '../router.ts'
import { named } from './text.tsx'

/** A recently opened page; `to` begins behind /console. */
export type Recent = { to: string; text: string }

export const RECENT = 'recent'
const RECENT_MAX = 8

function remember(text: string): void {
  const to = currentAddress().path
  const others = keptList<Recent>(RECENT).filter((page) => page.to !== to)
  keepList(RECENT, [{ to, text }, ...others].slice(0, RECENT_MAX))
}

interface PageProps {
  title: string
  /** The link above the heading to the parent page. */
  parent?: { href: string; title: string }
  /** The text under the heading. */
  lead?: ComponentChildren
  actions?: ComponentChildren
  mono?: boolean
  children?: ComponentChildren
}

export function Page({ title, parent, lead, actions, mono, children }: PageProps): VNode {
  const heading = useRef<HTMLHeadingElement>(null)
  useEffect(() => {
    if (currentAddress().visit > 0) heading.current?.focus({ preventScroll: true })
  }, [])
  const { problems } = useCell(health)
  const count = problems?.length ? `(${problems.length}) ` : ''
  useEffect(() => {
    document.title = `${count}${named(title)} · Offpeak`
  }, [title, count])
  // Pages of the menu are not remembered.
  useEffect(() => (parent ? remember(title) : undefined), [title])
  return (
    <main class="page" id="main" tabIndex={-1}>
      <header class="page-head">
        <div class="page-title">
          {parent ? (
            <nav class="crumb" aria-label={parent.title}>
              <a href={parent.href}>{parent.title}</a>
            </nav>
          ) : null}
          <h1 ref={heading} tabIndex={-1} class={mono ? 'mono' : ''}>
            {title}
          </h1>
          {lead ? <div class="lead">{lead}</div> : null}
        </div>
        {actions ? <div class="actions">{actions}</div> : null}
      </header>
      {children}
    </main>
  )
}

type SectionProps = { title: string; aside?: ComponentChildren; id?: string; children?: ComponentChildren }

export function Section({ title, aside, id, children }: SectionProps): VNode {
  return (
    <section class="section" {...(id ? { id, tabIndex: -1 } : {})}>
      <div class="section-head">
        <h2>{title}</h2>
        {aside ? <div class="section-aside">{aside}</div> : null}
      </div>
      {children}
    </section>
  )
}

export type FigureProps = {
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

export type Fact = readonly [title: string, value: ComponentChildren]

export function Facts({ facts }: { facts: readonly Fact[] }): VNode {
  const shown = facts.filter(([, value]) => value !== null && value !== undefined && value !== '')
  return <dl class="facts">{shown.flatMap(([title, value]) => [<dt>{title}</dt>, <dd>{value}</dd>])}</dl>
}

/** A cost figure: rounded, and exact on hover. */
export function costFigure(title: string, value: number, note?: ComponentChildren): FigureProps {
  return { title, value: usd(value), exact: usdExact(value), note }
}

/** A large number: rounded, and exact on hover. */
export function amountFigure(title: string, value: number, note?: ComponentChildren): FigureProps {
  return { title, value: compact(value), exact: count(value), note }
}

/** The time for all relative times, updated by one timer. */
const shownAt = new Cell(now())
every(15_000, () => shownAt.set(now()))

/** Shows a time. `at`: Unix seconds. */
export function Time({ at, short }: { at: number; short?: boolean }): VNode {
  useCell(shownAt)
  const title = short ? `${dateTime(at, now())} · ${utc(at)}` : utc(at)
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={title}>
      {short ? relative(at, now()) : dateTime(at, now())}
    </time>
  )
}
