// Reads the database on a connection of its own. After every transaction it compares the new state with the state
// before and reports the invariants that the transaction broke.
import { DatabaseSync } from 'node:sqlite'
import type { BackendResult } from '../../src/backends/backend.ts'
import type { SealedBlobs } from '../../src/blobs/sealed.ts'
import { BATCH_STATUSES, type BatchStatus, canTransition, isTerminal } from '../../src/domain/batch.ts'
import { scanJournal, spanOf } from '../../src/results/journal.ts'
import { readSpans } from '../../src/results/read-spans.ts'
import type { SentLine } from './model-server.ts'
import type { Tally } from './tally.ts'
import { Behaviour, type Change, traceReader } from './trace.ts'

/** The last attempt of a line. */
interface Attempt {
  machine: string
  chunk: string
  /** The session that leased the chunk; null without a lease. */
  session: string | null
  /** `final`: answered or refused; `failed`: may be retried. */
  state: 'in flight' | 'final' | 'failed'
}

interface ChunkState {
  state: string
  epoch: number
  worker_id: string | null
  counted: string
}

export class InvariantChecker {
  readonly violations: string[] = []
  /** By the line's text: the committed result line. */
  readonly finished = new Map<string, string>()
  readonly #db: DatabaseSync
  readonly #sealed: SealedBlobs
  readonly #tally: Tally
  readonly #behaviour = new Behaviour()
  readonly #changes: () => Change[]
  readonly #deadline = new Map<string, number>()
  #chunks = new Map<string, ChunkState>()
  #batches = new Map<string, BatchStatus>()
  /** The machine that opened each session. */
  readonly #sessions = new Map<string, string>()
  #lastPart = 0
  readonly #attempts = new Map<string, Attempt>()
  /** By batch name: its ID, and the number of the last line of each chunk, counted from 0. */
  readonly #plans = new Map<string, { id: string; ends: readonly number[] }>()
  /** By machine: lines whose answers it received. */
  readonly #answered = new Map<string, Set<string>>()
  /** Machines that have lost a lease: lines that they had received answers for may be sent again. */
  readonly #lost = new Set<string>()
  /** Lines whose results a machine had to commit before its graceful shutdown, and the machine. */
  readonly #finishedBeforeStop = new Map<string, string>()
  #turn: Promise<void> = Promise.resolve()

  constructor(path: string, sealed: SealedBlobs, tally: Tally) {
    this.#tally = tally
    this.#db = new DatabaseSync(path, { readOnly: true })
    this.#changes = traceReader(this.#db)
    this.#sealed = sealed
  }

  /** Lines of a batch are `NAME/lNUMBER`; chunk `i` ends with line `ends[i]`. None may be sent from `deadline` on. */
  addBatch(batch_name: string, deadline: number, plan: { id: string; ends: readonly number[] }): void {
    this.#deadline.set(batch_name, deadline)
    this.#plans.set(batch_name, plan)
  }

  /** When the window of a line closes (Unix ms). */
  deadlineOf(line: string): number {
    return this.#deadline.get(line.slice(0, line.indexOf('/'))) ?? 0
  }

  onRequest({ machine, line, at }: SentLine): void {
    this.#tally.count('checked: lines sent')
    const deadline = this.deadlineOf(line)
    if (at >= deadline) this.violations.push(`${machine} sent ${line} ${at - deadline} ms after its window`)
    if (this.finished.has(line)) this.violations.push(`${machine} sent ${line}, which was committed`)
    const stopped = this.#finishedBeforeStop.get(line)
    if (stopped)
      this.violations.push(
        `${machine} sent ${line}, which ${stopped} had an answer for before its graceful shutdown`,
      )
    this.#checkAttempt(machine, line)
  }

  /** A batch API has taken a line. */
  onHandedOver(machine: string, line: string): void {
    this.#tally.count('checked: lines handed over')
    if (this.finished.has(line)) this.violations.push(`${machine} handed over ${line}, which was committed`)
  }

  /** A line is sent while its chunk is leased, and again only after a failure, a crash or a lost lease. */
  #checkAttempt(machine: string, line: string): void {
    const chunk = this.#chunkOf(line)
    const now = this.#chunks.get(chunk)
    const session = now?.worker_id ?? null
    const parked = now?.state === 'parked' || now?.state === 'sealed'
    if (!now) this.violations.push(`${machine} sent ${line}, whose chunk ${chunk} does not exist`)
    if (parked) this.violations.push(`${machine} sent ${line}, whose chunk is ${now.state}`)
    const last = this.#attempts.get(line)
    if (last && last.state !== 'failed' && last.session !== null && this.#isLive(last.session))
      this.violations.push(`${machine} sent ${line} again, which is ${last.state} on ${last.machine}`)
    this.#attempts.set(line, { machine, chunk, session, state: 'in flight' })
  }

