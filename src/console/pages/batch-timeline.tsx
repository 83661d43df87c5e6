// Shows the history of a batch: a chart of finished lines over time, and its changes of status.
import type { VNode } from 'preact'
import { useState } from 'preact/hooks'
import type { BatchObject } from '../../wire/batch.ts'
import type { BatchTimeline } from '../../wire/batch-line.ts'
import { Chart, type ChartSeries } from '../chart.tsx'
import { between, perSecond } from '../format.ts'
import { type MessageKey, t } from '../i18n.ts'
import { ended } from '../live.ts'
import { Choice } from '../parts/button.tsx'
import { optionsOf } from '../parts/field.tsx'
import { Section, Time } from '../parts/page.tsx'
import { useGet } from '../resource.ts'

const MEASURES = ['lines', 'tokens'] as const
type Measure = (typeof MEASURES)[number]

export function Timeline({ batch }: { batch: BatchObject }): VNode | null {
  const { completed, failed, total } = batch.request_counts
  const step = ended(batch) ? batch.status : Math.floor(((completed + failed) / Math.max(total, 1)) * 50)
  const timeline = useGet<BatchTimeline>(`/v1/batches/${batch.id}/timeline`)
  const [measure, setMeasure] = useState<Measure>('lines')
  const [seen, setSeen] = useState(step)
  if (seen !== step) {
    setSeen(step)
    timeline.reload()
  }
  const data = timeline.data
  if (!data) return null
  const choice = (
    <Choice
      label={t('timeline.measure')}
      options={optionsOf('timeline', MEASURES)}
      value={measure}
      choose={setMeasure}
    />
  )
  const { times, series } = seriesOf(data, measure)
  return (
    <Section title={t('timeline.title')} aside={data.points.length > 1 ? choice : null}>
      <div class="card stack">
        {data.points.length > 1 ? (
          <Chart
            label={t(`timeline.${measure}` satisfies MessageKey)}
            times={times}
            series={series}
            show={perSecond}
            height={190}
          />
        ) : null}
        <States states={data.states} />
      </div>
    </Section>
  )
}

type Point = BatchTimeline['points'][number]

/** The series of the chart; intervals without finished lines, which the answer omits, are zeros. */
function seriesOf(
  { points, interval_s }: BatchTimeline,
  measure: Measure,
): { times: number[]; series: ChartSeries[] } {
  const first = points[0]?.at ?? 0
  const slots = points.length === 0 ? 0 : Math.round((points[points.length - 1]!.at - first) / interval_s) + 1
  const at = new Map(points.map((point) => [Math.round((point.at - first) / interval_s), point]))
  const times = Array.from({ length: slots }, (_, i) => first + i * interval_s)
  const one = (title: MessageKey, color: string, of: (point: Point) => number): ChartSeries => {
    const rate = (point: Point | undefined): number => (point ? of(point) / interval_s : 0)
    return { title: t(title), color, values: times.map((_, i) => rate(at.get(i))) }
  }
  const failed = ({ failed, not_run }: Point): number => failed - not_run
  const finished = one('timeline.finished', '--accent', (point) => point.completed + failed(point))
  const tokens = (point: Point): number => point.prompt_tokens + point.completion_tokens
  const said = one('timeline.completionTokens', '--accent', (point) => point.completion_tokens)
  if (measure === 'tokens') return { times, series: [one('timeline.allTokens', '--fill-good', tokens), said] }
  const isBad = points.some((point) => failed(point) > 0)
  return { times, series: isBad ? [finished, one('batch.failedLines', '--fill-bad', failed)] : [finished] }
}

function States({ states }: { states: BatchTimeline['states'] }): VNode {
  return (
    <ol class="states">
      {states.map(({ status, at }, i) => {
        const next = states[i + 1]
        return (
          <li class="state" key={status}>
            <strong>{t(`status.${status}` as MessageKey)}</strong>
            <div class="muted small">
              <Time at={at} />
              {next ? <span>{` · ${between(at, next.at)}`}</span> : null}
            </div>
          </li>
        )
      })}
    </ol>
  )
}
