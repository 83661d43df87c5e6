// How much work there is, read from the database at each scrape.
import { Gauge, type Registry } from 'prom-client'
import { OPEN_STATUSES } from '../domain/batch.ts'
import type { Clock } from '../domain/clock.ts'
import type { Model } from '../domain/model.ts'
import { batchesAtRisk } from '../progress/deadline-risk.ts'
import type { Store } from '../store/store.ts'
import { OPEN_CHUNK_STATES, readWorkCounts, type WorkCounts } from '../store/workers.ts'

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
