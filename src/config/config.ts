// Describes the configuration as the service uses it: checked, typed, defaults filled in, paths absolute, durations in
// milliseconds, sizes in bytes, prices in pico-dollars per token, secrets resolved. Only load.ts creates one. It
// contains secrets: never log it whole.

import { join } from 'node:path'
import type { CompatMode } from '../domain/api-key.ts'
import type { AllowedPrefix } from '../domain/bucket-url.ts'
import type { DeclaredEndpoint } from '../domain/endpoint.ts'
import type { HoursWindow } from '../domain/hours.ts'
import type { Model } from '../domain/model.ts'
import type { Price } from '../domain/money.ts'
import type { Plan } from '../domain/plan.ts'
import type { FaultRates } from '../domain/simulated-server.ts'
import type { S3Config } from './scalars.ts'
import type { ConfigFile } from './schema.ts'

type Unchanged =
  | 'region'
  | 'listen'
  | 'auth'
  | 'limits'
  | 'create'
  | 'metrics'
  | 'retry'
  | 'log'
  | 'retention'
  | 'webhooks'

export interface Config extends Pick<ConfigFile, Unchanged> {
  /** Calls per minute of a key, and of all keys of a project together; null: no limit. */
  rate_limit: { requests_per_minute: number | null; project_requests_per_minute: number | null }
  data_dir: string
  database: DatabaseConfig
  blobs: BlobsConfig
  /** That batches may take their input from and write their results to. */
  buckets: readonly BucketConfig[]
  plans: ReadonlyMap<string, Plan>
  /** Beside those that are built in. */
  endpoints: readonly DeclaredEndpoint[]
  models: readonly ModelConfig[]
  /** What servers that are started on demand may use of this machine. */
  engines: { gpus: readonly string[]; memory_bytes: number; run_ms_min: number }
  worker: ConfigFile['worker'] & { flush_interval_ms: number }
  /** From the variables of OpenTelemetry; null: nothing is traced. */
  tracing: TracingConfig | null
  /** OFFPEAK_MASTER_KEY as given; undefined: the key in data_dir is used, and created on first start. */
  master_key: string | undefined
}

type DatabaseConfig = { kind: 'sqlite'; path: string } | { kind: 'postgres'; url: string }

export type BlobsConfig = { kind: 'disk'; root: string } | S3Config

/** Which traces there are, and how they are exported. */
export interface TracingConfig {
  /** Whether a span follows the decision for its parent. */
  parent_based: boolean
  /** Of traces that begin here, in [0, 1]; of lines in sampled chunks as well. */
  ratio: number
  service_name: string
  /** Of the queue of ended spans. */
  export: { delay_ms: number; timeout_ms: number; queue_max: number; batch_max: number }
}

export type BucketConfig = S3Config & AllowedPrefix

export interface ModelConfig {
  model: Model
  /** At least one. */
  upstreams: readonly UpstreamConfig[]
  /** When lines go to higher tiers: after the lower ones were down so long (null: never for that), and at risk. */
  spill: { when_down_ms: number | null; when_at_risk: boolean }
  /** Where they are not, what its servers say of them counts. */
  endpoints_configured: boolean
}

export type UpstreamConfig = SimUpstream | OpenAiUpstream | BatchApiUpstream

/** A model server that the worker starts when lines wait for its model. */
export interface EngineConfig {
  /** `{port}`, `{socket}`, `{files}`, `{api_key}` and `{model}` are filled in. */
  command: readonly string[]
  /** The path that answers 200 once the server takes requests. */
  ready: string
  start_timeout_ms: number
  /** After so many failed starts in a row its lines fail; absent: by the rules for outages. */
  starts_max?: number
  idle_timeout_ms: number
  /** Variables beside those that every engine gets; filled in like the command. */
  env: Readonly<Record<string, string>>
  /** Names of variables of the service that it gets, too. */
  pass_env: readonly string[]
  /** Texts in the folder `{files}`, by name; filled in like the command. */
  files: Readonly<Record<string, string>>
  /** Of the machine, for as long as it runs. */
  gpus: number
  memory_bytes: number
}

interface UpstreamBase {
  /** Unique within its model; free of credentials; shown in audit records, logs and metrics. */
  name: string
  /** The upper bound of the adaptive concurrency. */
  concurrency_max: number
  /** Lines go to the lowest tier that can take them. */
  tier: number
  /** Null: the model's. */
  price: Price | null
  /** When it may be used; empty: always. */
  hours: readonly HoursWindow[]
}

