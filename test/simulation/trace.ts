// What the code does to the rows that the invariants are about: triggers write each change of a row into a table, in its
// transaction. The rows that the models are about (model/) are checked one transaction at a time: a change that is no step
// of model/Steps.tla is a violation, and so is a state that breaks an invariant of the models.
import type { DatabaseSync } from 'node:sqlite'
import { CHUNK_STEPS, REMOTE_BATCH_STEPS } from '../../model/steps.ts'
import { type BatchStatus, UNRECORDED_STATES } from '../../src/domain/batch.ts'

/** `of`: batch and index. */
export interface TracedChunk {
  of: string
  state: string
  epoch: number
  seq: number
  reservation_seq: number
  session: string | null
  /** Lines that are committed, and what they cost. */
  counted: number
  cost_nanos: number
  lines: number
  /** The numbers of its lines, encoded; null: they are consecutive. */
  numbers: string | null
  remote_batches: number
  parked_reason: string | null
}

export interface TracedRemoteBatch {
  id: string
  /** The chunk. */
  of: string
  state: string
  model: string
  remote_id: string | null
  creations: number
  isFailing: number
  /** What its lines have reserved, as JSON. */
  reserved: string | null
}

/** What is reserved for an entity and a model by a chunk, or, where `isKept`, by lines of it that are at batch APIs. */
export interface TracedReservation {
  of: string
  isKept: number
  entity: string
  cost_nanos: number
  tokens: number
}

export interface TracedBatch {
  id: string
  status: BatchStatus
  hasStarted: number
  isPaused: number
}

export interface TracedPart {
  batch_id: string
  idx: number
  journal_blob: string
  byte_start: number
  byte_end: number
}

interface Rows {
  chunk: TracedChunk
  remote_batch: TracedRemoteBatch
  reservation: TracedReservation
  session: { id: string }
  batch: TracedBatch
  journal_part: TracedPart
  /** A project and a model. */
  paused_model: { name: string }
}

/** A row was made, changed or deleted. */
export type Change = {
  [Kind in keyof Rows]: { kind: Kind; was: Rows[Kind] | null; is: Rows[Kind] | null }
}[keyof Rows]

type Amounts = Pick<TracedReservation, 'cost_nanos' | 'tokens'>

/** By kind of row: its table, the SQL of each field with `row.` for the row, and the columns whose changes count. */
const TRACED: readonly {
  kind: keyof Rows
  table: string
  fields: Record<string, string>
  columns: string
}[] = [
  {
    kind: 'chunk',
    table: 'chunks',
    fields: {
      of: "row.batch_id || ' ' || row.idx",
      state: 'row.state',
      epoch: 'row.epoch',
      seq: 'row.commit_seq',
      reservation_seq: 'row.reservation_seq',
      session: 'row.worker_id',
      counted: 'row.completed + row.failed',
      cost_nanos: 'row.cost_nanos',
      lines: 'row.line_count',
      numbers: 'row.lines',
      remote_batches: 'row.remote_batches',
      parked_reason: 'row.parked_reason',
    },
    columns:
      'state, epoch, commit_seq, reservation_seq, worker_id, completed, failed, cost_nanos, remote_batches',
  },
  {
    kind: 'remote_batch',
    table: 'remote_batches',
    fields: {
      id: 'row.id',
      of: "row.batch_id || ' ' || row.idx",
      state: 'row.state',
      model: 'row.model',
      remote_id: 'row.remote_id',
      creations: 'row.creations',
      isFailing: 'row.failing_since IS NOT NULL',
      reserved: 'row.reserved',
    },
    columns: 'state, remote_id, creations, failing_since, reserved',
  },
  {
    kind: 'reservation',
    table: 'reservations',
    fields: {
      of: "row.batch_id || ' ' || iif(row.idx < 0, -1 - row.idx, row.idx)",
      isKept: 'row.idx < 0',
      entity: "row.entity || ' ' || row.model",
      cost_nanos: 'row.cost_nanos',
      tokens: 'row.tokens',
    },
    columns: 'cost_nanos, tokens',
  },
  { kind: 'session', table: 'workers', fields: { id: 'row.id' }, columns: 'id' },
  {
    kind: 'batch',
    table: 'batches',
    fields: {
      id: 'row.id',
      status: 'row.status',
      hasStarted: 'row.in_progress_at IS NOT NULL',
      isPaused: 'row.paused_at IS NOT NULL',
    },
    columns: 'status, in_progress_at, paused_at',
  },
  {
    kind: 'journal_part',
    table: 'journal_parts',
    fields: {
      batch_id: 'row.batch_id',
      idx: 'row.idx',
      journal_blob: 'row.journal_blob',
      byte_start: 'row.byte_start',
      byte_end: 'row.byte_end',
    },
    columns: 'journal_blob',
  },
  {
    kind: 'paused_model',
    table: 'paused_models',
    fields: { name: "row.project_id || ' ' || row.model" },
    columns: 'model',
  },
]

