// After every transaction it compares what is committed with what was before, and reports the invariants that the
// transaction broke; and for each request that a server gets, whether it may be sent just now.

import type { BackendResult } from '../../src/backends/backend.ts'
import type { SealedBlobs } from '../../src/blobs/sealed.ts'
import { canTransition, isTerminal } from '../../src/domain/batch.ts'
import { endpointPaths } from '../../src/domain/endpoint.ts'
import { lineNumbers } from '../../src/jsonl/chunk-lines.ts'
import { findJournalled } from '../../src/results/journal.ts'
import { readSpans } from '../../src/results/read-content.ts'
import { type Changed, type CommittedPart, CommittedState } from './committed-state.ts'
import type { Machine } from './machine.ts'
import type { SentRequest } from './model-server.ts'
import type { Ask, PlannedLine, Plans } from './plans.ts'
import type { Tally } from './tally.ts'
import { Behaviour, type TracedBatch, type TracedChunk } from './trace.ts'

/** An attempt at a request. */
interface Attempt {
  machine: string
  /** The session under which it was sent; null without one. */
  session: string | null
  /** `final`: answered or refused; `failed`: may be retried. */
  state: 'in flight' | 'final' | 'failed'
}

/** How long a worker that runs may go on sending what was paused: it looks every 300 ms. */
const PAUSE_MS = 1_500

export class InvariantChecker {
  readonly violations: string[] = []
  /** By the name of the line: the committed result line. */
  readonly finished = new Map<string, string>()
  readonly #state: CommittedState
  readonly #sealed: SealedBlobs
  readonly #plans: Plans
  readonly #tally: Tally
  readonly #behaviour = new Behaviour()
  readonly #now: () => number
  /** The machine that opened each session, and the last one of each machine. */
  readonly #machineOf = new Map<string, string>()
  readonly #sessionOf = new Map<string, string>()
  /** By request, the attempts that are in flight, and the last one. */
  readonly #attempts = new Map<string, Attempt[]>()
  /** By machine: requests whose answers it received. */
  readonly #answered = new Map<string, Set<string>>()
  /** Machines that have lost a lease: requests that they had received answers for may be sent again. */
  readonly #lost = new Set<string>()
  /** Requests whose results a machine had to commit before its graceful shutdown, and the machine. */
  readonly #finishedBeforeStop = new Map<string, string>()
  /** By batch, and by project and model: since when it is paused. */
  readonly #pausedSince = new Map<string, number>()
  /** By journal blob, the names of the lines that it has. */
  readonly linesOfJournal = new Map<string, string[]>()
  #turn: Promise<void> = Promise.resolve()

  constructor(options: { path: string; sealed: SealedBlobs; plans: Plans; now: () => number; tally: Tally }) {
    this.#state = new CommittedState(options.path)
    this.#sealed = options.sealed
    this.#plans = options.plans
    this.#now = options.now
    this.#tally = options.tally
  }

