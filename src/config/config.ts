// What the rest of the service gets to see of its configuration: checked, typed, defaults filled in, paths
// absolute, durations in milliseconds, sizes in bytes, prices in pico-dollars per token, secrets resolved.
// Only load.ts makes one. It holds secrets: never log it whole.

import type { Model } from '../domain/model.ts'
import type { Plan } from '../domain/plan.ts'
import type { FaultRates } from '../domain/simulated-fault.ts'

export interface Config {
  /** Part of every key and object: lower-case letters, digits and dashes. */
  region: string
  /**
   * Port 0 lets the system pick one. `stop_delay_ms`: how long an API that is asked to stop goes on answering,
   * no longer ready, so that balancers can look elsewhere.
   */
  listen: { host: string; port: number; stop_delay_ms: number }
  data_dir: string
  database: DatabaseConfig
  blobs: BlobsConfig
  /** Per API key; null: no rate limit. */
  rate_limit: { requests_per_minute: number | null }
  plans: ReadonlyMap<string, Plan>
  limits: { file_bytes_max: number; lines_max: number; line_bytes_max: number }
  /** How long creating a batch waits for a file that is being validated. */
  create: { wait_for_file_ms: number }
  models: readonly ModelConfig[]
  worker: WorkerConfig
  metrics: {
    /** Where a process shows what it measures, on `listen.host`; `auto`: as its role has it. */
    port: number | 'auto' | 'off'
  }
  retry: RetryConfig
  log: { level: LogLevel }
  retention: { audit_ms: number }
  webhooks: { allow_private_networks: boolean }
  /** OFFPEAK_MASTER_KEY as given; undefined: the key kept in data_dir is used, and made on first start. */
  master_key: string | undefined
}

export type DatabaseConfig = { kind: 'sqlite'; path: string } | { kind: 'postgres'; url: string }

export type BlobsConfig = { kind: 'disk'; root: string } | S3Config

export interface S3Config {
  kind: 's3'
  bucket: string
  /** Without slashes at its ends; '' when the whole bucket is ours. */
  prefix: string
  /** Base URL of an S3-compatible server; null: AWS itself. */
  endpoint: string | null
  region: string
  /** `endpoint/bucket/key` rather than `bucket.endpoint/key`. */
  path_style: boolean
  access_key_id: string
  secret_access_key: string
  session_token: string | null
}

export interface WorkerConfig {
  /** Worker processes beside the API of `serve`; `auto`: by the machine's cores. */
  processes: number | 'auto'
  /** Lines in flight at once in one `serve` or one `worker`, over all upstreams. */
  concurrency_max: number
  /** How long a chunk stays claimed by a worker that shows no sign of life. */
  lease_ms: number
  /** How long lines in flight may take to finish once the process is asked to stop. */
  drain_ms: number
  /** Finished lines held in memory until their chunk is sealed; beyond it they wait in journals. */
  memory_bytes: number
  /** The longest that a finished line waits for its commit. */
  flush_interval_ms: number
}

export interface RetryConfig {
  /** Attempts per line that fail through its own fault, the first included. */
  attempts_max: number
  backoff_min_ms: number
  backoff_max_ms: number
  /** How long an upstream may be gone before its lines are given up. */
  outage_patience_ms: number
  /** How often a line may be throttled; four times as much while others find room. */
  throttled_attempts_max: number
  /** The share of the completion window that a line may wait because it was throttled. */
  throttled_share: number
}

export const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const
export type LogLevel = (typeof LOG_LEVELS)[number]

export interface ModelConfig {
  model: Model
  /** At least one, in the order of preference. */
  upstreams: readonly UpstreamConfig[]
}

export type UpstreamConfig = SimUpstream | OpenAiUpstream

interface UpstreamBase {
  /** Unique within its model; free of credentials; shown in audit records, logs and metrics. */
  name: string
  /** The bound within which concurrency finds its own level. */
  concurrency_max: number
}

export interface SimUpstream extends UpstreamBase {
  type: 'sim'
  /** Drawn evenly from [min, max]. */
  latency_ms: { min: number; max: number }
  /** The fraction of requests, 0 to 1, that meets each fault; their sum is at most 1. */
  faults: FaultRates
  /** Requests in flight beyond which it answers 429; null: unbounded. */
  capacity: number | null
  /** Tokens beyond which it refuses, like a real server; null: it takes anything. */
  context_window: number | null
}

export interface OpenAiUpstream extends UpstreamBase {
  type: 'openai'
  /** Without a slash at its end: `http://127.0.0.1:8000/v1`. */
  base_url: string
  /** The value of the variable that `api_key_env` names; null when none is named. */
  api_key: string | null
  /** What the server calls the model. */
  model: string
  timeout_ms: number
  headers: Readonly<Record<string, string>>
}
