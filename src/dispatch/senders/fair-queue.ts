// Decides which line is sent next. Projects are served round robin, and within a project its entities; of one entity,
// the batch with the earliest deadline goes first, and of its lines those that suit the server (batch-lines.ts). Lines of
// at-risk batches get most of the slots but never all of them: a batch that will miss its deadline anyway must not delay
// all others. Entries of lines that are no longer unsent are dropped when their turn comes.

import type { Run } from '../run.ts'
import { BatchLines, type Entry, type Replica } from './batch-lines.ts'

/** One of this many lines is served round robin, however many at-risk lines there are. */
const ROUND_ROBIN_EVERY = 4
/** The golden ratio: the fractional parts of its multiples are spread evenly. */
const SPREAD = 0.618_033_988_749_895

interface Entity {
  id: string
  batches: BatchLines[]
}

interface Waiting {
  entity: Entity
  lines: BatchLines
}

interface Project {
  id: string
  entities: RoundRobin<Entity>
}

/** Entries that no longer count are taken out when there are so many times as many, and so many more. */
const STALE_FACTOR = 2
const STALE_MIN = 1_000

export class FairQueue {
  readonly #projects = new RoundRobin<Project>()
  readonly #atRisk: ReadonlySet<string>
  #served = 0
  #entries = 0
  #linesAhead = 0
  #drawn = 0

  /** `atRisk`: batches that may miss their deadline; changed in place. */
  constructor(atRisk: ReadonlySet<string>) {
    this.#atRisk = atRisk
  }

  get entries(): number {
    return this.#entries
  }

  /** Below so many lines that wait, further chunks are opened: the most that any batch asks for. */
  get linesAhead(): number {
    return this.#linesAhead
  }

  get entriesAtRisk(): number {
    let count = 0
    if (this.#atRisk.size > 0)
      for (const { lines } of this.#all()) if (this.#atRisk.has(lines.batch_id)) count += lines.count
    return count
  }

  /** Whether any line that waits belongs to an at-risk batch, and the earliest deadline (Unix ms). */
  urgency(): { atRisk: boolean; deadline: number } {
    let atRisk = false
    let deadline = Number.POSITIVE_INFINITY
    for (const { lines } of this.#all()) {
      atRisk ||= this.#atRisk.has(lines.batch_id)
      deadline = Math.min(deadline, lines.deadline)
    }
    return { atRisk, deadline }
  }

  /** Adds unsent lines of a run, in the order of their prompts. `waiting`: lines that are unsent, these included. */
  add(run: Run, positions: readonly number[], waiting: number): void {
    if (positions.length === 0) return
    if (this.#entries > STALE_FACTOR * waiting + STALE_MIN) this.#dropStale()
    const { project_id, entity } = run.claim
    const { entities } = this.#projects.get(project_id) ?? { entities: new RoundRobin<Entity>() }
    const { batches } = entities.get(entity) ?? { batches: [] }
    if (entities.size === 0) this.#projects.set(project_id, { id: project_id, entities })
    if (batches.length === 0) entities.set(entity, { id: entity, batches })
    let lines = batches.find(({ batch_id }) => batch_id === run.batch.id)
    if (!lines) {
      lines = new BatchLines(run)
      const before = batches.findIndex((other) => isBefore(lines!, other))
      batches.splice(before === -1 ? batches.length : before, 0, lines)
    }
    lines.add(run, positions)
    this.#linesAhead = Math.max(this.#linesAhead, lines.linesAhead)
    this.#entries += positions.length
  }

  /** The next line for a server, of which `peers` are the replicas, itself included. */
  next(server: Replica | null = null, peers: readonly Replica[] = []): Entry | null {
    const atRisk = this.#isTurnOfAtRisk()
    return this.#first(server, peers, () => (atRisk ? this.#beforeAtRisk() : null) ?? this.#roundRobinBatch())
  }

  /**
   * The next line, if it goes before one of this run that was in a queue before: a line of an at-risk batch, or of the
   * same entity with an earlier deadline.
   */
  nextBefore(run: Run, server: Replica, peers: readonly Replica[]): Entry | null {
    const { project_id, entity: id, deadline } = run.claim
    const atRisk = !this.#atRisk.has(run.batch.id) && this.#isTurnOfAtRisk()
    return this.#first(server, peers, () => {
      const found = atRisk ? this.#beforeAtRisk() : null
      if (found) return found
      const entity = this.#projects.get(project_id)?.entities.get(id)
      const lines = entity?.batches[0]
      return entity && lines && lines.deadline < deadline ? { entity, lines } : null
    })
  }

  #isTurnOfAtRisk(): boolean {
    return this.#atRisk.size > 0 && ++this.#served % ROUND_ROBIN_EVERY !== 0
  }

