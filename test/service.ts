// A whole service for tests, in this process: the real API over HTTP, a real worker, SQLite and a folder,
// before a model server that the test controls. Waiting is for events, never for time.

import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createKey } from '../src/admin/create-key.ts'
import { reconcile } from '../src/admin/reconcile.ts'
import { openStores, type Stores, storeHealth } from '../src/compose/stores.ts'
import { batchApiSecretsOf, modelsById } from '../src/compose/upstreams.ts'
import { makeReloadable, type WorkerHooks } from '../src/compose/worker.ts'
import type { Config } from '../src/config/config.ts'
import { loadConfig } from '../src/config/load.ts'
import { shownConfig } from '../src/config/shown-config.ts'
import { PROJECT_SCOPES, type Scope } from '../src/domain/api-key.ts'
import type { Log } from '../src/domain/log.ts'
import { buildServer } from '../src/http/server.ts'
import { readStatistics } from '../src/results/batch-statistics.ts'
import { readKey } from '../src/store/projects.ts'
import type { BatchRow } from '../src/store/schema.ts'
import type { Worker } from '../src/worker/worker.ts'
import { askApi, type Body, callApi, parsedLines, uploadForm } from './support/api.ts'
import { makeMigratedSqlite } from './support/migrated-sqlite.ts'

const SILENT: Log = { info() {}, warn() {}, error() {} }

export interface WireLine {
  id: string
  custom_id: string
  response: {
    status_code: number
    request_id: string
    body: {
      usage: { cost_usd: number; [key: string]: unknown }
      choices: { message: { content: string } }[]
      /** Of a message. */
      content?: { text: string }[]
      /** For strict clients. */
      error?: { code: string; message: string }
    }
  } | null
  error: { type: string; code: string; message: string; param?: string } | null
}

export interface WireBatch {
  id: string
  status: string
  input_file_id: string
  output_file_id: string | null
  error_file_id: string | null
  request_counts: { total: number; completed: number; failed: number }
  cost_usd: number
  cache_saved_usd?: number
  created: number
  expires_at: number
  [key: string]: unknown
}

export interface WireFile {
  id: string
  status: string
  status_details?: string
  line_count: number
  bytes: number
  [key: string]: unknown
}

/** Where services keep their things: lines of configuration, and the variables that belong to them. */
export interface Storage {
  yaml: string
  env: Record<string, string>
}

export class TestService implements AsyncDisposable {
  /** Asked for each service that starts in a folder of its own; SQLite and a folder unless a test file says else. */
  static storage: () => Promise<Storage> = async () => ({ yaml: '', env: {} })
  readonly folder: string
  readonly config: Config
  readonly url: string
  /** Whoever calls: another key may be put in its place. */
  key: string
  readonly stores: Stores
  worker: Worker
  /** The worker takes up the models of another configuration; the API keeps its own. */
  reload: (config: Config) => void
  /** Set by a test that spoils the stores on purpose. */
  tampered = false
  /** It counted lines that no commit has counted. */
  timelineTampered = false
  readonly #close: () => Promise<void>
  readonly #hooks: Pick<WorkerHooks, 'delivery' | 'discovery' | 'buckets' | 'onlyBatches'>
  readonly #log: Log
  readonly #endpoint: string
  readonly #ended = new Map<string, BatchRow>()
  #listeners: (() => void)[] = []
  #tasksDone = new Set<string>()

