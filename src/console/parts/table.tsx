// Draws a table whose rows become cards in a narrow window; roles are explicit, since cards are no table to browsers.
import type { ComponentChildren, VNode } from 'preact'
import { useMemo } from 'preact/hooks'
import { isRecord } from '../../domain/json-record.ts'
import { t } from '../i18n.ts'
import { useKept } from '../kept.ts'
import { replaceQuery, useAddress } from '../router.ts'
import { Button, Menu } from './button.tsx'
import { CheckField, SelectField } from './field.tsx'

export interface Column<T> {
  title: string
  /** The alignment of the column's cells. */
  align?: 'end'
  /** Whether the cell heads a card; the others are listed under it with their titles. */
  main?: boolean
  /** Whether the column is left out on a tablet and a phone. */
  minor?: boolean
  /** Whether the title is only for screen readers: the column of buttons. */
  quiet?: boolean
  width?: string
  /** The share, in a long table, of the width that columns with a width leave. */
  grow?: number
  /** Whether the column is shown only in a wide window. */
  wide?: boolean
  /** The service's name for the order by this column. */
  sort?: string
  cell: (row: T) => ComponentChildren
}

interface TableProps<T> {
  label: string
  columns: readonly Column<T>[]
  rows: readonly T[]
  rowClass?: (row: T) => string
  /** The order of the rows; absent: it cannot be changed. */
  order?: Order
}

export type Order = { by: string; isAscending: boolean; choose: (by: string) => void }

/** The columns of a list that the reader has chosen, and the menu to choose them. */
export function useColumns<T>(name: string, make: () => Column<T>[]): [Column<T>[], VNode] {
  const [hidden, hide] = useKept<string>(`columns.${name}`)
  const all = useMemo(make, [])
  const columns = useMemo(() => all.filter(({ main, title }) => main || !hidden.includes(title)), [hidden])
  const menu = (
    <Menu label={t('columns')}>
      {all.map(({ main, title }) =>
        main ? null : (
          <CheckField
            label={title}
            checked={!hidden.includes(title)}
            onInput={(shown) => hide(shown ? hidden.filter((other) => other !== title) : [...hidden, title])}
          />
        ),
      )}
    </Menu>
  )
  return [columns, menu]
}

/** The order of a list, from the address; choosing a column again reverses it. */
export function useOrder(first: string, textColumns: readonly string[]): Order {
  const { query } = useAddress()
  const by = query.get('sort') ?? first
  const isAscending = query.get('order') === 'asc'
  return {
    by,
    isAscending,
    choose(column) {
      const up = column === by ? !isAscending : textColumns.includes(column)
      replaceQuery({ sort: column === first ? null : column, order: up ? 'asc' : null })
    },
  }
}

export function Table<T>({ label, columns, rows, rowClass, order }: TableProps<T>): VNode {
  return (
    <div class="table-frame">
      <OrderChoice columns={columns} order={order} />
      <table class="table cards" role="table" aria-label={label}>
        <TableHead columns={columns} order={order} />
        <tbody role="rowgroup">
          {rows.map((row, i) => (
            <tr role="row" key={idOf(row) ?? i} class={rowClass?.(row) ?? ''}>
              <Cells columns={columns} row={row} />
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}

/** The key of a row, which it keeps when rows are inserted before it. */
const idOf = (row: unknown): string | null => (isRecord(row) && typeof row.id === 'string' ? row.id : null)

export function TableHead<T>({ columns, order }: Pick<TableProps<T>, 'columns' | 'order'>): VNode {
  return (
    <thead role="rowgroup">
      <tr role="row" aria-rowindex={1}>
        {columns.map((column) => (
          <th
            role="columnheader"
            scope="col"
            class={classOf(column)}
            style={{ width: column.width ?? '', ...shareOf(column) }}
            {...(order && column.sort === order.by
              ? { 'aria-sort': order.isAscending ? 'ascending' : 'descending' }
              : {})}
          >
            {column.quiet ? (
              <span class="hidden">{column.title}</span>
            ) : order && column.sort ? (
              <button type="button" class="sort" onClick={() => order.choose(column.sort ?? '')}>
                {column.title}
              </button>
            ) : (
              column.title
            )}
          </th>
        ))}
      </tr>
    </thead>
  )
}

/** The cells of a row; an ellipsis while it is not read. */
export function Cells<T>({ columns, row }: { columns: readonly Column<T>[]; row: T | undefined }): VNode {
  return (
    <>
      {columns.map((column) => (
        <td
          role="cell"
          class={classOf(column)}
          style={shareOf(column)}
          data-title={column.quiet || column.main ? undefined : column.title}
        >
          {row === undefined ? (column.main ? '…' : null) : column.cell(row)}
        </td>
      ))}
    </>
  )
}

function classOf<T>({ align, main, minor, wide }: Column<T>): string {
  return [align, main && 'main', minor && 'minor', wide && 'wide'].filter(Boolean).join(' ')
}

/** The width of a column in a long table, which does not depend on its rows. */
function shareOf<T>({ width, grow = 1 }: Column<T>): Record<string, string> {
  return { '--share': width ? `0 0 ${width}` : `${grow} 1 0` }
}

/** The choice of the order on a phone, where no headings are shown. */
export function OrderChoice<T>({ columns, order }: Pick<TableProps<T>, 'columns' | 'order'>): VNode | null {
  if (!order) return null
  const options = columns.flatMap(({ title, sort }) => (sort ? [[sort, title] as const] : []))
  return (
    <div class="order">
      <SelectField label={t('sort')} value={order.by} options={options} onInput={order.choose} />
      <Button
        label={`${t('sort.turn')} ${order.isAscending ? '↑' : '↓'}`}
        onClick={() => order.choose(order.by)}
      />
    </div>
  )
}