  #chunkOf(line: string): string {
    const [name = '', rest = ''] = line.split('/')
    const plan = this.#plans.get(name)
    const number = Number.parseInt(rest.slice(1), 10)
    return `${plan?.id} ${plan?.ends.findIndex((end) => number <= end)}`
  }

  #isLive(session: string): boolean {
    return this.#db.prepare('SELECT id FROM workers WHERE id = ?').get(session) !== undefined
  }

  onEnded(machine: string, line: string, result: BackendResult['kind']): void {
    const attempt = this.#attempts.get(line)
    const isFinal = result === 'answered' || result === 'refused'
    if (attempt?.machine === machine) attempt.state = isFinal ? 'final' : 'failed'
    if (result !== 'answered') return
    const lines = this.#answered.get(machine) ?? new Set()
    this.#answered.set(machine, lines)
    lines.add(line)
  }

  onLost(machine: string): void {
    this.#lost.add(machine)
  }

  /** A worker has finished its graceful shutdown. */
  onStopped(machine: string): void {
    for (const row of this.#db
      .prepare("SELECT batch_id, idx, worker_id FROM chunks WHERE state = 'leased'")
      .all())
      if (this.#sessions.get(String(row.worker_id)) === machine)
        this.violations.push(`${machine} has stopped and still leases ${row.batch_id} ${row.idx}`)
    if (this.#lost.has(machine)) return
    for (const line of this.#answered.get(machine) ?? []) this.#finishedBeforeStop.set(line, machine)
  }

  /** Runs one transaction of `machine`, alone, and checks its effects. */
  async observe<T>(machine: string, write: () => Promise<T>): Promise<T> {
    const before = this.#turn
    let done: () => void = () => {}
    this.#turn = new Promise((resolve) => {
      done = resolve
    })
    await before
    try {
      return await write()
    } finally {
      await this.#checkTransaction(machine)
      done()
    }
  }

  close(): void {
    this.#db.close()
  }

  async #checkTransaction(machine: string): Promise<void> {
    this.#tally.count('checked: transactions')
    for (const row of this.#db.prepare('SELECT id FROM workers').all())
      if (!this.#sessions.has(String(row.id))) this.#sessions.set(String(row.id), machine)
    for (const why of this.#behaviour.transaction(this.#changes())) this.violations.push(`${machine}: ${why}`)
    this.#checkBatches()
    this.#checkChunks(machine)
    await this.#checkJournals()
  }

  #checkBatches(): void {
    for (const row of this.#db.prepare('SELECT id, status, in_progress_at FROM batches').all()) {
      const id = String(row.id)
      const to = BATCH_STATUSES.find((status) => status === row.status)
      if (!to) throw new Error(`batch ${id} is ${row.status}`)
      const from = this.#batches.get(id)
      this.#batches.set(id, to)
      if (from === undefined || from === to) continue
      if (isTerminal(from)) this.violations.push(`${id} left ${from} for ${to}`)
      // One transaction may start a batch and end it.
      else if (from === 'queued' && row.in_progress_at !== null && canTransition('in_progress', to)) continue
      else if (!canTransition(from, to)) this.violations.push(`${id} went from ${from} to ${to}`)
    }
  }

  #checkChunks(machine: string): void {
    const now = new Map<string, ChunkState>()
    const rows = this.#db
      .prepare('SELECT batch_id, idx, state, epoch, worker_id, completed, failed, cost_nanos FROM chunks')
      .all()
    for (const row of rows) {
      const key = `${row.batch_id} ${row.idx}`
      const after: ChunkState = {
        state: String(row.state),
        epoch: Number(row.epoch),
        worker_id: row.worker_id === null ? null : String(row.worker_id),
        counted: `${row.completed} ${row.failed} ${row.cost_nanos}`,
      }
      now.set(key, after)
      const before = this.#chunks.get(key)
      if (!before) continue
      if (after.epoch < before.epoch) this.violations.push(`the epoch of ${key} decreased`)
      if (before.state === 'sealed' && after.state !== 'sealed')
        this.violations.push(`${key} was sealed and is ${after.state}`)
      if (before.state === 'leased' && after.state === 'parked')
        for (const [line, attempt] of this.#attempts)
          if (attempt.chunk === key && attempt.session === before.worker_id && attempt.state === 'in flight')
            this.violations.push(`${machine} parked ${key} while ${line} was in flight`)
      const committed =
        before.counted !== after.counted || (after.state === 'sealed' && before.state !== 'sealed')
      if (!committed) continue
      const lessee = before.worker_id === null ? undefined : this.#sessions.get(before.worker_id)
      if (before.state !== 'leased' || lessee !== machine)
        this.violations.push(`${machine} committed to ${key}, which was ${before.state} to ${lessee}`)
    }
    this.#chunks = now
  }

  /** A line is finished when the commit that names its journal is. */
  async #checkJournals(): Promise<void> {
    const parts = this.#db
      .prepare(
        `SELECT journal_parts.rowid AS number, batch_id, idx, journal_blob, byte_start, byte_end, wrapped_key, bytes
         FROM journal_parts LEFT JOIN blobs ON blobs.key = journal_blob
         WHERE journal_parts.rowid > ? ORDER BY journal_parts.rowid`,
      )
      .all(this.#lastPart)
    for (const row of parts) {
      this.#lastPart = Number(row.number)
      if (row.wrapped_key === null) {
        this.violations.push(`journal ${row.journal_blob} has no key`)
        continue
      }
      const key = String(row.journal_blob)
      const part = {
        batch_id: String(row.batch_id),
        idx: Number(row.idx),
        journal_blob: key,
        byte_start: Number(row.byte_start),
        byte_end: Number(row.byte_end),
        sums: null,
      }
      const blob = { key, wrapped_key: String(row.wrapped_key), bytes: Number(row.bytes) }
      try {
        const lines = await scanJournal(this.#sealed, { part, blob })
        const results = lines.map((line) => spanOf(line, 'result'))
        for await (const result of readSpans(this.#sealed, results)) this.#finish(String(result).trimEnd())
      } catch (error) {
        this.violations.push(`journal ${key} was committed and cannot be read: ${error}`)
      }
    }
  }

  #finish(result: string): void {
    this.#tally.count('checked: lines committed')
    const line = String(JSON.parse(result).custom_id)
    if (this.finished.has(line)) this.violations.push(`${line} was finished twice`)
    this.finished.set(line, result)
  }
}
