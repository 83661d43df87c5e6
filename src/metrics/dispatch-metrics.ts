// The metrics of a worker: lines and their cost, and the behaviour of model servers and stores.
import { Counter, Histogram, type HistogramConfiguration, type Registry } from 'prom-client'
import type { BackendResult } from '../backends/backend.ts'
import type { EndpointPath } from '../domain/endpoint.ts'
import { operationOf, providerOf } from '../domain/gen-ai.ts'
import { recordOf } from '../domain/json-record.ts'
import { usd } from '../domain/money.ts'
import type { Fresh } from '../results/chunk-results.ts'
import { RECORD_WORK } from '../results/commit-queue.ts'
import type { Observer, Upstream } from '../servers/upstream.ts'

const LATENCY_BUCKETS_S = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600]
/** The histogram buckets of OpenTelemetry's conventions, in seconds. */
const OPERATION_BUCKETS_S = Array.from({ length: 14 }, (_, i) => 2 ** i / 100)
const TOKEN_BUCKETS = Array.from({ length: 14 }, (_, i) => 4 ** i)
const STORE_BUCKETS_S = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10]

/** The label of a model that the configuration does not name. */
const UNKNOWN_MODEL = 'unknown'

const RESULTS = ['answered', 'refused', 'throttled', 'failed', 'aborted'] as const satisfies readonly Result[]
type Result = BackendResult['kind'] | 'aborted'

interface UpstreamCells {
  model: string
  /** Cells by endpoint and error. */
  calls: Map<string, CallCells>
  results: Record<Result, CountCell>
  latency: HistogramCell
  retries: CountCell
}

interface CallCells {
  duration: HistogramCell
  /** The histogram of input tokens; null for requests without an answer. */
  input: HistogramCell | null
  output: HistogramCell | null
}

type ObserveCall = (
  upstream: Upstream,
  cells: UpstreamCells,
  call: NonNullable<Parameters<Observer['attempted']>[3]>,
  durationMs: number,
) => void

interface ModelCells {
  /** Counters by outcome: `ok`, or the error's code. */
  lines: Map<string, CountCell>
  input: CountCell
  output: CountCell
  cost: CountCell
}

export function dispatchMetrics(
  registry: Registry,
  upstreams: ReadonlyMap<string, readonly Upstream[]>,
): Observer {
  const registers = [registry]
  const counter = <T extends string>(name: string, help: string, labelNames: T[]): CellCounter<T> =>
    new CellCounter({ name, help, labelNames, registers })
  const histogram = <T extends string>(name: string, help: string, labelNames: T[], buckets: number[]) =>
    new CellHistogram({ name, help, labelNames, buckets, registers })
  const lines = counter(
    'offpeak_lines_total',
    'Lines that have ended, by model and outcome: ok, or the code of their error.',
    ['model', 'outcome'],
  )
  const tokens = counter('offpeak_tokens_total', 'Tokens of lines that produced a result.', [
    'model',
    'direction',
  ])
  const cost = counter('offpeak_cost_usd_total', 'What lines have cost.', ['model'])
  const attempts = counter(
    'offpeak_upstream_attempts_total',
    'Lines sent to a model server, by what came of it.',
    ['model', 'upstream', 'result'],
  )
  const latency = histogram(
    'offpeak_upstream_duration_seconds',
    'How long answers of a model server took.',
    ['model', 'upstream'],
    LATENCY_BUCKETS_S,
  )
  const retries = counter(
    'offpeak_retries_total',
    'Lines put off for another attempt, by the upstream that made it necessary.',
    ['model', 'upstream'],
  )
  const operation = histogram(
    'gen_ai_client_operation_duration_seconds',
    'How long requests to model servers took, by the names of OpenTelemetry.',
    ['gen_ai_operation_name', 'gen_ai_provider_name', 'gen_ai_request_model', 'error_type'],
    OPERATION_BUCKETS_S,
  )
  const usage = histogram(
    'gen_ai_client_token_usage',
    'Tokens of an answer as its server reports them, by the names of OpenTelemetry.',
    ['gen_ai_operation_name', 'gen_ai_provider_name', 'gen_ai_request_model', 'gen_ai_token_type'],
    TOKEN_BUCKETS,
  )
  const records = histogram(
    'offpeak_record_duration_seconds',
    'How long it took to make lines durable: journal and seal are blobs, commit and park are SQL.',
    ['work'],
    STORE_BUCKETS_S,
  )

  const ofUpstream = new WeakMap<Upstream, UpstreamCells>()
  const ofModel = new Map<string, ModelCells>()
  const addModel = (model: string): ModelCells => {
    const cells = {
      lines: new Map<string, CountCell>(),
      input: tokens.cell({ model, direction: 'input' }),
      output: tokens.cell({ model, direction: 'output' }),
      cost: cost.cell({ model }),
    }
    ofModel.set(model, cells)
    return cells
  }
  const ofName = new Map<string, UpstreamCells>()
  const addUpstreams = (upstreams: ReadonlyMap<string, readonly Upstream[]>): void => {
    for (const [model, servers] of upstreams) {
      if (!ofModel.has(model)) addModel(model).lines.set('ok', lines.cell({ model, outcome: 'ok' }))
      for (const upstream of servers) {
        const labels = { model, upstream: upstream.name }
        const name = `${model} ${upstream.name}`
        const cells = ofName.get(name) ?? {
          model,
          calls: new Map<string, CallCells>(),
          results: recordOf(RESULTS, (result) => attempts.cell({ ...labels, result })),
          latency: latency.cell(labels),
          retries: retries.cell(labels),
        }
        ofName.set(name, cells)
        ofUpstream.set(upstream, cells)
      }
    }
  }
  addUpstreams(upstreams)
  /** Upstreams of a model may share series of the conventions. */
  const ofLabels = new Map<string, CallCells>()
  const callCells = (
    model: string,
    provider: string,
    endpoint: EndpointPath,
    error_type: string,
  ): CallCells => {
    const name = operationOf(endpoint)
    const key = [name, provider, model, error_type].join(' ')
    const labels = {
      gen_ai_operation_name: name,
      gen_ai_provider_name: provider,
      gen_ai_request_model: model,
    }
    const tokensOf = (type: string) =>
      error_type === '' ? usage.cell({ ...labels, gen_ai_token_type: type }) : null
    const cells = ofLabels.get(key) ?? {
      duration: operation.cell({ ...labels, error_type }),
      input: tokensOf('input'),
      output: tokensOf('output'),
    }
    ofLabels.set(key, cells)
    return cells
  }
  const observeCall: ObserveCall = ({ provider }, { model, calls }, { endpoint, result }, durationMs) => {
    const error_type = result.kind === 'answered' ? '' : 'code' in result ? result.code : result.kind
    const key = error_type === '' ? endpoint : `${endpoint} ${error_type}`
    const cells = calls.get(key) ?? callCells(model, providerOf(provider, endpoint), endpoint, error_type)
    calls.set(key, cells)
    cells.duration.observe(durationMs / 1000)
    if (result.kind !== 'answered' || result.answer.usage === null) return
    cells.input?.observe(result.answer.usage.prompt_tokens)
    cells.output?.observe(result.answer.usage.completion_tokens)
  }
  const ofWork = recordOf(RECORD_WORK, (work) => records.cell({ work }))

  function countLines(model: string | null, outcome: string, count: number): ModelCells {
    const name = model ?? UNKNOWN_MODEL
    const cells = ofModel.get(name) ?? addModel(name)
    let cell = cells.lines.get(outcome)
    if (!cell) {
      cell = lines.cell({ model: name, outcome })
      cells.lines.set(outcome, cell)
    }
    cell.value += count
    return cells
  }

  function count({ tallies, failures }: Fresh): void {
    for (const { model, succeeded, cost_nanos, prompt_tokens, completion_tokens } of tallies.all) {
      if (succeeded === 0) continue
      const cells = countLines(model, 'ok', succeeded)
      cells.cost.value += usd(cost_nanos)
      cells.input.value += prompt_tokens
      cells.output.value += completion_tokens
    }
    for (const { model, code } of failures) countLines(model, code, 1)
  }

  return {
    configured: addUpstreams,
    attempted(upstream, result, durationMs, call) {
      const cells = ofUpstream.get(upstream)
      if (!cells) return
      cells.results[result].value++
      if (result === 'answered') cells.latency.observe(durationMs / 1000)
      if (call && result !== 'aborted') observeCall(upstream, cells, call, durationMs)
    },
    retried(upstream) {
      const cells = ofUpstream.get(upstream)
      if (cells) cells.retries.value++
    },
    committed: count,
    recorded: (work, durationMs) => ofWork[work].observe(durationMs / 1000),
  }
}

