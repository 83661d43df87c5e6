// The page that compares two batches shows lines that differ, then lines that are answered alike, and both costs.
import type { VNode } from 'preact'
import { useEffect, useMemo } from 'preact/hooks'
import { isRecord } from '../../domain/json-record.ts'
import type { BatchObject } from '../../wire/batch.ts'
import type { BatchLine } from '../../wire/batch-line.ts'
import type { List } from '../../wire/shape.ts'
import { choicesOf, objectOf } from '../answer-columns.ts'
import { get, getPage, type Query, readResults } from '../api.ts'
import {
  type AnswerPart,
  answerOf,
  excerptsOf,
  type Pair,
  pairsOf,
  type Side,
  sideOf,
  wordDifferences,
} from '../batch-comparison.ts'
import { now } from '../browser-clock.ts'
import { count, dateTime, percent, usd, usdExact } from '../format.ts'
import { type MessageKey, t } from '../i18n.ts'
import { parseExact, print } from '../json.ts'
import { Choice, TextButton } from '../parts/button.tsx'
import { FilterBar } from '../parts/filters.tsx'
import { LongTable } from '../parts/long-table.tsx'
import { SchemaVerdict } from '../parts/messages.tsx'
import { Empty, Loaded, Notice } from '../parts/notice.tsx'
import { amountFigure, costFigure, Figures, Page, Section } from '../parts/page.tsx'
import { Badge, BatchStatus, failedText, lineCounts } from '../parts/status.tsx'
import type { Column } from '../parts/table.tsx'
import { useResource, useSettled } from '../resource.ts'
import { href, replaceQuery, useAddress } from '../router.ts'

const OFFERED_MAX = 8
const PAGE_LINES = 2_000
/** The most lines that are compared, and characters that are kept: more would not fit into every browser. */
const LINES_MAX = 200_000
const CHARACTERS_MAX = 20_000_000
const DIFFERENT = ['status', 'answer', 'missing'] as const
const TONES = { status: 'bad', answer: 'warn', missing: 'idle', same: 'good' } as const

export function Compare(): VNode {
  const { query } = useAddress()
  const [a, b] = [query.get('a') ?? '', query.get('b') ?? '']
  const search = useSettled(query.get('q') ?? '')
  const compared = useResource(
    async (signal) => (b === '' ? null : await readBoth(a, b, search, signal)),
    [a, b, search],
  )
  return (
    <Page title={t('compare.title')} parent={{ href: href('/batches'), title: t('nav.batches') }}>
      <Loaded resource={compared} rows={6}>
        {(both) =>
          both ? (
            <>
              <FilterBar
                filters={[
                  { name: 'q', label: t('search'), placeholder: t('batches.searchHint') },
                  {
                    name: 'a',
                    label: t('compare.with'),
                    value: both.a.id,
                    options: both.offered.map(
                      ({ id, name, created }) => [id, `${name} · ${dateTime(created, now())}`] as const,
                    ),
                  },
                ]}
              />
              <Both a={both.a} b={both.b} key={both.a.id} />
            </>
          ) : (
            <Empty title={t('compare.choose')} />
          )
        }
      </Loaded>
    </Page>
  )
}

interface Compared {
  a: BatchObject
  b: BatchObject
  /** Batches to choose as `a`: found, or newest; the retried batch, retries and those of the same input come first. */
  offered: readonly BatchObject[]
}

