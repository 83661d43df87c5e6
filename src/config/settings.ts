// Makes the configuration of the service from the checked values of file, variables and flags: units, paths, names, and
// the settings of proxies, buckets and traces that come from standard variables.
import { basename, resolve } from 'node:path'
import { durationMs, durationText } from '../domain/days.ts'
import { DEFAULT_ENDPOINT, ENDPOINT_PATHS } from '../domain/endpoint.ts'
import { metricsUrl } from '../domain/metrics-url.ts'
import { isOfKind, onlyEndpoint } from '../domain/model.ts'
import { dearest, FREE, type Price, type Rates } from '../domain/money.ts'
import { type Plan, QUOTAS_DEFAULT } from '../domain/plan.ts'
import { SIMULATED_FAULTS } from '../domain/simulated-server.ts'
import {
  addressOf,
  type BucketConfig,
  type Config,
  type EncryptedKey,
  type LiveConfig,
  type ModelConfig,
  type OtlpConfig,
  startsEngines,
  type TracingConfig,
  type UpstreamConfig,
  type WrittenLive,
} from './config.ts'
import { type S3Address, type S3Config, sizeText } from './scalars.ts'
import {
  BUILT_IN_PLANS,
  type ConfigFile,
  isLoopback,
  isProxyAddress,
  type ModelShape,
  machineOf,
} from './schema.ts'
import { present } from './sources.ts'

/** Makes the configuration. `now` in Unix ms; `cwd` is the folder of relative paths. */
export function toConfig(
  file: ConfigFile & { models: ModelShape[] },
  env: NodeJS.ProcessEnv,
  cwd: string,
  now: number,
  telemetry: Pick<Config, 'tracing' | 'audit_log'>,
): Config {
  const { database, blobs, worker } = file
  const dataDir = resolve(cwd, file.data_dir)
  const created = Math.floor(now / 1000)
  return {
    ...file,
    rate_limit: rateLimitOf(file.rate_limit),
    data_dir: dataDir,
    database:
      'path' in database
        ? {
            ...database,
            path: database.path ? resolve(cwd, database.path) : resolve(dataDir, 'offpeak.db'),
          }
        : database,
    blobs:
      blobs.kind === 'disk'
        ? { kind: 'disk', root: blobs.root ? resolve(cwd, blobs.root) : resolve(dataDir, 'blobs') }
        : withCredentials(blobs, env),
    buckets: file.buckets?.map((bucket) => bucketOf(bucket, env)) ?? [],
    plans: plansOf(file.plans),
    endpoints: (file.endpoints ?? []).map(({ projection, ...endpoint }) => ({
      ...endpoint,
      limit: projection.output_limit,
      input_projected: projection.input,
    })),
    models: file.models.map((model) => modelOf(model, env, cwd, created)),
    engines: machineOf(file.engines, env),
    worker: {
      ...worker,
      flush_interval_ms:
        worker.flush_interval_ms === 'auto' ? FLUSH_INTERVAL_MS[blobs.kind] : worker.flush_interval_ms,
    },
    ...telemetry,
    master_key: present(env.OFFPEAK_MASTER_KEY),
    encrypted_key: encryptedKeyOf(file.encrypted_key, env, cwd),
  }
}

/** The default flush intervals in ms: in a bucket each journal is a PUT that costs money. */
const FLUSH_INTERVAL_MS = { disk: 100, s3: 250 } as const

/** The factor from a key's rate limit to the limit of a project's keys together. */
const KEYS_OF_PROJECT = 4

function rateLimitOf({
  requests_per_minute: ofKey,
  project_requests_per_minute: ofProject,
}: ConfigFile['rate_limit']): Config['rate_limit'] {
  const byDefault = ofKey === null ? null : ofKey * KEYS_OF_PROJECT
  return {
    requests_per_minute: ofKey,
    project_requests_per_minute: ofProject === 'auto' ? byDefault : ofProject,
  }
}

/** Makes the settings of the encrypted master key; the schema has checked that required keys are present. */
function encryptedKeyOf(
  { encrypted, by, key_id, address, token_env, token_file, decrypt, ...rest }: ConfigFile['encrypted_key'],
  env: NodeJS.ProcessEnv,
  cwd: string,
): EncryptedKey | null {
  if (encrypted === null || by === null) return null
  const path = resolve(cwd, encrypted)
  const named = { path, key_id: key_id ?? '' }
  if (by === 'aws_kms') return { ...named, by, region: rest.region, address }
  if (by === 'command') return { path, by, decrypt: decrypt ?? [], encrypt: rest.encrypt }
  const token = {
    token: present(env[token_env]) ?? null,
    token_file: token_file && resolve(cwd, token_file),
  }
  return { ...named, by, address: address ?? '', mount: rest.mount, namespace: rest.namespace, ...token }
}

