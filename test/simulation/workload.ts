// What callers do in a run: they upload files, create batches and limits, cancel, pause and retry batches, pause models, and
// delete inputs and results. The API that they call is not under test and has no faults.
import { CHUNK_LINES_MAX, isTerminal, readReask, stopReason } from '../../src/domain/batch.ts'
import { ApiError } from '../../src/domain/errors.ts'
import { newId } from '../../src/domain/ids.ts'
import { costNanos } from '../../src/domain/money.ts'
import { retentionText } from '../../src/domain/retention.ts'
import { type BatchOrder, createBatch } from '../../src/intake/create-batch.ts'
import { insertMadeFile } from '../../src/intake/fetch-input.ts'
import { readProjection } from '../../src/intake/file-index.ts'
import { GatheredRequests } from '../../src/intake/gathered-requests.ts'
import { retryFilename } from '../../src/intake/retry-lines.ts'
import { receiveUpload } from '../../src/intake/upload.ts'
import type { FileIndex } from '../../src/jsonl/projection.ts'
import { cancelBatch, cancelLine, setBatchPaused } from '../../src/lifecycle/batch.ts'
import { EVERYTHING, recordFetch } from '../../src/lifecycle/fetched-results.ts'
import { removeFile } from '../../src/lifecycle/remove-file.ts'
import { insertBatch } from '../../src/store/batches.ts'
import { insertBlobs, readBlobRow } from '../../src/store/blobs.ts'
import { readChunkOfLine, wake } from '../../src/store/chunks.ts'
import { pauseModel, resumeModel } from '../../src/store/pauses.ts'
import { ensureProject } from '../../src/store/projects.ts'
import { hastenRemoteBatch } from '../../src/store/remote-batches.ts'
import { insertRow, readRow, selectRows } from '../../src/store/rows.ts'
import type { BatchRow, FileRow } from '../../src/store/schema.ts'
import type { Store, Writer } from '../../src/store/store.ts'
import { insertTask } from '../../src/store/tasks.ts'
import type { TestClock } from '../fakes/clock.ts'
import { type BatchStyle, InputLines, TOKENS_MEAN } from './input-lines.ts'
import { keyOfBatch, type PlannedBatch, type PlannedLine, SIM_KEYS } from './plans.ts'
import { resultLines } from './result-lines.ts'
import { SIM_MODEL, SIM_MODELS, SIM_PLAN, type SimulatedRun } from './run.ts'
import { type SeededRandom, seededRandom } from './seeded-random.ts'
import type { UpstreamChanges } from './upstream-changes.ts'

const DAY_MS = 86_400_000
/** Of runs in which more lines wait in one lane than a worker claims. */
const CROWDED_CHANCE = 0.08
const CROWD = { chunks: 3, lines: 450 }
/**
 * Of runs in which lines that begin alike are anywhere in files, whose chunks are then cut anew, and of runs in which
 * those of every other chunk do, and what the index says.
 */
const SCATTERED_CHANCE = 0.25
const NESTED_CHANCE = 0.25
const SHARING = { prompt_bytes: 100, shared_bytes: 70, near_bytes: 5, depth: 256 }
/** How long a batch gathers single requests. */
const GATHER = { ms: 4_000, lines: 1_000 }
const PLAIN = { dedupe: null, reask: null, commonShare: 0, hasPoison: false }

export interface WorkloadOptions {
  run: SimulatedRun
  seed: number
  random: SeededRandom
  clock: TestClock
  changes: UpstreamChanges
  trace: (what: string, kind?: string) => void
}

interface Input {
  texts: string[]
  lines: PlannedLine[]
}

/** A single request, and what its batch is named if it opens one. */
interface Single {
  line: PlannedLine
  name: string
  traceparent: string
}

/** An uploaded file, and the batch that is created when it is validated. */
interface Upload {
  file_id: string
  project_id: string
  create: (file: FileRow) => Promise<void>
}

