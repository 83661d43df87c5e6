// The real server on a free port over a real database and real blobs, in a temporary folder.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import { createKey, type IssuedKey } from '../../src/admin/create-key.ts'
import type { DiskBlobs } from '../../src/blobs/disk/disk-blobs.ts'
import { masterKeyFromText } from '../../src/blobs/master-key.ts'
import { sealBlobs } from '../../src/blobs/sealed.ts'
import type { Scope } from '../../src/domain/api-key.ts'
import type { Model } from '../../src/domain/model.ts'
import { picosPerToken } from '../../src/domain/money.ts'
import { type Plan, QUOTAS_DEFAULT } from '../../src/domain/plan.ts'
import type { App } from '../../src/http/route.ts'
import { buildServer, type ServerDependencies } from '../../src/http/server.ts'
import type { TokenSums } from '../../src/jsonl/projection.ts'
import { insertBlobs } from '../../src/store/blobs.ts'
import { markProcessed } from '../../src/store/files.ts'
import { readRow } from '../../src/store/rows.ts'
import { sqliteStore } from '../../src/store/sqlite/store.ts'
import { type TestClock, testClock } from '../fakes/clock.ts'
import { uploadForm } from './api.ts'
import { Contract } from './contract.ts'
import { makeMigratedSqlite } from './migrated-sqlite.ts'
import { temporaryDisk } from './temporary-disk.ts'

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS

export const TEST_PLANS: ReadonlyMap<string, Plan> = new Map([
  [
    'payg',
    {
      name: 'payg',
      completion_windows: [{ text: '24h', ms: DAY_MS }],
      file_retention_ms: 90 * DAY_MS,
      retention: null,
      live_price_share: null,
      quotas: QUOTAS_DEFAULT,
    },
  ],
  [
    'enterprise',
    {
      name: 'enterprise',
      completion_windows: [
        { text: '4h', ms: 4 * HOUR_MS },
        { text: '24h', ms: DAY_MS },
      ],
      file_retention_ms: 395 * DAY_MS,
      retention: null,
      live_price_share: null,
      quotas: QUOTAS_DEFAULT,
    },
  ],
])

function model(id: string, priced: boolean): Model {
  return {
    id,
    context_window: 131_072,
    max_output_tokens: 4096,
    price: priced
      ? { input_picos: picosPerToken(0.1), output_picos: picosPerToken(0.4) }
      : { input_picos: 0, output_picos: 0 },
    priced,
    supports: { structured_output: true, tools: false },
    endpoints: ['/v1/chat/completions'],
    created: 1_700_000_000,
  }
}

const TEST_MODELS = new Map(['sim-1', 'org/large', 'free'].map((id) => [id, model(id, id !== 'free')]))

type JsonObject = Record<string, unknown>

/** A response, read whole. */
export class Answer {
  readonly status: number
  readonly headers: Headers
  readonly text: string
  /** The body as a JSON object; empty where it is none. */
  readonly json: JsonObject

  constructor(status: number, headers: Headers, text: string) {
    this.status = status
    this.headers = headers
    this.text = text
    const isJson = text !== '' && /^application\/json\b/.test(headers.get('content-type') ?? '')
    this.json = isJson ? object(JSON.parse(text)) : {}
  }

  get error(): JsonObject {
    return object(this.json.error)
  }
  /** `404 file_not_found`, or just `200`. */
  get outcome(): string {
    if (this.status < 400 || this.text === '') return String(this.status)
    // Clients of Anthropic's API find the code in the details.
    return `${this.status} ${this.error.code ?? object(this.error.details).error_code}`
  }
  get id(): string {
    return String(this.json.id)
  }
  get data(): JsonObject[] {
    assert(Array.isArray(this.json.data))
    return this.json.data.map(object)
  }
  get ids(): string[] {
    return this.data.map((item) => String(item.id))
  }
  get request_id(): string {
    return this.headers.get('x-service-request-id') ?? ''
  }
}

export function object(value: unknown): JsonObject {
  // Writing a large value as text takes long, so only one that is wrong is written.
  if (typeof value !== 'object' || value === null) assert.fail(`${JSON.stringify(value)} is no object`)
  return { ...value }
}

export interface CallOptions {
  key?: string | null
  /** Sent as JSON. */
  body?: unknown
  headers?: Record<string, string>
  raw?: RequestInit['body']
}