const FILE_RETENTION_MS = 90 * 86_400_000

/** The built-in plans with the configured changes, and the configured plans. */
function plansOf(configured: ConfigFile['plans']): Map<string, Plan> {
  const plans = new Map<string, Plan>()
  for (const [name, { windows, file_retention }] of Object.entries(BUILT_IN_PLANS))
    plans.set(name, {
      name,
      completion_windows: windows.map((text) => ({ text, ms: durationMs(text) ?? 0 })),
      file_retention_ms: durationMs(file_retention) ?? 0,
      retention: null,
      live_price_share: null,
      quotas: QUOTAS_DEFAULT,
    })
  for (const [name, configuredPlan] of Object.entries(configured)) {
    const { completion_windows, file_retention_ms, retention, live_price_share, quotas } = configuredPlan
    const known = plans.get(name)
    const kept_ms = file_retention_ms ?? known?.file_retention_ms ?? FILE_RETENTION_MS
    plans.set(name, {
      name,
      completion_windows: completion_windows ?? known?.completion_windows ?? [],
      // An upload without a batch also ends after this time.
      file_retention_ms: Math.min(kept_ms, retention?.grace_ms ?? kept_ms),
      retention,
      live_price_share,
      quotas,
    })
  }
  return plans
}

/** Makes the configuration of a model. `created`: Unix seconds. */
export function modelOf(
  { upstreams, price, spill, endpoints, ...model }: ModelShape,
  env: NodeJS.ProcessEnv,
  cwd: string,
  created: number,
): ModelConfig {
  const servers = distinctNames(upstreams.map((upstream) => upstreamOf(upstream, model.id, env, cwd)))
  const own = price === null ? null : priceOf(price)
  const only = onlyEndpoint(upstreams)
  return {
    model: {
      ...model,
      price: own ?? FREE,
      ...highestPricesOf(own ?? FREE, servers, spill),
      priced: own !== null || servers.some((server) => server.price !== null),
      // The simulator answers every endpoint.
      endpoints:
        endpoints ??
        (only
          ? [only.path]
          : upstreams.every((one) => isOfKind(one, 'simulator'))
            ? ENDPOINT_PATHS
            : [DEFAULT_ENDPOINT]),
      created,
    },
    upstreams: servers,
    spill,
    endpoints_configured: endpoints !== null || only !== undefined,
  }
}

/** The highest prices at an upstream that may get lines; nothing where they are the model's own. */
function highestPricesOf(
  own: Price,
  servers: readonly UpstreamConfig[],
  { when_down_ms, when_at_risk }: ModelShape['spill'],
): { dearest?: Price } {
  const lowest = Math.min(...servers.map(({ tier }) => tier))
  const mayAnswer = servers.filter(({ tier }) => tier === lowest || when_down_ms !== null || when_at_risk)
  const { above, service_tiers, cache_write_picos, cache_write_1h_picos } = own
  const isFlat = (above ?? service_tiers ?? cache_write_picos ?? cache_write_1h_picos) === undefined
  if (isFlat && mayAnswer.every(({ price }) => price === null)) return {}
  return { dearest: dearest(mayAnswer.map(({ price }) => price ?? own)) }
}

function priceOf({ above, service_tiers, ...rates }: NonNullable<ModelShape['price']>): Price {
  const flat = { input_picos: 0, output_picos: 0, ...ratesOf(rates) }
  const ofTiers = [...service_tiers].map(([tier, own]) => [tier, { ...flat, ...ratesOf(own) }] as const)
  const base = { ...flat, ...(ofTiers.length > 0 && { service_tiers: new Map(ofTiers) }) }
  if (above === null) return base
  let below: Rates = flat
  const steps = above.map(({ prompt_tokens, ...own }) => {
    below = { ...below, ...ratesOf(own) }
    return { ...below, prompt_tokens }
  })
  return { ...base, above: steps }
}

