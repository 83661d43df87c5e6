// A chart of series over time, drawn in the page's colours by uPlot, which is loaded when a page has a chart.
import type { VNode } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import type uPlot from 'uplot'
import { connectionLost, fetchApi } from './api.ts'
import { later } from './browser-clock.ts'
import { useCell } from './cell.ts'
import { currentLocale } from './i18n.ts'
import { named } from './parts/text.tsx'

const FONT_PX = 11
const AGAIN_MS = 1_000

export interface ChartSeries {
  title: string
  /** The colour: a custom property of the style sheet, such as `--accent`. */
  color: string
  values: readonly (number | null)[]
}

interface ChartProps {
  /** The title of the chart for screen readers. */
  label: string
  /** The times of the series' values in Unix seconds, ascending. */
  times: readonly number[]
  /** The series in drawing order: of stacked values, the sum comes first. */
  series: readonly ChartSeries[]
  show: (value: number) => string
  height?: number
  /** The width of bars in seconds; absent: areas are drawn. */
  barS?: number
  /** The time ranges that are shaded behind the series. */
  shades?: readonly ChartShade[]
}

interface ChartShade {
  title: string
  /** The beginning of the shade in Unix seconds. */
  start: number
  end: number
  /** The colour: a custom property of the style sheet. */
  color: string
  opacity: number
}

const DAY_S = 86_400
const HOUR_S = 3_600

const NO_SHADES: readonly ChartShade[] = []

export function Chart({
  label,
  times,
  series,
  show,
  height = 200,
  barS,
  shades = NO_SHADES,
}: ChartProps): VNode {
  const frame = useRef<HTMLDivElement>(null)
  const chart = useRef<uPlot | null>(null)
  const shape = JSON.stringify([series.map(({ title, color }) => [title, color]), height, barS, shades])
  const data = [[...times], ...series.map(({ values }) => [...values])] as uPlot.AlignedData
  const latest = useRef(data)
  latest.current = data
  const isLost = useCell(connectionLost) !== null
  useEffect(() => {
    const element = frame.current
    if (!element) return
    let ended = false
    const draw = async (): Promise<void> => {
      const { default: UPlot } = await import('uplot')
      if (ended) return
      chart.current?.destroy()
      const { hooks, ...rest } = options(UPlot, element, times, series, show, height, barS)
      const drawn = shades.map((one) => ({ ...one, color: colorOf(element, one.color) }))
      const drawClear = [(plot: uPlot) => shade(plot, drawn)]
      chart.current = new UPlot({ ...rest, hooks: { ...hooks, drawClear } }, latest.current, element)
    }
    // While the service cannot be reached, the chart's module cannot be loaded: drawing is retried.
    const again = (): unknown => later(AGAIN_MS, () => ended || tryToDraw())
    const tryToDraw = (): void => void draw().catch(() => fetchApi('GET', '/healthz').then(again, () => {}))
    tryToDraw()
    const resize = new ResizeObserver(() => chart.current?.setSize({ width: element.clientWidth, height }))
    resize.observe(element)
    const scheme = matchMedia('(prefers-color-scheme: dark)')
    scheme.addEventListener('change', tryToDraw)
    return () => {
      ended = true
      resize.disconnect()
      scheme.removeEventListener('change', tryToDraw)
      chart.current?.destroy()
      chart.current = null
    }
  }, [shape, isLost])
  useEffect(() => chart.current?.setData(data), [JSON.stringify(data)])
  return (
    <figure class="chart">
      <div ref={frame} role="img" aria-label={label} style={{ minHeight: `${height}px` }} />
      {series.length > 1 || shades.length > 0 ? (
        <figcaption class="legend">
          {[...series.map(({ title, color }) => ({ title, color, opacity: 1 })), ...legendOf(shades)].map(
            ({ title, color, opacity }) => (
              <span class="legend-item" key={title}>
                <i style={{ background: `var(${color})`, opacity }} />
                {title}
              </span>
            ),
          )}
        </figcaption>
      ) : null}
    </figure>
  )
}

/** The shades of a legend: each title once, with its highest opacity. */
function legendOf(shades: readonly ChartShade[]): readonly ChartShade[] {
  const ascending = shades.toSorted((a, b) => a.opacity - b.opacity)
  return [...new Map(ascending.map((one) => [one.title, one])).values()]
}

function shade({ ctx, bbox, valToPos }: uPlot, shades: readonly ChartShade[]): void {
  ctx.save()
  for (const { start, end, color, opacity } of shades) {
    ctx.fillStyle = color
    const [from, to] = [valToPos(start, 'x', true), valToPos(end, 'x', true)]
    ctx.globalAlpha = opacity
    ctx.fillRect(from, bbox.top, to - from, bbox.height)
  }
  ctx.restore()
}