  private constructor(parts: {
    folder: string
    config: Config
    url: string
    key: string
    stores: Stores
    close: () => Promise<void>
    hooks: Pick<WorkerHooks, 'delivery' | 'discovery' | 'buckets' | 'onlyBatches'>
    log: Log
    endpoint: string
  }) {
    this.folder = parts.folder
    this.config = parts.config
    this.url = parts.url
    this.key = parts.key
    this.stores = parts.stores
    this.#close = parts.close
    this.#hooks = parts.hooks
    this.#log = parts.log
    this.#endpoint = parts.endpoint
    ;({ worker: this.worker, reload: this.reload } = this.#makeWorker())
  }

  /** `yaml` is the configuration; `data_dir` is set to a folder that is gone afterwards. */
  static async start(
    yaml: string,
    options: {
      worker?: boolean
      folder?: string
      delivery?: WorkerHooks['delivery']
      discovery?: WorkerHooks['discovery']
      onlyBatches?: Set<string>
      log?: Log
      requests_per_minute?: number
      /** Of its batches, where a test does not say. */
      endpoint?: string
      /** The name of the caller's project. */
      project?: string
      env?: Record<string, string>
      buckets?: WorkerHooks['buckets']
    } = {},
  ): Promise<TestService> {
    const folder = options.folder ?? (await mkdtemp(join(tmpdir(), 'offpeak-test-')))
    const file = join(folder, 'offpeak.yaml')
    const storage = await TestService.storage()
    await writeFile(file, `${storage.yaml}\n${yaml}\n`)
    const config = loadConfig({
      file,
      env: { ...storage.env, ...options.env },
      overrides: { data: join(folder, 'data'), log_level: 'silent' },
    })
    if ('path' in config.database) await makeMigratedSqlite(config.database.path)
    const stores = await openStores(config)
    const { key } = await createKey(stores.store, stores.store.clock, config.region, {
      project: options.project ?? `p${Math.random()}`,
      plan: config.plans.keys().next().value!,
    })
    let service: TestService | null = null
    const server = buildServer({
      store: stores.store,
      sealed: stores.sealed,
      clock: stores.store.clock,
      region: config.region,
      version: '0.0.0-test',
      settings: () => shownConfig(config),
      storeHealth: () => storeHealth(config, stores),
      plans: config.plans,
      models: modelsById(config.models),
      file_bytes_max: config.limits.file_bytes_max,
      line_bytes_max: config.limits.line_bytes_max,
      wait_for_file_ms: config.create.wait_for_file_ms,
      gather: { ms: config.requests.gather.seconds * 1000, lines: config.requests.gather.lines },
      requests_per_minute: options.requests_per_minute ?? null,
      webhooks: { ...config.webhooks, master: stores.master },
      batchApiSecrets: () => batchApiSecretsOf(config.models),
      buckets: () => config.buckets,
      wake: (news) => service?.worker.wake(news),
      ready: async () => true,
    })
    const url = await server.listen({ host: '127.0.0.1', port: 0 })
    const close = async (): Promise<void> => {
      await server.close()
      await stores.store.close()
      if (!options.folder) await rm(folder, { recursive: true, force: true })
    }
    service = new TestService({
      folder,
      config,
      url,
      key,
      stores,
      close,
      hooks: options,
      log: options.log ?? SILENT,
      endpoint: options.endpoint ?? '/v1/chat/completions',
    })
    if (options.worker !== false) await service.worker.start()
    return service
  }

  #makeWorker(
    config = this.config,
    onlyBatches: ReadonlySet<string> | undefined = this.#hooks.onlyBatches,
  ): ReturnType<typeof makeReloadable> {
    const hooks: WorkerHooks = {
      ...(this.#hooks.delivery && { delivery: this.#hooks.delivery }),
      ...(this.#hooks.discovery && { discovery: this.#hooks.discovery }),
      onlyBatches,
      buckets: this.#hooks.buckets,
      onEnded: (batch) => {
        this.#ended.set(batch.id, batch)
        this.#tell()
      },
      onTask: (task) => {
        this.#tasksDone.add(task.subject)
        this.#tell()
      },
    }
    return makeReloadable(config, this.stores, this.#log, hooks)
  }

  /** Another worker beside the first, with the same configuration unless told; whoever asks for it stops it. */
  async addWorker(config = this.config, onlyBatches?: ReadonlySet<string>): Promise<Worker> {
    const { worker } = this.#makeWorker(config, onlyBatches)
    await worker.start()
    return worker
  }

  /** A fresh worker, as after a restart. */
  async restartWorker(): Promise<void> {
    ;({ worker: this.worker, reload: this.reload } = this.#makeWorker())
    await this.worker.start()
  }

  #tell(): void {
    const listeners = this.#listeners
    this.#listeners = []
    for (const listener of listeners) listener()
  }

  /** Asks again after everything that the worker has done, until there is an answer. */
  async eventually<T>(ask: () => Promise<T | undefined>): Promise<T> {
    for (;;) {
      const told = new Promise<void>((resolve) => this.#listeners.push(resolve))
      const answer = await ask()
      if (answer !== undefined) return answer
      await told
    }
  }

  async #until<T>(ready: () => T | undefined): Promise<T> {
    for (;;) {
      const value = ready()
      if (value !== undefined) return value
      await new Promise<void>((resolve) => this.#listeners.push(resolve))
    }
  }

  /** A key of the same project that has the scope `operator`, too. */
  async operatorKey(): Promise<string> {
    return await this.issueKey([...PROJECT_SCOPES, 'operator'])
  }

  /** A key of the same project. */
  async issueKey(scopes: readonly Scope[]): Promise<string> {
    const { store } = this.stores
    const own = await readKey(store.read, `key_${this.key.split('_')[2]}`)
    assert.ok(own)
    const { name: project } = await store.read
      .selectFrom('projects')
      .select('name')
      .where('id', '=', own.project_id)
      .executeTakeFirstOrThrow()
    const order = { project, plan: 'payg', scopes }
    return (await createKey(store, store.clock, this.config.region, order)).key
  }

  async request(
    method: string,
    path: string,
    body?: Body,
    headers: Record<string, string> = {},
  ): Promise<Response> {
    return await askApi(this, method, path, body, { headers })
  }

  async json<T>(method: string, path: string, body?: Body): Promise<T> {
    return JSON.parse(await callApi(this, method, path, body)) as T
  }

  /** Uploads and waits until the file is judged. */
  async upload(content: Parameters<typeof uploadForm>[0], filename?: string): Promise<WireFile> {
    const file = await this.json<WireFile>('POST', '/v1/files', uploadForm(content, filename))
    await this.#until(() => (this.#tasksDone.has(file.id) ? true : undefined))
    return await this.json<WireFile>('GET', `/v1/files/${file.id}`)
  }

  async create(input_file_id: string, more: object = {}): Promise<WireBatch> {
    const window = [...this.config.plans.values()][0]!.completion_windows[0]!.text
    return await this.json<WireBatch>('POST', '/v1/batches', {
      input_file_id,
      endpoint: this.#endpoint,
      completion_window: window,
      ...more,
    })
  }

  /** Resolves with the batch as the API shows it once it has ended. */
  async ended(batch_id: string): Promise<WireBatch> {
    await this.#until(() => this.#ended.get(batch_id))
    return await this.get(batch_id)
  }

  async get(batch_id: string): Promise<WireBatch> {
    return await this.json<WireBatch>('GET', `/v1/batches/${batch_id}`)
  }

  /** Uploads, runs and waits. */
  async run(lines: readonly object[] | string | Buffer, more: object = {}): Promise<WireBatch> {
    const file = await this.upload(lines)
    if (file.status !== 'processed') throw new Error(`the file is ${file.status}: ${file.status_details}`)
    const batch = await this.create(file.id, more)
    return await this.ended(batch.id)
  }

  async content(file_id: string | null): Promise<string> {
    if (file_id === null) return ''
    return await callApi(this, 'GET', `/v1/files/${file_id}/content`)
  }

  async lines(file_id: string | null): Promise<WireLine[]> {
    return parsedLines(await this.content(file_id))
  }

  /** What the timeline of a batch adds up to is what the batch counts; sums end at the largest safe integer. */
  async #timelinesAgree(): Promise<void> {
    const { read } = this.stores.store
    for (const batch of await read.selectFrom('batches').selectAll().execute()) {
      const { points } = (await readStatistics(read, batch.id)).timeline
      const sum = (field: 'completed' | 'failed' | 'not_run' | 'cost_nanos'): number =>
        Math.min(
          Number.MAX_SAFE_INTEGER,
          points.reduce((total, point) => total + point[field], 0),
        )
      const { completed, failed, not_run, cost_nanos } = batch
      const counted = {
        ...{ completed: sum('completed'), failed: sum('failed') },
        ...{ not_run: sum('not_run'), cost_nanos: sum('cost_nanos') },
      }
      assert.deepEqual(counted, { completed, failed, not_run, cost_nanos }, `the timeline of ${batch.id}`)
    }
  }

  /** However a test treated its batches, the books balance in the end. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.worker.stop()
      if (!this.tampered) {
        const { mismatches } = await reconcile(this.stores)
        assert.deepEqual(mismatches, [], 'the books balance')
        if (!this.timelineTampered) await this.#timelinesAgree()
      }
    } finally {
      await this.#close()
    }
  }
}

export function line(custom_id: string, content = custom_id, body: object = {}): object {
  return {
    custom_id,
    method: 'POST',
    url: '/v1/chat/completions',
    body: { model: 'm', messages: [{ role: 'user', content }], ...body },
  }
}

/** One model `m` on one server, with fast retries. */
export function configFor(base_url: string, more = ''): string {
  return `
models:
  - id: m
    price: {input_per_mtok: 0.10, output_per_mtok: 0.40}
    upstreams: [{type: openai, base_url: "${base_url}", timeout: 5s}]
retry: {attempts_max: 3, backoff_min: 5ms, backoff_max: 20ms, outage_patience: 0ms}
worker: {flush_interval: 20ms, lease: 2s}
${more}`
}
