// The clients of a crash run: they upload files, create batches, read what is finished and cancel now and then,
// over HTTP, and try again whatever got no answer, as a careful client does. What they were told is kept: it is
// what the service will be held to.
import { setTimeout as wait } from 'node:timers/promises'
import type { SeededRandom } from '../simulation/seeded-random.ts'
import { askApi, uploadForm } from '../support/api.ts'

/** No answer for so long, though somebody tries all the time, is an outage; times the run's patience. */
export const OUTAGE_MS_MAX = 15_000
const RETRY_MS = 100
const CALL_MS_MAX = 10_000
const OPEN_MAX = 4
/** The cap of a key, in lines: for a few batches, or for a large one. */
const KEY_CAPS = [150, 2_000]
const TERMINAL = ['completed', 'failed', 'expired', 'cancelled']

export interface KnownBatch {
  id: string
  project: string
  key: string
  /** The custom_ids, in input order; single requests may still come. */
  lines: string[]
  /** Unix s. */
  expires_at: number
  cancelled: boolean
  /** Lines that were read as finished: their text, and when (Unix ms). */
  seen: Map<string, { text: string; at: number }>
  /** As many lines as were ever said to be finished. */
  done: number
  /** The last that was said of it. */
  status: string
}

export interface ShownBatch {
  id: string
  status: string
  output_file_id: string | null
  error_file_id: string | null
  request_counts: { total: number; completed: number; failed: number }
  cost_usd: number
  expires_at: number
}

interface ShownRequest {
  batch_id: string
  line: number
  expires_at: number
}

export interface Wishes {
  project: string
  key: string
  windows: readonly string[]
}

export interface BatchClientOptions {
  url: string
  random: SeededRandom
  /** For how long the whole machine has stood still, in ms; nobody answers meanwhile. */
  stillMs: () => number
  /** Multiplies the times after which a call counts as unanswered: 1 on a quiet machine. */
  patience: number
  onFault: (problem: string) => void
}

interface Answer {
  status: number
  text: string
}

/** All clients share a count, so that no two lines of a run are the same. */
let files = 0

export class BatchClient {
  readonly batches: KnownBatch[] = []
  /** Refused, because a cap might have been passed. */
  refused = 0
  /** Calls that got no answer, or were told to come back. */
  retried = 0
  /** The longest that a call had to be tried. */
  outage_ms = 0
  readonly #options: BatchClientOptions
  readonly #wishes: Wishes
  #paused = false
  #stopped = false
  #entity = 1
  /** With a cap of its own; another one follows when that is reached. */
  #capped: { key: string; limit: { id: string } } | null = null
  /** The records of the audit log that were read so far, and the cursor behind them. */
  readonly exported: string[] = []
  #cursor = ''
  #charged = 0

  constructor(wishes: Wishes, options: BatchClientOptions) {
    this.#wishes = wishes
    this.#options = options
  }

  get open(): KnownBatch[] {
    return this.batches.filter(({ status }) => !TERMINAL.includes(status))
  }

  /** Works until `stop`; resolves then. */
  async work(): Promise<void> {
    const { random } = this.#options
    while (!this.#stopped) {
      if (!this.#paused && this.open.length < OPEN_MAX) await this.#order()
      if (random.chance(0.05)) await this.#export()
      for (const batch of this.open) {
        await this.#look(batch)
        if (!batch.cancelled && random.chance(0.004)) await this.#cancel(batch)
      }
      await wait(50)
    }
  }

  /** Nothing new is created. */
  pause(): void {
    this.#paused = true
  }

  resume(): void {
    this.#paused = false
  }

  stop(): void {
    this.#stopped = true
  }

  async limit(caps: readonly object[]): Promise<void> {
    for (const [i, cap] of caps.entries()) {
      const { status, text } = await this.ask('POST', '/v1/limits', cap, { 'idempotency-key': `cap ${i}` })
      if (status !== 200) this.#options.onFault(`a limit was answered with ${status}: ${text}`)
    }
  }

  async #key(): Promise<string> {
    const amount = this.#options.random.pick(KEY_CAPS)
    const limit = { metric: 'requests', amount, window: 'week', model: 'm' }
    this.#capped ??= JSON.parse((await this.ask('POST', '/v1/keys', { limit })).text)
    return this.#capped!.key
  }

