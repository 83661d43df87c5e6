// Creates a client for each model server that the configuration names.

import { existsSync, readFileSync } from 'node:fs'
import type { Backend, ServerProbe } from '../backends/backend.ts'
import { AnthropicBatchApi } from '../backends/openai/anthropic-batch-api.ts'
import { HttpBatchApi } from '../backends/openai/http-batch-api.ts'
import { openaiBackend } from '../backends/openai/openai-backend.ts'
import type { ResponseMemory } from '../backends/response-memory.ts'
import { certificateFiles, keyFile, type SecretFiles } from '../backends/secret-files.ts'
import { simBackend } from '../backends/sim/sim-backend.ts'
import {
  addressOf,
  type BatchApiUpstream as BatchApiConfig,
  type Config,
  type EngineConfig,
  type LiveConfig,
  type ModelConfig,
  type ServerUpstream,
  type UpstreamConfig,
} from '../config/config.ts'
import { BatchApiUpstream } from '../dispatch/senders/batch-apis/batch-api-upstream.ts'
import type { Spill } from '../dispatch/senders/routes.ts'
import { BoundedMap } from '../domain/bounded-map.ts'
import type { Clock } from '../domain/clock.ts'
import { type Certificates, NO_CERTIFICATES } from '../domain/credentials.ts'
import { providerAt } from '../domain/gen-ai.ts'
import { OpeningHours } from '../domain/hours.ts'
import type { Log } from '../domain/log.ts'
import { metricsUrl } from '../domain/metrics-url.ts'
import { isOfKind, type Model, type ModelHours } from '../domain/model.ts'
import { Engine } from '../engines/engine.ts'
import { accessTo, type EngineAccess, filled, newPlace } from '../engines/engine-access.ts'
import { launchEngine, outputFileOf } from '../engines/engine-process.ts'
import { Machine } from '../engines/machine.ts'
import { LiveServer } from '../servers/live/live-server.ts'
import { ModelServer, type Upstream } from '../servers/upstream.ts'
import type { Ports } from '../store/store.ts'

export function modelsById(models: readonly ModelConfig[]): Map<string, Model> {
  return new Map(
    models.map((one) => [one.model.id, { ...one.model, ...hoursOf(one), servers: givenNames(one) }]),
  )
}

function givenNames({ upstreams }: ModelConfig): string[] {
  const isAddress = (one: UpstreamConfig): boolean =>
    'base_url' in one && one.base_url !== null && one.name.startsWith(addressOf(one.base_url))
  return upstreams.filter((one) => !isAddress(one)).map(({ name }) => name)
}

/** The opening hours of a model; none where an upstream of the lowest tier is always open. */
function hoursOf({ upstreams, spill }: ModelConfig): { hours?: ModelHours } {
  const lowest = Math.min(...upstreams.map(({ tier }) => tier))
  const openings = (of: readonly UpstreamConfig[]): ModelHours['usual'] =>
    of.map(({ hours }) => (hours.length === 0 ? null : new OpeningHours(hours)))
  const usual = openings(upstreams.filter(({ tier }) => tier === lowest))
  if (usual.includes(null)) return {}
  return { hours: { usual, atRisk: spill.when_at_risk ? openings(upstreams) : usual } }
}

/** The secrets of upstreams that report ended batches by webhook. */
export function batchApiSecretsOf(models: readonly ModelConfig[]): { upstream: string; secret: string }[] {
  return models.flatMap(({ upstreams }) =>
    upstreams.flatMap((one) =>
      'webhook_secret' in one && one.webhook_secret !== null
        ? { upstream: one.name, secret: one.webhook_secret }
        : [],
    ),
  )
}

/** The spill rules of the models, by model ID. */
export function spillsOf(models: readonly ModelConfig[]): Map<string, Spill> {
  return new Map(
    models.map(({ model, spill }) => [
      model.id,
      { whenDownMs: spill.when_down_ms, whenAtRisk: spill.when_at_risk },
    ]),
  )
}

type ServerConfig = Exclude<UpstreamConfig, BatchApiConfig>

interface UpstreamDeps extends Pick<Ports, 'clock' | 'log'> {
  budget: ResponseMemory
  /** Returns the addresses of a name with `discover: dns`; empty while they are not known. */
  addressesOf: (host: string) => readonly string[]
  /** Returns the number of files that the process may open; by default the system's limit. */
  openFilesMax?: () => number
}