export interface TestServer extends AsyncDisposable {
  url: string
  port: number
  deps: ServerDependencies
  clock: TestClock
  app: App
  blobs: DiskBlobs
  /** A key with every scope but `operator`, of the project "default", which has the plan "payg". */
  key: IssuedKey
  /** How often background work was announced. */
  woken(): number
  issue(order?: { project?: string; plan?: string; scopes?: readonly Scope[] }): Promise<IssuedKey>
  /** With the key above, unless another one, or none, is given. */
  call(method: string, path: string, options?: CallOptions): Promise<Answer>
  /** The file is pending afterwards. */
  upload(content?: string, options?: { key?: string; filename?: string }): Promise<Answer>
  /** Uploads, and does what validation would have done; gives the ID. */
  processedFile(options?: {
    key?: string
    line_count?: number
    groups?: readonly TokenSums[]
  }): Promise<string>
  /** Does what validation would have done to an uploaded file. */
  process(id: string, line_count?: number, groups?: readonly TokenSums[]): Promise<void>
  createBatch(input_file_id: string, options?: CallOptions): Promise<Answer>
}

export const ONE_LINE = `${JSON.stringify({ custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body: { model: 'sim-1', messages: [{ role: 'user', content: 'hello' }] } })}\n`

export async function testServer(overrides: Partial<ServerDependencies> = {}): Promise<TestServer> {
  const disk = await temporaryDisk()
  const path = join(disk.root, 'db', 'offpeak.db')
  if (overrides.store) await overrides.store.migrate()
  else await makeMigratedSqlite(path)
  const store = overrides.store ?? sqliteStore({ path })
  const master = masterKeyFromText(randomBytes(32).toString('base64'), 'the test')
  const sealed = sealBlobs(disk.blobs, master)
  const clock = testClock()
  let woken = 0
  const deps: ServerDependencies = {
    store,
    sealed,
    clock,
    region: 'local',
    version: '0.0.0-test',
    settings: () => ({}),
    storeHealth: async () => [],
    plans: TEST_PLANS,
    models: TEST_MODELS,
    file_bytes_max: 1024 * 1024,
    line_bytes_max: 8 * 1024 * 1024,
    gather: { ms: 60_000, lines: 10_000 },
    requests_per_minute: null,
    wait_for_file_ms: 0,
    webhooks: { allow_private_networks: false, master },
    batchApiSecrets: () => [],
    wake: () => void woken++,
    ready: async () => true,
    ...overrides,
  }
  const app = buildServer(deps)
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  const contract = Contract.of(app.routeTable)
  const issue: TestServer['issue'] = (order = {}) =>
    createKey(store, clock, 'local', { project: 'default', plan: 'payg', ...order })
  const key = await issue()

  const call: TestServer['call'] = async (method, path, options = {}) => {
    const bearer = options.key === undefined ? key.key : options.key
    const headers = new Headers(options.headers)
    if (bearer !== null) headers.set('authorization', `Bearer ${bearer}`)
    if (options.body !== undefined) headers.set('content-type', 'application/json')
    const body = options.body === undefined ? options.raw : JSON.stringify(options.body)
    const response = await fetch(url + path, { method, headers, body })
    const answer = new Answer(response.status, response.headers, await response.text())
    contract.verify(method, path, answer)
    return answer
  }

  const upload: TestServer['upload'] = (content = ONE_LINE, { key, filename = 'in.jsonl' } = {}) =>
    call('POST', '/v1/files', { key, raw: uploadForm(content, filename) })

  const process: TestServer['process'] = async (id, line_count = 1, groups = []) => {
    const file = await readRow(store.read, 'files', { id })
    assert(file)
    const index = await sealed.put(file.project_id, `files/${id}/index`, [
      Buffer.from(JSON.stringify({ chunks: [], groups, unattributed: [] })),
    ])
    await store.write(async (tx) => {
      await insertBlobs(tx, file.project_id, [index], clock.now())
      await markProcessed(tx, id, { line_count, index_blob: index.key })
    })
  }

  return {
    url,
    port: Number(new URL(url).port),
    deps,
    clock,
    app,
    blobs: disk.blobs,
    key,
    woken: () => woken,
    issue,
    call,
    upload,
    process,
    async processedFile({ key, line_count, groups } = {}) {
      const { id } = await upload(undefined, { key })
      await process(id, line_count, groups)
      return id
    },
    createBatch: (input_file_id, options = {}) =>
      call('POST', '/v1/batches', {
        body: { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' },
        ...options,
      }),
    async [Symbol.asyncDispose]() {
      await app.close()
      await store.close()
      await disk[Symbol.asyncDispose]()
    },
  }
}
