// Starts the service in the role that the command names, and shuts it down gracefully.
import { networkInterfaces } from 'node:os'
import { listUpstreamModels, ServerDown } from '../backends/openai/server-facts.ts'
import type { Running, ServeOptions } from '../cli/shell.ts'
import { Failure, Interrupted } from '../cli/terminal/failure.ts'
import type { Config } from '../config/config.ts'
import { proxyFromEnv } from '../config/settings.ts'
import { shownConfig } from '../config/shown-config.ts'
import { present } from '../config/sources.ts'
import { SERVED_MODELS_MAX, upstreamBaseUrl, upstreamModels } from '../config/upstream-models.ts'
import type { AuditLog } from '../domain/audit-log.ts'
import { sleep, systemClock, unixSeconds } from '../domain/clock.ts'
import { keyProblem } from '../domain/credentials.ts'
import { declareEndpoints } from '../domain/endpoint.ts'
import { messageOf } from '../domain/errors.ts'
import type { Log } from '../domain/log.ts'
import type { Model } from '../domain/model.ts'
import type { Tracing } from '../domain/tracing.ts'
import { GracefulShutdown } from '../http/connection/graceful-shutdown.ts'
import { buildServer } from '../http/server.ts'
import { StreamingValidation } from '../intake/streaming-validation.ts'
import type { Session } from '../leases/leases.ts'
import { ProcessRegistry } from '../metrics/metrics-text.ts'
import { workGauges } from '../metrics/work-gauges.ts'
import { traceBatch } from '../results/traces.ts'
import { liveSessions } from '../store/workers.ts'
import { ApiMaintenance } from './api-maintenance.ts'
import { listenForReload, type ReloadAnswer, reloaded, replaceModels } from './control-socket.ts'
import { forkWorkers, type WorkerProcesses, workerCount } from './fork-worker.ts'
import { ensureFirstKeys } from './keys.ts'
import { makeLog } from './log.ts'
import { type MetricsOf, type MetricsPage, metricsPlace, serveMetricsPage } from './metrics-page.ts'
import { releaseMemoryWhenIdle } from './release-memory.ts'
import { ServedListings } from './served-listings.ts'
import { openStores, register, type Stores, storeHealth } from './stores.ts'
import { openTelemetry } from './telemetry.ts'
import { batchApiSecretsOf, modelsById } from './upstreams.ts'
import { version } from './version.ts'
import { finishRules, startWorker } from './worker.ts'

/** Reads the configuration from its sources again. */
type Load = () => Promise<Config>

interface Part {
  stop(): Promise<void>
  /** Rejects when this part of the service (API or worker) fails. */
  failed: Promise<never>
}

