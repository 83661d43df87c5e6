// Notices show a failure, a page that loads, or how to start where a list is empty.
import type { ComponentChildren, VNode } from 'preact'
import type { ApiFailure } from '../api.ts'
import { t } from '../i18n.ts'
import type { Resource } from '../resource.ts'
import { href } from '../router.ts'
import { TextButton } from './button.tsx'
import { Words } from './text.tsx'

export type Tone = 'good' | 'warn' | 'bad' | 'info'

export function Notice({
  tone = 'info',
  title,
  children,
}: {
  tone?: Tone
  title?: ComponentChildren
  children?: ComponentChildren
}): VNode {
  return (
    <div class={`notice ${tone}`} role={tone === 'bad' ? 'alert' : 'status'}>
      {title ? <strong>{title}</strong> : null}
      <div>{children}</div>
    </div>
  )
}

export function FailureNotice({
  failure,
  retry,
}: {
  failure: ApiFailure | null
  retry?: () => void
}): VNode | null {
  // The bar above every page says so.
  if (!failure || failure.status === 0) return null
  return (
    <Notice tone="bad">
      <span>
        <Words text={failure.message} />
      </span>{' '}
      <code class="code">{failure.code}</code>
      {failure.requestId && failure.status !== 401 ? (
        <>
          {' '}
          <a href={href(`/audit/${failure.requestId}`)} class="mono small">
            {failure.requestId}
          </a>
        </>
      ) : null}
      {retry ? (
        <>
          {' '}
          <TextButton label={t('tryAgain')} onClick={retry} />
        </>
      ) : null}
    </Notice>
  )
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }): VNode {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  )
}

export function Loading({ rows = 4 }: { rows?: number }): VNode {
  return (
    <div class="loading" role="status" aria-label={t('loading')}>
      {Array.from({ length: rows }, () => (
        <div class="loading-row" />
      ))}
    </div>
  )
}

/** Shows a resource, why it could not be read, or a placeholder until it has been. */
export function Loaded<T>({
  resource: { data, failure, reload },
  rows,
  children,
}: {
  resource: Resource<T>
  rows?: number
  children: (data: T) => ComponentChildren
}): VNode {
  return (
    <>
      <FailureNotice failure={failure} retry={reload} />
      {data !== null ? children(data) : failure && failure.status !== 0 ? null : <Loading rows={rows} />}
    </>
  )
}
