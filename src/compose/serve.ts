// Starts the service in the role that the command names, and shuts it down gracefully.
import { readLineRecord } from '../audit/read-line-record.ts'
import { listUpstreamModels } from '../backends/openai/list-models.ts'
import type { Running, ServeOptions } from '../cli/launch.ts'
import { Failure } from '../cli/terminal/failure.ts'
import type { Config } from '../config/config.ts'
import { shownConfig } from '../config/shown-config.ts'
import { upstreamBaseUrl, upstreamModels } from '../config/upstream-models.ts'
import { systemClock, unixSeconds } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import { GracefulShutdown } from '../http/connection/graceful-shutdown.ts'
import { buildServer } from '../http/server.ts'
import { StreamingValidation } from '../intake/streaming-validation.ts'
import { ProcessRegistry } from '../metrics/process-registry.ts'
import { workGauges } from '../metrics/work-gauges.ts'
import { ApiMaintenance } from './api-maintenance.ts'
import { ensureFirstKey } from './first-start.ts'
import { forkWorkers, type WorkerProcesses } from './fork-worker.ts'
import { makeLog } from './log.ts'
import { type MetricsOf, type MetricsPage, metricsPlace, serveMetricsPage } from './metrics-page.ts'
import { type ProcessRegistration, register } from './process-registration.ts'
import { storeHealth } from './store-health.ts'
import { openStores, type Stores } from './stores.ts'
import { modelsById } from './upstreams.ts'
import { version } from './version.ts'
import { makeWorker } from './worker.ts'
import { workerCount } from './worker-count.ts'

interface Part {
  stop(): Promise<void>
  /** Rejects when the part fails. */
  failed: Promise<never>
}

export async function serve(given: Config, options: ServeOptions): Promise<Running> {
  const config = options.upstream === undefined ? given : await withUpstream(given, options.upstream)
  if (options.role === 'worker') return running(null, [await startWorker(config)])
  // The worker processes load while this one opens the stores.
  const workers = options.role === 'all' ? forkWorkers(workerCount(config)) : null
  let registration: ProcessRegistration | null = null
  try {
    const stores = await openStores(config)
    registration = await register(stores, config, makeLog(config))
    const { end } = registration
    await ensureFirstKey(config, stores.store)
    const [api] = await Promise.all([
      startApi(config, stores, registration, workers),
      workers?.begin(config, makeLog(config)),
    ])
    return running(api.url, workers ? [api, workers] : [api], async () => {
      await end()
      await stores.store.close()
    })
  } catch (error) {
    await workers?.stop()
    await registration?.end()
    throw error
  }
}

async function withUpstream(config: Config, url: string): Promise<Config> {
  const base_url = upstreamBaseUrl(url)
  const listed = await listUpstreamModels(base_url).catch((error: unknown) => {
    throw new Failure(`--upstream: ${error instanceof Error ? error.message : error}`)
  })
  return { ...config, models: upstreamModels(base_url, listed, null, unixSeconds(systemClock.now())) }
}

function running(
  url: string | null,
  parts: readonly Part[],
  last: () => Promise<void> = async () => {},
): Running {
  let stopping: Promise<void> | null = null
  let ended: () => void = () => {}
  const stopped = Promise.race([
    new Promise<void>((resolve) => {
      ended = resolve
    }),
    ...parts.map((part) => part.failed),
  ])
  // A caller that does not await it must not crash with an unhandled rejection.
  stopped.catch(() => {})
  const stop = async (): Promise<void> => {
    await Promise.all(parts.map((part) => part.stop()))
    await last()
    ended()
  }
  return {
    url,
    stopped,
    stop: () => {
      stopping ??= stop()
      return stopping
    },
  }
}

const never = new Promise<never>(() => {})

async function startApi(
  config: Config,
  stores: Stores,
  registration: ProcessRegistration,
  workers: WorkerProcesses | null,
): Promise<Part & { url: string }> {
  const { store, sealed, keys } = stores
  const metrics = new ProcessRegistry('api', async () => (await workers?.metrics()) ?? [])
  const models = modelsById(config.models)
  workGauges(metrics, store, store.clock, models)
  const log = makeLog(config)
  const shutdown = new GracefulShutdown({
    clock: systemClock,
    delay_ms: config.listen.stop_delay_ms,
    drain_ms: config.worker.drain_ms,
  })
  const streamingValidation = new StreamingValidation({
    limits: config.limits,
    clock: systemClock,
    onCrash: (err) =>
      log.warn({ err }, 'streaming validation thread crashed; files are validated after their upload'),
  })
  const ready = async (): Promise<boolean> => {
    if (shutdown.isShuttingDown) return false
    await store.read.selectFrom('projects').select('id').limit(1).execute()
    return true
  }
  const place = metricsPlace(config, workers === null ? 'api' : 'all')
  const maintenance = new ApiMaintenance(config, stores, log, () => registration.id)
  maintenance.start()
  const server = buildServer({
    store,
    sealed,
    clock: store.clock,
    region: config.region,
    version: version(),
    settings: () => shownConfig(config),
    storeHealth: () => storeHealth(config, stores),
    plans: config.plans,
    models,
    file_bytes_max: config.limits.file_bytes_max,
    streamingValidation,
    requests_per_minute: config.rate_limit.requests_per_minute,
    wait_for_file_ms: config.create.wait_for_file_ms,
    webhooks: { ...config.webhooks, keys },
    wake: () => workers?.wake(),
    readLineRecord: (project_id, batch_id, line) =>
      readLineRecord({ store, sealed }, project_id, batch_id, line),
    ready: async () => {
      shutdown.looked()
      return await ready()
    },
    noWorkerSince: () => maintenance.noWorkerSince,
    log,
    metrics,
    metrics_elsewhere: place !== 'api',
  })
  shutdown.watch(server)
  const url = await server.listen({ host: config.listen.host, port: config.listen.port })
  const page = await showMetrics(config, place, log, {
    notReadyReason: async () => ((await ready()) ? null : 'stopping'),
    registry: metrics,
  })
  return {
    url,
    failed: never,
    async stop() {
      const cut = await shutdown.go(server)
      await maintenance.stop()
      if (cut > 0) log.warn({ connections: cut }, 'slow connections were closed during shutdown')
      await streamingValidation.close()
      await page?.close()
    },
  }
}

/** Null where this process has no metrics page of its own. */
async function showMetrics(
  { listen }: Config,
  place: ReturnType<typeof metricsPlace>,
  log: Log,
  of: MetricsOf,
): Promise<MetricsPage | null> {
  if (place === null || place === 'api') return null
  const page = await serveMetricsPage({ host: listen.host, port: place }, of)
  log.info({ url: page.url }, 'metrics page started')
  return page
}

async function startWorker(config: Config): Promise<Part> {
  const stores = await openStores(config)
  const registration = await register(stores, config, makeLog(config))
  const metrics = new ProcessRegistry('worker')
  const worker = makeWorker(config, stores, makeLog(config), { metrics })
  await worker.start()
  // The worker's own session registers the process from now on.
  await registration.end()
  const page = await showMetrics(config, metricsPlace(config, 'worker'), makeLog(config), {
    notReadyReason: async () => (worker.status.storesFailing ? 'the stores are unavailable' : null),
    registry: metrics,
  })
  return {
    failed: never,
    async stop() {
      page?.setStopping()
      await worker.stop()
      await page?.close()
      await stores.store.close()
    },
  }
}
