// A table whose rows become cards where the window is narrow. Roles are given by hand, since cards are no table to
// a browser.
import { type ComponentChildren, h, type View } from '../h.ts'

export interface Column<T> {
  title: string
  /** How its cells are set. */
  align?: 'end'
  /** The cell that heads a card; the others are listed under it with their titles. */
  main?: boolean
  /** Hidden for people who see: the column of buttons. */
  quiet?: boolean
  width?: string
  cell: (row: T) => ComponentChildren
}

interface TableProps<T> {
  label: string
  columns: readonly Column<T>[]
  rows: readonly T[]
  keyOf: (row: T) => string
  rowClass?: (row: T) => string
}

export function Table<T>({ label, columns, rows, keyOf, rowClass }: TableProps<T>): View {
  return h('div', { class: 'table-frame' }, [
    h('table', { class: 'table', role: 'table', 'aria-label': label }, [
      h('thead', { role: 'rowgroup' }, [
        h(
          'tr',
          { role: 'row' },
          columns.map(({ title, align, quiet, width }) =>
            h(
              'th',
              {
                role: 'columnheader',
                scope: 'col',
                class: align ?? '',
                ...(width ? { style: { width } } : {}),
              },
              quiet ? h('span', { class: 'hidden' }, title) : title,
            ),
          ),
        ),
      ]),
      h(
        'tbody',
        { role: 'rowgroup' },
        rows.map((row) =>
          h(
            'tr',
            { role: 'row', key: keyOf(row), class: rowClass?.(row) ?? '' },
            columns.map(({ title, align, main, quiet, cell }) =>
              h(
                'td',
                {
                  role: 'cell',
                  class: `${align ?? ''} ${main ? 'main' : ''}`,
                  'data-title': quiet || main ? undefined : title,
                },
                cell(row),
              ),
            ),
          ),
        ),
      ),
    ]),
  ])
}
