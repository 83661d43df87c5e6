// The frame of every page: its heading takes the focus when a link led here, and names the window.
import { useEffect, useRef } from 'preact/hooks'
import { type ComponentChildren, h, type View } from '../h.ts'
import { currentAddress } from '../router.ts'

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

export function Page({ title, parent, lead, actions, mono, children }: PageProps): View {
  const heading = useRef<HTMLHeadingElement>(null)
  useEffect(() => {
    if (currentAddress().visit > 0) heading.current?.focus({ preventScroll: true })
  }, [])
  useEffect(() => {
    document.title = `${title} · Offpeak`
  }, [title])
  return h('main', { class: 'page', id: 'main' }, [
    h('header', { class: 'page-head' }, [
      h('div', { class: 'page-title' }, [
        parent
          ? h(
              'nav',
              { class: 'crumb', 'aria-label': parent.title },
              h('a', { href: parent.href }, parent.title),
            )
          : null,
        h('h1', { ref: heading, tabIndex: -1, class: mono ? 'mono' : '' }, title),
        lead ? h('div', { class: 'lead' }, lead) : null,
      ]),
      actions ? h('div', { class: 'actions' }, actions) : null,
    ]),
    children,
  ])
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
}): View {
  return h('section', { class: 'section', ...(id ? { id } : {}) }, [
    h('div', { class: 'section-head' }, [
      h('h2', null, title),
      aside ? h('div', { class: 'section-aside' }, aside) : null,
    ]),
    children,
  ])
}