interface SimUpstream extends UpstreamBase {
  type: 'sim'
  /** Uniformly distributed over [min, max]. */
  latency_ms: { min: number; max: number }
  /** The fraction of requests, 0 to 1, in which each fault is simulated; their sum is at most 1. */
  faults: FaultRates
  /** Requests in flight beyond which it answers 429; null: unbounded. */
  capacity: number | null
  /** Tokens beyond which it refuses a request, like a real server; null: unbounded. */
  context_window: number | null
}

/** A running server, or a server that is started on demand. Upstreams with equal engines share a server. */
export type OpenAiUpstream = OpenAiClient & {
  /** Null: it answers lines alone. */
  live: LiveConfig | null
} & (
    | {
        /** Without a slash at the end of its path: `http://127.0.0.1:8000/v1`. */
        base_url: string
        engine: null
      }
    | { base_url: null; engine: EngineConfig }
  )

/** A provider's batch API, or another Offpeak: a chunk becomes a batch there. */
export type BatchApiUpstream = OpenAiBatchUpstream | AnthropicBatchUpstream

interface BatchApiClient extends Omit<OpenAiClient, 'type' | 'discover' | 'connections' | GatewayKey> {
  base_url: string
  /** Whether its files are left at the batch API. */
  keep_files: boolean
  /** How many lines, and how many projected tokens of them, a batch there may have; null: a chunk. */
  lines_max: number | null
  tokens_max: number | null
  /** Origins beside its own that results may be read from: `https://bucket.example`. */
  results_from: readonly string[]
}

interface AnthropicBatchUpstream extends BatchApiClient {
  type: 'anthropic-batch'
}

interface OpenAiBatchUpstream extends BatchApiClient {
  type: 'openai-batch'
  /** What is asked of it, as it spells it. */
  completion_window: string
  /** The `purpose` of uploaded files; null: as the batch API has it. */
  file_purpose: string | null
  /** Whether lines carry entity, tags and conversation, as another Offpeak reads them. */
  line_metadata: boolean
  /** What its webhook requests are signed with; null: it sends none. */
  webhook_secret: string | null
}

/** A server with live traffic, which goes before lines. */
export interface LiveConfig {
  /** Where it shows its metrics; null: nowhere. */
  metrics_url: string | null
  /** How many requests may wait at it. */
  waiting_max: number
  /** How much of its KV cache may be in use, 0 to 1. */
  cache_max: number
  /** Added to lines; null: nothing is added. */
  priority: number | null
}

type GatewayKey = 'priority' | 'fairness_header' | 'service_tier'

interface OpenAiClient extends UpstreamBase {
  type: 'openai'
  /** The value of the variable that `api_key_env` names; null when none is named. */
  api_key: string | null
  /** Absolute paths; null where not configured. The key's file is read again when it changes. */
  api_key_file: string | null
  ca_file: string | null
  client_cert_file: string | null
  client_key_file: string | null
  /** The address of the proxy before the server, credentials included; null: none. */
  proxy: string | null
  /** `dns`: each address of its name is an upstream of its own. */
  discover: 'dns' | null
  /** Whether a connection to it serves one project only. */
  connections: 'per-project' | 'shared'
  /** Whether lines get a `priority` from their deadline, and whether the lower one is the sooner; null: they get none. */
  priority: 'deadline' | 'deadline-higher-first' | null
  /** The header that names the project of a line, in lower case; null: none does. */
  fairness_header: string | null
  /** Set in the body of every line; null: it is left as it is. */
  service_tier: string | null
  /** The server's name for the model. */
  model: string
  timeout_ms: number
  headers: Readonly<Record<string, string>>
}

/**
 * The files into which the first start of a service writes its first keys: `api-key`, whose answers are in the API's own
 * form, and one for each other form.
 */
export function apiKeyPath({ data_dir }: { data_dir: string }, compat: CompatMode | null = null): string {
  return join(data_dir, compat === null ? 'api-key' : `api-key-${compat}`)
}

/** A base URL as a name: host, port and path. */
export function addressOf(baseUrl: string): string {
  return baseUrl.replace(/^https?:\/\//, '').replace(/\?.*$/, '')
}

/** Whether it has model servers that each worker process would start. */
export function startsEngines({ models }: Pick<Config, 'models'>): boolean {
  return models.some(({ upstreams }) => upstreams.some((one) => one.type === 'openai' && one.engine !== null))
}