/** The current colour of a custom property, which may have one for each theme. */
function colorOf(element: HTMLElement, name: string): string {
  const probe = element.appendChild(document.createElement('span'))
  probe.style.color = `var(${name})`
  const { color } = getComputedStyle(probe)
  probe.remove()
  return color
}

function options(
  UPlot: typeof uPlot,
  element: HTMLElement,
  times: readonly number[],
  series: readonly ChartSeries[],
  show: (value: number) => string,
  height: number,
  barS: number | undefined,
): uPlot.Options {
  const axis = {
    stroke: colorOf(element, '--muted'),
    grid: { stroke: colorOf(element, '--line'), width: 1 },
    ticks: { show: false },
    font: `${FONT_PX}px ${getComputedStyle(element).fontFamily}`,
  }
  const isByDay = barS !== undefined && barS >= DAY_S
  const isLong = (times.at(-1) ?? 0) - (times[0] ?? 0) > HOUR_S
  const time = new Intl.DateTimeFormat(currentLocale(), {
    hour: '2-digit',
    minute: '2-digit',
    ...(barS || isLong ? {} : { second: '2-digit' }),
  })
  const day = new Intl.DateTimeFormat(currentLocale(), { month: 'short', day: 'numeric', timeZone: 'UTC' })
  const at = (seconds: number): string => (isByDay ? day : time).format(seconds * 1000)
  return {
    width: element.clientWidth,
    height,
    // The label of the last time is centred under the end of the chart.
    padding: [10, isByDay ? 4 : 20, 0, 0],
    // Days are those of the UTC calendar.
    ...(isByDay ? { tzDate: (seconds: number) => UPlot.tzDate(new Date(seconds * 1000), 'UTC') } : {}),
    cursor: { drag: { x: false, y: false }, points: { size: 7 } },
    legend: { show: false },
    scales: {
      // Bars of days are centred on their day; bars of hours begin at their hour.
      x: barS
        ? { range: (_, min, max) => (isByDay ? [min - barS * 0.6, max + barS * 0.6] : [min, max + barS]) }
        : {},
      y: { range: (_, __, max) => [0, max > 0 ? max * 1.08 : 1] },
    },
    axes: [
      { ...axis, grid: { show: false }, space: 70, size: 28, values: (_, splits) => splits.map(at) },
      { ...axis, size: widthOf, space: 36, values: (_, splits) => splits.map(show) },
    ],
    series: [
      {},
      ...series.map(({ title, color: name }) => {
        const color = colorOf(element, name)
        return {
          label: title,
          stroke: color,
          width: 1.5,
          fill: barS ? color : color.replace(/^rgb\((.*)\)$/, 'rgba($1, 0.16)'),
          points: { show: false },
          ...(barS && UPlot.paths.bars
            ? { paths: UPlot.paths.bars({ size: [0.72, 40], radius: 0.12, align: isByDay ? 0 : 1 }) }
            : {}),
        }
      }),
    ],
    hooks: { init: [(plot) => tip(plot, at, show)] },
  }
}

/** The width of an axis in CSS pixels, with the gap to the chart, so that no label is cut off. */
function widthOf({ ctx }: uPlot, values: readonly string[] | null): number {
  ctx.save()
  ctx.font = `${FONT_PX * devicePixelRatio}px ${getComputedStyle(ctx.canvas).fontFamily}`
  const widths = (values ?? []).map((value) => ctx.measureText(value).width / devicePixelRatio)
  ctx.restore()
  return Math.ceil(Math.max(40, ...widths)) + 12
}

/** Shows the values under the pointer. */
function tip(plot: uPlot, at: (seconds: number) => string, show: (value: number) => string): void {
  const box = plot.over.appendChild(document.createElement('div'))
  box.className = 'chart-tip'
  plot.over.addEventListener('mouseleave', () => box.classList.remove('shown'))
  plot.over.addEventListener('mousemove', () => {
    const { idx, left = 0 } = plot.cursor
    const moment = idx === null || idx === undefined ? undefined : plot.data[0][idx]
    if (idx === null || idx === undefined || moment === undefined) return
    const rows = plot.series
      .slice(1)
      .map(({ label }, i) => `${named(String(label))}  ${show(plot.data[i + 1]?.[idx] ?? 0)}`)
    box.textContent = [at(moment), ...rows].join('\n')
    box.classList.add('shown')
    box.style.left = `${Math.min(left + 12, plot.over.clientWidth - box.offsetWidth)}px`
  })
}
