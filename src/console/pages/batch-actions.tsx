// What can be done with a batch: retry what failed, pause and resume it, cancel it, download its results.

import type { VNode } from 'preact'
import { useState } from 'preact/hooks'
import type { BatchObject, RetryBatch } from '../../wire/batch.ts'
import type { List } from '../../wire/list.ts'
import { getPage, pathWith, post } from '../api.ts'
import { now } from '../browser-clock.ts'
import { count, dateTime } from '../format.ts'
import { t } from '../i18n.ts'
import { ended } from '../live.ts'
import { Button, TextButton } from '../parts/button.tsx'
import { Confirm, FailureDialog } from '../parts/dialog.tsx'
import { Menu } from '../parts/menu.tsx'
import { useAction, useResource } from '../resource.ts'
import { href, navigate } from '../router.ts'
import { may } from '../session.ts'

const COMPARED_MAX = 8

export function BatchActions({
  batch,
  mayRetry,
  reload,
}: {
  batch: BatchObject
  mayRetry: boolean
  reload: () => void
}): VNode {
  const { failed } = batch.request_counts
  const isOpen = !ended(batch) && batch.status !== 'cancelling' && may('batches:write')
  return (
    <div class="actions">
      {failed > 0 && mayRetry ? <RetryButton batch={batch} /> : null}
      {isOpen ? <PauseButton batch={batch} reload={reload} /> : null}
      {isOpen ? <CancelButton batch={batch} reload={reload} /> : null}
      <CompareMenu batch={batch} />
      <Downloads batch={batch} />
    </div>
  )
}

export type FailedLines = Omit<RetryBatch, 'completion_window' | 'output_url' | 'webhook'>

/** Runs failed lines again in a batch of their own, once this one has ended. `which`: all where it is absent. */
export function RetryButton({
  batch,
  which,
  quiet,
  label,
}: {
  batch: BatchObject
  which?: FailedLines
  quiet?: boolean
  label?: string
}): VNode | null {
  const action = useAction()
  if (!may('batches:write')) return null
  const retry = async (): Promise<void> => {
    const created = await post<BatchObject>(`/v1/batches/${batch.id}/retry`, which ?? {})
    navigate(`/batches/${created.id}`)
  }
  const run = (): void => void action.run(retry)
  const waits = !ended(batch)
  const title = waits ? t('retry.waits') : undefined
  return (
    <div class="retry">
      {quiet ? (
        <TextButton label={t('retry.these')} disabled={waits || action.busy} title={title} onClick={run} />
      ) : (
        <Button
          label={label ?? t(which ? 'retry.these' : 'retry.failed')}
          icon="retry"
          kind={which ? 'plain' : 'primary'}
          busy={action.busy}
          disabled={waits}
          title={title}
          onClick={run}
        />
      )}
      <FailureDialog title={t('retry.failed')} action={action} />
    </div>
  )
}

function PauseButton({ batch, reload }: { batch: BatchObject; reload: () => void }): VNode {
  const action = useAction()
  const paused = batch.paused_at !== undefined
  const run = (): void =>
    void action.run(async () => {
      await post(`/v1/batches/${batch.id}/${paused ? 'resume' : 'pause'}`)
      reload()
    })
  return (
    <div>
      <Button
        label={t(paused ? 'pause.resume' : 'pause.pause')}
        icon={paused ? 'play' : 'pause'}
        title={paused ? undefined : t('pause.hint')}
        busy={action.busy}
        onClick={run}
      />
      <FailureDialog title={t(paused ? 'pause.resume' : 'pause.pause')} action={action} />
    </div>
  )
}

function CancelButton({ batch, reload }: { batch: BatchObject; reload: () => void }): VNode {
  const [asking, ask] = useState(false)
  const { total, completed, failed } = batch.request_counts
  return (
    <div>
      <Button label={t('cancel.batch')} kind="danger" onClick={() => ask(true)} />
      {asking ? (
        <Confirm
          title={t('cancel.title')}
          label={t('cancel.batch')}
          keep={t('cancel.keep')}
          onClose={() => ask(false)}
          act={async () => {
            await post(`/v1/batches/${batch.id}/cancel`)
            reload()
          }}
          text={t('cancel.text', { n: Math.max(0, total - completed - failed) })}
        />
      ) : null}
    </div>
  )
}

/** The newest batches to compare with, those of the same input first. */
function CompareMenu({ batch: { id, input_file_id, name } }: { batch: BatchObject }): VNode | null {
  const others = useResource(
    async (signal) => {
      const list = (search: string): Promise<List<BatchObject>> =>
        getPage('/v1/batches', { search, limit: COMPARED_MAX }, { signal })
      const found = await Promise.all([input_file_id, name.slice(0, 200), ''].map(list))
      return new Map(found.flatMap(({ data }) => data).map((other) => [other.id, other]))
    },
    [id],
  )
  const offered = [...(others.data?.values() ?? [])].filter((other) => other.id !== id).slice(0, COMPARED_MAX)
  if (offered.length === 0) return null
  return (
    <Menu label={t('compare.with')}>
      {offered.map((other) => (
        <a class="menu-item" href={pathWith(href('/batches/compare'), { a: other.id, b: id })}>
          {other.name} <span class="muted small">{`· ${dateTime(other.created, now())}`}</span>
        </a>
      ))}
    </Menu>
  )
}

function Downloads({ batch }: { batch: BatchObject }): VNode | null {
  const { completed, failed } = batch.request_counts
  const done = completed + failed
  const link = (href: string, name: string, title: string): VNode => (
    <a class="menu-item" href={href} download={name}>
      {title}
    </a>
  )
  const file = (id: string | null | undefined, name: string, title: string): VNode | null =>
    id && may('files:read') ? link(`/v1/files/${id}/content`, name, title) : null
  const table = (query: Record<string, string>, name: string, title: string): VNode | null =>
    done > 0 ? link(pathWith(`/v1/batches/${batch.id}/results`, query), name, title) : null
  const n = count(done)
  return (
    <Menu label={t('download')} icon="download">
      {table({ format: 'csv', spreadsheet: 'true' }, `${batch.id}.csv`, t('download.csv', { n }))}
      {table({ format: 'parquet' }, `${batch.id}.parquet`, t('download.parquet', { n }))}
      {file(batch.output_file_id, `${batch.id}-output.jsonl`, t('download.output'))}
      {file(batch.error_file_id, `${batch.id}-errors.jsonl`, t('download.errors'))}
      {file(batch.input_file_id, `${batch.id}-input.jsonl`, t('download.input'))}
    </Menu>
  )
}
