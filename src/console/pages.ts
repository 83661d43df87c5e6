// Which page an address shows.

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
import type { IconName } from './parts/icon.tsx'
import type { PageParams } from './router.ts'
import { may } from './session.ts'

interface PageEntry {
  pattern: RegExp
  page: ComponentType<PageParams>
  nav?: {
    path: string
    title: MessageKey
    icon: IconName
    /** Any of these opens the page; without any it is open to every key. */
    scopes: readonly Scope[]
  }
}

const PAGES: readonly PageEntry[] = [
  {
    pattern: /^\/overview$/,
    page: Overview,
    nav: { path: '/overview', title: 'nav.overview', icon: 'overview', scopes: ['batches:read'] },
  },
  {
    pattern: /^\/batches$/,
    page: Batches,
    nav: { path: '/batches', title: 'nav.batches', icon: 'batches', scopes: ['batches:read'] },
  },
  { pattern: /^\/batches\/compare$/, page: Compare },
  { pattern: /^\/batches\/(?<id>[^/]+)$/, page: Batch },
  { pattern: /^\/batches\/(?<id>[^/]+)\/lines\/(?<line>\d+)$/, page: Line },
  {
    pattern: /^\/new$/,
    page: NewBatch,
    nav: { path: '/new', title: 'nav.new', icon: 'plus', scopes: ['batches:write'] },
  },
  {
    pattern: /^\/files$/,
    page: Files,
    nav: { path: '/files', title: 'nav.files', icon: 'files', scopes: ['files:read'] },
  },
  {
    pattern: /^\/usage$/,
    page: Usage,
    nav: { path: '/usage', title: 'nav.usage', icon: 'usage', scopes: ['usage:read', 'limits:read'] },
  },
  {
    pattern: /^\/limits$/,
    page: Limits,
    nav: { path: '/limits', title: 'nav.limits', icon: 'limits', scopes: ['limits:read'] },
  },
  {
    pattern: /^\/webhooks$/,
    page: Webhooks,
    nav: {
      path: '/webhooks',
      title: 'nav.webhooks',
      icon: 'webhooks',
      scopes: ['webhooks:read', 'webhooks:write'],
    },
  },
  {
    pattern: /^\/audit$/,
    page: Audit,
    nav: {
      path: '/audit',
      title: 'nav.audit',
      icon: 'audit',
      scopes: ['requests:read', 'batches:read', 'operator'],
    },
  },
  { pattern: /^\/audit\/(?<id>[^/]+)$/, page: AuditRecord },
  {
    pattern: /^\/keys$/,
    page: Keys,
    nav: { path: '/keys', title: 'nav.keys', icon: 'keys', scopes: ['keys:read', 'operator'] },
  },
  {
    pattern: /^\/servers$/,
    page: Servers,
    nav: { path: '/servers', title: 'nav.servers', icon: 'servers', scopes: ['operator'] },
  },
  {
    pattern: /^\/settings$/,
    page: Settings,
    nav: { path: '/settings', title: 'nav.settings', icon: 'settings', scopes: [] },
  },
]

/** Those of the menu that this key may see. */
export function shownPages(): NonNullable<PageEntry['nav']>[] {
  return PAGES.flatMap(({ nav }) => nav ?? []).filter(isOpen)
}

export function isOpen({ scopes }: NonNullable<PageEntry['nav']>): boolean {
  return scopes.length === 0 || scopes.some(may)
}

interface Match {
  entry: PageEntry
  params: PageParams
}

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