  nextAtRisk(server: Replica | null = null, peers: readonly Replica[] = []): Entry | null {
    return this.#first(server, peers, () => this.#atRiskBatch())
  }

  /** The first line that counts of what `choose` finds. */
  #first(server: Replica | null, peers: readonly Replica[], choose: () => Waiting | null): Entry | null {
    for (let from = choose(); from !== null; from = choose()) {
      const entry = this.#nextOf(from, server, peers)
      if (entry) return entry
    }
    return null
  }

  /** The next line of a batch; null if none of its entries counted. */
  #nextOf({ entity, lines }: Waiting, server: Replica | null, peers: readonly Replica[]): Entry | null {
    const before = lines.count
    const entry = lines.next(server, peers)
    this.#entries -= before - lines.count
    this.#leave(entity, lines)
    return entry
  }

  /**
   * A line to probe a server with: round robin, of a batch that `allows` accepts, and from anywhere among its lines,
   * because similar lines are neighbours.
   */
  draw(allows: (batch_id: string) => boolean): Entry | null {
    for (const { entities } of this.#projects.round()) {
      for (const entity of entities.round()) {
        const lines = entity.batches.find(({ batch_id }) => allows(batch_id))
        if (!lines) continue
        const before = lines.count
        const entry = lines.draw((++this.#drawn * SPREAD) % 1)
        this.#entries -= before - lines.count
        this.#leave(entity, lines)
        if (entry) return entry
      }
    }
    return null
  }

  #dropStale(): void {
    for (const { entity, lines } of [...this.#all()]) {
      this.#entries -= lines.dropStale()
      this.#leave(entity, lines)
    }
  }

  #leave(entity: Entity, lines: BatchLines): void {
    if (lines.count > 0) return
    entity.batches.splice(entity.batches.indexOf(lines), 1)
    if (lines.linesAhead > 0)
      this.#linesAhead = [...this.#all()].reduce((most, one) => Math.max(most, one.lines.linesAhead), 0)
    if (entity.batches.length === 0) this.#tidy()
  }

  #roundRobinBatch(): Waiting | null {
    const entity = this.#projects.next()?.entities.next()
    const lines = entity?.batches[0]
    return entity && lines ? { entity, lines } : null
  }

  #atRiskBatch(): Waiting | null {
    let first: Waiting | null = null
    for (const one of this.#all())
      if (this.#atRisk.has(one.lines.batch_id) && (!first || isBefore(one.lines, first.lines))) first = one
    return first
  }

  /** The lines that the entity of the first at-risk batch sends next: its earliest deadline, at risk or not. */
  #beforeAtRisk(): Waiting | null {
    const { entity } = this.#atRiskBatch() ?? {}
    return entity ? { entity, lines: entity.batches[0]! } : null
  }

  *#all(): Generator<Waiting> {
    for (const { entities } of this.#projects.values())
      for (const entity of entities.values()) for (const lines of entity.batches) yield { entity, lines }
  }

  #tidy(): void {
    for (const { id: project_id, entities } of this.#projects.values()) {
      for (const { id, batches } of entities.values()) if (batches.length === 0) entities.delete(id)
      if (entities.size === 0) this.#projects.delete(project_id)
    }
  }
}

/** Members by ID, served round robin: the one that was served last is at the end. */
class RoundRobin<T extends { id: string }> extends Map<string, T> {
  next(): T | undefined {
    for (const member of this.values()) {
      if (this.size === 1) return member
      this.delete(member.id)
      this.set(member.id, member)
      return member
    }
    return undefined
  }

  /** Every member once; the next call of `next` continues after the member that was taken last. */
  *round(): Generator<T> {
    for (let i = this.size; i > 0; i--) yield this.next()!
  }
}

function isBefore(a: BatchLines, b: BatchLines): boolean {
  if (a.deadline !== b.deadline) return a.deadline < b.deadline
  return a.batch_id < b.batch_id
}
