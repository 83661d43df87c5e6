// The status of a batch as a coloured word. A batch with failed lines is never shown as a plain success.

import type { VNode } from 'preact'
import type { BatchObject } from '../../wire/batch.ts'
import type { BatchErrors, LineSummary } from '../../wire/batch-line.ts'
import { type MessageKey, t } from '../i18n.ts'
import type { Tone } from './notice.tsx'

export function Badge({ tone, text, title }: { tone: Tone | 'idle'; text: string; title?: string }): VNode {
  return (
    <span class={`badge ${tone}`} title={title}>
      {text}
    </span>
  )
}

type LineFields = Pick<LineSummary, 'status' | 'attempts' | 'error'>

/** What lines end with that were to be sent, and were not. */
const NOT_RUN = new Set(['batch_cancelled', 'batch_expired', 'input_file_deleted', 'usage_limit_exceeded'])

/** How many of the failed lines were never sent. */
export function notRunIn(errors: BatchErrors | null): number {
  return (errors?.groups ?? []).reduce((sum, { code, lines }) => sum + (NOT_RUN.has(code) ? lines : 0), 0)
}

const LINE_TONES = { completed: 'good', failed: 'bad', pending: 'idle' } as const

/** Of a line: one that was never sent did not fail at a server. */
export function LineBadge({ line: { status, attempts, error } }: { line: LineFields }): VNode {
  return status === 'failed' && attempts === 0 && NOT_RUN.has(error?.code ?? '') ? (
    <Badge tone="idle" text={t('line.notRun')} />
  ) : (
    <Badge tone={LINE_TONES[status]} text={t(`line.${status}` satisfies MessageKey)} />
  )
}

type StatusFields = Pick<BatchObject, 'status' | 'request_counts' | 'waiting_reason' | 'progress'>

function statusTone({ status, request_counts, waiting_reason, progress }: StatusFields): Tone | 'idle' {
  const { failed, completed } = request_counts
  if (status === 'completed') return failed === 0 ? 'good' : completed === 0 ? 'bad' : 'warn'
  if (status === 'failed' || status === 'expired') return 'bad'
  if (status === 'in_progress') return waiting_reason || progress?.at_risk ? 'warn' : 'info'
  return 'idle'
}

export function statusText({ status, request_counts: { completed, failed } }: StatusFields): string {
  if (status === 'completed' && failed > 0)
    return t(completed === 0 ? 'status.allFailed' : 'status.partlyFailed')
  return t(`status.${status}` satisfies MessageKey)
}

export function BatchStatus({ batch }: { batch: StatusFields }): VNode {
  return <Badge tone={statusTone(batch)} text={statusText(batch)} />
}

/** Finished and failed lines against all of them. */
export function ProgressBar({
  counts,
  thin,
}: {
  counts: BatchObject['request_counts']
  thin?: boolean
}): VNode {
  const { total, completed, failed } = counts
  const share = (n: number): string => `${total === 0 ? 0 : Math.max((n / total) * 100, n > 0 ? 0.6 : 0)}%`
  const label = t('batch.progressOf', { done: completed + failed, total, failed })
  return (
    <div
      class={thin ? 'progress thin' : 'progress'}
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={total}
      aria-valuenow={completed + failed}
      title={label}
    >
      <div class="progress-done" style={{ width: share(completed) }} />
      <div class="progress-failed" style={{ width: share(failed) }} />
    </div>
  )
}
