// What went wrong, what a page waits for, and what a page without anything teaches.
import type { ApiFailure } from '../api.ts'
import { type ComponentChildren, h, type View } from '../h.ts'
import { t } from '../i18n.ts'
import { href } from '../router.ts'

export type Tone = 'good' | 'warn' | 'bad' | 'info'

export function Notice({
  tone = 'info',
  title,
  children,
}: {
  tone?: Tone
  title?: ComponentChildren
  children?: ComponentChildren
}): View {
  return h('div', { class: `notice ${tone}`, role: tone === 'bad' ? 'alert' : 'status' }, [
    title ? h('strong', null, title) : null,
    h('div', null, children),
  ])
}

export function FailureNotice({
  failure,
  retry,
}: {
  failure: ApiFailure | null
  retry?: () => void
}): View | null {
  if (!failure) return null
  return h(Notice, { tone: 'bad' }, [
    h('span', null, failure.message),
    ' ',
    h('code', { class: 'code' }, failure.code),
    failure.requestId && failure.status !== 401
      ? [' ', h('a', { href: href(`/audit/${failure.requestId}`), class: 'mono small' }, failure.requestId)]
      : null,
    retry ? [' ', h('button', { type: 'button', class: 'link', onClick: retry }, t('tryAgain'))] : null,
  ])
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }): View {
  return h('div', { class: 'empty' }, [h('h2', null, title), children])
}

export function Loading({ rows = 4 }: { rows?: number }): View {
  return h(
    'div',
    { class: 'loading', role: 'status', 'aria-label': t('loading') },
    Array.from({ length: rows }, () => h('div', { class: 'loading-row' })),
  )
}
