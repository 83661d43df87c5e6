// Describes the configuration as the service uses it: checked, typed, defaults filled in, paths absolute, durations in
// milliseconds, sizes in bytes, prices in pico-dollars per token, secrets resolved. Only load.ts creates one. It
// contains secrets: never log it whole.

import { join } from 'node:path'
import type { CompatMode } from '../domain/api-key.ts'
import type { AllowedPrefix } from '../domain/bucket-url.ts'
import type { DeclaredEndpoint } from '../domain/endpoint.ts'
import type { HoursWindow } from '../domain/hours.ts'
import type { Model, TypeOf } from '../domain/model.ts'
import type { Price } from '../domain/money.ts'
import type { Plan } from '../domain/plan.ts'
import type { FaultRates } from '../domain/simulated-server.ts'
import type { DatabaseAddress, S3Config } from './scalars.ts'
import type { ConfigFile, ModelShape } from './schema.ts'

type Unchanged =
  | 'region'
  | 'listen'
  | 'auth'
  | 'limits'
  | 'create'
  | 'requests'
  | 'metrics'
  | 'retry'
  | 'log'
  | 'retention'
  | 'webhooks'

export interface Config extends Pick<ConfigFile, Unchanged> {
  /** The limit of calls per minute by one key, and by all keys of a project together; null: no limit. */
  rate_limit: { requests_per_minute: number | null; project_requests_per_minute: number | null }
  data_dir: string
  database: DatabaseConfig
  blobs: BlobsConfig
  /** The buckets from which batches may read their input, and to which they may write their results. */
  buckets: readonly BucketConfig[]
  plans: ReadonlyMap<string, Plan>
  /** The declared endpoints, beside the built-in ones. */
  endpoints: readonly DeclaredEndpoint[]
  models: readonly ModelConfig[]
  /** The share of this machine's GPUs and memory for servers that are started on demand. */
  engines: { gpus: readonly string[]; memory_bytes: number; run_ms_min: number }
  worker: ConfigFile['worker'] & { flush_interval_ms: number }
  /** The tracing settings from OpenTelemetry's variables; null: tracing is off. */
  tracing: TracingConfig | null
  /** The export of calls and lines to a collector; null: there is none. */
  audit_log: OtlpConfig | null
  /** The text of OFFPEAK_MASTER_KEY; undefined: the key is in data_dir, and created on first start. */
  master_key: string | undefined
  /** The encrypted master key, which replaces `master_key`; null: none. */
  encrypted_key: EncryptedKey | null
}

/** The file of an encrypted master key, and the service or program that decrypts it. */
export type EncryptedKey = { path: string } & (
  | { by: 'aws_kms'; key_id: string; region: string | null; address: string | null }
  | {
      by: 'vault_transit'
      address: string
      mount: string
      key_id: string
      namespace: string | null
      token: string | null
      /** The file of Vault's token; wins over `token`. */
      token_file: string | null
    }
  | { by: 'command'; decrypt: readonly string[]; encrypt: readonly string[] | null }
)

/** The database: a file of this machine, or a server that several machines may share. */
type DatabaseConfig =
  | With<Extract<DatabaseAddress, { path: unknown }>, { path: string }>
  | Extract<DatabaseAddress, { url: string }>

export type BlobsConfig = { kind: 'disk'; root: string } | S3Config

/** The settings of a signal of OpenTelemetry. */
export interface OtlpConfig {
  service_name: string
  /** The limits of the queue of spans or records that wait for their export. */
  export: { delay_ms: number; timeout_ms: number; queue_max: number; batch_max: number }
}

/** The settings of tracing and its export. */
export interface TracingConfig extends OtlpConfig {
  /** Whether a span follows the sampling decision for its parent. */
  parent_based: boolean
  /** The share of traces that are sampled, in [0, 1]; also of lines in sampled chunks. */
  ratio: number
}

export type BucketConfig = S3Config & AllowedPrefix

export interface ModelConfig {
  model: Model
  /** The upstreams of the model, at least one. */
  upstreams: readonly UpstreamConfig[]
  /** The times of spilling to higher tiers: after some ms of outage of the lower ones (null: never), and at risk. */
  spill: { when_down_ms: number | null; when_at_risk: boolean }
  /** Whether endpoints are configured; otherwise the servers' lists of models count. */
  endpoints_configured: boolean
}

// A type of upstream is what the file says of it, with its prices, names, paths and secrets resolved.

type Written<T> = Extract<ModelShape['upstreams'][number], { type: T }>
type With<Keys, Resolved> = Keys extends unknown
  ? Omit<Keys, keyof Resolved | `${string}_env`> & Resolved
  : never

interface Place {
  /** The name of the upstream in audit records, logs and metrics: unique within its model, free of credentials. */
  name: string
  /** The price of the upstream; null: the model's. */
  price: Price | null
  /** The opening hours of the upstream; empty: always open. */
  hours: readonly HoursWindow[]
}

interface Client extends Place {
  /** The value of the variable that `api_key_env` names; null when none is named. */
  api_key: string | null
  /** The address of the proxy before the server, credentials included; null: none. */
  proxy: string | null
  /** The name by which the upstream's server knows the model. */
  model: string
}

export type UpstreamConfig = SimUpstream | ServerUpstream | BatchApiUpstream

/** A simulated server. Latencies are uniformly distributed. */
type SimUpstream = With<
  Written<TypeOf<'simulator'>>,
  Place & { latency_ms: { min: number; max: number }; faults: FaultRates }
>

/** A model server that the worker starts when lines wait for its model. */
export type EngineConfig = With<
  NonNullable<Written<TypeOf<'server'>>['engine']>,
  {
    command: readonly string[]
    pass_env: readonly string[]
    /** The number of failed starts in a row after which its lines fail; absent: the rules for outages decide. */
    starts_max?: number
  }
>

/** Live traffic as the file has it. */
export type WrittenLive = NonNullable<Written<TypeOf<'server'>>['live']>

/**
 * A server whose live traffic goes before lines. `metrics_url`: null where it has no metrics. `selector`: of its series in
 * the Prometheus at `metrics_url`; null: that is its own page of metrics.
 */
export interface LiveConfig extends Omit<WrittenLive, 'metrics'> {
  metrics_url: string | null
  selector: string | null
}

/** A running server, or a server that is started on demand. Upstreams with equal engines share a server. */
export type ServerUpstream = With<
  Written<TypeOf<'server'>>,
  Client & { live: LiveConfig | null; base_url: string | null; engine: EngineConfig | null }
> &
  ({ base_url: string; engine: null } | { base_url: null; engine: EngineConfig })

/** A provider's batch API, or another Offpeak, where a chunk becomes a batch. */
export type BatchApiUpstream = With<
  Written<TypeOf<'batch-api'>>,
  Client & { results_from: readonly string[] }
>

/**
 * The files of the first keys that the first start of a service creates: `api-key`, with answers in the API's own
 * format, and one for each other format.
 */
export function apiKeyPath({ data_dir }: { data_dir: string }, compat: CompatMode | null = null): string {
  return join(data_dir, compat === null ? 'api-key' : `api-key-${compat}`)
}

/** A base URL as a name: host, port and path. */
export function addressOf(baseUrl: string): string {
  return baseUrl.replace(/^https?:\/\//, '').replace(/\?.*$/, '')
}

/** Whether the configuration has model servers that each worker process would start. */
export function startsEngines({ models }: Pick<Config, 'models'>): boolean {
  return models.some(({ upstreams }) => upstreams.some((one) => 'engine' in one && one.engine !== null))
}
