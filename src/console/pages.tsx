// Maps each address to its page. The code of pages that are opened less often is loaded with the page.
import type { ComponentType } from 'preact'
import type { Scope } from '../domain/api-key.ts'
import { ApiFailure, fetchApi } from './api.ts'
import { type MessageKey, t } from './i18n.ts'
import { Batch } from './pages/batch.tsx'
import { Batches } from './pages/batches.tsx'
import { Limits } from './pages/limits.tsx'
import { Line } from './pages/line.tsx'
import { Requests } from './pages/line-browser.tsx'
import { Overview } from './pages/overview.tsx'
import { Settings } from './pages/settings.tsx'
import type { IconName } from './parts/button.tsx'
import { Loaded } from './parts/notice.tsx'
import { Page } from './parts/page.tsx'
import { useResource } from './resource.ts'
import type { PageParams } from './router.ts'
import { may } from './session.ts'

interface MenuEntry {
  path: string
  title: MessageKey
  icon: IconName
  /** The scopes of which a key needs one to open the page; empty: any key. */
  scopes: readonly Scope[]
}

type PageEntry = { pattern: RegExp; page: ComponentType<PageParams>; nav?: MenuEntry }

type Nav<Key> = Key extends `nav.${infer Name}` ? Name : never

/** The least age of a page in ms at which a missing module reloads it, so that it does not reload without end. */
const RELOAD_MS = 10_000

type Load = () => Promise<ComponentType<PageParams>>

/** A page whose code is loaded when it is opened first. */
function late(title: MessageKey, load: Load): ComponentType<PageParams> {
  let Shown: ComponentType<PageParams> | null = null
  const read = async (): Promise<void> => {
    Shown = await load().catch(async () => {
      await fetchApi('GET', '/healthz')
      // The service was updated and has other files now.
      if (performance.now() > RELOAD_MS) location.reload()
      throw new ApiFailure(404, 'page_missing', t('error.page'))
    })
  }
  return function Late(params) {
    const page = useResource(read, [])
    return Shown ? (
      <Shown {...params} />
    ) : (
      <Page title={t(title)}>
        <Loaded resource={page}>{() => null}</Loaded>
      </Page>
    )
  }
}

const compare = late('compare.title', async () => (await import('./pages/compare.tsx')).Compare)
const record = late('nav.audit', async () => (await import('./pages/audit.tsx')).AuditRecord)

type MenuName = IconName & Nav<MessageKey>

/** A page of the menu, with an address, an icon and a title of this name. */
function inMenu(name: MenuName, scopes: readonly Scope[], page: ComponentType<PageParams>): PageEntry {
  const path = `/${name}`
  return { pattern: new RegExp(`^${path}$`), page, nav: { path, title: `nav.${name}`, icon: name, scopes } }
}

const lateInMenu = (name: MenuName, scopes: readonly Scope[], load: Load): PageEntry =>
  inMenu(name, scopes, late(`nav.${name}`, load))

const PAGES: readonly PageEntry[] = [
  inMenu('overview', ['batches:read'], Overview),
  inMenu('batches', ['batches:read'], Batches),
  { pattern: /^\/batches\/compare$/, page: compare },
  { pattern: /^\/requests$/, page: Requests },
  { pattern: /^\/batches\/(?<id>[^/]+)$/, page: Batch },
  { pattern: /^\/batches\/(?<id>[^/]+)\/lines\/(?<line>\d+)$/, page: Line },
  lateInMenu('new', ['batches:write'], async () => (await import('./pages/new-batch.tsx')).NewBatch),
  lateInMenu('files', ['files:read'], async () => (await import('./pages/files.tsx')).Files),
  lateInMenu('usage', ['usage:read', 'limits:read'], async () => (await import('./pages/usage.tsx')).Usage),
  inMenu('limits', ['limits:read'], Limits),
  lateInMenu(
    'webhooks',
    ['webhooks:read', 'webhooks:write'],
    async () => (await import('./pages/webhooks.tsx')).Webhooks,
  ),
  lateInMenu(
    'audit',
    ['requests:read', 'batches:read', 'operator'],
    async () => (await import('./pages/audit.tsx')).Audit,
  ),
  { pattern: /^\/audit\/(?<id>[^/]+)$/, page: record },
  lateInMenu('keys', ['keys:read', 'operator'], async () => (await import('./pages/keys.tsx')).Keys),
  lateInMenu('servers', ['operator'], async () => (await import('./pages/servers.tsx')).Servers),
  inMenu('settings', [], Settings),
]

/** The pages of the menu that the signed-in key may see. */
export const shownPages = (): MenuEntry[] => PAGES.flatMap(({ nav }) => nav ?? []).filter(isOpen)

export const isOpen = ({ scopes }: MenuEntry): boolean => scopes.length === 0 || scopes.some(may)

type Match = { entry: PageEntry; params: PageParams }

export function matchPage(path: string): Match | null {
  for (const entry of PAGES) {
    const match = entry.pattern.exec(path)
    if (match) return { entry, params: { id: decoded(match.groups?.id), line: decoded(match.groups?.line) } }
  }
  return null
}

function decoded(text = ''): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}
