// Gauges of a worker, read at each scrape.
import { Counter, Gauge, type Registry } from 'prom-client'
import type { Upstream } from '../dispatch/upstream.ts'
import type { Worker } from '../worker/worker.ts'

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
  new Counter({
    name: 'offpeak_upstream_live_backoffs_total',
    help: 'Times that other requests left a model server less room than lines took up.',
    labelNames: ['model', 'upstream'],
    registers,
    collect() {
      this.reset()
      for (const [model, lane] of worker.lanes)
        for (const { name, live } of lane.route.servers)
          if (live) this.inc({ model, upstream: name }, live.backOffs)
    },
  })
  new Counter({
    name: 'offpeak_upstream_live_rejected_total',
    help: 'Readings of the metrics of a model server that were impossible or out of all proportion, and were not learned.',
    labelNames: ['model', 'upstream'],
    registers,
    collect() {
      this.reset()
      for (const [model, lane] of worker.lanes)
        for (const { name, live } of lane.route.servers)
          if (live) this.inc({ model, upstream: name }, live.rejected)
    },
  })
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
