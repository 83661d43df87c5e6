// Creates a worker from the configuration: its tasks, its maintenance and its upstreams.
import type { Registry } from 'prom-client'
import { announceLines } from '../audit/announce-lines.ts'
import { ResponseMemory } from '../backends/response-memory.ts'
import type { Objects, OpenBucket } from '../blobs/objects.ts'
import type { BucketConfig, Config } from '../config/config.ts'
import type { AuditLog } from '../domain/audit-log.ts'
import { resolveBucketUrl } from '../domain/bucket-url.ts'
import { declareEndpoints } from '../domain/endpoint.ts'
import type { Log } from '../domain/log.ts'
import type { Tracing } from '../domain/tracing.ts'
import { type FetchDeps, fetchInput } from '../intake/fetch-input.ts'
import { validateFile } from '../intake/file-index.ts'
import { planBatch } from '../intake/plan.ts'
import type { FinishRules } from '../lifecycle/batch.ts'
import {
  ClockSetBack,
  deleteExpiredIdempotencyKeys,
  deleteOldCalls,
  deleteOldRemoteBatches,
  runMaintenance,
} from '../maintenance/maintenance.ts'
import { BLOB_FRESH_MS, ORPHAN_AGE_MS, OrphanSweep } from '../maintenance/sweep.ts'
import { dispatchMetrics } from '../metrics/dispatch-metrics.ts'
import { workerGauges } from '../metrics/work-gauges.ts'
import { type DeliverDeps, deliverer } from '../notify/deliver.ts'
import { webhookAgent } from '../notify/post-event.ts'
import { deleteOldEvents } from '../notify/record-event.ts'
import { type ExportDeps, exportResults } from '../results/export.ts'
import { traceBatch } from '../results/traces.ts'
import { readProperty, writeProperty } from '../store/database-properties.ts'
import type { BatchRow, TaskRow } from '../store/schema.ts'
import { SchemaChecks } from '../tables/schema-checks.ts'
import { Worker, type WorkerOptions } from '../worker/worker.ts'
import { replaceModels } from './control-socket.ts'
import { Discovery, type DiscoveryOptions, resolveBySystem } from './discovery.ts'
import { openStores, register, type Stores } from './stores.ts'
import { openTelemetry } from './telemetry.ts'
import { ConfiguredUpstreams, discoveredHost, modelsById, spillsOf } from './upstreams.ts'

/** The retention of files by plan. Files of a removed plan have the longest retention of all plans. */
export function finishRules(config: Config): FinishRules {
  const longestMs = Math.max(...[...config.plans.values()].map((plan) => plan.file_retention_ms))
  return { file_retention_ms: (plan) => config.plans.get(plan)?.file_retention_ms ?? longestMs }
}

/** The retention of audit records in ms. A service of one command deletes none that the service of its stores keeps. */
async function auditRetention({ store }: Stores, config: Config, isOneCommand: boolean): Promise<number> {
  const { audit_ms } = config.retention
  if (isOneCommand) return Math.max(audit_ms, Number(await readProperty(store.read, 'audit_ms')))
  await store.write((tx) => writeProperty(tx, 'audit_ms', String(audit_ms)))
  return audit_ms
}

export type WorkerHooks = Pick<WorkerOptions, 'onEnded' | 'onTask' | 'onlyBatches'> & {
  /** Overrides of webhook delivery for tests, such as shorter timeouts. */
  delivery?: Partial<DeliverDeps>
  buckets?: (Pick<ExportDeps, 'schedule'> & Pick<FetchDeps, 'part_bytes'>) | undefined
  /** The resolver of names with `discover: dns`. */
  discovery?: Pick<DiscoveryOptions, 'resolve' | 'everyMs'>
  /** The registry for the worker's metrics. */
  metrics?: Registry
  tracing?: Tracing | undefined
  auditLog?: AuditLog | undefined
}

function discoveredHosts({ models }: Config): Set<string> {
  const hosts = models.flatMap(({ upstreams }) => upstreams.map(discoveredHost))
  return new Set(hosts.filter((host) => host !== null))
}