/** The number of files for stores, sockets to other processes and webhooks. */
const FILES_BESIDE = 48

/** The system's limit of open files; infinite where /proc does not have it. */
function openFilesMax(): number {
  const limits = existsSync(LIMITS) ? readFileSync(LIMITS, 'utf8') : ''
  return Number(/^Max open files +(\d+)/m.exec(limits)?.[1] ?? Number.POSITIVE_INFINITY)
}

const LIMITS = '/proc/self/limits'

/** The time in ms for which the state of a removed server is kept, in case it is added again. */
const REMEMBERED_MS = 10 * 60_000

/**
 * The upstreams of a configuration. An upstream that is the same in the next configuration is kept; the same server
 * with other settings keeps its lines in flight, its health and its concurrency.
 */
export class ConfiguredUpstreams {
  readonly #makeBackend: (of: ServerConfig, address: string | null) => Backend
  /** The engines by the configuration that starts them. */
  readonly #engines = new Map<string, Engine>()
  readonly #clock: Clock
  readonly #log: Log
  readonly #addressesOf: (host: string) => readonly string[]
  readonly #openFilesMax: () => number
  #known = new Map<string, Upstream>()
  /** The upstreams by model and address; `leftAt`: the time of removal (Unix ms), null while in use. */
  readonly #servers = new Map<string, { upstream: Upstream; leftAt: number | null }>()
  #liveServers = new Map<string, LiveServer>()

  constructor(config: Config, deps: UpstreamDeps) {
    this.#makeBackend = backendMaker(config, deps, this.#engines)
    this.#clock = deps.clock
    this.#log = deps.log
    this.#addressesOf = deps.addressesOf
    this.#openFilesMax = deps.openFilesMax ?? openFilesMax
  }

  /** Makes the upstreams of a configuration, by model ID, in configured order. */
  of(config: Config): Map<string, Upstream[]> {
    const before = this.#known
    const worker_max = this.#linesMax(config)
    this.#known = new Map()
    const upstreams = new Map(
      config.models.map(({ model, upstreams }) => [
        model.id,
        upstreams.flatMap((one, i) => {
          // The nth of several equal upstreams stays the nth of the previous configuration.
          const alike = upstreams.slice(0, i).filter((other) => serverKey(other) === serverKey(one)).length
          const keyOf = (address: string | null): string =>
            JSON.stringify([model.id, serverKey(one), alike, address])
          return this.#addresses(one).map((address, nth) => {
            const known = this.#servers.get(keyOf(address))
            // The upstream of the name before it was resolved.
            const unresolved = address !== null && nth === 0 ? this.#servers.get(keyOf(null)) : undefined
            const earlier = known ?? unresolved
            if (address !== null) this.#servers.delete(keyOf(null))
            const upstream = this.#upstream(
              model.id,
              one,
              address,
              worker_max,
              before,
              earlier?.upstream ?? null,
            )
            this.#servers.set(keyOf(address), { upstream, leftAt: null })
            return upstream
          })
        }),
      ]),
    )
    this.#forgetServers()
    // An engine may be the backend of several upstreams.
    const backendOf = (one: Upstream): object => one.onDemand ?? one
    const used = new Set([...this.#known.values()].map(backendOf))
    for (const [key, upstream] of before)
      if (!this.#known.has(key) && !used.has(backendOf(upstream))) upstream.retire()
    // An engine that ends with its last line is not used for a later configuration.
    for (const [key, engine] of this.#engines) if (!used.has(engine)) this.#engines.delete(key)
    return upstreams
  }

  #forgetServers(): void {
    const now = this.#clock.now()
    const used = new Set(this.#known.values())
    for (const [key, server] of this.#servers) {
      if (used.has(server.upstream)) continue
      server.leftAt ??= now
      const isOver = now - server.leftAt >= REMEMBERED_MS && server.upstream.limit.inFlight === 0
      if (isOver) this.#servers.delete(key)
    }
  }

  /** The limit of lines in flight at an address: each takes a connection, and the stores need files as well. */
  #linesMax({ worker: { concurrency_max }, models }: Config): number {
    const files = this.#openFilesMax()
    const addresses = models.flatMap(({ upstreams }) => upstreams.flatMap((one) => this.#addresses(one)))
    const lines = Math.max(1, Math.floor((files - FILES_BESIDE) / addresses.length))
    if (lines >= concurrency_max) return concurrency_max
    this.#log.warn(
      { open_files_max: files, concurrency_max: lines },
      'the process may open few files; sends fewer lines at once (raise the limit: ulimit -n, LimitNOFILE)',
    )
    return lines
  }

  /** The addresses of an upstream; null for an unresolved name. */
  #addresses(config: UpstreamConfig): readonly (string | null)[] {
    const host = discoveredHost(config)
    const addresses = host === null ? [] : this.#addressesOf(host)
    return addresses.length === 0 ? [null] : addresses
  }

  #upstream(
    model: string,
    config: UpstreamConfig,
    address: string | null,
    worker_max: number,
    known: ReadonlyMap<string, Upstream>,
    before: Upstream | null,
  ): Upstream {
    const { tier, price, hours, ...server } = config
    const terms = {
      tier,
      price,
      hours: hours.length === 0 ? null : new OpeningHours(hours),
      concurrency_max: Math.min(config.concurrency_max, worker_max),
    }
    const key = JSON.stringify([model, server, address])
    let upstream = known.get(key)
    if (upstream) upstream.setTerms(terms)
    else {
      const modelAlias = 'model' in config && config.model !== model ? config.model : null
      if (isOfKind(config, 'batch-api')) {
        const api = batchApiOf(config, this.#clock, this.#log)
        const { name, lines_max, tokens_max } = config
        upstream = new BatchApiUpstream({ ...terms, name, lines_max, tokens_max, api, modelAlias, before })
      } else {
        const live = isOfKind(config, 'server') ? config.live : null
        upstream = new ModelServer({
          backend: this.#makeBackend(config, address),
          ...terms,
          modelAlias,
          before,
          live: live && this.#liveServer(config, live, address),
          ...(isOfKind(config, 'server') && {
            priority: config.priority ?? live?.priority ?? null,
            service_tier: config.service_tier,
            provider: config.base_url === null ? null : providerAt(config.base_url),
          }),
        })
      }
    }
    this.#known.set(key, upstream)
    return upstream
  }

  #liveServer(config: UpstreamConfig, live: LiveConfig, address: string | null): LiveServer {
    const key = liveKey(config, live, address)
    const known = this.#liveServers.get(key)
    if (known) return known
    const server = new LiveServer(live)
    this.#liveServers.set(key, server)
    return server
  }
}

