// Draws the frame of a page. Its heading gets the focus when a link has led to the page, and names the window.
import type { ComponentChildren, VNode } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import { currentAddress } from '../router.ts'
import { named } from './text.tsx'

interface PageProps {
  title: string
  /** Above the heading: where this page belongs. */
  parent?: { href: string; title: string }
  /** Under the heading. */
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
  useEffect(() => {
    document.title = `${named(title)} · Offpeak`
  }, [title])
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

export function Section({
  title,
  aside,
  id,
  children,
}: {
  title: string
  aside?: ComponentChildren
  id?: string
  children?: ComponentChildren
}): VNode {
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