/** Has a database that is empty yet keep a trace. */
export function keepTrace(db: DatabaseSync): void {
  db.exec('CREATE TABLE trace (number INTEGER PRIMARY KEY, kind TEXT, was TEXT, "is" TEXT)')
  for (const { kind, table, fields, columns } of TRACED) {
    const row = (name: 'OLD' | 'NEW'): string => {
      const parts = Object.entries(fields).map(
        ([field, sql]) => `'${field}', ${sql.replaceAll('row.', `${name}.`)}`,
      )
      return `json_object(${parts.join(', ')})`
    }
    for (const [event, was, is] of [
      ['INSERT', 'NULL', row('NEW')],
      [`UPDATE OF ${columns}`, row('OLD'), row('NEW')],
      ['DELETE', row('OLD'), 'NULL'],
    ] as const)
      db.exec(`CREATE TRIGGER "trace ${table} ${event}" AFTER ${event} ON ${table}
        BEGIN INSERT INTO trace (kind, was, "is") VALUES ('${kind}', ${was}, ${is}); END`)
  }
}

/** Returns the changes since its last call. */
export function traceReader(db: DatabaseSync): () => Change[] {
  const later = db.prepare('SELECT number, kind, was, "is" FROM trace WHERE number > ? ORDER BY number')
  let last = 0
  return () =>
    later.all(last).map(({ number, kind, was, is }) => {
      last = Number(number)
      return JSON.parse(`{"kind": "${kind}", "was": ${was ?? null}, "is": ${is ?? null}}`)
    })
}

/** The state of the models, as far as rows have it. */
export class Behaviour {
  readonly #chunks = new Map<string, TracedChunk>()
  readonly #remote = new Map<string, TracedRemoteBatch>()
  readonly #reservations = new Map<string, TracedReservation>()
  readonly #sessions = new Set<string>()
  #found: string[] = []

  /** Takes the steps of one transaction, and returns why it is none of a behaviour of the models. */
  transaction(changes: readonly Change[]): string[] {
    this.#found = []
    const touched = new Set<string>()
    for (const change of changes) {
      if (change.kind === 'chunk') this.#chunk(change.was, change.is)
      else if (change.kind === 'remote_batch') this.#remoteBatch(change.was, change.is)
      else if (change.kind === 'reservation') this.#reservation(change.was, change.is)
      else if (change.kind === 'session') this.#session(change.was, change.is)
      const row = change.is ?? change.was
      if (row !== null && 'of' in row) touched.add(row.of)
    }
    if (changes.some(({ kind, is }) => kind === 'session' && is === null))
      for (const [of, { state }] of this.#chunks) if (state === 'leased') touched.add(of)
    for (const of of touched) this.#checkChunk(of)
    return this.#found
  }

  #session(was: Rows['session'] | null, is: Rows['session'] | null): void {
    if (is !== null) this.#sessions.add(is.id)
    else if (was !== null) this.#sessions.delete(was.id)
  }

