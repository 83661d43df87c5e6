// Starts the console. App is the frame around every page: the signed-in key, the menu, and failures of the service.
import { render, type VNode } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import type { ConsoleSession } from '../wire/project.ts'
import { connectionLost } from './api.ts'
import { later, now } from './browser-clock.ts'
import { useCell } from './cell.ts'
import { clockTime } from './format.ts'
import { t } from './i18n.ts'
import { follow, justEnded, staleSince } from './live.ts'
import { applyPreferences } from './pages/settings.tsx'
import { isOpen, matchPage, shownPages } from './pages.tsx'
import { Icon, TextButton } from './parts/button.tsx'
import { OpenDialog } from './parts/dialog.tsx'
import { Empty } from './parts/notice.tsx'
import { Page } from './parts/page.tsx'
import { statusText } from './parts/status.tsx'
import { showHiddenCharacters } from './parts/text.tsx'
import { useHealth } from './problems.ts'
import { href, useAddress, watchAddress } from './router.ts'
import { Search } from './search.tsx'
import { link, may, readSession, signOut, useSession } from './session.ts'
import { LinkSignIn, SignIn } from './sign-in.tsx'

function App(): VNode {
  const session = useSession()
  const token = useCell(link)
  if (token !== null) return <LinkSignIn link={token} session={session} />
  if (session === undefined) return <ConnectionBar />
  if (!session) return <SignIn />
  return (
    <div class="shell">
      <a class="skip" href="#main">
        {t('skip')}
      </a>
      <Sidebar session={session} />
      <div class="content">
        <ConnectionBar />
        <Ends />
        <Watch key={session.api_key_id} />
        <CurrentPage key={session.api_key_id} />
        <OpenDialog />
      </div>
    </div>
  )
}

/** The bar above every page while the service cannot be reached. */
function ConnectionBar(): VNode | null {
  const lost = useCell(connectionLost)
  if (lost === null) return null
  return (
    <div class="connection" role="alert">
      {t('error.lost', { at: clockTime(lost / 1000, now()) })}
    </div>
  )
}

/** The delay in ms of live updates: calls of the page come first, since browsers have few connections to a host. */
const WATCH_MS = 1_000

/** Follows changes and the state of the service while a key is signed in. */
function Watch(): VNode | null {
  const { path } = useAddress()
  const [isDue, due] = useState(false)
  useEffect(() => (may('batches:read') ? follow() : undefined), [])
  useEffect(() => later(WATCH_MS, () => due(true)), [])
  return isDue || path === '/overview' ? <HealthWatch /> : null
}

function HealthWatch(): null {
  useHealth()
  return null
}

/** Announces to screen readers that a batch has ended. */
function Ends(): VNode {
  const batch = useCell(justEnded)
  return (
    <div class="hidden" role="status">
      {batch && t('live.ended', { id: batch.name, status: statusText(batch) })}
    </div>
  )
}

function Sidebar({ session }: { session: ConsoleSession }): VNode {
  const { path, visit } = useAddress()
  const [open, setOpen] = useState(false)
  useEffect(() => setOpen(false), [visit])
  return (
    <aside class={open ? 'sidebar open' : 'sidebar'}>
      <div class="brand">
        <a href={href('/overview')} class="brand-name">
          <span class="brand-mark" aria-hidden="true" />
          Offpeak
        </a>
        <span class="region" title={t('region')}>
          {session.region}
        </span>
        <button
          type="button"
          class="icon-button menu"
          aria-expanded={open}
          aria-label={t('menu')}
          onClick={() => setOpen(!open)}
        >
          <Icon name={open ? 'cross' : 'menu'} />
        </button>
      </div>
      <Search />
      <nav class="nav" aria-label={t('menu')}>
        {shownPages().map(({ path: to, title, icon }) => {
          const current = path === to || path.startsWith(`${to}/`)
          return (
            <a
              href={href(to)}
              class={current ? 'nav-link current' : 'nav-link'}
              {...(current ? { 'aria-current': 'page' as const } : {})}
            >
              <Icon name={icon} />
              {t(title)}
            </a>
          )
        })}
      </nav>
      <div class="account">
        <div class="account-name">{session.project.name}</div>
        {session.person === undefined ? null : <div class="account-plan">{session.person}</div>}
        <div class="account-plan">{session.project.plan}</div>
        <Age />
        <TextButton label={t('signOut')} onClick={() => void signOut()} />
      </div>
    </aside>
  )
}

/** The age of the shown data, where changes are not pushed. */
function Age(): VNode | null {
  const since = useCell(staleSince)
  return since === null ? null : (
    <div class="account-plan">{t('live.asked', { at: clockTime(since / 1000, now()) })}</div>
  )
}

function CurrentPage(): VNode {
  const { path, visit } = useAddress()
  const match = matchPage(path)
  if (!match)
    return (
      <Page title={t('notFound.title')}>
        <Empty title={t('notFound.text', { path })} />
      </Page>
    )
  const { nav, page: Shown } = match.entry
  if (nav && !isOpen(nav))
    return (
      <Page title={t(nav.title)}>
        <Empty title={t('closed.title')} text={t('closed.text', { scopes: nav.scopes.join(', ') })} />
      </Page>
    )
  return <Shown {...match.params} key={`${path} ${visit}`} />
}

showHiddenCharacters()
const asked = readSession()
await applyPreferences()
watchAddress()
await asked
render(<App />, document.getElementById('app') ?? document.body)