  /** Notes that a cap refused a call: of the key, or of the entity. */
  #refuse(text: string): void {
    this.refused++
    if (this.#capped && text.includes(this.#capped.limit.id)) this.#capped = null
    else this.#entity++
  }

  /** Reads on in the audit log, and what was charged, as a nightly job would. */
  async #export(): Promise<void> {
    const { status, text } = await this.ask('GET', `/v1/audit?limit=1000${this.#cursor}`)
    if (status !== 200) return this.#options.onFault(`the audit log was answered with ${status}: ${text}`)
    const records: { id: string; cursor: string }[] = text
      .split('\n')
      .filter(Boolean)
      .map((line) => JSON.parse(line))
    this.exported.push(...records.map(({ id }) => id))
    const last = records.at(-1)
    if (last) this.#cursor = `&after=${last.cursor}`
    const charged = billed((await this.ask('GET', '/v1/usage/entities?format=focus')).text)
    if (!(charged >= this.#charged))
      this.#options.onFault(`${this.#charged} were charged, and now ${charged}`)
    this.#charged = charged
  }

  async show(batch: KnownBatch): Promise<ShownBatch> {
    return JSON.parse((await this.ask('GET', `/v1/batches/${batch.id}`)).text)
  }

  async content(file_id: string | null): Promise<string> {
    return file_id === null ? '' : (await this.ask('GET', `/v1/files/${file_id}/content`)).text
  }

  /** Asks until there is an answer that is no "come back later". */
  async ask(
    method: string,
    path: string,
    body?: object | FormData,
    headers: Record<string, string> = {},
    key = this.#wishes.key,
  ): Promise<Answer> {
    const { patience } = this.#options
    const at = { url: this.#options.url, key }
    const begun = performance.now() - this.#options.stillMs()
    const took = (): number => performance.now() - begun - this.#options.stillMs()
    for (;;) {
      let last: string
      try {
        const signal = AbortSignal.timeout(CALL_MS_MAX * patience)
        const response = await askApi(at, method, path, body, { headers, signal })
        const answer = { status: response.status, text: await response.text() }
        const later = answer.status >= 500 || answer.text.includes('idempotency_in_progress')
        if (!later) {
          this.outage_ms = Math.max(this.outage_ms, took())
          return answer
        }
        last = `${answer.status} ${answer.text}`
      } catch (error) {
        last = String(error instanceof Error ? (error.cause ?? error) : error)
      }
      this.retried++
      await wait(RETRY_MS)
      if (took() > (OUTAGE_MS_MAX + CALL_MS_MAX) * patience) {
        this.#options.onFault(`${method} ${path} got no answer for too long; the last was: ${last}`)
        throw new Error('the service is gone')
      }
    }
  }

  async #order(): Promise<void> {
    const { random, onFault } = this.#options
    const { project, key, windows } = this.#wishes
    const name = `${project}-${++files}`
    const count = random.chance(0.1) ? random.int(1001, 1400) : random.int(1, 120)
    const lines = Array.from({ length: count }, (_, i) => `${name}/${i}`)
    const entity = `user:${this.#entity}`
    if (random.chance(0.3)) return await this.#sendSingles(lines.slice(0, 40), entity)
    const file_id = await this.#upload(lines, entity)
    if (file_id === null) return
    const wanted = {
      input_file_id: file_id,
      endpoint: '/v1/chat/completions',
      completion_window: random.chance(0.15) ? windows[0] : windows.at(-1),
    }
    const payer = await this.#key()
    const answer = await this.ask('POST', '/v1/batches', wanted, { 'idempotency-key': name }, payer)
    if (answer.text.includes('usage_limit_exceeded')) return this.#refuse(answer.text)
    if (answer.status !== 200)
      return onFault(`creating a batch over ${file_id} was answered with ${answer.status}: ${answer.text}`)
    const { id, expires_at, status }: ShownBatch = JSON.parse(answer.text)
    const known = { id, project, key, lines, expires_at, status, cancelled: false, seen: new Map(), done: 0 }
    this.batches.push(known)
  }

  /** Each line as a call of its own, all at once; they go to the batches that gather them. */
  async #sendSingles(lines: readonly string[], entity: string): Promise<void> {
    const { project, key } = this.#wishes
    const payer = await this.#key()
    let rejection: string | undefined
    const accepted = await Promise.all(
      lines.map(async (mark, i) => {
        const {
          url: endpoint,
          method: _,
          ...order
        } = JSON.parse(inputLine(mark, i % 3 === 0 ? entity : null))
        const answer = await this.ask(
          'POST',
          '/v1/requests',
          { endpoint, ...order },
          { 'idempotency-key': mark },
          payer,
        )
        if (answer.status === 202) return { mark, ...(JSON.parse(answer.text) as ShownRequest) }
        if (answer.text.includes('usage_limit_exceeded')) rejection = answer.text
        else this.#options.onFault(`a single request was answered with ${answer.status}: ${answer.text}`)
        return null
      }),
    )
    if (rejection !== undefined) this.#refuse(rejection)
    for (const one of accepted.toSorted((a, b) => (a?.line ?? 0) - (b?.line ?? 0))) {
      if (one === null) continue
      const { mark, batch_id: id, expires_at } = one
      const known = this.batches.find((batch) => batch.id === id)
      if (known) known.lines.push(mark)
      else {
        const more = { status: 'queued', cancelled: false, seen: new Map(), done: 0 }
        this.batches.push({ id, project, key, lines: [mark], expires_at, ...more })
      }
    }
  }