  #chunk(was: TracedChunk | null, is: TracedChunk | null): void {
    if (is === null) {
      if (was !== null && was.state !== 'sealed')
        this.#found.push(`${was.of} is ${was.state} and was deleted`)
      return void this.#chunks.delete(was?.of ?? '')
    }
    this.#chunks.set(is.of, is)
    if (was === null) {
      // The plan makes chunks of which no line can run, and seals them in the same transaction.
      if (is.state !== 'ready' && is.state !== 'leased') this.#found.push(`${is.of} was made ${is.state}`)
      return
    }
    const step = CHUNK_STEPS.find(
      ({ from, to, epoch, seq }) =>
        from === was.state && to === is.state && epoch === is.epoch - was.epoch && seq === is.seq - was.seq,
    )
    const isSame = was.state === is.state && was.epoch === is.epoch && was.seq === is.seq
    const tell = (state: TracedChunk): string => `${state.state} (epoch ${state.epoch}, commit ${state.seq})`
    if (!step && !isSame)
      this.#found.push(`${is.of} went from ${tell(was)} to ${tell(is)}: no step of the model`)
    if (was.counted !== is.counted && was.seq === is.seq)
      this.#found.push(`${is.of}: lines count without a commit`)
    if (was.reservation_seq !== is.reservation_seq && (was.state !== 'leased' || !isSame))
      this.#found.push(`${is.of}: a reservation without a lease`)
    if (is.reservation_seq < was.reservation_seq)
      this.#found.push(`${is.of}: the number of reservations decreased`)
  }

  #remoteBatch(was: TracedRemoteBatch | null, is: TracedRemoteBatch | null): void {
    if (is === null) {
      if (was !== null && was.state !== 'done')
        this.#found.push(`${was.id} is ${was.state} and was forgotten`)
      return void this.#remote.delete(was?.id ?? '')
    }
    this.#remote.set(is.id, is)
    const chunk = this.#chunks.get(is.of)?.state
    if (was === null) {
      if (is.state !== 'intended') this.#found.push(`${is.id} was made ${is.state}`)
      if (chunk !== 'leased') this.#found.push(`${is.id} was intended for a chunk that is ${chunk}`)
      return
    }
    const isAnnounced = is.creations !== was.creations
    if (was.state === is.state && !isAnnounced) return
    const step = REMOTE_BATCH_STEPS.find(({ from, to }) => from === was.state && to === is.state)
    if (!step)
      return void this.#found.push(`${is.id} went from ${was.state} to ${is.state}: no step of the model`)
    const { name } = step
    if (isAnnounced !== (name === 'announce'))
      this.#found.push(`${is.id}: ${name} and ${is.creations} creations`)
    if (name === 'announce' && chunk !== 'leased')
      this.#found.push(`${is.id}: ${name}, and its chunk is ${chunk}`)
    if (name === 'open' && is.remote_id === null) this.#found.push(`${is.id} is open and has no ID there`)
    if (isUnrecorded(was) && !isUnrecorded(is) && chunk !== 'leased' && chunk !== 'sealed')
      this.#found.push(`${is.id}: ${name}, and its chunk is ${chunk}`)
  }

  #reservation(was: TracedReservation | null, is: TracedReservation | null): void {
    const row = is ?? was
    if (row === null) return
    const key = `${row.of} ${row.isKept} ${row.entity}`
    if (is === null) return void this.#reservations.delete(key)
    this.#reservations.set(key, is)
    const isMore = is.cost_nanos > (was?.cost_nanos ?? 0) || is.tokens > (was?.tokens ?? 0)
    const chunk = this.#chunks.get(is.of)?.state
    if (isMore && is.isKept === 0 && chunk !== 'leased')
      this.#found.push(`${is.of}: something is reserved for it, and it is ${chunk}`)
  }

  /** The invariants of the models, after a transaction. */
  #checkChunk(of: string): void {
    const reserved = this.#reservedOf(of, 0)
    const kept = this.#reservedOf(of, 1)
    for (const [entity, { cost_nanos, tokens }] of [...reserved, ...kept])
      if (cost_nanos < 0 || tokens < 0) this.#found.push(`${of}: less than nothing is reserved for ${entity}`)
    const chunk = this.#chunks.get(of)
    const { state, counted, lines, session, remote_batches, parked_reason } = chunk ?? NO_CHUNK
    if (state !== 'leased' && [...reserved.values()].some(isSome))
      this.#found.push(`${of} is ${state}, and something is reserved for it`)
    if (!chunk) return
    if (counted > lines || counted < 0) this.#found.push(`${of}: ${counted} of ${lines} lines count`)
    if (state === 'sealed' && counted !== lines)
      this.#found.push(`${of} is sealed, and ${counted} of ${lines} lines count`)
    if ((state === 'leased') !== (session !== null)) this.#found.push(`${of} is ${state} by ${session}`)
    if (session !== null && !this.#sessions.has(session))
      this.#found.push(`${of} is leased by a session that has ended`)
    const there = [...this.#remote.values()].filter((batch) => batch.of === of && isUnrecorded(batch))
    if (there.length !== remote_batches)
      this.#found.push(`${of} counts ${remote_batches} remote batches, and ${there.length} are not recorded`)
    const hasEnded = there.some((batch) => batch.state === 'ended' && batch.isFailing === 0)
    if (state === 'parked' && hasEnded && !SHORT_PARKS.includes(parked_reason))
      this.#found.push(`${of} is parked (${parked_reason}), and a batch of it has ended`)
    this.#checkKept(of, kept, state === 'sealed' ? [] : there)
  }

  #checkKept(of: string, kept: ReadonlyMap<string, Amounts>, there: readonly TracedRemoteBatch[]): void {
    const wanted = new Map<string, Amounts>()
    for (const { reserved, model } of there)
      for (const [name, cost_nanos, tokens] of reserved === null ? [] : JSON.parse(reserved)) {
        const entity = `${name ?? ''} ${model}`
        const sum = wanted.get(entity) ?? { cost_nanos: 0, tokens: 0 }
        wanted.set(entity, { cost_nanos: sum.cost_nanos + cost_nanos, tokens: sum.tokens + tokens })
      }
    for (const entity of new Set([...kept.keys(), ...wanted.keys()])) {
      const has = kept.get(entity) ?? NOTHING
      const is = wanted.get(entity) ?? NOTHING
      if (has.cost_nanos !== is.cost_nanos || has.tokens !== is.tokens)
        this.#found.push(
          `${of} keeps ${JSON.stringify(has)} for ${entity}, and its lines there have ${JSON.stringify(is)}`,
        )
    }
  }

  #reservedOf(of: string, isKept: number): Map<string, Amounts> {
    const found = new Map<string, Amounts>()
    for (const one of this.#reservations.values())
      if (one.of === of && one.isKept === isKept)
        found.set(one.entity, { cost_nanos: one.cost_nanos, tokens: one.tokens })
    return found
  }
}

const NO_CHUNK = {
  state: 'deleted',
  counted: 0,
  lines: 0,
  numbers: null,
  session: null,
  remote_batches: 0,
  parked_reason: null,
}
/** Why a chunk is parked for a moment whatever has ended: what it needs cannot be read or written, or another worker knows it. */
const SHORT_PARKS: readonly (string | null)[] = ['stores_failing', 'input_unreadable', 'model_unavailable']
const NOTHING: Amounts = { cost_nanos: 0, tokens: 0 }

function isSome({ cost_nanos, tokens }: Amounts): boolean {
  return cost_nanos !== 0 || tokens !== 0
}

function isUnrecorded({ state }: TracedRemoteBatch): boolean {
  return UNRECORDED_STATES.some((one) => one === state)
}
