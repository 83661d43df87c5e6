// What can be done with a batch: retry what failed, cancel it, download its results.
import { useState } from 'preact/hooks'
import type { BatchObject } from '../../wire/batch.ts'
import { post } from '../api.ts'
import { downloadCsv } from '../csv-download.ts'
import { count } from '../format.ts'
import { h, type View } from '../h.ts'
import { t } from '../i18n.ts'
import { ended } from '../live.ts'
import { Button } from '../parts/button.ts'
import { Dialog, FailureDialog } from '../parts/dialog.ts'
import { Menu } from '../parts/menu.ts'
import { FailureNotice } from '../parts/notice.ts'
import { useAction } from '../resource.ts'
import { navigate } from '../router.ts'
import { may } from '../session.ts'

export function BatchActions({ batch, reload }: { batch: BatchObject; reload: () => void }): View {
  const { failed } = batch.request_counts
  return h('div', { class: 'actions' }, [
    failed > 0 ? h(RetryButton, { batch }) : null,
    ended(batch) || batch.status === 'cancelling' || !may('batches:write')
      ? null
      : h(CancelButton, { batch, reload }),
    may('files:read') ? h(Downloads, { batch }) : null,
  ])
}

/** Runs failed lines again in a batch of their own, once this one has ended. */
export function RetryButton({
  batch,
  codes,
  quiet,
}: {
  batch: BatchObject
  codes?: string[]
  quiet?: boolean
}): View | null {
  const action = useAction()
  if (!may('batches:write')) return null
  const retry = async (): Promise<void> => {
    const created = await post<BatchObject>(`/v1/batches/${batch.id}/retry`, codes ? { codes } : {})
    navigate(`/batches/${created.id}`)
  }
  const run = (): void => void action.run(retry)
  const waits = !ended(batch)
  const title = waits ? t('retry.waits') : undefined
  return h('div', { class: 'retry' }, [
    quiet
      ? h(
          'button',
          { type: 'button', class: 'link', disabled: waits || action.busy, title, onClick: run },
          t('retry.these'),
        )
      : h(Button, {
          label: t('retry.failed'),
          icon: 'retry',
          kind: 'primary',
          busy: action.busy,
          disabled: waits,
          title,
          onClick: run,
        }),
    h(FailureDialog, { title: t('retry.failed'), action }),
  ])
}

function CancelButton({ batch, reload }: { batch: BatchObject; reload: () => void }): View {
  const [asking, ask] = useState(false)
  const action = useAction()
  const cancel = async (): Promise<void> => {
    const done = await action.run(async () => {
      await post(`/v1/batches/${batch.id}/cancel`)
      reload()
    })
    if (done) ask(false)
  }
  const { total, completed, failed } = batch.request_counts
  return h('div', null, [
    h(Button, { label: t('cancel.batch'), kind: 'danger', onClick: () => ask(true) }),
    asking
      ? h(
          Dialog,
          {
            title: t('cancel.title'),
            onClose: () => ask(false),
            foot: [
              h(Button, { label: t('cancel.keep'), onClick: () => ask(false) }),
              h(Button, {
                label: t('cancel.batch'),
                kind: 'danger',
                busy: action.busy,
                onClick: () => void cancel(),
              }),
            ],
          },
          [
            h('p', null, t('cancel.text', { n: Math.max(0, total - completed - failed) })),
            h(FailureNotice, { failure: action.failure }),
          ],
        )
      : null,
  ])
}

function Downloads({ batch }: { batch: BatchObject }): View {
  const action = useAction()
  const [lines, setLines] = useState(0)
  const csv = (): void => void action.run(() => downloadCsv(batch, setLines))
  const { completed, failed } = batch.request_counts
  const file = (id: string | null | undefined, name: string, title: string): View | null =>
    id ? h('a', { class: 'menu-item', href: `/v1/files/${id}/content`, download: name }, title) : null
  return h('div', null, [
    h(Menu, { label: action.busy ? t('download.busy', { n: lines }) : t('download'), icon: 'download' }, [
      file(batch.output_file_id, `${batch.id}-output.jsonl`, t('download.output')),
      file(batch.error_file_id, `${batch.id}-errors.jsonl`, t('download.errors')),
      completed + failed > 0
        ? h(
            'button',
            { type: 'button', class: 'menu-item', disabled: action.busy, onClick: csv },
            t('download.csv', { n: count(completed + failed) }),
          )
        : null,
      file(batch.input_file_id, `${batch.id}-input.jsonl`, t('download.input')),
      h('div', { class: 'menu-note' }, [
        t('download.parquet'),
        h('code', { class: 'code' }, `offpeak results ${batch.id} -o answers.parquet`),
      ]),
    ]),
    h(FailureDialog, { title: t('download'), action }),
  ])
}
