// A cell behind the service: another Offpeak, with a database, a blob store and a worker of its own, that answers batches as
// a batch API. Its worker crashes, and another one takes over. Whatever the front makes of its answers, its own books must
// be right, and no front has more of a batch than the cell has billed.
import type { BatchApi, BatchRequest, SeenBatch } from '../../src/backends/batch-api/batch-api.ts'
import { seenBatch } from '../../src/backends/openai/seen-batch.ts'
import type { ResponseMemory } from '../../src/backends/response-memory.ts'
import type { MasterKey } from '../../src/blobs/master-key.ts'
import { sealBlobs } from '../../src/blobs/sealed.ts'
import { isTerminal } from '../../src/domain/batch.ts'
import type { EndpointPath } from '../../src/domain/endpoint.ts'
import { ApiError } from '../../src/domain/errors.ts'
import { newId, parseLineRequestId } from '../../src/domain/ids.ts'
import { type BatchOrder, createBatch } from '../../src/intake/create-batch.ts'
import { receiveUpload } from '../../src/intake/upload.ts'
import { cancelBatch } from '../../src/lifecycle/batch.ts'
import { removeFile } from '../../src/lifecycle/remove-file.ts'
import { ModelServer } from '../../src/servers/upstream.ts'
import { ensureProject } from '../../src/store/projects.ts'
import { readRow } from '../../src/store/rows.ts'
import { sqliteStore } from '../../src/store/sqlite/store.ts'
import { backendOf, bodyOf } from './answering.ts'
import { ledgerViolations } from './ledger-violations.ts'
import { Machine, NO_STORE_FAULTS } from './machine.ts'
import { memoryBlobs } from './memory-blobs.ts'
import { type RemoteBatch, type RemoteBatchApiOptions, SETTLE_MS } from './remote-batch-api.ts'
import { answeredWith } from './remote-calls.ts'
import { contentOf, tokensMade } from './result-checks.ts'
import { resultLines } from './result-lines.ts'
import { priceOf, SEALING, SIM_MODELS, SIM_PLAN } from './run.ts'
import { type SimulatedWorker, startWorker } from './simulated-worker.ts'
import { formOf } from './workload.ts'

const DAY_MS = 86_400_000
const CRASH_CHANCE = 0.02
/** What it charges. */
const PRICE = 3

export interface CellOptions extends Omit<RemoteBatchApiOptions, 'isAnthropic'> {
  /** Of its database. */
  path: string
  master: MasterKey
}

type Batch = Pick<RemoteBatch, 'id' | 'name' | 'cancelAsked' | 'forgotten' | 'isUnknown' | 'shownAsSecond'>

export class Cell {
  readonly name: string
  readonly cannotList = false
  readonly batches: Batch[] = []
  readonly #options: CellOptions
  readonly #store: ReturnType<typeof sqliteStore>
  readonly #blobs: ReturnType<typeof memoryBlobs>
  readonly #sealed: ReturnType<typeof sealBlobs>
  readonly #project_id: string
  /** By request, the lowest price at which it may be reserved. */
  readonly #reserved = new Map<string, number>()
  /** By file, the requests that were uploaded. */
  readonly #requests = new Map<string, { custom_id: string; request: string }[]>()
  #worker: (SimulatedWorker & { machine: Machine }) | null = null

  constructor(options: CellOptions) {
    const { name, path, clock, master } = options
    this.#options = options
    this.name = name
    this.#store = sqliteStore({ path, leaseNow: () => clock.now() })
    this.#blobs = memoryBlobs(clock, () => 0)
    this.#sealed = sealBlobs(this.#blobs, master, SEALING)
    this.#project_id = newId('project', clock.now())
  }