// Counters and histograms for places that a line passes in microseconds: a series is looked up once and kept, and
// counting in it is an addition. (prom-client's own validate and hash their labels each time.) A ProcessRegistry prints
// them; a plain one would print prom-client's own, empty series.

type Labels<T extends string> = Record<T, string>

class CountCell {
  value = 0
}

class CellCounter<T extends string> extends Counter<T> {
  readonly #cells: { labels: Labels<T>; cell: CountCell }[] = []

  /** Makes a counter cell with a series of its own, to be kept: a second call makes another cell. */
  cell(labels: Labels<T>): CountCell {
    const cell = new CountCell()
    this.#cells.push({ labels, cell })
    return cell
  }

  override async get() {
    const values = this.#cells.map(({ labels, cell }) => ({ labels, value: cell.value }))
    return { ...(await super.get()), values }
  }
}

class HistogramCell {
  readonly counts: number[]
  readonly #bounds: readonly number[]
  sum = 0
  count = 0

  constructor(bounds: readonly number[]) {
    this.#bounds = bounds
    this.counts = new Array(bounds.length).fill(0)
  }

  observe(value: number): void {
    this.sum += value
    this.count++
    const bounds = this.#bounds
    let bucket = 0
    while (bucket < bounds.length && value > bounds[bucket]!) bucket++
    if (bucket < bounds.length) this.counts[bucket]!++
  }
}

class CellHistogram<T extends string> extends Histogram<T> {
  readonly #bounds: readonly number[]
  readonly #name: string
  readonly #cells: { labels: Labels<T>; cell: HistogramCell }[] = []

  constructor(description: HistogramConfiguration<T> & { buckets: number[] }) {
    super(description)
    this.#name = description.name
    this.#bounds = description.buckets
  }

  /** Makes a histogram cell with a series of its own, to be kept: a second call makes another cell. */
  cell(labels: Labels<T>): HistogramCell {
    const cell = new HistogramCell(this.#bounds)
    this.#cells.push({ labels, cell })
    return cell
  }

  override async get() {
    const values = this.#cells.flatMap(({ labels, cell }) => this.#series(labels, cell))
    return { ...(await super.get()), values }
  }

  #series(labels: Labels<T>, { counts, sum, count }: HistogramCell) {
    const name = this.#name
    let below = 0
    const buckets = this.#bounds.map((bound, i) => {
      below += counts[i]!
      return { metricName: `${name}_bucket`, labels: { ...labels, le: bound }, value: below }
    })
    return [
      ...buckets,
      { metricName: `${name}_bucket`, labels: { ...labels, le: '+Inf' }, value: count },
      { metricName: `${name}_sum`, labels, value: sum },
      { metricName: `${name}_count`, labels, value: count },
    ]
  }
}
