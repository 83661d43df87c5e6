// Decides which line is sent next. Projects are served round robin, and within a project its entities; of one entity,
// the batch with the earliest deadline goes first, and of its lines those that suit the server (batch-lines.ts). Lines of at-risk batches get most of the slots but never all of
// them: a batch that will miss its deadline anyway must not delay all others.
import type { OpenChunk } from '../../results/open-chunk.ts'
import { BatchLines, type NextLine, type Replica } from './batch-lines.ts'

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

export class FairQueue {
  readonly #projects = new RoundRobin<Project>()
  #atRisk: ReadonlySet<string> = new Set()
  #served = 0
  #waiting = 0
  #sharesBeginnings = false
  #drawn = 0

  /** Lines that have not been handed out. */
  get waiting(): number {
    return this.#waiting
  }

  /** Whether lines of any batch begin alike. */
  get sharesBeginnings(): boolean {
    return this.#sharesBeginnings
  }

  /** Sets the at-risk batches. */
  prioritize(batchIds: ReadonlySet<string>): void {
    this.#atRisk = batchIds
  }

  /** Of the lines that wait: whether any belongs to an at-risk batch, and the earliest deadline (Unix ms). */
  urgency(): { atRisk: boolean; deadline: number } {
    let atRisk = false
    let deadline = Number.POSITIVE_INFINITY
    for (const { lines } of this.#all()) {
      atRisk ||= this.#atRisk.has(lines.batch_id)
      deadline = Math.min(deadline, lines.deadline)
    }
    return { atRisk, deadline }
  }

  /** Adds lines of a chunk, in the order of their prompts. */
  add(chunk: OpenChunk, positions: readonly number[]): void {
    if (positions.length === 0) return
    const { project_id, entity } = chunk.claim
    const project =
      this.#projects.find(project_id) ?? this.#projects.join({ id: project_id, entities: new RoundRobin() })
    const { batches } = project.entities.find(entity) ?? project.entities.join({ id: entity, batches: [] })
    let lines = batches.find(({ batch_id }) => batch_id === chunk.batch.id)
    if (!lines) {
      lines = new BatchLines(chunk)
      const before = batches.findIndex((other) => isBefore(lines!, other))
      batches.splice(before === -1 ? batches.length : before, 0, lines)
    }
    lines.add(chunk, positions)
    this.#sharesBeginnings ||= lines.sharesBeginnings
    this.#waiting += positions.length
  }

  /** Removes the chunk's lines that have not been handed out. */
  remove(chunk: OpenChunk): number[] {
    const left: number[] = []
    for (const { entity, lines } of [...this.#all()]) {
      if (lines.batch_id !== chunk.batch.id) continue
      left.push(...lines.remove(chunk))
      this.#leave(entity, lines)
    }
    this.#waiting -= left.length
    return left
  }

  /** Hands out the next line for a server, of which `peers` are the replicas, itself included. */
  next(server: Replica | null = null, peers: readonly Replica[] = []): NextLine | null {
    const atRisk = this.#atRisk.size > 0 && ++this.#served % ROUND_ROBIN_EVERY !== 0
    return this.#take((atRisk ? this.#atRiskBatch() : null) ?? this.#roundRobinBatch(), server, peers)
  }

  /** The same of an at-risk batch. */
  nextAtRisk(server: Replica | null = null, peers: readonly Replica[] = []): NextLine | null {
    return this.#take(this.#atRiskBatch(), server, peers)
  }

  #take(from: Waiting | null, server: Replica | null, peers: readonly Replica[]): NextLine | null {
    if (!from) return null
    const next = from.lines.take(server, peers)
    this.#waiting--
    this.#leave(from.entity, from.lines)
    return next
  }

  /**
   * Hands out a line to probe a server with: round robin, of a batch that `allows` accepts, and from anywhere among its
   * lines, because similar lines are neighbours.
   */
  draw(allows: (batch_id: string) => boolean): NextLine | null {
    for (const { entities } of this.#projects.round()) {
      for (const entity of entities.round()) {
        const lines = entity.batches.find(({ batch_id }) => allows(batch_id))
        if (!lines) continue
        const next = lines.draw((++this.#drawn * SPREAD) % 1)
        this.#waiting--
        this.#leave(entity, lines)
        return next
      }
    }
    return null
  }

  #leave(entity: Entity, lines: BatchLines): void {
    if (lines.count > 0) return
    entity.batches.splice(entity.batches.indexOf(lines), 1)
    this.#sharesBeginnings &&= [...this.#all()].some((one) => one.lines.sharesBeginnings)
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

  *#all(): Generator<Waiting> {
    for (const { entities } of this.#projects.all)
      for (const entity of entities.all) for (const lines of entity.batches) yield { entity, lines }
  }

  #tidy(): void {
    for (const { entities } of this.#projects.all) entities.keep(({ batches }) => batches.length > 0)
    this.#projects.keep(({ entities }) => entities.all.length > 0)
  }
}

/** Members in order of arrival, served round robin. */
class RoundRobin<T extends { id: string }> {
  #members: T[] = []
  #last = 0

  get all(): readonly T[] {
    return this.#members
  }

  find(id: string): T | undefined {
    return this.#members.find((member) => member.id === id)
  }

  join(member: T): T {
    this.#members.push(member)
    return member
  }

  next(): T | undefined {
    this.#last = (this.#last + 1) % Math.max(1, this.#members.length)
    return this.#members[this.#last]
  }

  /** Every member once; the next call of `next` continues after the member that was taken last. */
  *round(): Generator<T> {
    for (let i = this.#members.length; i > 0; i--) yield this.next()!
  }

  /** Removing a member skips no other member. */
  keep(stays: (member: T) => boolean): void {
    for (let at = this.#members.length - 1; at >= 0; at--) {
      if (stays(this.#members[at]!)) continue
      this.#members.splice(at, 1)
      if (this.#last >= at && this.#last > 0) this.#last--
    }
  }
}

function isBefore(a: BatchLines, b: BatchLines): boolean {
  if (a.deadline !== b.deadline) return a.deadline < b.deadline
  return a.batch_id < b.batch_id
}
