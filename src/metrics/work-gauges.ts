// Gauges of open work, read from the database at each scrape.
import { Counter, Gauge, type Registry } from 'prom-client'
import { OPEN_STATUSES } from '../domain/batch.ts'
import type { Clock } from '../domain/clock.ts'
import type { Model } from '../domain/model.ts'
import { batchesInDanger } from '../progress/completion.ts'
import type { LiveServer } from '../servers/live/live-server.ts'
import type { Upstream } from '../servers/upstream.ts'
import { TASK_KINDS } from '../store/schema.ts'
import type { Store } from '../store/store.ts'
import { OPEN_CHUNK_STATES, readWorkCounts, type WorkCounts } from '../store/workers.ts'
import type { Worker } from '../worker/worker.ts'

/** Reasons that are shown as 0 while no chunk waits for them. */
const PARKED_REASONS = ['usage_limit', 'remote_batch', 'stores_failing', 'input_unreadable'] as const

type Series = Iterable<readonly [labels: Readonly<Record<string, string>>, value: number]>

/** Adds metrics whose series `read` returns at each scrape. */
function scraped(registry: Registry, Kind: typeof Gauge | typeof Counter) {
  return (name: string, help: string, labelNames: string[], read: () => Series | Promise<Series>): void => {
    new Kind({
      name,
      help,
      labelNames,
      registers: [registry],
      async collect() {
        const series = await read()
        this.reset()
        for (const [labels, value] of series) this.inc(labels, value)
      },
    })
  }
}

export function workGauges(
  registry: Registry,
  store: Pick<Store, 'read'>,
  clock: Clock,
  models: ReadonlyMap<string, Model>,
): void {
  const gauge = scraped(registry, Gauge)
  let reading: Promise<WorkCounts> | null = null
  /** Reads the counts once for all gauges of a scrape. */
  const counts = (): Promise<WorkCounts> => {
    reading ??= readWorkCounts(store.read, clock.now()).finally(() => {
      reading = null
    })
    return reading
  }
  gauge('offpeak_batches', 'Batches that have not ended, by status.', ['status'], async () => {
    const { batches } = await counts()
    return OPEN_STATUSES.map((status) => [{ status }, batches.get(status) ?? 0])
  })
  gauge(
    'offpeak_chunks',
    'Chunks that are not done, by state: ready ones are the queue, leased ones run, parked ones wait.',
    ['state'],
    async () => {
      const { chunks } = await counts()
      return OPEN_CHUNK_STATES.map((state) => [{ state }, chunks[state]])
    },
  )
  gauge('offpeak_chunks_parked', 'Parked chunks, by what they wait for.', ['reason'], async () => {
    const { parked } = await counts()
    const reasons = new Set([...PARKED_REASONS, ...parked.keys()])
    return [...reasons].map((reason) => [{ reason }, parked.get(reason) ?? 0])
  })
  gauge('offpeak_workers', 'Worker processes whose lease is valid.', [], async () => [
    [{}, (await counts()).workers],
  ])
  gauge(
    'offpeak_batches_at_risk',
    'Batches that are not paused and will miss their window at their present rate, or have none and cannot run now.',
    [],
    async () => [[{}, (await batchesInDanger(store.read, clock.now(), models)).length]],
  )
  gauge(
    'offpeak_deadline_slack_seconds',
    'Time until the nearest window of an unfinished batch closes; +Inf when none is unfinished.',
    [],
    async () => {
      const { nearest_deadline } = await counts()
      return [[{}, ((nearest_deadline ?? Number.POSITIVE_INFINITY) - clock.now()) / 1000]]
    },
  )
  gauge('offpeak_tasks_due', 'Background tasks that could run now, by kind.', ['kind'], async () => {
    const { tasks_due } = await counts()
    return TASK_KINDS.map((kind) => [{ kind }, tasks_due.get(kind) ?? 0])
  })
  gauge(
    'offpeak_blobs_pending_deletion',
    'Deleted content whose bytes have not been removed yet; its keys are destroyed.',
    [],
    async () => [[{}, (await counts()).blobs_pending_deletion]],
  )
}

export function workerGauges(registry: Registry, worker: Pick<Worker, 'lanes' | 'status'>): void {
  const gauge = scraped(registry, Gauge)
  const counter = scraped(registry, Counter)
  const perServer = ['model', 'upstream']
  const upstreams = (value: (upstream: Upstream) => number) => (): Series =>
    [...worker.lanes].flatMap(([model, lane]) =>
      lane.upstreams.map((one) => [{ model, upstream: one.name }, value(one)] as const),
    )
  const liveServers = (value: (live: LiveServer) => number) => (): Series =>
    [...worker.lanes].flatMap(([model, lane]) =>
      lane.route.servers.flatMap(({ name, live }) =>
        live ? [[{ model, upstream: name }, value(live)] as const] : [],
      ),
    )
  gauge(
    'offpeak_upstream_concurrency_limit',
    'How many lines a model server gets at once, as found by itself.',
    perServer,
    upstreams(({ limit }) => limit.limit),
  )
  gauge(
    'offpeak_upstream_in_flight',
    'Lines that a model server has right now.',
    perServer,
    upstreams(({ limit }) => limit.inFlight),
  )
  gauge(
    'offpeak_upstream_circuit_open',
    '1 while nothing but a probe is sent to a model server, because it failed.',
    perServer,
    upstreams(({ circuit }) => (circuit.open ? 1 : 0)),
  )
  gauge(
    'offpeak_upstream_live_share',
    'Lines that a model server which answers other requests too may have right now.',
    perServer,
    liveServers(({ share }) => share.current),
  )
  counter(
    'offpeak_upstream_live_backoffs_total',
    'Times that other requests left a model server less room than lines took up.',
    perServer,
    liveServers(({ backOffs }) => backOffs),
  )
  counter(
    'offpeak_upstream_live_rejected_total',
    'Readings of the metrics of a model server that were impossible or out of all proportion, and were not learned.',
    perServer,
    liveServers(({ rejected }) => rejected),
  )
  gauge(
    'offpeak_worker_lines_waiting',
    'Lines at hand that have not been sent, those that wait for another attempt included.',
    ['model'],
    () => [...worker.lanes].map(([model, lane]) => [{ model }, lane.waiting]),
  )
  gauge('offpeak_worker_open_chunks', 'Chunks that the worker has open.', [], () => [
    [{}, worker.status.openChunks],
  ])
  gauge(
    'offpeak_worker_stores_failing',
    '1 while the worker cannot record finished lines and claims nothing new.',
    [],
    () => [[{}, worker.status.storesFailing ? 1 : 0]],
  )
}
