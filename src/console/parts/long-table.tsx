// A table of any length, of which only the visible rows and a few around them are in the page. Where the table would be
// higher than a browser can lay out, the scroll bar stands for a share of the rows instead of pixels.
import type { VNode } from 'preact'
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import type { Column } from './table.tsx'

/** A finger needs more room than a pointer. */
const rowPx = (): number => (matchMedia('(max-width: 40rem), (pointer: coarse)').matches ? 44 : 38)
const AROUND = 8
/** Firefox stops at about 17 million. */
const HEIGHT_MAX_PX = 8_000_000

interface LongTableProps<T> {
  label: string
  columns: readonly Column<T>[]
  total: number
  /** Null while it is not loaded; called for the rows in sight alone. */
  rowAt: (index: number) => T | null
  /** Told which rows are in sight, `to` exclusive. */
  onSight?: (from: number, to: number) => void
}

export function LongTable<T>({ label, columns, total, rowAt, onSight }: LongTableProps<T>): VNode {
  const scroller = useRef<HTMLDivElement>(null)
  const [height, setHeight] = useState(600)
  const [top, setTop] = useState(0)
  const [px, setPx] = useState(rowPx)
  const whole = total * px
  const laidOut = Math.min(whole, HEIGHT_MAX_PX)
  const room = Math.max(1, laidOut - height)
  // Where the view begins in a list of full height.
  const virtualTop = laidOut === whole ? top : (Math.min(top, room) / room) * (whole - height)
  const first = Math.max(0, Math.floor(virtualTop / px) - AROUND)
  const last = Math.min(total, Math.ceil((virtualTop + height) / px) + AROUND)
  useLayoutEffect(() => {
    const element = scroller.current
    if (!element) return
    const observer = new ResizeObserver(() => {
      setPx(rowPx())
      setHeight(element.clientHeight)
    })
    observer.observe(element)
    return () => observer.disconnect()
  }, [])
  useEffect(() => onSight?.(first, last), [first, last, onSight])
  const offset = first * px - (virtualTop - top)
  return (
    <div
      class="lines"
      style={{ '--row': `${px}px` }}
      role="table"
      aria-label={label}
      aria-rowcount={total + 1}
    >
      <div role="rowgroup">
        <div class="lines-row lines-head" role="row" aria-rowindex={1}>
          {columns.map((column) => (
            <div role="columnheader" {...placeOf(column)}>
              {column.title}
            </div>
          ))}
        </div>
      </div>
      <div
        class="lines-scroll"
        ref={scroller}
        tabIndex={0}
        role="rowgroup"
        aria-label={label}
        onScroll={({ currentTarget }) => setTop(currentTarget.scrollTop)}
        style={{ height: `${Math.min(Math.max(total, 1) * px, 15.5 * px)}px` }}
      >
        <div class="lines-whole" style={{ height: `${laidOut}px` }}>
          <div class="lines-sight" style={{ transform: `translateY(${offset}px)` }}>
            {Array.from({ length: Math.max(0, last - first) }, (_, i) => {
              const row = rowAt(first + i)
              return (
                <div class="lines-row" role="row" key={first + i} aria-rowindex={first + i + 2}>
                  {columns.map((column) => (
                    <div role="cell" {...placeOf(column)}>
                      {row === null ? (column.main ? '…' : null) : column.cell(row)}
                    </div>
                  ))}
                </div>
              )
            })}
          </div>
        </div>
      </div>
    </div>
  )
}

/** The same in the heading and in each row, so that cells stand below each other. */
function placeOf<T>({ align, minor, wide, width, grow = 1 }: Column<T>): {
  class: string
  style: { flex: string }
} {
  return {
    class: [align, minor && 'minor', wide && 'wide'].filter(Boolean).join(' '),
    style: { flex: width ? `0 0 ${width}` : `${grow} 1 0` },
  }
}
