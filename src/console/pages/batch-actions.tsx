// Offers what can be done with a batch: retry failed lines, pause, resume, cancel, download results.
import type { VNode } from 'preact'
import { useState } from 'preact/hooks'
import { mayRetry } from '../../domain/batch.ts'
import type { BatchEstimate, BatchObject, FailedLines } from '../../wire/batch.ts'
import type { BatchErrors } from '../../wire/batch-line.ts'
import { createOnce, get, pathWith, post, serviceUrl } from '../api.ts'
import { count, usd } from '../format.ts'
import { t } from '../i18n.ts'
import { ended } from '../live.ts'
import { Button, LinkButton, Menu, TextButton } from '../parts/button.tsx'
import { Confirm, FormDialog, openDialog, tellFailure } from '../parts/dialog.tsx'
import { TextField } from '../parts/field.tsx'
import { useAction, useResource } from '../resource.ts'
import { href, navigate } from '../router.ts'
import { may } from '../session.ts'

type BatchActionsProps = { batch: BatchObject; errors: BatchErrors | null; reload: () => void }

export function BatchActions({ batch, errors, reload }: BatchActionsProps): VNode {
  const isOffered =
    errors !== null && (errors.other > 0 || errors.groups.some(({ code }) => mayRetryCode(code)))
  const retry = isOffered ? <RetryButton batch={batch} errors={errors} /> : null
  const isFirst = mayHelp(errors) > 0
  const isOpen = !ended(batch) && batch.status !== 'cancelling' && may('batches:write')
  return (
    <div class="actions">
      {isFirst ? retry : null}
      {isOpen ? <PauseButton batch={batch} reload={reload} /> : null}
      {isOpen ? <CancelButton batch={batch} reload={reload} /> : null}
      <LinkButton label={t('compare.with')} href={pathWith(href('/batches/compare'), { b: batch.id })} />
      <Downloads batch={batch} reload={reload} />
      {isFirst ? null : retry}
    </div>
  )
}

/** Error codes of lines that certainly fail again unchanged. */
const NO_USE = ['content_filter', 'context_length_exceeded']

export const mayRetryCode = (code: string): boolean => !NO_USE.includes(code)

/** The number of failed lines that may succeed now. */
function mayHelp(errors: BatchErrors | null): number {
  const groups = errors?.groups.filter(mayRetry) ?? []
  return groups.reduce((sum, { lines }) => sum + lines, errors?.other ?? 0)
}

/** The estimated cost of all lines of a batch; null where its input is deleted, or the key may not create batches. */
export function useEstimate(batch: BatchObject | null): BatchEstimate | null {
  const id = batch && batch.status !== 'validating' && may('batches:write') ? batch.id : null
  return useResource(
    async (signal) =>
      id === null ? null : await get<BatchEstimate>(`/v1/batches/${id}/estimate`, {}, { signal }),
    [id],
  ).data
}

interface RetryProps {
  batch: BatchObject
  /** The failed lines to retry; absent: all. */
  which?: FailedLines
  /** The number of lines to retry, where it is known. */
  lines?: number
  /** The errors of all failed lines. */
  errors?: BatchErrors | null
}

/** The button that retries failed lines in a batch of their own, once this one has ended. */
export function RetryButton({
  quiet,
  label,
  ...retry
}: RetryProps & { quiet?: boolean; label?: string }): VNode | null {
  const { batch, which, errors = null } = retry
  if (!may('batches:write')) return null
  const waits = !ended(batch)
  const button = {
    label: label ?? t(which ? 'retry.these' : 'retry.failed'),
    disabled: waits,
    title: waits ? t('retry.waits') : undefined,
    onClick: () => openDialog(<RetryDialog {...retry} />),
  }
  return quiet ? (
    <TextButton {...button} />
  ) : (
    <Button {...button} icon="retry" kind={mayHelp(errors) > 0 ? 'primary' : 'plain'} />
  )
}

/** The dialog that shows how many lines may succeed now, and at which cost, before the retry. */
function RetryDialog({ batch, which, lines, errors = null }: RetryProps): VNode {
  const estimate = useEstimate(batch)
  const { failed, total } = batch.request_counts
  const n = which ? lines : failed
  const hopeless = failed - mayHelp(errors)
  const retry = async (): Promise<void> => {
    const created = await createOnce<BatchObject>(`/v1/batches/${batch.id}/retry`, which ?? {})
    navigate(`/batches/${created.id}`)
  }
  const unknown = estimate?.unknown_models ?? []
  return (
    <FormDialog title={t('retry.title')} label={t('retry.run')} act={retry}>
      <p>{n === undefined ? t('retry.shown') : t('retry.lines', { n })}</p>
      {!which && errors && hopeless > 0 ? <p>{t('retry.hopeless', { n: hopeless })}</p> : null}
      {unknown.length > 0 ? <p>{t('new.unknown', { models: unknown.join(', ') })}</p> : null}
      {estimate?.accepted === false ? <p>{t('new.blocked')}</p> : null}
      {estimate && n !== undefined && total > 0 ? (
        <p>
          {t('retry.cost')} <strong>{usd((estimate.cost_usd / total) * n)}</strong>
          {(estimate.unpriced_models ?? []).length > 0 ? ` (${t('new.unpriced')})` : ''}
        </p>
      ) : null}
    </FormDialog>
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

/** The dialog that writes results to a bucket, for a running batch at its end. */
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
