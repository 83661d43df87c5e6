// A table whose rows become cards where the window is narrow. Roles are given by hand, since cards are no table to
// a browser.
import type { ComponentChildren, VNode } from 'preact'

export interface Column<T> {
  title: string
  /** How its cells are set. */
  align?: 'end'
  /** The cell that heads a card; the others are listed under it with their titles. */
  main?: boolean
  /** Left out where there is little room: on a phone. */
  minor?: boolean
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

export function Table<T>({ label, columns, rows, keyOf, rowClass }: TableProps<T>): VNode {
  return (
    <div class="table-frame">
      <table class="table" role="table" aria-label={label}>
        <thead role="rowgroup">
          <tr role="row">
            {columns.map(({ title, align, quiet, width }) => (
              <th
                role="columnheader"
                scope="col"
                class={align ?? ''}
                {...(width ? { style: { width } } : {})}
              >
                {quiet ? <span class="hidden">{title}</span> : title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {rows.map((row) => (
            <tr role="row" key={keyOf(row)} class={rowClass?.(row) ?? ''}>
              {columns.map(({ title, align, main, minor, quiet, cell }) => (
                <td
                  role="cell"
                  class={`${align ?? ''} ${main ? 'main' : ''} ${minor ? 'minor' : ''}`}
                  data-title={quiet || main ? undefined : title}
                >
                  {cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}
