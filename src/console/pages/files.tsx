// Files: the inputs that were uploaded and the results of batches; downloaded, used again, deleted.

import type { VNode } from 'preact'
import { useState } from 'preact/hooks'
import type { FileObject } from '../../wire/file.ts'
import { remove } from '../api.ts'
import { bytes, count } from '../format.ts'
import { type MessageKey, t } from '../i18n.ts'
import { LinkButton } from '../parts/button.tsx'
import { FormDialog } from '../parts/dialog.tsx'
import { FilterBar } from '../parts/filters.tsx'
import { Loaded } from '../parts/loaded.tsx'
import { Empty } from '../parts/notice.tsx'
import { Page } from '../parts/page.tsx'
import { usePages } from '../parts/pages.tsx'
import { Badge } from '../parts/status.tsx'
import { type Column, Table } from '../parts/table.tsx'
import { Time } from '../parts/time.tsx'
import { href, useAddress } from '../router.ts'
import { may } from '../session.ts'

const PATH = '/v1/files'
const PURPOSES = ['batch', 'batch_output', 'table'] as const
const TONES = { processed: 'good', error: 'bad', pending: 'info', uploaded: 'info' } as const

export function Files(): VNode {
  const { query } = useAddress()
  const purpose = query.get('purpose') ?? 'batch'
  const { first, rows, more } = usePages<FileObject>(PATH, { purpose, search: query.get('q')?.trim() })
  const [removed, askToRemove] = useState<FileObject | null>(null)
  return (
    <Page
      title={t('files.title')}
      lead={t('files.lead')}
      actions={
        may('batches:write') ? (
          <LinkButton label={t('new.title')} href={href('/new')} icon="new" kind="primary" />
        ) : null
      }
    >
      <FilterBar
        filters={[
          { name: 'q', label: t('search'), placeholder: t('files.searchHint') },
          {
            name: 'purpose',
            label: t('files.purpose'),
            value: purpose,
            options: PURPOSES.map((name) => [name, t(`files.${name}` satisfies MessageKey)] as const),
          },
        ]}
      />
      <Loaded resource={first}>
        {() =>
          rows.length === 0 ? (
            <Empty title={t('nothingFound')} />
          ) : (
            <Table<FileObject>
              label={t('files.title')}
              columns={columns(askToRemove)}
              rows={rows}
              keyOf={({ id }) => id}
            />
          )
        }
      </Loaded>
      {more}
      {removed ? (
        <FormDialog
          danger
          title={t('files.removeTitle', { name: removed.filename })}
          label={t('files.remove')}
          onClose={() => askToRemove(null)}
          act={async () => {
            await remove(`${PATH}/${removed.id}`)
            first.reload()
          }}
        >
          <p>{t(removed.purpose === 'batch_output' ? 'files.removeResults' : 'files.removeInput')}</p>
        </FormDialog>
      ) : null}
    </Page>
  )
}

const columns = (askToRemove: (file: FileObject) => void): Column<FileObject>[] => [
  {
    title: t('files.file'),
    main: true,
    cell: ({ id, filename }) => [
      <div class="clip" title={filename}>
        <a href={`${PATH}/${id}/content`} download={filename}>
          {filename}
        </a>
      </div>,
      <div class="muted small mono minor">{id}</div>,
    ],
  },
  {
    title: t('batch.status'),
    cell: ({ status, status_details }) => [
      <Badge tone={TONES[status]} text={t(`files.${status}` satisfies MessageKey)} />,
      status_details ? (
        <div class="muted small minor" title={status_details}>
          {status_details}
        </div>
      ) : null,
    ],
  },
  { title: t('lines.title'), minor: true, align: 'end', cell: ({ line_count }) => count(line_count) },
  { title: t('files.size'), minor: true, align: 'end', cell: (file) => bytes(file.bytes) },
  { title: t('files.created'), minor: true, cell: ({ created }) => <Time at={created} short /> },
  { title: t('files.expires'), minor: true, cell: ({ expires_at }) => <Time at={expires_at} short /> },
  {
    title: t('files.actions'),
    quiet: true,
    align: 'end',
    cell: (file) => (
      <div class="row">
        {file.purpose === 'batch' && file.status === 'processed' && may('batches:write') ? (
          <a href={`${href('/new')}?file=${file.id}`}>{t('files.useAgain')}</a>
        ) : null}
        {may('files:delete') || may('files:write') ? (
          <button type="button" class="link danger" onClick={() => askToRemove(file)}>
            {t('files.remove')}
          </button>
        ) : null}
      </div>
    ),
  },
]