export class Workload {
  readonly #run: SimulatedRun
  readonly #random: SeededRandom
  /** Of what was added later, so that it does not change the rest of a run. */
  readonly #more: SeededRandom
  readonly #clock: TestClock
  readonly #changes: UpstreamChanges
  readonly #inputs: InputLines
  /** Of single requests, so that they do not change the rest of a run. */
  readonly #singles: SeededRandom
  /** The draws of batches whose content is not kept, which change nothing else of a run. */
  readonly #unkept: SeededRandom
  readonly #singleLines: InputLines
  /** Of all of them: a batch that gathers them has one endpoint here. */
  readonly #singleStyle: BatchStyle
  readonly #gathered: GatheredRequests<Single>
  readonly #trace: WorkloadOptions['trace']
  /** As the API sees it. */
  readonly #store: Store
  readonly #uploads: Upload[] = []
  /** Whether a lane has more lines than a worker claims. */
  readonly isCrowded: boolean
  readonly #isScattered: boolean
  readonly #isNested: boolean

  constructor({ run, seed, random, clock, changes, trace }: WorkloadOptions) {
    this.#run = run
    this.#random = random
    this.#more = seededRandom(seed + 0x30de)
    this.#clock = clock
    this.#changes = changes
    this.#inputs = new InputLines(seed, random)
    this.#trace = trace
    const { store, checker } = run
    this.#store = { ...store, write: (change) => checker.observe('the API', () => store.write(change)) }
    this.isCrowded = this.#more.chance(CROWDED_CHANCE)
    const sharing = seededRandom(seed + 0xd2d)
    this.#isScattered = sharing.chance(SCATTERED_CHANCE)
    this.#isNested = !this.#isScattered && sharing.chance(NESTED_CHANCE)
    this.#singles = seededRandom(seed + 0x51e1)
    this.#unkept = seededRandom(seed + 0x0b1e)
    this.#singleLines = new InputLines(seed + 0x51e2, this.#singles)
    this.#singleStyle = { ...this.#singleLines.style(), ...PLAIN }
    const models = new Map(SIM_MODELS.map((model) => [model.id, model]))
    const { sealed } = run
    this.#gathered = new GatheredRequests(
      { store: this.#store, sealed, clock, models, rules: GATHER, wake() {} },
      (tx, accepted) => {
        const { batch, line } = accepted[0]!.at
        return this.#planSingles(
          tx,
          batch,
          line,
          accepted.map(({ entry }) => entry.record),
        )
      },
    )
  }

  async prepare(): Promise<void> {
    const random = this.#random
    const projects = random.int(1, 2)
    for (let i = 0; i < projects; i++) {
      const project_id = newId('project', this.#clock.now())
      await this.#write((tx) =>
        ensureProject(tx, { id: project_id, name: `p${i}`, plan: SIM_PLAN.name, created: this.#clock.now() }),
      )
      if (i === 0) await this.#addWebhook(project_id)
      const batches = random.int(1, 2)
      for (let j = 0; j < batches; j++) await this.#addBatch(project_id)
      if (this.isCrowded && i === 0) await this.#addCrowd(project_id)
      if (this.#run.caps.wants(0.4)) await this.#addCap(project_id, false)
    }
  }

  /** It is sent the ends of single requests. */
  async #addWebhook(project_id: string): Promise<void> {
    const created = this.#clock.now()
    const event_types = '["request.completed","request.failed","request.expired","request.cancelled"]'
    const terms = { event_types, url: 'https://example.com', wrapped_secret: '' }
    await this.#write((tx) =>
      insertRow(tx, 'webhooks', { id: newId('webhook', created), project_id, ...terms, created }),
    )
  }

  /** Adds a batch, or cancels one, deletes files or changes caps. */
  async change(): Promise<void> {
    const random = this.#random
    const { store, plans, caps } = this.#run
    const { batches } = plans
    const planned = random.pick(batches)
    const { id, name, project_id } = planned
    if (caps.wants(0.3)) await this.#changeCaps(project_id)
    if (random.chance(0.6)) {
      await this.#addBatch(project_id)
      this.#trace(`b${batches.length - 1} is created`)
      return
    }
    const batch = await readRow(store.read, 'batches', { id })
    if (!batch) return
    if (isTerminal(batch.status)) return await this.#removeFiles(planned, batch)
    const now = this.#clock.now()
    if (random.chance(0.5)) {
      this.#trace(`${name} is cancelled`, 'batch cancelled')
      await this.#stop((tx) => cancelBatch(tx, project_id, id, now))
      return
    }
    const file = await readRow(store.read, 'files', { id: batch.input_file_id })
    if (!file || file.deleted_at !== null) return
    this.#trace(`the input of ${name} is deleted`, 'input deleted')
    planned.isInputDeleted = true
    await this.#write((tx) => removeFile(tx, file, now))
  }

  /** What may happen at any step: uploads, retries and pauses. */
  async step(): Promise<void> {
    const { plans } = this.#run
    const at = this.#changes.pauses(plans.batches.length)
    if (at !== null) await this.#setPaused(plans.batches[at]!, null)
    const random = this.#more
    if (random.chance(0.02)) await this.#changePausedModels()
    if (random.chance(0.02)) await this.#upload(random.pick(plans.batches).project_id)
    if (random.chance(0.06)) await this.#retry(random.pick(plans.batches))
    if (this.#singles.chance(0.05)) await this.#sendSingles()
    if (this.#singles.chance(0.02)) await this.#cancelLine()
    if (this.#unkept.chance(0.1)) await this.#fetchUnkept()
    await this.#createOfUploads()
  }

  /** Reads the results of a batch whose content is not kept, if it has ended. */
  async #fetchUnkept(): Promise<void> {
    const planned = this.#unkept.pick(this.#run.plans.batches)
    const batch = await readRow(this.#run.store.read, 'batches', { id: planned.id })
    if (batch && batch.retention !== null && isTerminal(batch.status)) await this.#removeFiles(planned, batch)
  }

  /** A batch API says that one of its batches has ended. */
  onWebhook(upstream: string, remote_id: string): void {
    this.#run.tally.count('world: webhook of a batch API')
    void this.#write((tx) => hastenRemoteBatch(tx, remote_id, [upstream], this.#clock.now()))
  }

  /** Everything that is paused goes on. */
  async endFaults(): Promise<void> {
    for (const planned of this.#run.plans.batches) await this.#setPaused(planned, false)
    const paused = await this.#store.read.selectFrom('paused_models').selectAll().execute()
    for (const { project_id, model } of paused) await this.#write((tx) => resumeModel(tx, project_id, model))
    // A batch API that throttles looks may have asked for an hour without them: looks and results are due now.
    await this.#write(async (tx) => {
      const now = this.#clock.now()
      await tx.updateTable('remote_batches').set({ poll_at: now }).where('poll_at', '>', now).execute()
      const unread = selectRows(tx, 'remote_batches', { state: 'ended' }).select(['batch_id', 'idx'])
      for (const { batch_id, idx } of await unread.where('failing_since', 'is not', null).execute())
        await wake(tx, { batch_id, idx }).execute()
    })
  }

  async allEnded(): Promise<boolean> {
    await this.#createOfUploads()
    if (this.#uploads.length > 0) return false
    for (const { id } of this.#run.plans.batches) {
      const batch = await readRow(this.#run.store.read, 'batches', { id })
      if (!batch || !isTerminal(batch.status)) return false
    }
    return true
  }

  /** Those that should have ended by now: nothing has failed since `from`. */
  async lateBatches(from: number, ms: number): Promise<string[]> {
    const now = this.#clock.now()
    const late: string[] = []
    for (const { id, name } of this.#run.plans.batches) {
      const batch = await readRow(this.#run.store.read, 'batches', { id })
      if (!batch || isTerminal(batch.status)) continue
      const over = stopReason(batch, now)
      const since = over === 'batch_expired' ? batch.expires_at : (batch.cancelling_at ?? from)
      const waitedMs = now - Math.max(from, since)
      if (over !== null && waitedMs > ms) late.push(`${name} is still ${batch.status} (${over})`)
    }
    return late
  }

  /** Null: the other way round than it is. */
  async #setPaused(planned: PlannedBatch, paused: boolean | null): Promise<void> {
    const batch = await readRow(this.#run.store.read, 'batches', { id: planned.id })
    if (!batch || isTerminal(batch.status) || batch.status === 'cancelling') return
    const to = paused ?? batch.paused_at === null
    if (to === (batch.paused_at !== null)) return
    this.#trace(`${planned.name} is ${to ? 'paused' : 'resumed'}`, 'batch paused or resumed')
    await this.#stop((tx) => setBatchPaused(tx, planned, to, this.#clock.now()))
  }

  async #changePausedModels(): Promise<void> {
    const { project_id } = this.#more.pick(this.#run.plans.batches)
    const model = this.#more.pick(SIM_MODELS).id
    const paused_at = this.#clock.now()
    await this.#write(async (tx) => {
      const isResumed = await resumeModel(tx, project_id, model)
      if (!isResumed) await pauseModel(tx, { project_id, model, paused_at })
      this.#trace(`the model ${model} is ${isResumed ? 'resumed' : 'paused'}`, 'model paused or resumed')
    })
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
    if (batch.retention !== null) {
      this.#trace(`the results of ${planned.name} are fetched`, 'results fetched that are not kept')
      await recordFetch({ store: this.#store, clock: this.#clock }, batch, EVERYTHING)
      return
    }
    this.#trace(`the files of ${planned.name} are deleted`, 'results deleted')
    for (const id of [batch.input_file_id, batch.output_file_id, batch.error_file_id]) {
      const file = id === null ? undefined : await readRow(store.read, 'files', { id })
      if (file && file.deleted_at === null) await this.#write((tx) => removeFile(tx, file, this.#clock.now()))
    }
  }

  /** Its file is there already, in small chunks. */
  async #addBatch(project_id: string): Promise<void> {
    const random = this.#random
    const drawn = this.#inputs.style()
    // A line that the database refuses ends its whole chunk, which the plan task decides here.
    const style = this.#isScattered ? { ...drawn, hasPoison: false } : drawn
    const chunks = Array.from({ length: random.int(1, 6) }, () => () => random.int(1, 12))
    const windowMs = (): number => (random.chance(0.25) ? random.int(500, 15_000) : DAY_MS)
    await this.#insert(project_id, style, chunks, windowMs)
  }

  /** So many lines of one model that a worker claims no more of them for a time. */
  async #addCrowd(project_id: string): Promise<void> {
    const style = { ...this.#inputs.style(), model: SIM_MODEL.id, hasPoison: false }
    const chunks = Array.from({ length: CROWD.chunks }, () => () => CROWD.lines)
    await this.#insert(project_id, style, chunks, () => DAY_MS)
    this.#run.tally.count('world: crowd of lines')
  }

  async #insert(
    project_id: string,
    style: BatchStyle,
    chunks: readonly (() => number)[],
    windowMs: () => number,
  ): Promise<void> {
    const { plans, sealed } = this.#run
    const { name, traceparent } = plans.next
    const now = this.#clock.now()
    const index: FileIndex = { chunks: [], groups: [], unattributed: [] }
    if (this.#isScattered) index.sharing = { ...SHARING, isScattered: true }
    const order = [...chunks.keys()]
    if (this.#isNested) {
      order.sort((a, b) => (a % 2) - (b % 2) || a - b)
      index.sharing = { ...SHARING, chunks: order }
    }
    const input: Input = { texts: [], lines: [] }
    let byte_start = 0
    for (const [i, size] of chunks.entries()) {
      const line_count = size()
      const first_line = input.lines.length + 1
      const text = this.#addLines(input, name, line_count, order.indexOf(i), style)
      const models = new Set(input.lines.slice(first_line - 1).map(({ model }) => model))
      const model = models.size === 1 ? [...models][0]! : null
      const byte_end = byte_start + Buffer.byteLength(text)
      index.chunks.push({ index: i, model, first_line, line_count, byte_start, byte_end })
      byte_start = byte_end
    }
    const file_id = newId('file', now)
    const content = await sealed.put(project_id, `files/${file_id}/upload`, [
      Buffer.from(input.texts.join('')),
    ])
    const indexed = await sealed.put(project_id, `files/${file_id}/index`, [
      Buffer.from(JSON.stringify(index)),
    ])
    const id = newId('batch', now)
    const expires_at = now + windowMs()
    const start_after = this.#more.chance(0.08) ? now + this.#more.int(1, 8_000) : null
    const reask = style.reask && JSON.stringify(style.reask)
    const retention = this.#unkept.chance(0.2)
      ? retentionText([{ results_ms: 0, grace_ms: 90 * DAY_MS }])
      : null
    const batch = {
      id,
      project_id,
      expires_at,
      start_after,
      dedupe: style.dedupe,
      reask,
      traceparent,
      retention,
      key_id: keyOfBatch(name),
    }
    const total = input.lines.length
    await this.#write(async (tx) => {
      await insertBlobs(tx, project_id, [content, indexed], now)
      await insertRow(tx, 'files', {
        id: file_id,
        project_id,
        purpose: 'batch',
        filename: `${name}.jsonl`,
        bytes: content.bytes,
        line_count: total,
        status: 'processed',
        created: now,
        // Of some batches it expires while they run.
        expires_at: now + (plans.batches.length % 4 === 1 ? 1_000 : 90 * DAY_MS),
        content_blob: content.key,
        index_blob: indexed.key,
      })
      await insertBatch(tx, {
        ...batch,
        endpoint: style.endpoint,
        input_file_id: file_id,
        completion_window: '24h',
        total,
        created: now,
      })
      await insertTask(tx, { kind: 'plan', subject: id, project_id }, now)
    })
    const { endpoint } = style
    plans.add({
      ...batch,
      name,
      endpoint,
      reask: style.reask,
      lines: input.lines,
      read: null,
      isRetried: false,
      isInputDeleted: false,
    })
    await this.#clock.advance(1)
  }

  /** Returns the text of the lines. */
  #addLines({ texts, lines }: Input, name: string, count: number, chunk: number, style: BatchStyle): string {
    let text = ''
    for (let i = 0; i < count; i++) {
      const { json, line } = this.#inputs.line(name, lines.length, chunk, style)
      lines.push(line)
      text += `${json}\n`
    }
    texts.push(text)
    return text
  }

  /** Uploads a file, which a worker validates. Some clients create the batch at once, some when the file is processed. */
  async #upload(project_id: string): Promise<void> {
    const { plans, sealed } = this.#run
    const random = this.#more
    const style = this.#inputs.style()
    const { name } = plans.next
    const input: Input = { texts: [], lines: [] }
    this.#addLines(input, name, random.int(1, 20), 0, style)
    const isInvalid = random.chance(0.15)
    if (isInvalid) input.texts.push(input.texts[0]!)
    const now = this.#clock.now()
    const upload = {
      project_id,
      now,
      retention_ms: 90 * DAY_MS,
      file_bytes_max: 1e9,
      form_bytes: 0,
      take() {},
    }
    const file = await receiveUpload({ store: this.#store, sealed }, formOf(input.texts.join('')), upload)
    const window_ms = random.chance(0.2) ? random.int(3_000, 20_000) : DAY_MS
    const isEager = random.chance(0.5)
    this.#trace(
      `a file${isInvalid ? ' with a mistake' : ''} for ${name} is uploaded`,
      isEager ? 'batch created of a file that is not validated' : 'file uploaded',
    )
    const create = (of: FileRow): Promise<void> =>
      this.#create(of, { style, window_ms, lines: isInvalid ? [] : input.lines, takesAnyFile: isEager })
    if (isEager) await create(file)
    else this.#uploads.push({ file_id: file.id, project_id, create })
  }

  /** Requests that come one at a time, some of them together; they may go to the batch that gathered the last ones. */
  async #sendSingles(): Promise<void> {
    const { plans, tally } = this.#run
    const random = this.#singles
    const { project_id } = random.pick(plans.batches)
    const { name, traceparent } = plans.next
    const style = this.#singleStyle
    const [window] = SIM_PLAN.completion_windows
    const owner = {
      project_id,
      key_id: this.#singles.pick(SIM_KEYS),
      language: 'en' as const,
      window: window!,
      traceparent,
    }
    const first = this.#singlesSent
    // The requests of a round are in one batch, but for the first of a conversation and those that follow it.
    const conversation = random.chance(0.3) ? 'c' : null
    const sent = Array.from({ length: conversation ? 1 : random.int(1, 5) }, async () => {
      const number = this.#singlesSent++
      const { json, line } = this.#singleLines.line(name, number, 0, style)
      // A model that is unknown is an error of the call.
      if (line.model === 'unknown') return
      const request = {
        custom_id: line.custom_id,
        line: Buffer.from(json),
        endpoint: this.#singleStyle.endpoint,
        model: line.model,
        entity: line.entity,
        conversation,
        hasWebhook: false,
      }
      const terms = { quotas: SIM_PLAN.quotas, retention_ms: 90 * DAY_MS }
      try {
        await this.#gathered.add({ ...request, owner: { ...owner, ...terms } }, { line, name, traceparent })
      } catch (error) {
        if (!(error instanceof ApiError)) throw error
        tally.count(`world: single request rejected (${error.code})`)
      }
    })
    await Promise.all(sent)
    this.#trace(`single requests l${first} to l${this.#singlesSent - 1} are sent`, 'single requests sent')
  }

  /** Before their commit: a worker may send them at once. */
  async #planSingles(tx: Writer, batch: BatchRow, first: number, singles: readonly Single[]): Promise<void> {
    const { plans } = this.#run
    const { id, project_id, key_id, expires_at } = batch
    const { endpoint } = this.#singleStyle
    const { name, traceparent } = singles[0]!
    const chunk = await readChunkOfLine(tx, id, first)
    if (!plans.batch(id))
      plans.add({
        ...{
          id,
          name,
          traceparent,
          project_id,
          key_id,
          endpoint,
          reask: null,
          lines: [],
          expires_at,
          start_after: null,
        },
        ...{ read: null, isRetried: false, isInputDeleted: false },
      })
    const planned = plans.batch(id)!
    const renamed = (text: string): string => text.replace(/^b\d+/, planned.name)
    plans.extend(
      planned,
      singles.map(({ line }) => ({
        ...line,
        name: renamed(line.name),
        request: renamed(line.request),
        chunk: chunk?.idx ?? 0,
      })),
    )
    if (chunk) for (const { line } of singles) plans.due(renamed(line.request), chunk.deadline)
  }

  #singlesSent = 0

  /** Cancels one line of a batch, which may have ended. */
  async #cancelLine(): Promise<void> {
    const { plans } = this.#run
    const planned = this.#singles.pick(plans.batches)
    const line = this.#singles.int(1, planned.lines.length)
    const { custom_id = '' } = planned.lines[line - 1] ?? {}
    planned.cancelledLines = new Set([...(planned.cancelledLines ?? []), custom_id])
    this.#trace(`line ${line} of ${planned.name} is cancelled`, 'line cancelled')
    await this.#write((tx) => cancelLine(tx, planned.id, line))
  }

  /** Sends the failed lines of a batch again. */
  async #retry(planned: PlannedBatch): Promise<void> {
    const { store, sealed, checker } = this.#run
    const { id, name, project_id } = planned
    const batch = await readRow(store.read, 'batches', { id })
    if (!batch || planned.isRetried || planned.read || !isTerminal(batch.status) || batch.failed === 0) return
    // Its input went with its end.
    if (batch.retention !== null) return
    planned.isRetried = true
    // Its results may be deleted while the lines are made.
    const { errors } = await resultLines(this.#run, batch)
    const wanted = errors.map((text) => JSON.parse(text).custom_id).join(' ')
    const file = { project_id, filename: retryFilename(batch), retention_ms: 90 * DAY_MS }
    const file_id = await this.#store.write((tx) =>
      insertMadeFile(tx, file, { batch_id: id, which: {} }, this.#clock.now()),
    )
    this.#trace(`the failed lines of ${name} are sent again`, 'batch retried')
    this.#uploads.push({
      file_id,
      project_id,
      create: async (of) => {
        const content = of.content_blob ? await readBlobRow(store.read, of.content_blob) : undefined
        if (!content) throw new Error('the file of a retry has no content')
        const texts = String(await sealed.readAll(project_id, content))
          .trimEnd()
          .split('\n')
        const sent = texts.map((text) => JSON.parse(text).custom_id).join(' ')
        if (sent !== wanted) checker.violations.push(`the retry of ${name} has ${sent}; failed are ${wanted}`)
        const lines = texts.map((text, i) => ({
          ...this.#run.plans.line(id, JSON.parse(text).custom_id)!,
          chunk: Math.floor(i / CHUNK_LINES_MAX),
        }))
        const style = { endpoint: planned.endpoint, dedupe: batch.dedupe, reask: readReask(batch.reask) }
        return await this.#create(of, { style, window_ms: DAY_MS, lines, takesAnyFile: false })
      },
    })
  }

  async #createOfUploads(): Promise<void> {
    for (const upload of [...this.#uploads]) {
      const file = await readRow(this.#run.store.read, 'files', { id: upload.file_id })
      if (file?.status === 'pending' && file.deleted_at === null) continue
      this.#uploads.splice(this.#uploads.indexOf(upload), 1)
      if (file?.status === 'processed') await upload.create(file)
      else this.#run.tally.count(`world: file is ${file?.status}`)
    }
  }

  async #create(
    { id: input_file_id, project_id }: FileRow,
    made: {
      style: Pick<BatchStyle, 'endpoint' | 'dedupe' | 'reask'>
      window_ms: number
      lines: readonly PlannedLine[]
      takesAnyFile: boolean
    },
  ): Promise<void> {
    const { plans, sealed, tally } = this.#run
    const { name, traceparent } = plans.next
    // They were named when their file was uploaded, or in the batch that is retried.
    const lines = made.lines.map((line) => ({
      ...line,
      name: line.name.replace(/^b\d+/, name),
      request: line.request.replace(/^b\d+/, name),
    }))
    const { endpoint, dedupe, reask } = made.style
    const order: BatchOrder = {
      project_id,
      key_id: keyOfBatch(name),
      header_entity: null,
      language: 'en',
      traceparent,
      takesAnyFile: made.takesAnyFile,
      endpoint,
      input_file_id,
      completion_window: '24h',
      window_ms: made.window_ms,
      quotas: SIM_PLAN.quotas,
      metadata: null,
      output_expires_after_ms: null,
      start_after: null,
      dedupe,
      input_url: null,
      output_url: null,
      output_url_status: null,
      reask: reask && JSON.stringify(reask),
    }
    const models = new Map(SIM_MODELS.map((model) => [model.id, model]))
    const projection = await readProjection({ store: this.#store, sealed, clock: this.#clock, models }, order)
    try {
      const { id, expires_at, start_after } = await this.#write((tx) =>
        createBatch(tx, order, projection, this.#clock.now()),
      )
      plans.add({
        ...{ id, name, traceparent, project_id, endpoint, reask, lines, expires_at, start_after },
        key_id: order.key_id,
        read: null,
        isRetried: false,
        isInputDeleted: false,
      })
      this.#trace(`${name} is created of an uploaded file`, 'batch created of a file')
    } catch (error) {
      if (!(error instanceof ApiError)) throw error
      tally.count(`world: batch rejected (${error.code})`)
    }
    await this.#clock.advance(1)
  }

  async #addCap(project_id: string, isRunning: boolean): Promise<void> {
    const lines = this.#run.plans.batches
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

  /** Cancels, pauses or resumes a batch, which may end just before: a caller is told so. */
  async #stop(change: (tx: Writer) => Promise<unknown>): Promise<void> {
    try {
      await this.#write(change)
    } catch (error) {
      const isLate = error instanceof ApiError && /^batch_not_(cancel|paus)/.test(error.code)
      if (!isLate) throw error
    }
  }

  async #write<T>(change: (tx: Writer) => Promise<T>): Promise<T> {
    return await this.#store.write(change)
  }
}

export async function* formOf(text: string, filename = 'input.jsonl') {
  yield { type: 'field' as const, fieldname: 'purpose', value: 'batch' }
  yield { type: 'file' as const, fieldname: 'file', filename, file: pieces(text) }
}

async function* pieces(text: string): AsyncGenerator<Buffer> {
  yield Buffer.from(text)
}