/** The rates of a price that the configuration gives. */
function ratesOf(given: { [Name in keyof Rates as PerMtok<Name>]-?: number | null }): Partial<Rates> {
  const picos: [keyof Rates, number | null][] = [
    ['input_picos', given.input_per_mtok],
    ['output_picos', given.output_per_mtok],
    ['cached_input_picos', given.cached_input_per_mtok],
    ['cache_write_picos', given.cache_write_per_mtok],
    ['cache_write_1h_picos', given.cache_write_1h_per_mtok],
  ]
  return Object.fromEntries(picos.filter(([, rate]) => rate !== null))
}

type PerMtok<Name extends string> = Name extends `${infer Kind}_picos` ? `${Kind}_per_mtok` : never

function upstreamOf(
  found: ModelShape['upstreams'][number],
  modelId: string,
  env: NodeJS.ProcessEnv,
  cwd: string,
): UpstreamConfig {
  const place = { price: found.price && priceOf(found.price), hours: found.hours ?? [] }
  if (isOfKind(found, 'simulator')) {
    const [min = 0, max = min] = found.latency_ms
    const faults = SIMULATED_FAULTS.filter((fault) => found.faults[fault] > 0)
    return {
      ...found,
      ...place,
      latency_ms: { min, max },
      faults: Object.fromEntries(faults.map((fault) => [fault, found.faults[fault]])),
    }
  }
  const at = (path: string | null): string | null => (path === null ? null : resolve(cwd, path))
  const client = {
    ...place,
    model: found.model ?? modelId,
    api_key: (found.api_key_env === null ? undefined : present(env[found.api_key_env])) ?? null,
    api_key_file: at(found.api_key_file),
    ca_file: at(found.ca_file),
    client_cert_file: at(found.client_cert_file),
    client_key_file: at(found.client_key_file),
  }
  if (isOfKind(found, 'batch-api')) {
    const { api_key_env, ...rest } = found
    const { base_url, proxy } = rest
    const ofBatchApi = {
      ...client,
      proxy: proxy === 'off' ? null : (proxy ?? proxyFromEnv(base_url, env)),
      name: rest.name ?? addressOf(base_url),
      results_from: rest.results_from ?? [],
    }
    if (!('webhook_secret_env' in rest)) return { ...rest, ...ofBatchApi }
    const { webhook_secret_env: name, webhook_secret, ...other } = rest
    const secret = webhook_secret ?? (name === null ? undefined : present(env[name])) ?? null
    return { ...other, ...ofBatchApi, webhook_secret: secret }
  }
  const { api_key_env, engine, base_url, live, ...rest } = found
  const server =
    engine === null
      ? { base_url: base_url ?? '', engine }
      : { base_url: null, engine: { ...engine, pass_env: engine.pass_env ?? [] } }
  return {
    ...rest,
    ...client,
    ...server,
    live: live && base_url !== null ? liveConfig(live, base_url) : null,
    proxy:
      base_url === null || rest.proxy === 'off' || rest.discover !== null
        ? null
        : (rest.proxy ?? proxyFromEnv(base_url, env)),
    name: rest.name ?? (engine === null ? addressOf(base_url ?? '') : basename(engine.command[0] ?? '')),
  }
}

function liveConfig({ metrics, ...rest }: WrittenLive, base_url: string): LiveConfig {
  return typeof metrics === 'string'
    ? { ...rest, metrics_url: metricsUrl(metrics, base_url), selector: null }
    : { ...rest, metrics_url: metrics.url, selector: metrics.promql }
}

/** Gives upstreams of one model distinct names, though their addresses may be equal. */
function distinctNames(upstreams: readonly UpstreamConfig[]): UpstreamConfig[] {
  const seen = new Map<string, number>()
  return upstreams.map((upstream) => {
    const count = (seen.get(upstream.name) ?? 0) + 1
    seen.set(upstream.name, count)
    return count === 1 ? upstream : { ...upstream, name: `${upstream.name}#${count}` }
  })
}

// Checks that concern more than one section: values that must be consistent with each other.