/** Runs the service. `forked`: worker processes that were started already. */
export async function serve(
  given: Config,
  options: ServeOptions,
  env: NodeJS.ProcessEnv = {},
  forked: WorkerProcesses | null = null,
): Promise<Running> {
  const { upstreamKeyEnv, reload } = options
  const key = upstreamKeyEnv === undefined ? null : present(env[upstreamKeyEnv])
  if (upstreamKeyEnv !== undefined && options.upstream === undefined)
    throw new Failure('--upstream-key-env names the key of the server that --upstream names; give both')
  if (key === undefined) throw new Failure(`--upstream-key-env: the variable ${upstreamKeyEnv} is not set`)
  const why = key === null ? null : keyProblem(key)
  if (why !== null) throw new Failure(`--upstream-key-env: the variable ${upstreamKeyEnv} ${why}`)
  const complete = async (config: Config): Promise<Config> =>
    options.upstream === undefined
      ? config
      : await withUpstream(config, options.upstream, { api_key: key, env }, options)
  const load = reload && (async () => await complete(await reload()))
  const configured = await complete(given)
  const log = makeLog(configured)
  const served = new ServedListings(configured.data_dir, systemClock)
  const asked = served.start(configured)
  if (options.role === 'worker') {
    await asked
    return await startWorkerRole(configured, load, served, log)
  }
  // The worker processes load while this process opens the stores.
  const workers = forked ?? (options.role === 'all' ? forkWorkers(workerCount(configured)) : null)
  let session: Session | null = null
  try {
    const stores = await openStores(configured)
    const own = await register(stores, configured, log)
    session = own
    if (options.embedded?.alone) await waitUntilAlone(configured, stores, own, options)
    await asked
    const config = served.complete(configured)
    const models = modelsById(config.models)
    let current = config
    let batchApiSecrets = batchApiSecretsOf(config.models)
    const telemetry = await openTelemetry(config, 'api', log)
    // The workers open the stores while this process creates its HTTP server.
    const working = workers?.begin(config, log, options.embedded && [])
    const [api] = await Promise.all([
      startApi({
        ...{ config, stores, session: own, workers, models, log },
        ...{ tracing: telemetry.tracing, auditLog: telemetry.auditLog },
        // A service without its own configuration runs one command and needs no console.
        prepareConsole: load !== undefined,
        current: () => current,
        batchApiSecrets: () => batchApiSecrets,
        onlyBatches: options.embedded && new Set(),
        firstKeys: ensureFirstKeys(configured, stores.store),
      }),
      working,
    ])
    const unwatch = watchReload(configured, load, served, log, (next) => {
      // The workers come first, because they may reject the configuration.
      workers?.reload(next)
      replaceModels(models, next)
      batchApiSecrets = batchApiSecretsOf(next.models)
      current = next
    })
    const stopReleasing = releaseMemoryWhenIdle()
    const service = running(api.url, workers ? [api, workers] : [api], async () => {
      stopReleasing()
      unwatch()
      await own.close()
      await Promise.all([stores.store.close(), telemetry.close()])
    })
    return { ...service, answer: (batch_id) => workers?.answer(batch_id) }
  } catch (error) {
    await workers?.stop()
    await session?.close()
    throw error
  }
}

/** Waits for the leases of killed processes to expire. Throws a Failure when a process renews its lease. */
async function waitUntilAlone(
  { data_dir }: Config,
  { store }: Stores,
  { id }: Session,
  { tell, signal }: ServeOptions,
): Promise<void> {
  for (let last = Number.POSITIVE_INFINITY; ; ) {
    const { count, longest_ms } = await liveSessions(store.read, id)
    if (count === 0) return
    if (last === Number.POSITIVE_INFINITY) tell?.(`looking whether another process uses ${data_dir}`)
    if (longest_ms > last)
      throw new Failure(
        `another process of Offpeak uses ${data_dir}: a run, or a service that listens elsewhere. Set OFFPEAK_BASE_URL ` +
          'and OFFPEAK_API_KEY to call that service, or try again when the process has ended',
      )
    last = longest_ms
    await sleep(systemClock, ALONE_LOOK_MS, signal)
    if (signal?.aborted) throw new Interrupted()
  }
}

const ALONE_LOOK_MS = 200

/** Adds the models of an upstream's server; waits for a server that is not up yet. */
async function withUpstream(
  config: Config,
  url: string,
  { api_key, env }: { api_key: string | null; env: NodeJS.ProcessEnv },
  options: ServeOptions,
): Promise<Config> {
  const baseUrl = upstreamBaseUrl(url)
  const access = { api_key, proxy: proxyFromEnv(baseUrl, env) }
  for (let told = false; ; told = true) {
    try {
      const listed = await listUpstreamModels(baseUrl, access)
      if (listed.length > SERVED_MODELS_MAX)
        options.tell?.(
          `the server lists more than ${SERVED_MODELS_MAX} models, of which the first are used; a configuration can name others`,
        )
      return { ...config, models: upstreamModels(baseUrl, listed, access, unixSeconds(systemClock.now())) }
    } catch (error) {
      const isDown = error instanceof ServerDown && options.signal?.aborted === false
      if (!isDown) throw new Failure(`--upstream: ${messageOf(error)}`)
      if (!told) options.tell?.(`${error.message} Waiting for it.`)
      await sleep(systemClock, UPSTREAM_LOOK_MS, options.signal)
    }
  }
}