/** A text that identifies a server across configurations. */
function serverKey(config: UpstreamConfig): string {
  if (!('base_url' in config)) return `${config.type} ${config.name}`
  const { origin, pathname } = new URL(config.base_url ?? 'engine:')
  const place = config.base_url === null ? JSON.stringify([config.engine, config.model]) : origin + pathname
  return `${config.type} ${place}`
}

/** A text that identifies the server of live traffic: upstreams with the same metrics share a server. */
function liveKey({ name }: UpstreamConfig, live: LiveConfig, address: string | null): string {
  const { metrics_url, selector, waiting_max, cache_max } = live
  // A Prometheus returns the series of all replicas, whatever the address of a line.
  return JSON.stringify([metrics_url ?? name, selector ?? address, waiting_max, cache_max])
}

function clientOptions(upstream: ServerUpstream, base_url: string, log: Pick<Log, 'warn'>) {
  const { name, timeout_ms, concurrency_max, headers, proxy, fairness_header, live } = upstream
  return {
    ...{ name, timeout_ms, headers, proxy, fairness_header },
    connections_max: concurrency_max,
    sharesConnections: upstream.connections === 'shared',
    ...secretsOf(upstream, log),
    base_url,
    metrics_url: live ? live.metrics_url : providerAt(base_url) ? null : metricsUrl('auto', base_url),
    query: live?.selector ? { ...live, selector: live.selector } : null,
  }
}

/** The reason for which the metrics of a server with live traffic cannot be read; null where they can. */
export async function metricsProblem(upstream: ServerUpstream, base_url: string): Promise<string | null> {
  const backend = openaiBackend({
    ...clientOptions(upstream, base_url, { warn() {} }),
    api_key: upstream.api_key,
  })
  let problem: string | null = null
  await backend.readTraffic?.((told) => {
    problem = told
  })
  await backend.close()
  return problem
}

/** The host name whose addresses become separate upstreams; null if discovery is not configured. */
export function discoveredHost(config: UpstreamConfig): string | null {
  if (!('discover' in config) || config.base_url === null || config.discover === null) return null
  return new URL(config.base_url).hostname
}