  onRequest({ machine, request, at }: SentRequest): void {
    this.#tally.count('checked: requests sent')
    const ask = this.#plans.ask(request)
    const { expires_at } = ask.batch
    if (at >= expires_at)
      this.#violate(`${machine.name} sent ${request} ${at - expires_at} ms after its window`)
    const open = this.#unfinished(machine, request, ask)
    const stopped = this.#finishedBeforeStop.get(request)
    if (stopped !== undefined)
      this.#violate(
        `${machine.name} sent ${request}, which ${stopped} had an answer for before its graceful shutdown`,
      )
    this.#checkPauses(machine, request, ask)
    this.#checkAttempt(machine, request, ask, open)
  }

  /** A machine asks a batch API to take these requests. */
  onHandedOver(machine: Machine, requests: readonly string[]): void {
    for (const request of requests) {
      this.#tally.count('checked: requests handed over')
      this.#unfinished(machine, request, this.#plans.ask(request))
    }
  }

  #unfinished(machine: Machine, request: string, { batch, lines }: Ask): PlannedLine[] {
    if (!endpointPaths().includes(batch.endpoint))
      this.#violate(`${machine.name} sent ${request} to ${batch.endpoint}, which is not declared`)
    const open = lines.filter(({ name }) => !this.finished.has(name))
    if (open.length === 0) this.#violate(`${machine.name} sent ${request}, which was committed`)
    return open
  }

  #checkPauses(machine: Machine, request: string, { batch, lines }: Ask): void {
    const since =
      this.#pausedSince.get(batch.id) ?? this.#pausedSince.get(`${batch.project_id} ${lines[0]?.model}`)
    if (since === undefined) return
    const pausedMs = this.#now() - Math.max(since, machine.runsSince)
    if (pausedMs > PAUSE_MS)
      this.#violate(`${machine.name} sent ${request} ${pausedMs} ms after it was paused`)
  }

  /**
   * A request is sent while a chunk of its lines is leased, and again only after a failure, a crash or a lost lease. Of
   * identical lines that share their answer, a worker sends one at a time.
   */
  #checkAttempt(machine: Machine, request: string, { lines }: Ask, open: readonly PlannedLine[]): void {
    const chunks = open.map((line) => this.#chunkOf(line))
    if (chunks.every((chunk) => chunk === undefined || chunk.state === 'parked' || chunk.state === 'sealed'))
      this.#violate(`${machine.name} sent ${request}, whose chunk is ${chunks[0]?.state ?? 'not there'}`)
    const attempts = this.#attempts.get(request) ?? []
    const [only] = lines
    if (lines.length === 1 && only) {
      const last = attempts.at(-1)
      if (last && last.state !== 'failed' && last.session !== null && this.#state.isLive(last.session))
        this.#violate(`${machine.name} sent ${request} again, which is ${last.state} on ${last.machine}`)
      const session = this.#chunkOf(only)?.session ?? null
      this.#attempts.set(request, [{ machine: machine.name, session, state: 'in flight' }])
      return
    }
    const session = this.#sessionOf.get(machine.name) ?? null
    const flying = attempts.filter((one) => one.state === 'in flight')
    const own = flying.filter((one) => one.machine === machine.name && one.session === session).length
    const isShared = lines.every((line) => line.isShared)
    if (own >= (isShared ? 1 : open.length))
      this.#violate(`${machine.name} sent ${request}, of which it has ${own} in flight`)
    this.#attempts.set(request, [...flying, { machine: machine.name, session, state: 'in flight' }])
  }

  #chunkOf(line: PlannedLine): TracedChunk | undefined {
    return this.#state.chunks.get(this.#plans.chunkKey(line))
  }

  onEnded(machine: Machine, request: string, result: BackendResult['kind']): void {
    const isFinal = result === 'answered' || result === 'refused'
    const attempt = this.#attempts
      .get(request)
      ?.find((one) => one.machine === machine.name && one.state === 'in flight')
    if (attempt) attempt.state = isFinal ? 'final' : 'failed'
    if (result !== 'answered') return
    const requests = this.#answered.get(machine.name) ?? new Set()
    this.#answered.set(machine.name, requests)
    requests.add(request)
  }

  onLost(machine: Machine): void {
    this.#lost.add(machine.name)
  }

  /** A worker has finished its graceful shutdown. */
  onStopped({ name: machine }: Machine): void {
    for (const { of, state, session } of this.#state.chunks.values())
      if (state === 'leased' && session !== null && this.#machineOf.get(session) === machine)
        this.#violate(`${machine} has stopped and still leases ${of}`)
    if (this.#lost.has(machine)) return
    // The answer of one line may be lost while another line has it.
    for (const request of this.#answered.get(machine) ?? [])
      if (this.#plans.ask(request).lines.length === 1) this.#finishedBeforeStop.set(request, machine)
  }

  /** Journals were damaged: their lines are sent again, unless a worker has them in memory. */
  onDamaged(names: readonly string[]): void {
    for (const name of names) {
      this.finished.delete(name)
      const request = this.#plans.requestOfLine(name)
      this.#finishedBeforeStop.delete(request)
      this.#attempts.delete(request)
      for (const requests of this.#answered.values()) requests.delete(request)
    }
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
    this.#state.close()
  }

  #violate(violation: string): void {
    this.violations.push(violation)
  }

  async #checkTransaction(machine: string): Promise<void> {
    this.#tally.count('checked: transactions')
    const { steps, sessions, batches, chunks, parts } = this.#state.changes()
    if (steps.length === 0) return
    for (const { kind, was, is } of steps) {
      const numbers = kind === 'chunk' && was === null && is ? lineNumbers({ lines: is.numbers }) : null
      if (kind !== 'chunk' || is === null || numbers === null) continue
      this.#plans.cut(is.of, numbers)
      this.#tally.count('world: chunk cut along beginnings')
    }
    for (const why of this.#behaviour.transaction(steps)) this.#violate(`${machine}: ${why}`)
    for (const session of sessions) {
      this.#machineOf.set(session, machine)
      this.#sessionOf.set(machine, session)
    }
    for (const change of batches) this.#checkBatch(change)
    for (const change of chunks) this.#checkChunk(machine, change)
    for (const part of parts) await this.#checkPart(part)
    this.#notePauses()
  }

  #checkBatch({
    before: { status: from },
    after: { id, status: to, hasStarted },
  }: Changed<TracedBatch>): void {
    if (from === to) return
    if (isTerminal(from)) this.#violate(`${id} left ${from} for ${to}`)
    // One transaction may start a batch and end it.
    else if (from === 'queued' && hasStarted && canTransition('in_progress', to)) return
    else if (!canTransition(from, to)) this.#violate(`${id} went from ${from} to ${to}`)
  }

  #checkChunk(machine: string, { before, after }: Changed<TracedChunk>): void {
    const { of: key } = after
    if (after.epoch < before.epoch) this.#violate(`the epoch of ${key} decreased`)
    if (before.state === 'sealed' && after.state !== 'sealed')
      this.#violate(`${key} was sealed and is ${after.state}`)
    if (before.state === 'leased' && after.state === 'parked') this.#checkParking(machine, before)
    const isCounted = before.counted !== after.counted || before.cost_nanos !== after.cost_nanos
    if (!isCounted && (after.state !== 'sealed' || before.state === 'sealed')) return
    const lessee = before.session === null ? undefined : this.#machineOf.get(before.session)
    if (before.state !== 'leased' || lessee !== machine)
      this.#violate(`${machine} committed to ${key}, which was ${before.state} to ${lessee}`)
  }

  #checkParking(machine: string, { of: key, session }: TracedChunk): void {
    for (const line of this.#plans.linesOfChunk(key)) {
      if (this.#plans.ask(line.request).lines.length > 1) continue
      const attempt = this.#attempts.get(line.request)?.at(-1)
      if (attempt?.state === 'in flight' && attempt.session === session)
        this.#violate(`${machine} parked ${key} while ${line.request} was in flight`)
    }
  }

  #notePauses(): void {
    const paused = new Set(this.#state.pausedModels)
    for (const { id, isPaused } of this.#state.batches.values()) if (isPaused) paused.add(id)
    for (const one of this.#pausedSince.keys()) if (!paused.has(one)) this.#pausedSince.delete(one)
    for (const one of paused) if (!this.#pausedSince.has(one)) this.#pausedSince.set(one, this.#now())
  }

  /** A line is finished when the commit that names its journal is. */
  async #checkPart({ journal_blob: key, wrapped_key, bytes, ...place }: CommittedPart): Promise<void> {
    if (wrapped_key === null) return this.#violate(`journal ${key} has no key`)
    const part = { ...place, journal_blob: key, sums: '' }
    try {
      const lines = await findJournalled(this.#sealed, { part, blob: { key, wrapped_key, bytes } })
      const results = lines.map(({ result }) => result)
      for await (const result of readSpans(this.#sealed, results))
        this.#finish(place.batch_id, String(result).trimEnd(), key)
    } catch (error) {
      this.#violate(`journal ${key} was committed and cannot be read: ${error}`)
    }
  }

  #finish(batch_id: string, result: string, journal: string): void {
    this.#tally.count('checked: lines committed')
    const custom_id = String(JSON.parse(result).custom_id)
    const line = this.#plans.line(batch_id, custom_id)
    if (!line) {
      this.#violate(`${batch_id} has a result of ${custom_id}, which it did not ask`)
      return
    }
    if (this.finished.has(line.name)) this.#violate(`${line.name} was finished twice`)
    this.finished.set(line.name, result)
    const names = this.linesOfJournal.get(journal) ?? []
    this.linesOfJournal.set(journal, names)
    names.push(line.name)
  }
}
