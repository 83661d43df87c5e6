// A table whose rows become cards in a narrow window. Roles are explicit, since browsers do not treat cards as a table.
import type { ComponentChildren, VNode } from 'preact'
import { t } from '../i18n.ts'
import { replaceQuery, useAddress } from '../router.ts'
import { Button } from './button.tsx'
import { SelectField } from './field.tsx'

export interface Column<T> {
  title: string
  /** How its cells are set. */
  align?: 'end'
  /** The cell that heads a card; the others are listed under it with their titles. */
  main?: boolean
  /** Left out where there is little room: on a tablet and on a phone. */
  minor?: boolean
  /** Hidden for people who see: the column of buttons. */
  quiet?: boolean
  width?: string
  /** Of a long table: its share of what columns with a width leave. */
  grow?: number
  /** Of a long table: shown where the window is wide. */
  wide?: boolean
  /** What the service calls the order by this column. */
  sort?: string
  cell: (row: T) => ComponentChildren
}

interface TableProps<T> {
  label: string
  columns: readonly Column<T>[]
  rows: readonly T[]
  keyOf: (row: T) => string
  rowClass?: (row: T) => string
  /** The order that the rows are in; without it, no column can be chosen. */
  order?: Order
}

export interface Order {
  by: string
  isAscending: boolean
  choose: (by: string) => void
}

/** The order of a list, which is in the address; a second choice of a column turns it round. */
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

export function Table<T>({ label, columns, rows, keyOf, rowClass, order }: TableProps<T>): VNode {
  return (
    <div class="table-frame">
      {order ? <OrderChoice columns={columns} order={order} /> : null}
      <table class="table" role="table" aria-label={label}>
        <thead role="rowgroup">
          <tr role="row">
            {columns.map(({ title, align, minor, quiet, width, sort }) => (
              <th
                role="columnheader"
                scope="col"
                class={`${align ?? ''} ${minor ? 'minor' : ''}`}
                {...(width ? { style: { width } } : {})}
                {...(order && sort === order.by
                  ? { 'aria-sort': order.isAscending ? 'ascending' : 'descending' }
                  : {})}
              >
                {quiet ? (
                  <span class="hidden">{title}</span>
                ) : order && sort ? (
                  <button type="button" class="sort" onClick={() => order.choose(sort)}>
                    {title}
                  </button>
                ) : (
                  title
                )}
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

/** On a phone, where no headings are shown. */
function OrderChoice<T>({ columns, order }: { columns: readonly Column<T>[]; order: Order }): VNode {
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
