// The frame around every page: who is signed in, where one can go, and what went wrong.

import { useEffect, useState } from 'preact/hooks'
import type { ConsoleSession } from '../wire/project.ts'
import { type Component, h, type View } from './h.ts'
import { t } from './i18n.ts'
import { matchPage, PAGES, type PageEntry } from './pages.ts'
import { Icon } from './parts/icon.ts'
import { Empty, Loading, Notice } from './parts/notice.ts'
import { Page } from './parts/page.ts'
import { href, type PageParams, useAddress } from './router.ts'
import { signOut, useLink, useSession } from './session.ts'
import { LinkSignIn, SignIn } from './sign-in.ts'

export function App(): View {
  const session = useSession()
  const link = useLink()
  if (link !== null) return h(LinkSignIn, { link, session })
  if (!session) return h(SignIn, null)
  return h('div', { class: 'shell' }, [
    h('a', { class: 'skip', href: '#main' }, t('skip')),
    h(Sidebar, { session }),
    h(CurrentPage, { session, key: session.api_key_id }),
  ])
}

function isOpen({ scopes }: NonNullable<PageEntry['nav']>, session: ConsoleSession): boolean {
  return scopes.length === 0 || scopes.some((scope) => session.scopes.includes(scope))
}

function Sidebar({ session }: { session: ConsoleSession }): View {
  const { path, visit } = useAddress()
  const [open, setOpen] = useState(false)
  useEffect(() => setOpen(false), [visit])
  const shown = PAGES.flatMap(({ nav }) => nav ?? []).filter((nav) => isOpen(nav, session))
  return h('aside', { class: open ? 'sidebar open' : 'sidebar' }, [
    h('div', { class: 'brand' }, [
      h('a', { href: href('/batches'), class: 'brand-name' }, [
        h('span', { class: 'brand-mark', 'aria-hidden': 'true' }),
        'Offpeak',
      ]),
      h('span', { class: 'region', title: t('region') }, session.region),
      h(
        'button',
        {
          type: 'button',
          class: 'icon-button menu',
          'aria-expanded': open,
          'aria-label': t('menu'),
          onClick: () => setOpen(!open),
        },
        h(Icon, { name: open ? 'cross' : 'menu' }),
      ),
    ]),
    h(
      'nav',
      { class: 'nav', 'aria-label': t('menu') },
      shown.map(({ path: to, title, icon }) => {
        const current = path === to || path.startsWith(`${to}/`)
        return h(
          'a',
          {
            href: href(to),
            class: current ? 'nav-link current' : 'nav-link',
            ...(current ? { 'aria-current': 'page' as const } : {}),
          },
          [h(Icon, { name: icon }), t(title)],
        )
      }),
    ),
    h('div', { class: 'account' }, [
      h('div', { class: 'account-name' }, session.project.name),
      h('div', { class: 'account-plan' }, session.project.plan),
      h('button', { type: 'button', class: 'link', onClick: () => void signOut() }, t('signOut')),
    ]),
  ])
}

const loaded = new Map<PageEntry, Component<PageParams>>()

function CurrentPage({ session }: { session: ConsoleSession }): View {
  const { path, visit } = useAddress()
  const match = matchPage(path)
  const entry = match?.entry
  const [, redraw] = useState({})
  const [failed, setFailed] = useState<PageEntry | null>(null)
  useEffect(() => {
    if (!entry || loaded.has(entry)) return
    entry.load().then(
      (page) => {
        loaded.set(entry, page)
        redraw({})
      },
      () => setFailed(entry),
    )
  }, [entry])
  if (!match)
    return h(Page, { title: t('notFound.title') }, h(Empty, { title: t('notFound.text', { path }) }))
  const { nav } = match.entry
  if (nav && !isOpen(nav, session))
    return h(
      Page,
      { title: t(nav.title) },
      h(
        Empty,
        { title: t('closed.title') },
        h('p', null, t('closed.text', { scopes: nav.scopes.join(', ') })),
      ),
    )
  const page = loaded.get(match.entry)
  if (page) return h(page, { ...match.params, key: `${path} ${visit}` })
  if (failed === entry)
    return h('main', { class: 'page' }, h(Notice, { tone: 'bad' }, t('error.unreachable')))
  return h('main', { class: 'page' }, h(Loading, {}))
}
