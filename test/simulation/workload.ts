// What callers do in a run: they create batches and limits, cancel and pause batches, and delete inputs and results. The
// API that they call is not under test and has no faults.
import type { SealedBlobs } from '../../src/blobs/sealed.ts'
import { isTerminal } from '../../src/domain/batch.ts'
import { newId } from '../../src/domain/ids.ts'
import { costNanos } from '../../src/domain/money.ts'
import type { FileIndex } from '../../src/jsonl/file-index.ts'
import { cancelBatch } from '../../src/lifecycle/cancel-batch.ts'
import { setBatchPaused } from '../../src/lifecycle/pause-batch.ts'
import { removeFile } from '../../src/lifecycle/remove-file.ts'
import { insertBatch, readBatchRow } from '../../src/store/batches.ts'
import { insertBlobs } from '../../src/store/blob-rows.ts'
import { insertFile, readFileRow } from '../../src/store/files.ts'
import { ensureProject } from '../../src/store/projects.ts'
import type { BatchRow } from '../../src/store/schema.ts'
import type { Writer } from '../../src/store/store.ts'
import { insertTask } from '../../src/store/tasks.ts'
import type { TestClock } from '../fakes/clock.ts'
import { POISON } from './machine.ts'
import { resultLines } from './result-lines.ts'
import { type PlannedBatch, SIM_MODEL, SIM_MODELS, type SimulatedRun } from './run.ts'
import type { SeededRandom } from './seeded-random.ts'
import type { UpstreamChanges } from './upstream-changes.ts'

const TOKENS_MEAN = 50
const DAY_MS = 86_400_000

export interface WorkloadOptions {
  run: SimulatedRun
  random: SeededRandom
  clock: TestClock
  changes: UpstreamChanges
  trace: (what: string, kind?: string) => void
}

export class Workload {
  readonly #run: SimulatedRun
  readonly #random: SeededRandom
  readonly #clock: TestClock
  readonly #changes: UpstreamChanges
  readonly #sealed: SealedBlobs
  readonly #trace: WorkloadOptions['trace']

  constructor({ run, random, clock, changes, trace }: WorkloadOptions) {
    this.#run = run
    this.#random = random
    this.#clock = clock
    this.#changes = changes
    this.#sealed = run.sealed
    this.#trace = trace
  }