  /** Null when it was stopped meanwhile. */
  async #upload(lines: readonly string[], entity: string): Promise<string | null> {
    const text = lines.map((mark, i) => inputLine(mark, i % 3 === 0 ? entity : null)).join('\n')
    const { status, text: answer } = await this.ask('POST', '/v1/files', uploadForm(text))
    if (status !== 200) {
      this.#options.onFault(`an upload was answered with ${status}: ${answer}`)
      return null
    }
    const { id }: { id: string } = JSON.parse(answer)
    while (!this.#stopped) {
      const shown = await this.ask('GET', `/v1/files/${id}`)
      const file: { status: string } = JSON.parse(shown.text)
      if (file.status === 'processed') return id
      if (file.status !== 'pending') {
        this.#options.onFault(`the file ${id}, which was taken in, shows as ${shown.status} ${shown.text}`)
        return null
      }
      await wait(20)
    }
    return null
  }

  async #cancel(batch: KnownBatch): Promise<void> {
    const { status } = await this.ask('POST', `/v1/batches/${batch.id}/cancel`)
    // 422: it has ended meanwhile.
    if (status === 200) batch.cancelled = true
    else if (status !== 422) this.#options.onFault(`a cancel of ${batch.id} was answered with ${status}`)
  }

  async #look(batch: KnownBatch): Promise<void> {
    const { onFault } = this.#options
    const shown = await this.show(batch)
    const { completed, failed } = shown.request_counts
    if (completed + failed < batch.done)
      onFault(`${batch.id} had ${batch.done} lines finished, and now ${completed + failed}`)
    batch.done = completed + failed
    batch.status = shown.status
    if (completed + failed === 0) return
    const { status, text } = await this.ask('GET', `/v1/batches/${batch.id}/results?limit=10000`)
    if (status !== 200) return onFault(`the results of ${batch.id} were answered with ${status}: ${text}`)
    const at = Date.now()
    const read = new Set<string>()
    for (const line of text.split('\n').filter(Boolean)) {
      const mark = customIdOf(line)
      const before = batch.seen.get(mark)
      read.add(mark)
      if (!before) batch.seen.set(mark, { text: line, at })
      else if (before.text !== line) onFault(`${mark} was finished as ${before.text} and is now ${line}`)
    }
    for (const mark of batch.seen.keys())
      if (!read.has(mark)) onFault(`${mark} of ${batch.id} was finished and is no longer`)
  }
}

/** The sum of a table of FOCUS, in nano-dollars; NaN if it is not whole. */
export function billed(csv: string): number {
  const rows = csv.split('\n')
  if (rows.pop() !== '' || !rows[0]?.startsWith('BilledCost,')) return Number.NaN
  const costs = rows.slice(1).map((row) => Math.round(Number(row.slice(0, row.indexOf(','))) * 1e9))
  return costs.reduce((sum, nanos) => sum + nanos, 0)
}

export function customIdOf(line: string): string {
  return String(JSON.parse(line).custom_id)
}

function inputLine(mark: string, entity: string | null): string {
  return JSON.stringify({
    custom_id: mark,
    method: 'POST',
    url: '/v1/chat/completions',
    ...(entity === null ? {} : { metadata: { entity } }),
    body: { model: 'm', messages: [{ role: 'user', content: mark }], max_tokens: 20 },
  })
}
