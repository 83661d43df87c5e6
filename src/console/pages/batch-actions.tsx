// Offers what can be done with a batch: retry failed lines, pause, resume, cancel, download results.
import type { VNode } from 'preact'
import { useState } from 'preact/hooks'
import type { BatchObject, RetryBatch } from '../../wire/batch.ts'
import { pathWith, post, serviceUrl } from '../api.ts'
import { count } from '../format.ts'
import { t } from '../i18n.ts'
import { ended } from '../live.ts'
import { Button, LinkButton, Menu, TextButton } from '../parts/button.tsx'
import { Confirm, FormDialog, openDialog, tellFailure } from '../parts/dialog.tsx'
import { TextField } from '../parts/field.tsx'
import { useAction } from '../resource.ts'
import { href, navigate } from '../router.ts'
import { may } from '../session.ts'

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
      <LinkButton label={t('compare.with')} href={pathWith(href('/batches/compare'), { b: batch.id })} />
      <Downloads batch={batch} reload={reload} />
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
  const run = async (): Promise<void> => tellFailure(t('retry.failed'), await action.run(retry))
  const waits = !ended(batch)
  const title = waits ? t('retry.waits') : undefined
  return quiet ? (
    <TextButton
      label={t('retry.these')}
      disabled={waits || action.busy}
      title={title}
      onClick={() => void run()}
    />
  ) : (
    <Button
      label={label ?? t(which ? 'retry.these' : 'retry.failed')}
      icon="retry"
      kind={which ? 'plain' : 'primary'}
      busy={action.busy}
      disabled={waits}
      title={title}
      onClick={() => void run()}
    />
  )
}

function PauseButton({ batch, reload }: { batch: BatchObject; reload: () => void }): VNode {
  const action = useAction()
  const paused = batch.paused_at !== undefined
  const label = t(paused ? 'pause.resume' : 'pause.pause')
  const act = async (): Promise<void> => {
    await post(`/v1/batches/${batch.id}/${paused ? 'resume' : 'pause'}`)
    reload()
  }
  const run = async (): Promise<void> => tellFailure(label, await action.run(act))
  return (
    <Button
      label={label}
      icon={paused ? 'play' : 'pause'}
      title={paused ? undefined : t('pause.hint')}
      busy={action.busy}
      onClick={() => void run()}
    />
  )
}

function CancelButton({ batch, reload }: { batch: BatchObject; reload: () => void }): VNode {
  const { total, completed, failed } = batch.request_counts
  const ask = (): void =>
    openDialog(
      <Confirm
        title={t('cancel.title')}
        label={t('cancel.batch')}
        keep={t('cancel.keep')}
        act={async () => {
          await post(`/v1/batches/${batch.id}/cancel`)
          reload()
        }}
        text={t('cancel.text', { n: Math.max(0, total - completed - failed) })}
      />,
    )
  return <Button label={t('cancel.batch')} kind="danger" onClick={ask} />
}

function Downloads({ batch, reload }: { batch: BatchObject; reload: () => void }): VNode {
  const { completed, failed } = batch.request_counts
  const done = completed + failed
  const link = (path: string, name: string, title: string): VNode => (
    <a class="menu-item" href={serviceUrl(path)} download={name}>
      {title}
    </a>
  )
  const file = (id: string | null | undefined, name: string, title: string): VNode | null =>
    id && may('files:read') ? link(`/v1/files/${id}/content`, name, title) : null
  const table = (query: Record<string, string>, name: string, title: string): VNode | null =>
    done > 0 ? link(pathWith(`/v1/batches/${batch.id}/results`, query), name, title) : null
  const n = count(done)
  const askWhere = (): void => openDialog(<ExportDialog batch={batch} reload={reload} />)
  return (
    <Menu label={t('download')} icon="download">
      {table({ format: 'csv', spreadsheet: 'true' }, `${batch.id}.csv`, t('download.csv', { n }))}
      {table({ format: 'parquet' }, `${batch.id}.parquet`, t('download.parquet', { n }))}
      {file(batch.output_file_id, `${batch.id}-output.jsonl`, t('download.output'))}
      {file(batch.error_file_id, `${batch.id}-errors.jsonl`, t('download.errors'))}
      {file(batch.input_file_id, `${batch.id}-input.jsonl`, t('download.input'))}
      {may('batches:write') ? (
        <button type="button" class="menu-item" onClick={askWhere}>
          {t('export.title')}
        </button>
      ) : null}
    </Menu>
  )
}

/** To the bucket of the batch again, or to another one; of a batch that runs, when it has ended. */
function ExportDialog({ batch, reload }: { batch: BatchObject; reload: () => void }): VNode {
  const [url, setUrl] = useState(batch.output_url ?? '')
  const write = async (): Promise<void> => {
    await post(`/v1/batches/${batch.id}/export`, url.trim() === '' ? null : { output_url: url.trim() })
    reload()
  }
  return (
    <FormDialog title={t('export.title')} label={t('export.write')} act={write}>
      <TextField
        label={t('new.output')}
        value={url}
        onInput={setUrl}
        placeholder="s3://bucket/path/"
        hint={t('new.outputHint')}
        autoFocus
      />
    </FormDialog>
  )
}