  async start(): Promise<void> {
    const created = this.#options.clock.now()
    const project = { id: this.#project_id, name: 'front', plan: SIM_PLAN.name, created }
    await this.#store.write((tx) => ensureProject(tx, project))
    this.#startWorker()
  }

  #startWorker(): void {
    const { clock, late, tally, server, master } = this.#options
    const machine = new Machine({
      ...{ name: this.name, clock, random: late, store: this.#store, blobs: this.#blobs, tally },
      storeFaults: () => NO_STORE_FAULTS,
      observe: (_, write) => write(),
      onCrash: () => {},
    })
    const of = (_: Machine, __: unknown, memory: ResponseMemory) => {
      const backend = backendOf(this.name, server.unwatched(machine, memory))
      const upstream = new ModelServer({ backend, concurrency_max: 8, modelAlias: null })
      return {
        models: new Map(SIM_MODELS.map((model) => [model.id, { ...model, price: priceOf(PRICE) }])),
        upstreams: new Map(SIM_MODELS.map(({ id }) => [id, [upstream]])),
        spills: new Map(),
        reload: () => [],
      }
    }
    const log = { info() {}, warn() {}, error() {} }
    const own = { underestimates: false, isCrowded: false, log }
    const servers = { of, patienceMs: 1_000 }
    this.#worker = { machine, ...startWorker({ machine, master, random: late, servers, ...own }) }
  }

  /** Kills its worker now and then; says so if it does. */
  step(): string | null {
    if (!this.#options.late.chance(CRASH_CHANCE)) return null
    this.kill()
    return `the worker of ${this.name} crashes`
  }

  kill(): void {
    this.#worker?.machine.crash()
    this.#startWorker()
  }

  endFaults(): void {}

  async close(): Promise<void> {
    this.#worker?.machine.crash()
    await this.#store.close()
  }

  apiFor(machine: Machine, price: (model: string) => number): BatchApi {
    const { calls, plans, server, onOffered, onAsked, onCreated } = this.#options
    const cell = this
    const call = calls.from(machine)
    return {
      lineMetadata: false,
      settleMs: SETTLE_MS,
      upload: async (name, requests, signal) => {
        const lines = this.#linesOf(requests)
        onOffered(
          machine,
          lines.map(({ request }) => request),
        )
        return call(() => this.#upload(name, requests, lines), signal)
      },
      findFile: (name, signal) => call(() => this.#fileOf(name), signal),
      create: ({ name, file_id, endpoint }, signal) => {
        const id = file_id ?? ''
        onAsked(
          machine,
          (this.#requests.get(id) ?? []).map(({ request }) => request),
        )
        const answer = call((delayMs) => this.#create(name, id, endpoint, delayMs), signal, 'create')
        void answer.then(
          ({ id: created }) => {
            for (const one of this.batches) if (one.id === created) one.isUnknown = false
            onCreated(machine)
          },
          () => {},
        )
        return answer
      },
      find: ({ name }, signal) =>
        call(async () => {
          const seen = this.batches.filter((one) => one.name === name).map(({ id }) => this.#seen(id))
          return (await Promise.all(seen)).filter((one) => one !== null)
        }, signal),
      read: (id, signal) => call(() => this.#seen(id), signal, 'look'),
      cancel: (id, signal) => call(() => this.#cancel(id), signal),
      async *lines(file_id, signal) {
        for (const text of await call(() => cell.#results(file_id), signal)) {
          const { custom_id, response } = JSON.parse(text)
          if (response !== null) {
            const { said, missed, cut } = contentOf(response.body)
            const request = said ?? missed ?? cut ?? custom_id
            const [{ model } = { model: '' }] = plans.ask(request).lines
            const reserved = cell.#reserved.get(request) ?? 0
            server.received(request, tokensMade(response.body.usage), price(model), reserved)
          }
          yield Buffer.from(text)
        }
      },
      remove: (file_id) => call(() => this.#remove(file_id), undefined),
      close: async () => {},
    }
  }

  /** What is wrong with its books when all has ended. `recorded`: by batch, the answers that the front has recorded. */
  async violations(recorded: ReadonlyMap<string, number>): Promise<string[]> {
    const { name } = this
    const found = (await ledgerViolations({ store: this.#store, sealed: this.#sealed })).map(
      (one) => `${name}: ${one}`,
    )
    for (const { id } of this.batches) {
      const row = await readRow(this.#store.read, 'batches', { id })
      if (!row || !isTerminal(row.status)) found.push(`${name}: ${id} is still ${row?.status}`)
      else if ((recorded.get(id) ?? 0) > row.completed)
        found.push(
          `${name}: the front has ${recorded.get(id)} answers of ${id}, which answered ${row.completed}`,
        )
    }
    const reservations = await this.#store.read.selectFrom('reservations').selectAll().execute()
    if (reservations.length > 0) found.push(`${name}: ${reservations.length} reservations remain`)
    return found
  }

  #linesOf(requests: readonly BatchRequest[]): { custom_id: string; request: string }[] {
    const { plans, lowestPrice } = this.#options
    return requests.map(({ custom_id, body }) => {
      const batch = plans.batch(parseLineRequestId(custom_id)?.batchId ?? '')
      const request = `${batch?.name}/${bodyOf({ body }).text}`
      this.#reserved.set(
        request,
        Math.min(lowestPrice(), this.#reserved.get(request) ?? Number.POSITIVE_INFINITY),
      )
      return { custom_id, request }
    })
  }

  async #fileOf(name: string): Promise<string | null> {
    const row = await this.#store.read
      .selectFrom('files')
      .select('id')
      .where('filename', '=', name)
      .where('deleted_at', 'is', null)
      .executeTakeFirst()
    return row?.id ?? null
  }

  async #upload(
    name: string,
    requests: readonly BatchRequest[],
    lines: { custom_id: string; request: string }[],
  ): Promise<string> {
    const texts = requests.map(
      ({ custom_id, endpoint, body }) =>
        `{"custom_id":"${custom_id}","method":"POST","url":"${endpoint}","body":${Buffer.from(body)}}\n`,
    )
    const terms = { retention_ms: 90 * DAY_MS, file_bytes_max: 1e9, form_bytes: 0, take() {} }
    const upload = { project_id: this.#project_id, now: this.#options.clock.now(), ...terms }
    const file = await receiveUpload(
      { store: this.#store, sealed: this.#sealed },
      formOf(texts.join(''), name),
      upload,
    )
    this.#requests.set(file.id, lines)
    return file.id
  }

  /** Under one name it creates one batch, as an Idempotency-Key asks for. */
  async #create(name: string, file_id: string, endpoint: EndpointPath, delayMs: number): Promise<SeenBatch> {
    const { clock, plans, server, tally } = this.#options
    const known = this.batches.find((one) => one.name === name)
    if (known) return (await this.#seen(known.id))!
    const lines = this.#requests.get(file_id) ?? []
    const at = clock.now()
    const batch = plans.batch(parseLineRequestId(lines[0]?.custom_id ?? '')?.batchId ?? '')
    const order: BatchOrder = {
      language: 'en',
      ...{ project_id: this.#project_id, key_id: 'key_front', header_entity: null },
      ...{ traceparent: batch?.traceparent ?? null, takesAnyFile: true, endpoint, input_file_id: file_id },
      ...{ completion_window: '24h', window_ms: DAY_MS, quotas: SIM_PLAN.quotas, metadata: null },
      ...{ output_expires_after_ms: null, start_after: null, dedupe: null, reask: null },
      ...{ input_url: null, output_url: null, output_url_status: null },
    }
    try {
      const { id } = await this.#store.write((tx) => createBatch(tx, order, null, at))
      const isUnknown = delayMs > SETTLE_MS
      this.batches.push({ id, name, isUnknown, cancelAsked: false, forgotten: false, shownAsSecond: false })
      for (const { request } of lines) server.sent(request, at)
      tally.count('cell: batch created')
      return (await this.#seen(id))!
    } catch (error) {
      if (!(error instanceof ApiError)) throw error
      throw answeredWith(400, error.message, {}, error.code)
    }
  }

  async #seen(id: string): Promise<SeenBatch | null> {
    const row = await readRow(this.#store.read, 'batches', { id })
    if (!row) return null
    const { status, total, completed, failed, output_file_id, error_file_id, cost_nanos } = row
    const request_counts = { total, completed, failed }
    return seenBatch(
      { id, status, request_counts, output_file_id, error_file_id, cost_usd: cost_nanos / 1e9 },
      (text) => text,
    )
  }

  async #cancel(id: string): Promise<void> {
    for (const one of this.batches) if (one.id === id) one.cancelAsked = true
    try {
      const now = this.#options.clock.now()
      await this.#store.write((tx) => cancelBatch(tx, this.#project_id, id, now))
    } catch (error) {
      if (!(error instanceof ApiError)) throw error
    }
  }

  async #results(file_id: string): Promise<string[]> {
    const file = await readRow(this.#store.read, 'files', { id: file_id })
    if (!file?.batch_id || file.deleted_at !== null) throw answeredWith(404, 'no such file')
    const { outputs, errors } = await resultLines(
      { store: this.#store, sealed: this.#sealed },
      { id: file.batch_id },
    )
    return file.part === 'output' ? outputs : errors
  }

  async #remove(file_id: string): Promise<void> {
    const file = await readRow(this.#store.read, 'files', { id: file_id })
    if (file && file.deleted_at === null)
      await this.#store.write((tx) => removeFile(tx, file, this.#options.clock.now()))
  }
}
