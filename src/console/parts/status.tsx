// The status of a batch as a coloured word. A batch with failed lines is never shown as a plain success.

import type { VNode } from 'preact'
import { isNotRun } from '../../domain/not-run.ts'
import type { BatchObject } from '../../wire/batch.ts'
import type { LineSummary } from '../../wire/batch-line.ts'
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

interface LineCounts {
  total: number
  completed: number
  /** Without those that were not run. */
  failed: number
  notRun: number
  /** Completed or failed. */
  done: number
}

/** The lines of a batch as every page counts them: one that was never sent has not failed. */
export function lineCounts({ request_counts, not_run: notRun }: CountFields): LineCounts {
  const { total, completed } = request_counts
  const failed = request_counts.failed - notRun
  return { total, completed, failed, notRun, done: completed + failed }
}

type CountFields = Pick<BatchObject, 'request_counts' | 'not_run'>

const LINE_TONES = { completed: 'good', failed: 'bad', pending: 'idle' } as const

/** Of a line: one that was never sent did not fail at a server. */
export function LineBadge({ line: { status, attempts, error } }: { line: LineFields }): VNode {
  return status === 'failed' && isNotRun(error?.code, attempts) ? (
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
export function ProgressBar({ batch, thin }: { batch: CountFields; thin?: boolean }): VNode {
  const { total, completed, failed, done } = lineCounts(batch)
  const share = (n: number): string => `${total === 0 ? 0 : Math.max((n / total) * 100, n > 0 ? 0.6 : 0)}%`
  const label = t('batch.progressOf', { done, total, failed })
  return (
    <div
      class={thin ? 'progress thin' : 'progress'}
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={total}
      aria-valuenow={done}
      title={label}
    >
      <div class="progress-done" style={{ width: share(completed) }} />
      <div class="progress-failed" style={{ width: share(failed) }} />
    </div>
  )
}
