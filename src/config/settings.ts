// The second step: the sources as checked and typed settings. What is still missing is only what has to be
// looked up in the rest of the environment (secrets.ts).
import { resolve } from 'node:path'
import { LINE_NUMBER_MAX } from '../domain/ids.ts'
import { type Config, LOG_LEVELS } from './config.ts'
import { anyText, duration, flag, fraction, integer, type Kind, oneOf, size, text } from './kinds.ts'
import { type ModelSettings, readModels } from './read-models.ts'
import { readPlans } from './read-plans.ts'
import { type BlobsSettings, blobsKind, databaseKind } from './read-stores.ts'
import type { Section } from './section.ts'

export interface Settings extends Omit<Config, 'blobs' | 'models' | 'master_key'> {
  blobs: BlobsSettings
  models: readonly ModelSettings[]
}

/** No underscore: in a key, it ends the region. */
const REGION = text(
  /^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$/,
  'up to 32 lower-case letters, digits and dashes, such as eu-central',
)

const REQUESTS_PER_MINUTE: Kind<number | null> = {
  expected: 'a whole number, or 0 or off for no rate limit',
  scalars: ['number', 'string', 'boolean'],
  read: (found) => (/^(0|off|false)$/.test(found) ? null : integer(1).read(found)),
}

const METRICS_PORT: Kind<number | 'auto' | 'off'> = {
  expected: 'a port from 0 to 65535, auto or off',
  scalars: ['number', 'string', 'boolean'],
  read(found) {
    if (/^(off|false)$/.test(found)) return 'off'
    return found === 'auto' ? 'auto' : integer(0, 65_535).read(found)
  },
}

const PROCESSES: Kind<number | 'auto'> = {
  expected: 'a whole number from 1 to 64, or auto',
  scalars: ['number', 'string'],
  read: (found) => (found === 'auto' ? 'auto' : integer(1, 64).read(found)),
}

const MiB = 2 ** 20

/** `now` in Unix ms; relative paths are taken from `cwd`. */
export function readSettings(root: Section, cwd: string, now: number): Settings {
  const data_dir = resolve(cwd, root.value('data_dir', anyText, './offpeak-data'))
  return {
    region: root.value('region', REGION, 'local'),
    listen: root.section('listen', (listen) => ({
      host: listen.value('host', anyText, '127.0.0.1'),
      port: listen.value('port', integer(0, 65_535), 8080),
      stop_delay_ms: listen.value('stop_delay', duration(0), 5_000),
    })),
    data_dir,
    database: root.value('database', databaseKind(data_dir, cwd), {
      kind: 'sqlite',
      path: resolve(data_dir, 'offpeak.db'),
    }),
    blobs: root.value('blobs', blobsKind(data_dir, cwd), { kind: 'disk', root: resolve(data_dir, 'blobs') }),
    rate_limit: root.section('rate_limit', (rate) => ({
      requests_per_minute: rate.value('requests_per_minute', REQUESTS_PER_MINUTE, 6000),
    })),
    plans: readPlans(root),
    limits: root.section('limits', (limits) => ({
      file_bytes_max: limits.value('file_bytes_max', size(1), 10 * 2 ** 30),
      lines_max: limits.value('lines_max', integer(1, LINE_NUMBER_MAX), 10_000_000),
      line_bytes_max: limits.value('line_bytes_max', size(1), 8 * MiB),
    })),
    create: root.section('create', (create) => ({
      wait_for_file_ms: create.value('wait_for_file', duration(0), 10_000),
    })),
    models: readModels(root, Math.floor(now / 1000)),
    worker: root.section('worker', (worker) => ({
      processes: worker.value('processes', PROCESSES, 'auto'),
      concurrency_max: worker.value('concurrency_max', integer(1), 2048),
      lease_ms: worker.value('lease', duration(100), 10_000),
      drain_ms: worker.value('drain', duration(0), 8000),
      memory_bytes: worker.value('memory', size(1), 64 * MiB),
      flush_interval_ms: worker.value('flush_interval', duration(1), 250),
    })),
    metrics: root.section('metrics', (metrics) => ({ port: metrics.value('port', METRICS_PORT, 'auto') })),
    retry: root.section('retry', (retry) => ({
      attempts_max: retry.value('attempts_max', integer(1, 1000), 5),
      backoff_min_ms: retry.value('backoff_min', duration(1), 500),
      backoff_max_ms: retry.value('backoff_max', duration(1), 30_000),
      outage_patience_ms: retry.value('outage_patience', duration(0), 10 * 60_000),
      throttled_attempts_max: retry.value('throttled_attempts_max', integer(1, 1_000_000), 60),
      throttled_share: retry.value('throttled_share', fraction, 0.5),
    })),
    log: root.section('log', (log) => ({ level: log.value('level', oneOf(LOG_LEVELS), 'info') })),
    retention: root.section('retention', (retention) => ({
      audit_ms: retention.value('audit', duration(1), 730 * 86_400_000),
    })),
    webhooks: root.section('webhooks', (webhooks) => ({
      allow_private_networks: webhooks.value('allow_private_networks', flag, false),
    })),
  }
}
