// Notices show a failure, a page that loads, or how to start where a list is empty.
import type { ComponentChildren, VNode } from 'preact'
import type { ApiFailure } from '../api.ts'
import { t } from '../i18n.ts'
import type { Resource } from '../resource.ts'
import { href } from '../router.ts'
import { TextButton } from './button.tsx'
import { Words } from './text.tsx'

export type Tone = 'good' | 'warn' | 'bad' | 'info'

type NoticeProps = { tone?: Tone; title?: ComponentChildren; children?: ComponentChildren }

export function Notice({ tone = 'info', title, children }: NoticeProps): VNode {
  return (
    <div class={`notice ${tone}`} role={tone === 'bad' ? 'alert' : 'status'}>
      {title ? <strong>{title}</strong> : null}
      <div>{children}</div>
    </div>
  )
}

type FailureNoticeProps = { failure: ApiFailure | null; retry?: () => void }

export function FailureNotice({ failure, retry }: FailureNoticeProps): VNode | null {
  // The bar above every page shows this failure.
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

export function Empty({ title, text }: { title: string; text?: string }): VNode {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {text ? <p>{text}</p> : null}
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

type LoadedProps<T> = { resource: Resource<T>; rows?: number; children: (data: T) => ComponentChildren }

/** Shows a resource, its failure, or a placeholder until it has been read. */
export function Loaded<T>({ resource: { data, failure, reload }, rows, children }: LoadedProps<T>): VNode {
  return (
    <>
      <FailureNotice failure={failure} retry={reload} />
      {data !== null ? children(data) : failure && failure.status !== 0 ? null : <Loading rows={rows} />}
    </>
  )
}
