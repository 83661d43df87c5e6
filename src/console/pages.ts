// Which page an address shows. A page is loaded when it is first opened.

import type { Scope } from '../domain/api-key.ts'
import type { Component } from './h.ts'
import type { MessageKey } from './i18n.ts'
import type { IconName } from './parts/icon.ts'
import type { PageParams } from './router.ts'

export interface PageEntry {
  pattern: RegExp
  load: () => Promise<Component<PageParams>>
  nav?: {
    path: string
    title: MessageKey
    icon: IconName
    /** Any of these opens the page; without any it is open to every key. */
    scopes: readonly Scope[]
  }
}

export const PAGES: readonly PageEntry[] = [
  {
    pattern: /^\/batches$/,
    load: async () => (await import('./pages/batches.ts')).Batches,
    nav: { path: '/batches', title: 'nav.batches', icon: 'batches', scopes: ['batches:read'] },
  },
  {
    pattern: /^\/batches\/(?<id>[^/]+)$/,
    load: async () => (await import('./pages/batch.ts')).Batch,
  },
  {
    pattern: /^\/batches\/(?<id>[^/]+)\/lines\/(?<line>\d+)$/,
    load: async () => (await import('./pages/line.ts')).Line,
  },
  {
    pattern: /^\/new$/,
    load: async () => (await import('./pages/new-batch.ts')).NewBatch,
    nav: { path: '/new', title: 'nav.new', icon: 'plus', scopes: ['batches:write'] },
  },
  {
    pattern: /^\/usage$/,
    load: async () => (await import('./pages/usage.ts')).Usage,
    nav: { path: '/usage', title: 'nav.usage', icon: 'usage', scopes: ['usage:read', 'limits:read'] },
  },
  {
    pattern: /^\/limits$/,
    load: async () => (await import('./pages/limits.ts')).Limits,
    nav: { path: '/limits', title: 'nav.limits', icon: 'limits', scopes: ['limits:read'] },
  },
  {
    pattern: /^\/webhooks$/,
    load: async () => (await import('./pages/webhooks.ts')).Webhooks,
    nav: {
      path: '/webhooks',
      title: 'nav.webhooks',
      icon: 'webhooks',
      scopes: ['webhooks:read', 'webhooks:write'],
    },
  },
  {
    pattern: /^\/audit$/,
    load: async () => (await import('./pages/audit.ts')).Audit,
    nav: {
      path: '/audit',
      title: 'nav.audit',
      icon: 'audit',
      scopes: ['requests:read', 'batches:read', 'operator'],
    },
  },
  {
    pattern: /^\/audit\/(?<id>[^/]+)$/,
    load: async () => (await import('./pages/audit.ts')).AuditRecord,
  },
  {
    pattern: /^\/keys$/,
    load: async () => (await import('./pages/keys.ts')).Keys,
    nav: { path: '/keys', title: 'nav.keys', icon: 'keys', scopes: ['keys:read', 'operator'] },
  },
  {
    pattern: /^\/servers$/,
    load: async () => (await import('./pages/servers.ts')).Servers,
    nav: { path: '/servers', title: 'nav.servers', icon: 'servers', scopes: ['operator'] },
  },
  {
    pattern: /^\/settings$/,
    load: async () => (await import('./pages/settings.ts')).Settings,
    nav: { path: '/settings', title: 'nav.settings', icon: 'settings', scopes: [] },
  },
]

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