/** Reads both batches; an empty `a` is the first choice; null where there is no other batch. */
async function readBoth(a: string, b: string, search: string, signal: AbortSignal): Promise<Compared | null> {
  const read = (id: string): Promise<BatchObject> =>
    get(`/v1/batches/${encodeURIComponent(id)}`, {}, { signal })
  const [chosen, second] = await Promise.all([a === '' ? null : read(a), read(b)])
  const { retry_of } = second.metadata
  const parent = retry_of && chosen?.id !== retry_of ? await read(retry_of).catch(() => null) : null
  const list = (query: Query): Promise<List<BatchObject>> =>
    getPage('/v1/batches', { ...query, limit: OFFERED_MAX }, { signal })
  // Names of repeated runs differ in their endings.
  const name = second.name.slice(0, 200).replace(/(.)[\s#._-]*v?[\d\s:._-]*$/i, '$1')
  const near = [second.input_file_id, name, ''].map((search) => ({ search }))
  const found = await Promise.all((search === '' ? [{ retry_of: b }, ...near] : [{ search }]).map(list))
  const all = [...[chosen, parent].filter((batch) => batch !== null), ...found.flatMap(({ data }) => data)]
  const offered = [...new Map(all.map((batch) => [batch.id, batch])).values()].filter(({ id }) => id !== b)
  const first = chosen ?? offered[0]
  return first ? { a: first, b: second, offered } : null
}

/** The results of a batch by `custom_id`. */
async function readSides(id: string, signal: AbortSignal): Promise<Map<string, Side>> {
  const sides = new Map<string, Side>()
  let room = CHARACTERS_MAX
  for (let after: string | null = '0'; after !== null && sides.size < LINES_MAX; ) {
    const { lines, next } = await readResults(id, { after, limit: PAGE_LINES }, signal)
    for (const line of lines) {
      const { custom_id, side } = sideOf(line, room)
      sides.set(custom_id, side)
      room -= side.answer.length
    }
    after = next
  }
  return sides
}

function Both({ a, b }: { a: BatchObject; b: BatchObject }): VNode {
  const compared = useResource(
    async (signal) => pairsOf(...(await Promise.all([readSides(a.id, signal), readSides(b.id, signal)]))),
    [a.id, b.id],
  )
  return (
    <div class="stack wide">
      <div class="columns">
        <BatchCard letter="A" batch={a} other={b} />
        <BatchCard letter="B" batch={b} other={a} />
      </div>
      <Loaded resource={compared} rows={6}>
        {(pairs) => <Pairs a={a} b={b} pairs={pairs} />}
      </Loaded>
    </div>
  )
}

function Pairs({ a, b, pairs }: { a: BatchObject; b: BatchObject; pairs: readonly Pair[] }): VNode {
  const { query } = useAddress()
  const columns = useMemo(COLUMNS, [])
  const wanted = query.get('show') ?? ''
  const isShown = ({ difference }: Pair): boolean =>
    wanted === 'all' || (wanted === '' ? difference !== 'same' : difference === wanted)
  const shown = useMemo(() => pairs.filter(isShown), [pairs, wanted])
  const open = pairs.find(({ custom_id }) => custom_id === query.get('custom_id'))
  const total = Math.max(a.request_counts.total, b.request_counts.total)
  const of = (name: Pair['difference']): number =>
    pairs.filter(({ difference }) => difference === name).length
  const options = ['', ...DIFFERENT, 'all'] as const
  const titleOf = (name: (typeof options)[number]): string =>
    name === '' ? t('compare.different') : name === 'all' ? t('all') : t(`compare.${name}`)
  return (
    <>
      {total > LINES_MAX ? <Notice tone="warn">{t('compare.first', { n: LINES_MAX })}</Notice> : null}
      <div class="card">
        <Figures
          figures={(['same', ...DIFFERENT] as const).map((name) => ({
            title: t(`compare.${name}` satisfies MessageKey),
            value: count(of(name)),
            note: percent(of(name), pairs.length),
          }))}
        />
      </div>
      {open ? <OpenPair a={a} b={b} pair={open} pairs={shown} /> : null}
      <Section
        title={t('lines.title')}
        aside={
          <Choice
            label={t('compare.show')}
            options={options.map((name) => [name, titleOf(name)])}
            value={options.find((name) => name === wanted) ?? ''}
            choose={(show) => replaceQuery({ show })}
          />
        }
      >
        {shown.length === 0 ? (
          <Empty title={t('compare.none')} />
        ) : (
          <LongTable<Pair> label={t('compare.title')} columns={columns} rows={shown} cards />
        )}
      </Section>
    </>
  )
}

type BatchCardProps = { letter: string; batch: BatchObject; other: BatchObject }

function BatchCard({ letter, batch, other }: BatchCardProps): VNode {
  const { cost_usd, usage } = batch
  const { total, failed, notRun } = lineCounts(batch)
  const against = (mine: number, others: number): string | null =>
    others === 0 ? null : t('compare.against', { share: percent(mine, others) })
  const tokens = usage?.total_tokens ?? 0
  return (
    <div class="card stack">
      <div class="row">
        <strong>{letter}</strong>
        <a href={href(`/batches/${batch.id}`)}>{batch.name}</a>
        <BatchStatus batch={batch} />
        {batch.model ? <span class="mono">{batch.model}</span> : null}
      </div>
      <Figures
        figures={[
          costFigure(t('batch.cost'), cost_usd, against(cost_usd, other.cost_usd)),
          amountFigure(t('line.usage'), tokens, against(tokens, other.usage?.total_tokens ?? 0)),
          {
            title: t('batch.failedLines'),
            value: count(failed),
            note: [t('batch.ofTotal', { total, share: percent(failed, total) }), failedText(0, notRun)]
              .filter((text) => text !== '')
              .join(' · '),
          },
        ]}
      />
    </div>
  )
}

/** The values of both batches for a line, side by side. */
const both = ({ a, b }: Pair, show: (side: Side) => string): VNode => (
  <div>
    {a ? show(a) : '–'} <span class="muted">→</span> {b ? show(b) : '–'}
  </div>
)

const excerpt = (pair: Pair, i: 0 | 1): VNode => {
  const side = i === 0 ? pair.a : pair.b
  return <span class={`two-lines ${side?.failed ? 'bad-text' : ''}`}>{excerptsOf(pair)[i] ?? '–'}</span>
}

const COLUMNS = (): Column<Pair>[] => [
  {
    title: 'custom_id',
    main: true,
    cell: ({ custom_id, a, b }) => [
      <TextButton
        label={<span class="mono">{custom_id}</span>}
        onClick={() => replaceQuery({ custom_id })}
      />,
      <span class="muted small"> {t('line.number', { n: a?.line ?? b?.line ?? 0 })}</span>,
    ],
  },
  { title: 'A', grow: 2.5, cell: (pair) => excerpt(pair, 0) },
  { title: 'B', grow: 2.5, cell: (pair) => excerpt(pair, 1) },
  {
    title: t('line.usage'),
    width: '9rem',
    wide: true,
    align: 'end',
    cell: (pair) => both(pair, ({ tokens }) => count(tokens)),
  },
  {
    title: t('batch.cost'),
    width: '11rem',
    wide: true,
    align: 'end',
    cell: (pair) => both(pair, ({ cost_usd }) => usd(cost_usd)),
  },
  {
    title: t('batch.status'),
    width: 'max(10rem, 11%)',
    minor: true,
    cell: ({ difference }) => <Badge tone={TONES[difference]} text={t(`compare.${difference}`)} />,
  },
]

type OpenPairProps = { a: BatchObject; b: BatchObject; pair: Pair; pairs: readonly Pair[] }

/** Both whole answers, with the words that only one of them has. `pairs`: the listed pairs. */
function OpenPair({ a, b, pair, pairs }: OpenPairProps): VNode {
  const lines = useResource(
    (signal) => Promise.all([readLine(a, pair.a, signal), readLine(b, pair.b, signal)]),
    [a.id, b.id, pair.custom_id],
  )
  useEffect(() => {
    const section = document.getElementById('pair')
    section?.scrollIntoView({ block: 'nearest' })
    section?.focus({ preventScroll: true })
  }, [pair.custom_id])
  const at = pairs.indexOf(pair)
  const step = (label: MessageKey, to: Pair | undefined): VNode | null =>
    to ? <TextButton label={t(label)} onClick={() => replaceQuery({ custom_id: to.custom_id })} /> : null
  return (
    <Section
      id="pair"
      title={pair.custom_id}
      aside={
        <div class="row">
          {step('line.previous', pairs[at - 1])}
          {step('line.next', pairs[at + 1])}
          <TextButton label={t('close')} onClick={() => replaceQuery({ custom_id: null })} />
        </div>
      }
    >
      <Loaded resource={lines} rows={2}>
        {([one, other]) => {
          const [partsA, partsB] = wordDifferences(textOf(one), textOf(other))
          return (
            <div class="columns">
              <OpenSide letter="A" batch={a} side={pair.a} line={one} parts={other ? partsA : []} />
              <OpenSide letter="B" batch={b} side={pair.b} line={other} parts={one ? partsB : []} />
            </div>
          )
        }}
      </Loaded>
    </Section>
  )
}

async function readLine(
  batch: BatchObject,
  side: Side | null,
  signal: AbortSignal,
): Promise<BatchLine | null> {
  return side && (await get<BatchLine>(`/v1/batches/${batch.id}/lines/${side.line}`, {}, { signal }))
}

/** The text of an answer; JSON is indented, so that its members are compared. */
function textOf(line: BatchLine | null): string {
  const text = isRecord(line?.result) ? answerOf(line.result) : ''
  const parsed = /^\s*[[{]/.test(text) ? parseExact(text) : null
  return parsed === null ? text : print(parsed)
}

interface OpenSideProps {
  letter: string
  batch: BatchObject
  side: Side | null
  line: BatchLine | null
  /** The parts of an answer; empty where there is no other answer. */
  parts: readonly AnswerPart[]
}

function OpenSide({ letter, batch, side, line, parts }: OpenSideProps): VNode {
  if (side === null) return <Notice>{t('compare.notIn', { name: batch.name })}</Notice>
  const { input, result } = line ?? {}
  const body = isRecord(result) && isRecord(result.response) ? result.response.body : null
  return (
    <div class="stack tight">
      <div class="row muted small">
        <a
          href={href(`/batches/${batch.id}/lines/${side.line}`)}
        >{`${letter} · ${t('line.number', { n: side.line })}`}</a>
        <span title={usdExact(side.cost_usd)}>{usd(side.cost_usd)}</span>
        <span>{t('limits.tokens', { n: count(side.tokens) })}</span>
      </div>
      <div class={`message prose ${side.failed ? 'bad-text' : ''}`} dir="auto">
        {parts.length === 0
          ? textOf(line)
          : parts.map(({ text, isOwn }) =>
              isOwn ? <mark class={letter}>{text}</mark> : <span>{text}</span>,
            )}
      </div>
      {choicesOf(body).map(({ message }) => (
        <SchemaVerdict
          asked={isRecord(input) && isRecord(input.body) ? input.body : null}
          message={objectOf(message)}
        />
      ))}
    </div>
  )
}