export function batchApiOf(
  upstream: BatchApiConfig,
  clock: Clock,
  log: Pick<Log, 'warn'>,
): HttpBatchApi | AnthropicBatchApi {
  const { base_url, api_key, proxy, headers, timeout_ms } = upstream
  const calls = {
    ...{ base_url, api_key, proxy, headers, timeout_ms },
    ...secretsOf(upstream, log),
    keepFiles: upstream.keep_files,
    resultsFrom: upstream.results_from,
    now: () => clock.now(),
  }
  switch (upstream.type) {
    case 'anthropic-batch':
      return new AnthropicBatchApi(calls)
    case 'openai-batch': {
      const { completion_window, file_purpose, line_metadata: lineMetadata } = upstream
      return new HttpBatchApi({ ...calls, completion_window, file_purpose, lineMetadata })
    }
  }
}

/** The age in ms up to which upstreams of one server share the answer to a probe. */
const PROBE_SHARED_MS = 5_000
const PROBES_MAX = 1_000

function backendMaker(
  config: Config,
  { budget, clock, log }: UpstreamDeps,
  engines: Map<string, Engine>,
): (of: ServerConfig, address: string | null) => Backend {
  const machine = new Machine(config.engines, clock)

  const probes = new BoundedMap<string, { at: number; probe: Promise<ServerProbe> }>(PROBES_MAX)
  /** Makes upstreams of one server share its probes: it may serve thousands of models. */
  const sharingProbe = (backend: Backend, server: string): Backend => ({
    ...backend,
    probe: () => {
      const known = probes.get(server)
      if (known && clock.now() - known.at < PROBE_SHARED_MS) return known.probe
      const probe = backend.probe?.() ?? Promise.resolve({ isUp: null, reason: null })
      probes.set(server, { at: clock.now(), probe })
      return probe
    },
  })

  const client =
    (upstream: ServerUpstream, address: string | null = null) =>
    (access: Pick<EngineAccess, 'base_url'> & Partial<EngineAccess>, api_key: string | null): Backend => {
      const { name, headers } = upstream
      const backend = openaiBackend({
        ...clientOptions(upstream, access.base_url, log),
        name: address === null ? name : `${name}@${address}`,
        socket: access.socket ?? null,
        isOwn: access.isOwn ?? null,
        address,
        api_key,
        budget,
      })
      return sharingProbe(
        backend,
        JSON.stringify([access.base_url, address, headers, api_key, upstream.api_key_file]),
      )
    }

  /** The engine of an upstream; equal configurations share one. */
  const engineOf = (upstream: ServerUpstream, spec: EngineConfig): Engine => {
    const { name, model } = upstream
    const command = spec.command.map((word) => filled(word, { model }))
    const key = JSON.stringify({ ...spec, command })
    const known = engines.get(key)
    if (known) return known
    const engine = new Engine({
      name,
      model,
      spec,
      machine,
      clock,
      log,
      launch: launchEngine,
      output: outputFileOf(config.data_dir, name, model),
      newPlace,
      accessTo,
    })
    engines.set(key, engine)
    return engine
  }

  return (upstream, address) => {
    switch (upstream.type) {
      case 'sim': {
        const { name, latency_ms, faults, capacity, context_window } = upstream
        return simBackend({ name, latency_ms, faults, capacity, context_window })
      }
      case 'openai':
        if (upstream.engine !== null) return engineOf(upstream, upstream.engine).backend(client(upstream))
        return client(upstream, address)(upstream, upstream.api_key)
    }
  }
}

/** The secrets that an upstream's configuration has in files. */
export function secretsOf(
  {
    name,
    api_key_file,
    ...files
  }: Pick<ServerUpstream, 'name' | 'api_key_file' | 'ca_file' | 'client_cert_file' | 'client_key_file'>,
  log: Pick<Log, 'warn'>,
): { keyFile: SecretFiles<string> | null; certificates: () => Certificates } {
  const onProblem = (problem: string): void =>
    log.warn({ upstream: name, problem }, 'a secret in a file is not usable; the last good one stays in use')
  const certificates = certificateFiles(files, onProblem)
  return {
    keyFile: api_key_file === null ? null : keyFile(api_key_file, onProblem),
    certificates: () => certificates.read() ?? NO_CERTIFICATES,
  }
}
