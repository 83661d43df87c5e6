// Gauges of the work that there is are read from the database at each scrape.
import { Counter, Gauge, type Registry } from 'prom-client'
import type { LiveServer } from '../dispatch/live/live-server.ts'
import type { Upstream } from '../dispatch/upstream.ts'
import { OPEN_STATUSES } from '../domain/batch.ts'
import type { Clock } from '../domain/clock.ts'
import type { Model } from '../domain/model.ts'
import { batchesAtRisk } from '../progress/deadline-risk.ts'
import type { Store } from '../store/store.ts'
import { OPEN_CHUNK_STATES, readWorkCounts, type WorkCounts } from '../store/workers.ts'
import type { Worker } from '../worker/worker.ts'

/** Shown as 0 while no chunk waits for them. */
const PARKED_REASONS = ['usage_limit', 'remote_batch', 'stores_failing', 'input_unreadable'] as const
const TASK_KINDS = ['validate', 'plan', 'purge', 'deliver'] as const

export function workGauges(
  registry: Registry,
  store: Pick<Store, 'read'>,
  clock: Clock,
  models: ReadonlyMap<string, Model>,
): void {
  const registers = [registry]
  let reading: Promise<WorkCounts> | null = null
  /** One look serves all gauges of one answer. */
  const counts = (): Promise<WorkCounts> => {
    reading ??= readWorkCounts(store.read, clock.now()).finally(() => {
      reading = null
    })
    return reading
  }
  new Gauge({
    name: 'offpeak_batches',
    help: 'Batches that have not ended, by status.',
    labelNames: ['status'],
    registers,
    async collect() {
      const { batches } = await counts()
      for (const status of OPEN_STATUSES) this.set({ status }, batches.get(status) ?? 0)
    },
  })
  new Gauge({
    name: 'offpeak_chunks',
    help: 'Chunks that are not done, by state: ready ones are the queue, leased ones run, parked ones wait.',
    labelNames: ['state'],
    registers,
    async collect() {
      const { chunks } = await counts()
      for (const state of OPEN_CHUNK_STATES) this.set({ state }, chunks[state])
    },
  })
  new Gauge({
    name: 'offpeak_chunks_parked',
    help: 'Parked chunks, by what they wait for.',
    labelNames: ['reason'],
    registers,
    async collect() {
      const { parked } = await counts()
      this.reset()
      for (const reason of PARKED_REASONS) this.set({ reason }, 0)
      for (const [reason, count] of parked) this.set({ reason }, count)
    },
  })
  new Gauge({
    name: 'offpeak_workers',
    help: 'Worker processes whose lease is valid.',
    registers,
    async collect() {
      this.set((await counts()).workers)
    },
  })
  new Gauge({
    name: 'offpeak_batches_at_risk',
    help: 'Batches that will miss their window at their present rate.',
    registers,
    async collect() {
      this.set((await batchesAtRisk(store.read, clock.now(), models)).length)
    },
  })
  new Gauge({
    name: 'offpeak_deadline_slack_seconds',
    help: 'Time until the nearest window of an unfinished batch closes; +Inf when none is unfinished.',
    registers,
    async collect() {
      const { nearest_deadline } = await counts()
      const slack = nearest_deadline === null ? Number.POSITIVE_INFINITY : nearest_deadline - clock.now()
      this.set(slack / 1000)
    },
  })
  new Gauge({
    name: 'offpeak_tasks_due',
    help: 'Background tasks that could run now, by kind.',
    labelNames: ['kind'],
    registers,
    async collect() {
      const { tasks_due } = await counts()
      for (const kind of TASK_KINDS) this.set({ kind }, tasks_due.get(kind) ?? 0)
    },
  })
  new Gauge({
    name: 'offpeak_blobs_pending_deletion',
    help: 'Deleted content whose bytes have not been removed yet; its keys are destroyed.',
    registers,
    async collect() {
      this.set((await counts()).blobs_pending_deletion)
    },
  })
}

/** Gauges of a worker, read at each scrape. */
export function workerGauges(registry: Registry, worker: Pick<Worker, 'lanes' | 'status'>): void {
  const registers = [registry]
  const perUpstream = (name: string, help: string, value: (upstream: Upstream) => number): void => {
    new Gauge({
      name,
      help,
      labelNames: ['model', 'upstream'],
      registers,
      collect() {
        for (const [model, lane] of worker.lanes)
          for (const upstream of lane.upstreams) this.set({ model, upstream: upstream.name }, value(upstream))
      },
    })
  }
  perUpstream(
    'offpeak_upstream_concurrency_limit',
    'How many lines a model server gets at once, as found by itself.',
    ({ limit }) => limit.limit,
  )
  perUpstream(
    'offpeak_upstream_in_flight',
    'Lines that a model server has right now.',
    ({ limit }) => limit.inFlight,
  )
  perUpstream(
    'offpeak_upstream_circuit_open',
    '1 while nothing but a probe is sent to a model server, because it failed.',
    ({ circuit }) => (circuit.open ? 1 : 0),
  )
  new Gauge({
    name: 'offpeak_upstream_live_share',
    help: 'Lines that a model server which answers other requests too may have right now.',
    labelNames: ['model', 'upstream'],
    registers,
    collect() {
      for (const [model, lane] of worker.lanes)
        for (const { name, live } of lane.route.servers)
          if (live) this.set({ model, upstream: name }, live.share.current)
    },
  })
  const perLiveServer = (name: string, help: string, value: (live: LiveServer) => number): void => {
    new Counter({
      name,
      help,
      labelNames: ['model', 'upstream'],
      registers,
      collect() {
        this.reset()
        for (const [model, lane] of worker.lanes)
          for (const { name, live } of lane.route.servers)
            if (live) this.inc({ model, upstream: name }, value(live))
      },
    })
  }
  perLiveServer(
    'offpeak_upstream_live_backoffs_total',
    'Times that other requests left a model server less room than lines took up.',
    ({ backOffs }) => backOffs,
  )
  perLiveServer(
    'offpeak_upstream_live_rejected_total',
    'Readings of the metrics of a model server that were impossible or out of all proportion, and were not learned.',
    ({ rejected }) => rejected,
  )
  new Gauge({
    name: 'offpeak_worker_lines_waiting',
    help: 'Lines at hand that have not been sent, those that wait for another attempt included.',
    labelNames: ['model'],
    registers,
    collect() {
      for (const [model, lane] of worker.lanes) this.set({ model }, lane.waiting)
    },
  })
  new Gauge({
    name: 'offpeak_worker_open_chunks',
    help: 'Chunks that the worker has open.',
    registers,
    collect() {
      this.set(worker.status.openChunks)
    },
  })
  new Gauge({
    name: 'offpeak_worker_stores_failing',
    help: '1 while the worker cannot record finished lines and claims nothing new.',
    registers,
    collect() {
      this.set(worker.status.storesFailing ? 1 : 0)
    },
  })
}
