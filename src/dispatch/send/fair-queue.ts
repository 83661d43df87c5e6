// Decides which line is sent next. Projects are served round robin, and within a project its entities; of one entity,
// the chunk with the earliest deadline goes first. Lines of at-risk batches get most of the slots but never all of
// them: a batch that will miss its deadline anyway must not delay all others.
import type { OpenChunk } from '../../results/open-chunk.ts'

/** One of this many lines is served round robin, however many at-risk lines there are. */
const ROUND_ROBIN_EVERY = 4
/** The golden ratio: the fractional parts of its multiples are spread evenly. */
const SPREAD = 0.618_033_988_749_895

interface Queue {
  chunk: OpenChunk
  positions: readonly number[]
  next: number
}

interface Entity {
  id: string
  queues: Queue[]
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
  #drawn = 0

  /** Lines that have not been handed out. */
  get waiting(): number {
    return this.#waiting
  }

  /** Sets the at-risk batches. */
  prioritize(batchIds: ReadonlySet<string>): void {
    this.#atRisk = batchIds
  }

  /** Of the lines that wait: whether any belongs to an at-risk batch, and the earliest deadline (Unix ms). */
  urgency(): { atRisk: boolean; deadline: number } {
    let atRisk = false
    let deadline = Number.POSITIVE_INFINITY
    for (const { queue } of this.#all()) {
      atRisk ||= this.#atRisk.has(queue.chunk.batch.id)
      deadline = Math.min(deadline, queue.chunk.claim.deadline)
    }
    return { atRisk, deadline }
  }

  /** Adds lines of a chunk, in the order in which they are to be sent. */
  add(chunk: OpenChunk, positions: readonly number[]): void {
    if (positions.length === 0) return
    const { project_id, entity } = chunk.claim
    const project =
      this.#projects.find(project_id) ?? this.#projects.join({ id: project_id, entities: new RoundRobin() })
    const { queues } = project.entities.find(entity) ?? project.entities.join({ id: entity, queues: [] })
    const before = queues.findIndex((other) => isBefore(chunk, other.chunk))
    queues.splice(before === -1 ? queues.length : before, 0, { chunk, positions, next: 0 })
    this.#waiting += positions.length
  }

  /** Removes the chunk's lines that have not been handed out. */
  remove(chunk: OpenChunk): number[] {
    const left: number[] = []
    for (const { entity, queue } of [...this.#all()]) {
      if (queue.chunk !== chunk) continue
      left.push(...queue.positions.slice(queue.next))
      entity.queues.splice(entity.queues.indexOf(queue), 1)
    }
    this.#waiting -= left.length
    this.#tidy()
    return left
  }

  /** Hands out the next line. */
  next(): { chunk: OpenChunk; position: number } | null {
    const atRisk = this.#atRisk.size > 0 && ++this.#served % ROUND_ROBIN_EVERY !== 0
    return this.#take((atRisk ? this.#atRiskQueue() : null) ?? this.#roundRobinQueue())
  }

  /** Hands out the next line of an at-risk batch. */
  nextAtRisk(): { chunk: OpenChunk; position: number } | null {
    return this.#take(this.#atRiskQueue())
  }

  #take(from: { entity: Entity; queue: Queue } | null): { chunk: OpenChunk; position: number } | null {
    if (!from) return null
    const { entity, queue } = from
    const position = queue.positions[queue.next++]!
    this.#waiting--
    this.#leave(entity, queue)
    return { chunk: queue.chunk, position }
  }

  /**
   * Hands out a line to probe a server with: round robin, of a batch that `allows` accepts, and from anywhere in its
   * chunk, because similar lines are neighbours.
   */
  draw(allows: (batch_id: string) => boolean): { chunk: OpenChunk; position: number } | null {
    for (const { entities } of this.#projects.round()) {
      for (const entity of entities.round()) {
        const queue = entity.queues.find(({ chunk }) => allows(chunk.batch.id))
        if (!queue) continue
        const left = queue.positions.slice(queue.next)
        const [position] = left.splice(Math.floor(((++this.#drawn * SPREAD) % 1) * left.length), 1)
        queue.positions = left
        queue.next = 0
        this.#waiting--
        this.#leave(entity, queue)
        return { chunk: queue.chunk, position: position! }
      }
    }
    return null
  }

  #leave(entity: Entity, queue: Queue): void {
    if (queue.next < queue.positions.length) return
    entity.queues.splice(entity.queues.indexOf(queue), 1)
    if (entity.queues.length === 0) this.#tidy()
  }

  #roundRobinQueue(): { entity: Entity; queue: Queue } | null {
    const entity = this.#projects.next()?.entities.next()
    const queue = entity?.queues[0]
    return entity && queue ? { entity, queue } : null
  }

  #atRiskQueue(): { entity: Entity; queue: Queue } | null {
    let first: { entity: Entity; queue: Queue } | null = null
    for (const one of this.#all())
      if (
        this.#atRisk.has(one.queue.chunk.batch.id) &&
        (!first || isBefore(one.queue.chunk, first.queue.chunk))
      )
        first = one
    return first
  }

  *#all(): Generator<{ entity: Entity; queue: Queue }> {
    for (const { entities } of this.#projects.all)
      for (const entity of entities.all) for (const queue of entity.queues) yield { entity, queue }
  }

  #tidy(): void {
    for (const { entities } of this.#projects.all) entities.keep(({ queues }) => queues.length > 0)
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

function isBefore(a: OpenChunk, b: OpenChunk): boolean {
  if (a.claim.deadline !== b.claim.deadline) return a.claim.deadline < b.claim.deadline
  if (a.batch.id !== b.batch.id) return a.batch.id < b.batch.id
  return a.claim.idx < b.claim.idx
}
