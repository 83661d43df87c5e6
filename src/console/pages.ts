// Maps each address to its page.
import type { ComponentType } from 'preact'
import type { Scope } from '../domain/api-key.ts'
import type { MessageKey } from './i18n.ts'
import { Audit, AuditRecord } from './pages/audit.tsx'
import { Batch } from './pages/batch.tsx'
import { Batches } from './pages/batches.tsx'
import { Compare } from './pages/compare.tsx'
import { Files } from './pages/files.tsx'
import { Keys } from './pages/keys.tsx'
import { Limits } from './pages/limits.tsx'
import { Line } from './pages/line.tsx'
import { NewBatch } from './pages/new-batch.tsx'
import { Overview } from './pages/overview.tsx'
import { Servers } from './pages/servers.tsx'
import { Settings } from './pages/settings.tsx'
import { Usage } from './pages/usage.tsx'
import { Webhooks } from './pages/webhooks.tsx'
import type { IconName } from './parts/button.tsx'
import type { PageParams } from './router.ts'
import { may } from './session.ts'

interface MenuEntry {
  path: string
  title: MessageKey
  icon: IconName
  /** Any of these opens the page; without any it is open to every key. */
  scopes: readonly Scope[]
}

type PageEntry = { pattern: RegExp; page: ComponentType<PageParams>; nav?: MenuEntry }

type Nav<Key> = Key extends `nav.${infer Name}` ? Name : never

/** A page of the menu, which has an icon and a title of this name. */
function inMenu(
  path: string,
  name: IconName & Nav<MessageKey>,
  page: ComponentType<PageParams>,
  scopes: readonly Scope[],
): PageEntry {
  return { pattern: new RegExp(`^${path}$`), page, nav: { path, title: `nav.${name}`, icon: name, scopes } }
}

const PAGES: readonly PageEntry[] = [
  inMenu('/overview', 'overview', Overview, ['batches:read']),
  inMenu('/batches', 'batches', Batches, ['batches:read']),
  { pattern: /^\/batches\/compare$/, page: Compare },
  { pattern: /^\/batches\/(?<id>[^/]+)$/, page: Batch },
  { pattern: /^\/batches\/(?<id>[^/]+)\/lines\/(?<line>\d+)$/, page: Line },
  inMenu('/new', 'new', NewBatch, ['batches:write']),
  inMenu('/files', 'files', Files, ['files:read']),
  inMenu('/usage', 'usage', Usage, ['usage:read', 'limits:read']),
  inMenu('/limits', 'limits', Limits, ['limits:read']),
  inMenu('/webhooks', 'webhooks', Webhooks, ['webhooks:read', 'webhooks:write']),
  inMenu('/audit', 'audit', Audit, ['requests:read', 'batches:read', 'operator']),
  { pattern: /^\/audit\/(?<id>[^/]+)$/, page: AuditRecord },
  inMenu('/keys', 'keys', Keys, ['keys:read', 'operator']),
  inMenu('/servers', 'servers', Servers, ['operator']),
  inMenu('/settings', 'settings', Settings, []),
]

/** The pages of the menu that this key may see. */
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