/** Checks for values that contradict each other; one sentence for each pair. */
export function crossCheck(config: Config): string[] {
  const problems: string[] = []
  const { worker, retry, retention, limits } = config

  if (retry.backoff_min_ms > retry.backoff_max_ms) {
    problems.push(
      `retry.backoff_min: ${durationText(retry.backoff_min_ms)} is longer than retry.backoff_max, ${durationText(retry.backoff_max_ms)}`,
    )
  }
  // A worker that flushes on time must not lose its leases to one late heartbeat.
  if (worker.lease_ms < 2 * worker.flush_interval_ms) {
    problems.push(
      `worker.lease: ${durationText(worker.lease_ms)} is less than twice worker.flush_interval, ${durationText(worker.flush_interval_ms)}`,
    )
  }
  if (limits.line_bytes_max > limits.file_bytes_max) {
    problems.push(
      `limits.line_bytes_max: ${sizeText(limits.line_bytes_max)} is more than limits.file_bytes_max, ${sizeText(limits.file_bytes_max)}`,
    )
  }
  for (const plan of config.plans.values()) {
    if (plan.file_retention_ms > retention.audit_ms) {
      problems.push(
        `retention.audit: ${durationText(retention.audit_ms)} is shorter than plans.${plan.name}.file_retention, ${durationText(plan.file_retention_ms)}; audit records outlive the files`,
      )
    }
  }
  if (startsEngines(config) && typeof worker.processes === 'number' && worker.processes > 1)
    problems.push(
      `worker.processes: ${worker.processes} processes would start every engine as many times; leave it out, or set 1`,
    )
  return problems
}

// The default proxy of a model server: as HTTPS_PROXY, HTTP_PROXY and NO_PROXY say, in capitals or not. Servers on this
// machine never have such a proxy.

/** The address of the proxy for a base URL, from the environment; null where there is none. */
export function proxyFromEnv(base_url: string, env: NodeJS.ProcessEnv): string | null {
  const url = new URL(base_url)
  const either = (name: string): string | undefined => present(env[name]) ?? present(env[name.toUpperCase()])
  const proxy = either(url.protocol === 'https:' ? 'https_proxy' : 'http_proxy') ?? either('all_proxy')
  if (proxy === undefined || isLoopback(url.hostname)) return null
  if (isExcepted(url, either('no_proxy') ?? '')) return null
  const address = proxy.includes('://') ? proxy : `http://${proxy}`
  return isProxyAddress(address) ? address : null
}

/** Whether a list names the host of a URL: `example.com` and `.example.com` include all names below, `*` all hosts. */
function isExcepted({ hostname, port, protocol }: URL, list: string): boolean {
  const ownPort = port || (protocol === 'https:' ? '443' : '80')
  return list.split(/[\s,]+/).some((entry) => {
    if (entry === '*') return true
    const [, name = '', onPort] = /^\*?\.?(.*?)(?::(\d+))?$/.exec(entry.toLowerCase()) ?? []
    if (name === '' || (onPort !== undefined && onPort !== ownPort)) return false
    return hostname === name || hostname.endsWith(`.${name}`)
  })
}

function bucketOf(
  {
    url,
    access_key_id_env: access_key_id,
    secret_access_key_env: secret_access_key,
    session_token_env,
    ...allowed
  }: NonNullable<ConfigFile['buckets']>[number],
  env: NodeJS.ProcessEnv,
): BucketConfig {
  const isOwn = access_key_id !== AWS_VARIABLES.access_key_id
  const session_token = session_token_env ?? (isOwn ? null : AWS_VARIABLES.session_token)
  return { ...withCredentials(url, env, { access_key_id, secret_access_key, session_token }), ...allowed }
}

const AWS_VARIABLES = {
  access_key_id: 'AWS_ACCESS_KEY_ID',
  secret_access_key: 'AWS_SECRET_ACCESS_KEY',
  session_token: 'AWS_SESSION_TOKEN',
}

/** Adds the credentials to a bucket, if `variables` have them. */
function withCredentials(
  bucket: S3Address,
  env: NodeJS.ProcessEnv,
  variables: Omit<typeof AWS_VARIABLES, 'session_token'> & { session_token: string | null } = AWS_VARIABLES,
): S3Config {
  const { access_key_id, secret_access_key, session_token } = variables
  return {
    ...bucket,
    region: bucket.region ?? present(env.AWS_REGION) ?? present(env.AWS_DEFAULT_REGION) ?? 'us-east-1',
    access_key_id: present(env[access_key_id]) ?? null,
    secret_access_key: present(env[secret_access_key]) ?? null,
    session_token: session_token === null ? null : (present(env[session_token]) ?? null),
  }
}

// Decides by the standard variables of OpenTelemetry whether there are traces and audit logs, and which. The exporters read
// their own variables (addresses, headers, certificates).

const SAMPLERS: Readonly<Record<string, number | null>> = { always_on: 1, always_off: 0, traceidratio: null }
const DEFAULT_SAMPLER = 'parentbased_always_on'

