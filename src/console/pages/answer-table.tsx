// Shows the answers of a batch as a table, which loads more rows as it is scrolled.
import type { VNode } from 'preact'
import type { BatchObject } from '../../wire/batch.ts'
import { type AnswerRow, answerRow } from '../answer-columns.ts'
import { readResults } from '../api.ts'
import { parseExact } from '../exact-json.ts'
import { count } from '../format.ts'
import { t } from '../i18n.ts'
import { PagedTable } from '../parts/long-table.tsx'
import type { Column } from '../parts/table.tsx'
import { useListPages } from '../resource.ts'
import { href } from '../router.ts'

const PAGE = 200

export function AnswerTable({ batch, columns }: { batch: BatchObject; columns: readonly string[] }): VNode {
  const pages = useListPages<AnswerRow>({
    name: `answers of ${batch.id}`,
    read: async (cursor, signal) => {
      const { lines, next } = await readResults(batch.id, { after: cursor ?? '0', limit: PAGE }, signal)
      return { rows: lines.map((line) => answerRow(parseExact(line), columns)), next }
    },
  })
  const table: Column<AnswerRow>[] = [
    { title: '#', width: '4rem', minor: true, cell: ({ line }) => <span class="muted">{count(line)}</span> },
    {
      title: 'custom_id',
      main: true,
      cell: ({ line, custom_id }) => (
        <a class="row-link mono" href={href(`/batches/${batch.id}/lines/${line}`)} title={custom_id}>
          {custom_id}
        </a>
      ),
    },
    ...columns.map((title, i) => ({
      title,
      grow: 1.75,
      minor: i >= 2,
      cell: ({ cells, error }: AnswerRow) =>
        error === null ? (
          <span title={cells[i]}>{cells[i]}</span>
        ) : i === 0 ? (
          <span class="bad-text whole" title={error}>
            {error}
          </span>
        ) : null,
    })),
  ]
  return <PagedTable<AnswerRow> pages={pages} label={t('lines.answers')} columns={table} />
}
