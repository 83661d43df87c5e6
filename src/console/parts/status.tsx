// Shows the status of a batch as a coloured word. A batch with failed lines is never shown as a plain success.

import type { VNode } from 'preact'
import { isNotRun } from '../../domain/batch.ts'
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
  /** The number of failed lines, without those that were not run. */
  failed: number
  notRun: number
  /** The number of completed or failed lines. */
  done: number
}

/** The line counts of a batch; a line that was never sent has not failed. */
export function lineCounts({ request_counts, not_run: notRun }: CountFields): LineCounts {
  const { total, completed } = request_counts
  const failed = request_counts.failed - notRun
  return { total, completed, failed, notRun, done: completed + failed }
}

type CountFields = Pick<BatchObject, 'request_counts' | 'not_run'>

/** The text about failed lines and lines that were not run; empty where there are none. */
export function failedText(failed: number, notRun: number): string {
  const texts = [
    ...(failed > 0 ? [t('errors.lines', { n: failed })] : []),
    ...(notRun > 0 ? [t('errors.notRun', { n: notRun })] : []),
  ]
  return texts.join(' · ')
}

const LINE_TONES = { completed: 'good', failed: 'bad', pending: 'idle' } as const

/** The status of a line; a line that was never sent did not fail at a server. */
export function LineBadge({ line: { status, attempts, error } }: { line: LineFields }): VNode {
  return status === 'failed' && isNotRun(error?.code, attempts) ? (
    <Badge tone="idle" text={t('line.notRun')} />
  ) : (
    <Badge tone={LINE_TONES[status]} text={t(`line.${status}` satisfies MessageKey)} />
  )
}

type StatusFields = CountFields & Pick<BatchObject, 'status' | 'waiting_reason' | 'progress'>

function statusTone(batch: StatusFields): Tone | 'idle' {
  const { status, waiting_reason, progress } = batch
  const { failed, completed, notRun } = lineCounts(batch)
  if (status === 'completed')
    return failed + notRun === 0 ? 'good' : failed > 0 && completed === 0 ? 'bad' : 'warn'
  if (status === 'failed' || status === 'expired') return 'bad'
  if (status === 'in_progress') return waiting_reason || progress?.at_risk ? 'warn' : 'info'
  return 'idle'
}

export function statusText(batch: StatusFields): string {
  const { completed, failed, notRun } = lineCounts(batch)
  if (batch.status === 'completed' && failed > 0)
    return t(completed + notRun === 0 ? 'status.allFailed' : 'status.partlyFailed')
  if (batch.status === 'completed' && notRun > 0) return t('status.notAllRun')
  return t(`status.${batch.status}` satisfies MessageKey)
}

export function BatchStatus({ batch }: { batch: StatusFields }): VNode {
  return <Badge tone={statusTone(batch)} text={statusText(batch)} />
}

/** A bar of finished and failed lines. */
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