/** The prefix of each signal's variables for its queue, and the time in ms for which a queue gathers by default. */
const QUEUES = {
  TRACES: { prefix: 'BSP', delay_ms: 5_000 },
  LOGS: { prefix: 'BLRP', delay_ms: 1_000 },
}

/** Reads the settings of a signal; null if it is off, the default. Adds errors to `problems`. */
function otlpFromEnv(
  env: NodeJS.ProcessEnv,
  signal: keyof typeof QUEUES,
  problems: string[],
): OtlpConfig | null {
  const read = (name: string): string | undefined => present(env[name])
  const problem = (text: string): void => {
    if (!problems.includes(text)) problems.push(text)
  }
  const exporter = read(`OTEL_${signal}_EXPORTER`)?.toLowerCase()
  const endpoint = read(`OTEL_EXPORTER_OTLP_${signal}_ENDPOINT`) ?? read('OTEL_EXPORTER_OTLP_ENDPOINT')
  if (read('OTEL_SDK_DISABLED')?.toLowerCase() === 'true' || exporter === 'none') return null
  if (exporter === undefined && endpoint === undefined) return null
  if (exporter !== undefined && exporter !== 'otlp')
    problem(`OTEL_${signal}_EXPORTER: ${JSON.stringify(exporter)} is not supported; use otlp, or none`)
  if (endpoint !== undefined && !/^https?:\/\//.test(endpoint))
    problem('OTEL_EXPORTER_OTLP_ENDPOINT: not an http:// or https:// URL')
  const protocol = read(`OTEL_EXPORTER_OTLP_${signal}_PROTOCOL`) ?? read('OTEL_EXPORTER_OTLP_PROTOCOL')
  if (protocol === 'grpc')
    problem('OTEL_EXPORTER_OTLP_PROTOCOL: grpc is not supported; use http/json and the port for HTTP (4318)')
  const { prefix, delay_ms } = QUEUES[signal]
  const count = (what: string, fallback: number): number => {
    const text = read(`OTEL_${prefix}_${what}`)
    const value = Number(text ?? fallback)
    if (Number.isInteger(value) && value > 0) return value
    problem(`OTEL_${prefix}_${what}: must be a positive integer, not ${JSON.stringify(text)}`)
    return fallback
  }
  const queue_max = count('MAX_QUEUE_SIZE', 2048)
  return {
    service_name: read('OTEL_SERVICE_NAME') ?? 'offpeak',
    export: {
      delay_ms: count('SCHEDULE_DELAY', delay_ms),
      timeout_ms: count('EXPORT_TIMEOUT', 30_000),
      queue_max,
      batch_max: Math.min(queue_max, count('MAX_EXPORT_BATCH_SIZE', 512)),
    },
  }
}

/** Reads the settings of traces and audit logs. Adds errors to `problems`. */
export function telemetryFromEnv(
  env: NodeJS.ProcessEnv,
  problems: string[],
): Pick<Config, 'tracing' | 'audit_log'> {
  const traces = otlpFromEnv(env, 'TRACES', problems)
  const { OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG } = env
  return {
    tracing: traces && {
      ...traces,
      ...sampler(present(OTEL_TRACES_SAMPLER) ?? DEFAULT_SAMPLER, present(OTEL_TRACES_SAMPLER_ARG), problems),
    },
    audit_log: otlpFromEnv(env, 'LOGS', problems),
  }
}

function sampler(
  name: string,
  argument: string | undefined,
  problems: string[],
): Pick<TracingConfig, 'parent_based' | 'ratio'> {
  const parent_based = name.startsWith('parentbased_')
  const root = SAMPLERS[name.replace(/^parentbased_/, '')]
  if (root === undefined) {
    const known = Object.keys(SAMPLERS).flatMap((one) => [one, `parentbased_${one}`])
    problems.push(
      `OTEL_TRACES_SAMPLER: ${JSON.stringify(name)} is not supported; use one of ${known.join(', ')}`,
    )
    return { parent_based, ratio: 0 }
  }
  if (root !== null) return { parent_based, ratio: root }
  const ratio = Number(argument ?? 1)
  if (!(ratio >= 0 && ratio <= 1))
    problems.push(`OTEL_TRACES_SAMPLER_ARG: must be a number from 0 to 1, not ${JSON.stringify(argument)}`)
  return { parent_based, ratio }
}
