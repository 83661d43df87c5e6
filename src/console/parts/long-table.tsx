// A table of any length, of which only the rows in sight and a few around them are in the page. Where the table would be
// higher than a browser can lay out, scrolling by a pixel stands for more of its rows.
import type { ComponentChildren, VNode } from 'preact'
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import { t } from '../i18n.ts'
import type { ListPages } from '../list-pages.ts'
import { Empty, FailureNotice, Loading } from './notice.tsx'
import { Cells, type Column, type Order, OrderChoice, TableHead } from './table.tsx'

const AROUND = 4
/** The highest table in pixels: Firefox stops at about 17 million. */
const HEIGHT_MAX_PX = 8_000_000

interface LongTableProps<T> {
  label: string
  columns: readonly Column<T>[]
  /** The rows; undefined for a row that is not read. */
  rows: readonly (T | undefined)[]
  /** Whether the list may have further rows that are not known yet. */
  hasMore?: boolean
  order?: Order
  rowClass?: (row: T) => string
  /** Whether a row has two lines of text, and is a card in a narrow window. */
  cards?: boolean
  /** Called with the rows in the page, `to` exclusive. */
  onSight?: (from: number, to: number) => void
}

export function LongTable<T>({
  label,
  columns,
  rows,
  hasMore,
  order,
  rowClass,
  cards,
  onSight,
}: LongTableProps<T>): VNode {
  const body = useRef<HTMLTableSectionElement>(null)
  const total = rows.length + (hasMore ? 1 : 0)
  const [{ px, first, size, above }, setView] = useState({ px: 40, first: 0, size: 30, above: 0 })
  const whole = total * px
  const laidOut = Math.min(whole, HEIGHT_MAX_PX)
  useLayoutEffect(() => {
    const look = (): void => {
      const element = body.current
      const px = element?.firstElementChild?.getBoundingClientRect().height
      if (!element || !px) return
      const top = Math.max(0, -element.getBoundingClientRect().top)
      const room = Math.max(1, laidOut - innerHeight)
      // The top of the view in a table of full height.
      const from = laidOut === whole ? top : (Math.min(top, room) / room) * (whole - innerHeight)
      const first = Math.max(0, Math.floor(from / px) - AROUND)
      const size = Math.ceil(innerHeight / px) + 2 * AROUND
      const above = first * px - (from - top)
      blurOutside(element, first, first + size)
      setView((view) =>
        view.px === px && view.above === above && view.size === size ? view : { px, first, size, above },
      )
    }
    look()
    const observer = new ResizeObserver(look)
    observer.observe(document.body)
    for (const name of ['scroll', 'resize']) addEventListener(name, look, { passive: true })
    return () => {
      observer.disconnect()
      for (const name of ['scroll', 'resize']) removeEventListener(name, look)
    }
  }, [whole, laidOut])
  const to = Math.min(total, first + size)
  useEffect(() => onSight?.(first, to), [first, to, onSight])
  /** The drawn rows: an unchanged row is not drawn again, and elements of removed rows are reused. */
  const drawn = useRef({ columns, rows: new Map<number, { row: T | undefined; node: VNode }>() })
  const before = drawn.current.columns === columns ? drawn.current.rows : null
  drawn.current = { columns, rows: new Map() }
  const nodes = Array.from({ length: Math.max(0, to - first) }, (_, i) => {
    const row = rows[first + i]
    const known = before?.get(first + i)
    const node =
      known && known.row === row ? (
        known.node
      ) : (
        <tr
          role="row"
          key={(first + i) % size}
          aria-rowindex={first + i + 2}
          class={row === undefined ? '' : rowClass?.(row)}
        >
          <Cells columns={columns} row={row} />
        </tr>
      )
    drawn.current.rows.set(first + i, { row, node })
    return node
  })
  return (
    <div class={cards ? 'table-frame long tall' : 'table-frame long'}>
      <OrderChoice columns={columns} order={order} />
      <table
        class={cards ? 'table cards' : 'table'}
        role="table"
        aria-label={label}
        aria-rowcount={hasMore ? -1 : total + 1}
      >
        <TableHead columns={columns} order={order} />
        <tbody role="rowgroup" ref={body} style={{ height: `${laidOut}px`, paddingTop: `${above}px` }}>
          {nodes}
        </tbody>
      </table>
    </div>
  )
}

/** Removes the focus from a row that leaves the page, so that its successor does not get it. */
function blurOutside(body: HTMLElement, first: number, to: number): void {
  const focused = body.contains(document.activeElement) ? document.activeElement : null
  const index = Number(focused?.closest('tr')?.ariaRowIndex) - 2
  if (focused instanceof HTMLElement && (index < first || index >= to)) focused.blur()
}

/** A table of a paged list of the service. */
export function PagedTable<T>({
  pages,
  rows = pages.rows,
  none,
  ...table
}: Omit<LongTableProps<T>, 'rows' | 'hasMore' | 'onSight'> & {
  pages: ListPages<T>
  /** The rows to show in place of those that were read. */
  rows?: readonly (T | undefined)[]
  /** The text that an empty list shows. */
  none?: string
}): VNode {
  const onSight = useCallback((from: number, to: number) => pages.show(from, to), [pages])
  return (
    <LoadedPages
      pages={pages}
      isEmpty={rows.length === 0}
      none={<Empty title={t('nothingFound')} text={none} />}
    >
      <LongTable<T> {...table} rows={rows} hasMore={pages.hasMore} onSight={onSight} />
    </LoadedPages>
  )
}

interface LoadedPagesProps<T> {
  pages: ListPages<T>
  isEmpty?: boolean
  /** The element that an empty list shows. */
  none: VNode
  children: ComponentChildren
}

/** Shows a paged list, its failure, or a placeholder until it has been read. */
export function LoadedPages<T>({
  pages,
  isEmpty = pages.rows.length === 0,
  none,
  children,
}: LoadedPagesProps<T>): VNode {
  return (
    <>
      <FailureNotice failure={pages.failure} retry={() => pages.readMissing()} />
      {!isEmpty ? (
        children
      ) : !pages.hasMore ? (
        none
      ) : pages.failure && pages.failure.status !== 0 ? null : (
        <Loading rows={6} />
      )}
    </>
  )
}