/** Makes a worker whose `reload` applies the models of another configuration. */
export function makeReloadable(
  config: Config,
  stores: Stores,
  log: Log,
  hooks: WorkerHooks = {},
): { worker: Worker; reload: (config: Config) => void } {
  const { store, sealed, master } = stores
  const { clock } = store
  const { auditLog } = hooks
  declareEndpoints(config.endpoints)
  const rules = finishRules(config)
  const models = modelsById(config.models)
  let agent: ReturnType<typeof webhookAgent> | null = null
  const sweep = new OrphanSweep({ store, blobs: stores.blobs, clock })
  let sweeping = false
  const onEnded = (batch: BatchRow): void => {
    const { id, status, completed, failed } = batch
    log.info({ batch: id, status, completed, failed }, 'batch ended')
    if (hooks.tracing) traceBatch(hooks.tracing, batch, clock.now())
    hooks.onEnded?.(batch)
  }
  let keptMs: number | null = null
  const sweepNow = async (): Promise<void> => {
    keptMs ??= await auditRetention(stores, config, hooks.onlyBatches !== undefined)
    const { began, removed } = await sweep.tick()
    let partialUploads = 0
    if (began) {
      const keptFrom = clock.now() - keptMs
      partialUploads = await stores.sweepTemporary(clock.now() - ORPHAN_AGE_MS)
      await deleteOldEvents(store, keptFrom)
      await deleteExpiredIdempotencyKeys(store, clock)
      await deleteOldRemoteBatches(store)
      await deleteOldCalls(store, keptFrom)
    }
    if (removed + partialUploads > 0)
      log.info(
        { orphans: removed, partial_uploads: partialUploads },
        'removed orphaned blobs and partial uploads',
      )
  }
  const answers = new ResponseMemory(config.worker.memory_bytes)
  const discovery = new Discovery({
    resolve: resolveBySystem,
    ...hooks.discovery,
    clock,
    log,
    onChange: () => take(current),
  })
  const configured = new ConfiguredUpstreams(config, {
    budget: answers,
    clock,
    log,
    addressesOf: (host) => discovery.of(host),
  })
  let current = config
  const upstreams = configured.of(config)
  const openBucket = bucketOpener(() => current.buckets)
  const { metrics } = hooks
  const setBack = new ClockSetBack()
  const bringContent = (task: TaskRow, signal: AbortSignal): Promise<void> =>
    fetchInput(
      {
        ...{ store, sealed, clock, openBucket, plans: config.plans },
        file_bytes_max: config.limits.file_bytes_max,
        ...hooks.buckets,
      },
      task,
      signal,
    )
  const worker = new Worker({
    store,
    sealed,
    blobsFail: () => stores.blobs.isFailing,
    clock,
    log,
    random: Math.random,
    models,
    upstreams,
    spills: spillsOf(config.models),
    retry: config.retry,
    rules,
    leaseMs: config.worker.lease_ms,
    drainMs: config.worker.drain_ms,
    flushIntervalMs: config.worker.flush_interval_ms,
    memoryBytes: config.worker.memory_bytes,
    answers,
    checks: new SchemaChecks(),
    blobFreshMs: BLOB_FRESH_MS,
    tasks: {
      validate: (task, signal) => validateFile({ store, sealed, clock, limits: config.limits }, task, signal),
      plan: (task, signal) =>
        planBatch(
          { store, sealed, clock, models, plans: config.plans, rules, onEnded, auditLog },
          task,
          signal,
        ),
      announce: (task) => announceLines({ store, sealed, clock }, task),
      fetch: bringContent,
      make: bringContent,
      export: (task, signal) =>
        exportResults(
          { store, sealed, clock, random: Math.random, openBucket, ...hooks.buckets },
          task,
          signal,
        ),
      deliver: deliverer({
        store,
        clock,
        random: Math.random,
        master,
        agent: () => (agent ??= webhookAgent(config.webhooks)),
        ...hooks.delivery,
      }),
    },
    async maintenance() {
      discovery.tick()
      const pulledBack = await setBack.check({ store, clock })
      if (pulledBack > 0)
        log.warn({ times: pulledBack }, 'the clock was set back; stored times that lay too far ahead are due')
      const { rescued } = await runMaintenance({ store, sealed, clock })
      for (const worker of rescued) log.warn({ worker }, 'worker lease expired; requeued its chunks')
      if (rescued.length > 0) worker.wake()
      if (sweeping) return
      // Not awaited: listing a large bucket takes long.
      sweeping = true
      sweepNow()
        .catch((error: unknown) => log.warn({ err: error }, 'orphan sweep failed; will retry'))
        .finally(() => {
          sweeping = false
        })
    },
    onEnded,
    onTask: (task) => hooks.onTask?.(task),
    onlyBatches: hooks.onlyBatches,
    observe: metrics && dispatchMetrics(metrics, upstreams),
    ...{ tracing: hooks.tracing, auditLog },
  })
  metrics?.setDefaultLabels({ installation: stores.installation })
  if (metrics) workerGauges(metrics, worker)
  const take = (next: Config): void => {
    current = next
    worker.setUpstreams(configured.of(next), spillsOf(next.models))
    discovery.watch(discoveredHosts(next))
  }
  const reload = (next: Config): void => {
    replaceModels(models, next)
    take(next)
  }
  discovery.watch(discoveredHosts(config))
  return { worker, reload }
}

export interface StartedWorker {
  worker: Worker
  reload: (config: Config) => void
  /** Stops the worker and closes the stores. */
  stop(): Promise<void>
}

/** Starts a worker in its own process, with its own stores. */
export async function startWorker(config: Config, log: Log, hooks: WorkerHooks): Promise<StartedWorker> {
  const stores = await openStores(config)
  const session = await register(stores, config, log)
  const telemetry = await openTelemetry(config, 'worker', log)
  const { worker, reload } = makeReloadable(config, stores, log, { ...hooks, ...telemetry })
  await worker.start()
  // The worker's session registers the process from now on.
  await session.close()
  return {
    worker,
    reload,
    async stop() {
      await worker.stop()
      await Promise.all([stores.store.close(), telemetry.close()])
    },
  }
}

// Opens configured buckets when they are used. A bucket that is removed from the configuration is no longer used.

/** Makes the function that opens buckets. `buckets`: by the current configuration. */
function bucketOpener(buckets: () => readonly BucketConfig[]): OpenBucket {
  const opened = new WeakMap<BucketConfig, Objects>()
  return async (project, use, url) => {
    const { bucket, key } = resolveBucketUrl(buckets(), project, use, url)
    const { S3Objects } = await import('../blobs/s3/s3-objects.ts')
    const objects = opened.get(bucket) ?? new S3Objects(bucket)
    opened.set(bucket, objects)
    return { objects, key }
  }
}