const UPSTREAM_LOOK_MS = 1_000

function running(
  url: string | null,
  parts: readonly Part[],
  last: () => Promise<void> = async () => {},
): Running {
  let stopping: Promise<void> | null = null
  const ended = Promise.withResolvers<void>()
  const stopped = Promise.race([ended.promise, ...parts.map((part) => part.failed)])
  // An unawaited rejection would crash the process.
  stopped.catch(() => {})
  const stop = async (): Promise<void> => {
    await Promise.all(parts.map((part) => part.stop()))
    await last()
    ended.resolve()
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

/** The memory for writing to a bucket, in parts of 8 MiB of which a few are in flight. */
const BUCKET_MEMORY = { bytes: 192 * 1024 * 1024, callBytes: 8 * 1024 * 1024 }

const never = new Promise<never>(() => {})

interface ApiOptions {
  config: Config
  stores: Stores
  session: Session
  workers: WorkerProcesses | null
  models: Map<string, Model>
  prepareConsole: boolean
  tracing: Tracing | undefined
  auditLog: AuditLog | undefined
  /** Returns the configuration in force; `config` is that of the start. */
  current: () => Config
  batchApiSecrets: () => ReturnType<typeof batchApiSecretsOf>
  onlyBatches: ReadonlySet<string> | undefined
  /** Resolves when the first keys are in their files; no call is answered before. */
  firstKeys: Promise<void>
  log: ReturnType<typeof makeLog>
}

async function startApi(options: ApiOptions): Promise<Part & { url: string }> {
  const { config, stores, session, workers, models, tracing, auditLog, log } = options
  const { prepareConsole, current, batchApiSecrets, onlyBatches } = options
  const { store, sealed, master, installation } = stores
  declareEndpoints(config.endpoints)
  const metrics = new ProcessRegistry('api', async () => (await workers?.metrics()) ?? [])
  metrics.setDefaultLabels({ installation })
  workGauges(metrics, store, store.clock, models)
  const shutdown = new GracefulShutdown({
    clock: systemClock,
    delay_ms: config.listen.stop_delay_ms,
    drain_ms: config.worker.drain_ms,
  })
  const streamingValidation = new StreamingValidation({
    limits: config.limits,
    endpoints: config.endpoints,
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
  const maintenance = new ApiMaintenance({
    ...{ store, sealed, log, models, session, onlyBatches, auditLog },
    plans: config.plans,
    rules: finishRules(config),
    onEnded: (batch) => tracing && traceBatch(tracing, batch, store.clock.now()),
  })
  maintenance.start()
  const server = buildServer({
    store,
    sealed,
    clock: store.clock,
    region: config.region,
    version: version(),
    prepareConsole,
    settings: () => shownConfig(current()),
    storeHealth: () => storeHealth(config, stores),
    plans: config.plans,
    models,
    file_bytes_max: config.limits.file_bytes_max,
    line_bytes_max: config.limits.line_bytes_max,
    incomingMemory: config.blobs.kind === 's3' ? BUCKET_MEMORY : undefined,
    streamingValidation,
    ...config.rate_limit,
    wait_for_file_ms: config.create.wait_for_file_ms,
    gather: { ms: config.requests.gather.seconds * 1000, lines: config.requests.gather.lines },
    webhooks: { ...config.webhooks, master },
    batchApiSecrets,
    signInProxy: config.auth.proxy,
    jwt: config.auth.jwt,
    buckets: () => current().buckets,
    wake: (news) => workers?.wake(news),
    ready: async (isPolled) => {
      if (isPolled) shutdown.polled()
      return await ready()
    },
    noWorkerSince: () => maintenance.noWorkerSince,
    log,
    ...{ tracing, auditLog },
    timeouts: { keepAliveMs: config.listen.keep_alive_ms },
    metrics,
    metrics_elsewhere: place !== 'api',
  })
  shutdown.watch(server)
  await options.firstKeys
  const url = await server.listen({ host: listenHost(config), port: config.listen.port })
  const page = await showMetrics(config, place, log, {
    notReadyReason: async () => ((await ready()) ? null : 'stopping'),
    registry: metrics,
  })
  return {
    url,
    failed: never,
    async stop() {
      const cut = await shutdown.shutDown(server)
      await maintenance.stop()
      if (cut > 0) log.warn({ connections: cut }, 'slow connections were closed during shutdown')
      await streamingValidation.close()
      await page?.close()
    },
  }
}

/** The address to listen on; for `::` on a machine without IPv6, all IPv4 addresses. */
function listenHost({ listen: { host } }: Config): string {
  if (host !== '::') return host
  const addresses = Object.values(networkInterfaces()).flat()
  return addresses.some((address) => address?.family === 'IPv6') ? host : '0.0.0.0'
}

/** Serves the metrics page; null where this process has none of its own. */
async function showMetrics(
  config: Config,
  place: ReturnType<typeof metricsPlace>,
  log: Log,
  of: MetricsOf,
): Promise<MetricsPage | null> {
  if (place === null || place === 'api') return null
  const page = await serveMetricsPage({ host: listenHost(config), port: place }, of)
  log.info({ url: page.url }, 'metrics page started')
  return page
}

async function startWorkerRole(
  config: Config,
  load: Load | undefined,
  served: ServedListings,
  log: Log,
): Promise<Running> {
  const complete = served.complete(config)
  const metrics = new ProcessRegistry('worker')
  const { worker, reload, stop } = await startWorker(complete, log, { metrics })
  const page = await showMetrics(complete, metricsPlace(complete, 'worker'), log, {
    notReadyReason: async () => (worker.status.storesFailing ? 'the stores are unavailable' : null),
    registry: metrics,
  })
  const part = {
    failed: never,
    async stop() {
      page?.setStopping()
      await stop()
      await page?.close()
    },
  }
  const unwatch = watchReload(config, load, served, log, reload)
  const stopReleasing = releaseMemoryWhenIdle()
  return running(null, [part], async () => {
    stopReleasing()
    unwatch()
  })
}

/**
 * Reloads the configuration at SIGHUP and on the control socket, and applies changes in the servers' lists of models,
 * until the returned function is called.
 */
function watchReload(
  config: Config,
  load: Load | undefined,
  served: ServedListings,
  log: Log,
  apply: (config: Config) => void,
): () => void {
  let current = config
  let applied = JSON.stringify(served.complete(current).models)
  served.watch(
    () => current,
    () => {
      const next = served.complete(current)
      if (JSON.stringify(next.models) === applied) return
      apply(next)
      applied = JSON.stringify(next.models)
      log.info({ models: next.models.map(({ model }) => model.id) }, 'the servers changed what they serve')
    },
    log,
  )
  if (!load) return () => served.stop()
  const reload = async (): Promise<ReloadAnswer> => {
    try {
      const { config: taken, needsRestart } = reloaded(current, await load())
      await served.ask(taken)
      const next = served.complete(taken)
      apply(next)
      applied = JSON.stringify(next.models)
      current = taken
      log.info({ needs_restart: needsRestart }, 'configuration reloaded')
      return { error: null, needsRestart }
    } catch (error) {
      const text = messageOf(error)
      log.error({ error: text }, 'configuration not reloaded; nothing was changed')
      return { error: text, needsRestart: [] }
    }
  }
  const onSignal = (): void => void reload()
  process.on('SIGHUP', onSignal)
  const socket = listenForReload(config.data_dir, reload, log)
  return () => {
    served.stop()
    process.off('SIGHUP', onSignal)
    socket?.close()
  }
}
