// The page of files lists uploaded inputs and results of batches, to download, use again or delete.
import type { VNode } from 'preact'
import { useMemo } from 'preact/hooks'
import type { FileObject } from '../../wire/file.ts'
import { serviceUrl } from '../api.ts'
import { bytes, count } from '../format.ts'
import { type MessageKey, t } from '../i18n.ts'
import type { ListPages } from '../list-pages.ts'
import { NewBatchButton, TextButton } from '../parts/button.tsx'
import { askToRemove } from '../parts/dialog.tsx'
import { optionsOf } from '../parts/field.tsx'
import { FilterBar } from '../parts/filters.tsx'
import { PagedTable } from '../parts/long-table.tsx'
import { Page, Time } from '../parts/page.tsx'
import { Badge } from '../parts/status.tsx'
import type { Column } from '../parts/table.tsx'
import { usePages } from '../resource.ts'
import { href, useAddress } from '../router.ts'
import { may } from '../session.ts'

const PATH = '/v1/files'
const PURPOSES = ['batch', 'batch_output', 'table'] as const
const TONES = { processed: 'good', error: 'bad', pending: 'info', uploaded: 'info' } as const

export function Files(): VNode {
  const { query } = useAddress()
  const purpose = query.get('purpose') ?? 'batch'
  const pages = usePages<FileObject>(PATH, { purpose, search: query.get('q')?.trim() })
  const shown = useMemo(() => columns(pages), [pages])
  return (
    <Page title={t('nav.files')} lead={t('files.lead')} actions={<NewBatchButton />}>
      <FilterBar
        filters={[
          { name: 'q', label: t('search'), placeholder: t('files.searchHint') },
          {
            name: 'purpose',
            label: t('files.purpose'),
            value: purpose,
            options: optionsOf('files', PURPOSES),
          },
        ]}
      />
      <PagedTable<FileObject> pages={pages} label={t('nav.files')} columns={shown} cards />
    </Page>
  )
}

function removeFile({ id, filename, purpose }: FileObject, pages: ListPages<FileObject>): void {
  const text = t(purpose === 'batch_output' ? 'files.removeResults' : 'files.removeInput')
  const title = t('files.removeTitle', { name: filename })
  askToRemove(`${PATH}/${id}`, { title, label: t('files.remove'), text }, () => pages.refresh())
}

const columns = (pages: ListPages<FileObject>): Column<FileObject>[] => [
  {
    title: t('new.file'),
    main: true,
    grow: 3.2,
    cell: ({ id, filename }) => [
      <div class="clip" title={filename}>
        <a href={serviceUrl(`${PATH}/${id}/content`)} download={filename}>
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
  { title: t('batch.created'), minor: true, cell: ({ created }) => <Time at={created} short /> },
  { title: t('files.expires'), wide: true, cell: ({ expires_at }) => <Time at={expires_at} short /> },
  {
    title: t('files.actions'),
    quiet: true,
    align: 'end',
    grow: 1.8,
    cell: (file) => (
      <div class="row">
        {file.purpose === 'batch' && file.status === 'processed' && may('batches:write') ? (
          <a href={`${href('/new')}?file=${file.id}`}>{t('files.useAgain')}</a>
        ) : null}
        {may('files:delete') || may('files:write') ? (
          <TextButton label={t('files.remove')} kind="danger" onClick={() => removeFile(file, pages)} />
        ) : null}
      </div>
    ),
  },
]