  async prepare(): Promise<void> {
    const random = this.#random
    const projects = random.int(1, 2)
    for (let i = 0; i < projects; i++) {
      const project_id = newId('project', this.#clock.now())
      await this.#write((tx) =>
        ensureProject(tx, { id: project_id, name: `p${i}`, plan: 'payg', created: this.#clock.now() }),
      )
      const batches = random.int(1, 2)
      for (let j = 0; j < batches; j++) await this.#addBatch(project_id)
      if (this.#run.caps.wants(0.4)) await this.#addCap(project_id, false)
    }
  }

  /** Adds a batch, or cancels one, deletes files or changes caps. */
  async change(): Promise<void> {
    const random = this.#random
    const { store, batches, caps } = this.#run
    const planned = random.pick(batches)
    const { id, name, project_id } = planned
    if (caps.wants(0.3)) await this.#changeCaps(project_id)
    if (random.chance(0.6)) {
      await this.#addBatch(project_id)
      this.#trace(`b${batches.length - 1} is created`)
      return
    }
    const batch = await readBatchRow(store.read, id)
    if (!batch) return
    if (isTerminal(batch.status)) return await this.#removeFiles(planned, batch)
    const now = this.#clock.now()
    if (random.chance(0.5)) {
      this.#trace(`${name} is cancelled`, 'batch cancelled')
      await this.#write((tx) => cancelBatch(tx, project_id, id, now))
      return
    }
    const file = await readFileRow(store.read, batch.input_file_id)
    if (!file || file.deleted_at !== null) return
    this.#trace(`the input of ${name} is deleted`, 'input deleted')
    await this.#write((tx) => removeFile(tx, file, now))
  }

  async changePauses(): Promise<void> {
    const { batches } = this.#run
    const at = this.#changes.pauses(batches.length)
    if (at !== null) await this.#setPaused(batches[at]!, null)
  }

  async resumeBatches(): Promise<void> {
    for (const planned of this.#run.batches) await this.#setPaused(planned, false)
  }

  async allEnded(): Promise<boolean> {
    for (const { id } of this.#run.batches) {
      const batch = await readBatchRow(this.#run.store.read, id)
      if (!batch || !isTerminal(batch.status)) return false
    }
    return true
  }

  /** Null: the other way round than it is. */
  async #setPaused(planned: PlannedBatch, paused: boolean | null): Promise<void> {
    const batch = await readBatchRow(this.#run.store.read, planned.id)
    if (!batch || isTerminal(batch.status) || batch.status === 'cancelling') return
    const to = paused ?? batch.paused_at === null
    if (to === (batch.paused_at !== null)) return
    this.#trace(`${planned.name} is ${to ? 'paused' : 'resumed'}`, 'batch paused or resumed')
    await this.#write((tx) => setBatchPaused(tx, planned, to, this.#clock.now()))
  }

  /** As retention or a caller does. */
  async #removeFiles(planned: PlannedBatch, batch: BatchRow): Promise<void> {
    if (planned.read) return
    const { store, checker } = this.#run
    const read = await resultLines(this.#run, batch).catch(String)
    if (typeof read === 'string') {
      checker.violations.push(`${planned.name} cannot be read: ${read}`)
      return
    }
    planned.read = read
    this.#trace(`the files of ${planned.name} are deleted`, 'results deleted')
    for (const id of [batch.input_file_id, batch.output_file_id, batch.error_file_id]) {
      const file = id === null ? undefined : await readFileRow(store.read, id)
      if (file && file.deleted_at === null) await this.#write((tx) => removeFile(tx, file, this.#clock.now()))
    }
  }

  async #addBatch(project_id: string): Promise<void> {
    const name = `b${this.#run.batches.length}`
    const random = this.#random
    const now = this.#clock.now()
    const lines: string[] = []
    const index: FileIndex = { chunks: [], groups: [], unattributed: [] }
    const texts: string[] = []
    const ends: number[] = []
    let byte_start = 0
    const chunks = random.int(1, 6)
    for (let i = 0; i < chunks; i++) {
      const line_count = random.int(1, 12)
      let chunk = ''
      for (let j = 0; j < line_count; j++) {
        const line = `${name}/l${lines.length}${random.chance(0.04) ? '-refuse' : random.chance(0.03) ? '-poison' : ''}`
        lines.push(line)
        const text = inputLine(line, random)
        this.#run.caps.entities.set(line, JSON.parse(text).metadata?.entity ?? '')
        chunk += `${text}\n`
      }
      const byte_end = byte_start + Buffer.byteLength(chunk)
      const first_line = lines.length - line_count + 1
      ends.push(lines.length - 1)
      index.chunks.push({ index: i, model: null, first_line, line_count, byte_start, byte_end })
      byte_start = byte_end
      texts.push(chunk)
    }
    const file_id = newId('file', now)
    const content = await this.#sealed.put(project_id, `files/${file_id}/upload`, [
      Buffer.from(texts.join('')),
    ])
    const indexed = await this.#sealed.put(project_id, `files/${file_id}/index`, [
      Buffer.from(JSON.stringify(index)),
    ])
    const id = newId('batch', now)
    const windowMs = random.chance(0.25) ? random.int(500, 15_000) : DAY_MS
    const expires_at = now + windowMs
    await this.#write(async (tx) => {
      await insertBlobs(tx, project_id, [content, indexed], now)
      await insertFile(tx, {
        id: file_id,
        project_id,
        purpose: 'batch',
        filename: `${name}.jsonl`,
        bytes: content.bytes,
        line_count: lines.length,
        status: 'processed',
        status_details: null,
        errors: null,
        created: now,
        expires_at: now + 90 * DAY_MS,
        deleted_at: null,
        content_blob: content.key,
        index_blob: indexed.key,
        batch_id: null,
        part: null,
      })
      await insertBatch(tx, {
        id,
        project_id,
        key_id: 'key_simulated',
        endpoint: '/v1/chat/completions',
        input_file_id: file_id,
        completion_window: '24h',
        metadata: null,
        header_entity: null,
        language: null,
        total: lines.length,
        created: now,
        expires_at,
      })
      await insertTask(tx, { kind: 'plan', subject: id, project_id }, now)
    })
    this.#run.batches.push({ id, name, project_id, lines, expires_at, read: null })
    this.#run.checker.addBatch(name, expires_at, { id, ends })
    await this.#clock.advance(1)
  }

  async #addCap(project_id: string, isRunning: boolean): Promise<void> {
    const lines = this.#run.batches
      .filter((batch) => batch.project_id === project_id)
      .reduce((sum, batch) => sum + batch.lines.length, 0)
    const { caps } = this.#run
    const each = {
      nanos: costNanos(caps.prompt_tokens, TOKENS_MEAN, SIM_MODEL.price),
      tokens: caps.prompt_tokens + TOKENS_MEAN,
    }
    await caps.make((change) => this.#write(change), project_id, lines, each, this.#clock.now(), isRunning)
  }

  async #changeCaps(project_id: string): Promise<void> {
    const { caps } = this.#run
    const changed = caps.wants(0.5) && (await caps.change((change) => this.#write(change), this.#clock.now()))
    if (!changed) await this.#addCap(project_id, true)
    this.#trace(changed ? 'a cap is changed' : 'a cap is created', 'cap created or changed')
  }

  async #write<T>(change: (tx: Writer) => Promise<T>): Promise<T> {
    return await this.#run.checker.observe('the API', () => this.#run.store.write(change))
  }
}

function inputLine(line: string, random: SeededRandom): string {
  // Some lines name an unknown model and fail without being sent.
  const model = random.chance(0.03) ? 'unknown' : random.pick(SIM_MODELS).id
  const messages = [{ role: 'user', content: line }]
  const entity = random.chance(0.005) ? POISON : random.pick(['user:a', 'user:b'])
  const metadata = random.chance(0.5) ? { entity } : undefined
  const body = { model, messages, max_tokens: random.int(TOKENS_MEAN - 30, TOKENS_MEAN + 30) }
  return JSON.stringify({ custom_id: line, method: 'POST', url: '/v1/chat/completions', body, metadata })
}
