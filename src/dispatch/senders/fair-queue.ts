// Decides which line is sent next. Projects are served round robin, and within a project its entities; of one entity,
// the batch with the earliest deadline goes first. Lines of at-risk batches get most of the slots but never all of them: a
// batch that will miss its deadline anyway must not delay all others. Entries of lines that are no longer unsent are dropped
// when their turn comes.
//
// The lines of a batch are grouped by the prefix of their prompts. A server works through one group after the other: first
// through the groups that rendezvous hashing assigns to it, so that replicas cache different prefixes and all workers send
// a prefix to the same replica; then through the group that waits longest, because a cache miss costs less than an empty
// slot. Lines without a shared prefix form a group of their chunk, which is assigned to no server. A server leaves a group
// after as many lines as were in it when the server began, though more may have arrived meanwhile: each line is sent after at
// most one round through all groups, so chunks get finished.
//
// At the end of a batch, lines with long answers (answer-lengths.ts) go first: the batch would wait for a long one that is sent
// last. Lines that share no beginning are then grouped by length.
import { AnswerLengths } from '../../jsonl/answer-lengths.ts'
import { byPrefix, type PrefixLines, sharedDepth } from '../../jsonl/prompt-prefixes.ts'
import type { Run } from '../run.ts'

/** A server among which groups are divided; a closed server gets no groups. */
export interface Replica {
  readonly name: string
  readonly circuit: { readonly closed: boolean }
}

/** A line in a queue; its run decides whether it still counts. */
export interface Entry {
  readonly run: Run
  readonly position: number
}

/** The least number of waiting lines of a batch with shared prefixes: with more, longer rows go to one server. */
const LINES_AHEAD_SHARED = 4000
/** The number of groups among which a group of a server is searched for. */
const SCAN_MAX = 256
/** Characters of a prefix' key that become its hash. */
const SHA1_START = 6
/** The share of a batch's chunks that counts as its end. */
const END_SHARE = 0.1
/** The interval, in lines, at which a line is served round robin, however many at-risk lines there are. */
const ROUND_ROBIN_EVERY = 4
/** The golden ratio: the fractional parts of its multiples are spread evenly. */
const SPREAD = 0.618_033_988_749_895
/** The number of stale entries at which they are removed: as a multiple of the others, and at least. */
const STALE_FACTOR = 2
const STALE_MIN = 1_000

interface Segment {
  run: Run
  positions: readonly number[]
  next: number
}

interface PrefixGroup {
  key: string
  /** The hash by which replicas are ranked for the group; null: it belongs to no server. */
  hash: number | null
  segments: Segment[]
  count: number
}

interface Assignment {
  group: PrefixGroup
  /** The number of lines until the next group. */
  left: number
}

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
  readonly lengths = new AnswerLengths()
  readonly #projects = new RoundRobin<Project>()
  readonly #atRisk: ReadonlySet<string>
  #served = 0
  #entries = 0
  #linesAhead = 0
  #drawn = 0

  /** Makes an empty queue. `atRisk`: batches that may miss their deadline; changed in place. */
  constructor(atRisk: ReadonlySet<string>) {
    this.#atRisk = atRisk
  }

  get entries(): number {
    return this.#entries
  }

  /** The number of waiting lines below which further chunks are opened: the most that any batch asks for. */
  get linesAhead(): number {
    return this.#linesAhead
  }

  get entriesAtRisk(): number {
    let count = 0
    if (this.#atRisk.size > 0)
      for (const { lines } of this.#all()) if (this.#atRisk.has(lines.batch_id)) count += lines.count
    return count
  }

  /** Whether any waiting line belongs to an at-risk batch, and the earliest deadline (Unix ms). */
  urgency(): { atRisk: boolean; deadline: number } {
    let atRisk = false
    let deadline = Number.POSITIVE_INFINITY
    for (const { lines } of this.#all()) {
      atRisk ||= this.#atRisk.has(lines.batch_id)
      deadline = Math.min(deadline, lines.deadline)
    }
    return { atRisk, deadline }
  }

  /** Adds unsent lines of a run, in the order of their prompts. `waiting`: all unsent lines, these included. */
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
      lines = new BatchLines(run, this.lengths)
      const before = batches.findIndex((other) => isBefore(lines!, other))
      batches.splice(before === -1 ? batches.length : before, 0, lines)
    }
    lines.add(run, positions)
    this.#linesAhead = Math.max(this.#linesAhead, lines.linesAhead)
    this.#entries += positions.length
  }

  /** The next line for a server, of which `peers` are the replicas, itself included. */
  next(server: Replica | null = null, peers: readonly Replica[] = []): Entry | null {
    return this.#first(server, peers, this.#isTurnOfAtRisk() ? this.#atRiskOrInTurn : this.#inTurn)
  }

  /** The next line, if it goes before a line of this run that was sent before: at risk, or due earlier in its entity. */
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

  /** The first valid line that `choose` finds. */
  #first(server: Replica | null, peers: readonly Replica[], choose: () => Waiting | null): Entry | null {
    for (let from = choose(); from !== null; from = choose()) {
      const entry = this.#nextOf(from, server, peers)
      if (entry) return entry
    }
    return null
  }

  #nextOf({ entity, lines }: Waiting, server: Replica | null, peers: readonly Replica[]): Entry | null {
    const before = lines.count
    const entry = lines.next(server, peers)
    this.#took(entity, lines, before)
    return entry
  }

  /** A line to probe a server with, of a batch that `allows` accepts, from any position: neighbours are similar. */
  draw(allows: (batch_id: string) => boolean): Entry | null {
    for (const { entities } of this.#projects.round()) {
      for (const entity of entities.round()) {
        const lines = entity.batches.find(({ batch_id }) => allows(batch_id))
        if (!lines) continue
        const before = lines.count
        const entry = lines.draw((++this.#drawn * SPREAD) % 1)
        this.#took(entity, lines, before)
        if (entry) return entry
      }
    }
    return null
  }

  #dropStale(): void {
    for (const { entity, lines } of [...this.#all()]) {
      const before = lines.count
      lines.dropStale()
      this.#took(entity, lines, before)
    }
  }

  /** Counts the lines taken of a batch that had `before` entries, and drops a batch without entries. */
  #took(entity: Entity, lines: BatchLines, before: number): void {
    this.#entries -= before - lines.count
    if (lines.count > 0) return
    entity.batches.splice(entity.batches.indexOf(lines), 1)
    if (lines.linesAhead > 0)
      this.#linesAhead = [...this.#all()].reduce((most, one) => Math.max(most, one.lines.linesAhead), 0)
    if (entity.batches.length === 0) this.#tidy()
  }

  // Made once: a closure takes memory for every line.
  readonly #inTurn = (): Waiting | null => {
    const entity = this.#projects.next()?.entities.next()
    const lines = entity?.batches[0]
    return entity && lines ? { entity, lines } : null
  }

  readonly #atRiskOrInTurn = (): Waiting | null => this.#beforeAtRisk() ?? this.#inTurn()

  #atRiskBatch(): Waiting | null {
    let first: Waiting | null = null
    for (const one of this.#all())
      if (this.#atRisk.has(one.lines.batch_id) && (!first || isBefore(one.lines, first.lines))) first = one
    return first
  }

  /** The next lines of the first at-risk batch's entity: by its earliest deadline, at risk or not. */
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

/** Members by ID, served round robin: the member that was served last is at the end. */
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

// The unsent lines that one batch has in a lane.

export class BatchLines {
  readonly batch_id: string
  readonly deadline: number
  /** Groups in the order of their waiting times, the longest first. */
  readonly #groups = new Map<string, PrefixGroup>()
  readonly #assigned = new Map<Replica, Assignment>()
  /** The bytes of a prefix; 0 until the whole input or a chunk has shared prefixes. */
  #depth: number
  readonly #linesAhead: number
  readonly #lengths: AnswerLengths
  #count = 0
  #isAtEnd = false
  /** The number of lines at which they are sorted by expected length again, with what was learned since. */
  #sortAt = 0

  constructor(run: Run, lengths: AnswerLengths) {
    this.#lengths = lengths
    this.batch_id = run.batch.id
    this.deadline = run.claim.deadline
    this.#depth = run.batch.prefix_bytes
    this.#linesAhead = run.batch.lines_ahead
  }

  /** Entries, some of which may no longer count. */
  get count(): number {
    return this.#count
  }

  /** The number of waiting lines below which further chunks are opened. */
  get linesAhead(): number {
    return this.#depth === 0 ? 0 : Math.max(this.#linesAhead, LINES_AHEAD_SHARED)
  }

  add(run: Run, positions: readonly number[]): void {
    if (positions.length === 0) return
    this.#count += positions.length
    this.#isAtEnd ||= isAtEnd(run)
    this.#sortAt = this.#count
    for (const { key, hash, positions: of } of this.#grouped(run, positions)) {
      let group = this.#groups.get(key)
      if (!group) {
        group = { key, hash, segments: [], count: 0 }
        this.#groups.set(key, group)
      }
      group.segments.push({ run, positions: of, next: 0 })
      group.count += of.length
    }
  }

  #grouped(run: Run, positions: readonly number[]): (PrefixLines & { hash: number | null })[] {
    if (this.#depth === 0 && run.batch.line_order !== 'file') this.#depth = sharedDepth(run, positions)
    if (this.#depth === 0) return [{ key: `${run.claim.idx}`, hash: null, positions }]
    return byPrefix(run, positions, this.#depth).map((one) => ({
      ...one,
      hash: Buffer.from(one.key.slice(0, SHA1_START), 'base64').readUInt32BE(),
    }))
  }

  /** Removes entries that no longer count, and second entries of a line. */
  dropStale(): void {
    const kept = new Map<Run, Set<number>>()
    const counts = (run: Run, position: number): boolean => {
      const of = kept.get(run) ?? new Set()
      if (!run.isUnsent(position) || of.has(position)) return false
      kept.set(run, of.add(position))
      return true
    }
    for (const group of [...this.#groups.values()]) {
      for (const segment of group.segments) {
        const left = segment.positions.slice(segment.next).filter((one) => counts(segment.run, one))
        this.#taken(group, segment.positions.length - segment.next - left.length)
        segment.positions = left
        segment.next = 0
      }
      group.segments = group.segments.filter(({ positions }) => positions.length > 0)
    }
  }

  /** The next line for a server, of which `peers` are the replicas, itself included; null if none is left. */
  next(server: Replica | null, peers: readonly Replica[]): Entry | null {
    if (this.#isAtEnd && this.#count <= this.#sortAt) this.#sortByLength()
    while (this.#count > 0) {
      const group =
        server === null || this.#groups.size === 1 ? this.#oldest() : this.#groupFor(server, peers)
      const segment = group.segments[0]!
      const { run } = segment
      const position = segment.positions[segment.next++]!
      if (segment.next === segment.positions.length) group.segments.shift()
      this.#taken(group, 1)
      if (run.isUnsent(position)) return { run, position }
    }
    return null
  }

  /** Puts the groups in the order of their expected lengths, longest first. */
  #sortByLength(): void {
    this.dropStale()
    this.#sortAt = Math.floor(this.#count / 2)
    const groups = new Map<string, PrefixGroup & { length: number }>()
    for (const { key, hash, segments } of this.#groups.values())
      for (const { run, positions } of segments) {
        const lengths = Map.groupBy(positions, (one) => lengthClass(this.#lengths.expected(run, one)))
        const parts = hash === null ? lengths : new Map([[Math.max(...lengths.keys()), positions]])
        for (const [length, of] of parts) {
          const name = hash === null ? `${length}` : key
          const group = groups.get(name) ?? { key: name, hash, segments: [], count: 0, length }
          group.segments.push({ run, positions: of, next: 0 })
          group.count += of.length
          group.length = Math.max(group.length, length)
          groups.set(name, group)
        }
      }
    this.#groups.clear()
    for (const group of [...groups.values()].sort((a, b) => b.length - a.length))
      this.#groups.set(group.key, group)
    this.#assigned.clear()
  }

  /** A line from any position; `at` is in [0, 1). */
  draw(at: number): Entry | null {
    while (this.#count > 0) {
      const entry = this.#draw(Math.floor(at * this.#count))
      if (entry.run.isUnsent(entry.position)) return entry
    }
    return null
  }

  #draw(number: number): Entry {
    let skip = number
    for (const group of this.#groups.values()) {
      for (const segment of group.segments) {
        const left = segment.positions.length - segment.next
        if (skip >= left) {
          skip -= left
          continue
        }
        const positions = segment.positions.slice(segment.next)
        const [position] = positions.splice(skip, 1)
        segment.positions = positions
        segment.next = 0
        if (positions.length === 0) group.segments.splice(group.segments.indexOf(segment), 1)
        this.#taken(group, 1)
        return { run: segment.run, position: position! }
      }
    }
    throw new Error('a batch without lines was asked for one')
  }

  #taken(group: PrefixGroup, count: number): void {
    group.count -= count
    this.#count -= count
    if (group.count === 0) this.#groups.delete(group.key)
  }

  #oldest(): PrefixGroup {
    for (const group of this.#groups.values()) return group
    throw new Error('a batch without lines was asked for one')
  }

  /** The present group of the server, or else the next one. */
  #groupFor(server: Replica, peers: readonly Replica[]): PrefixGroup {
    let assigned = this.#assigned.get(server)
    if (!assigned || assigned.left === 0 || assigned.group.count === 0) {
      const group = this.#nextGroup(server, peers)
      if (group.hash === null) return group
      // The next server begins with another one.
      this.#groups.delete(group.key)
      this.#groups.set(group.key, group)
      assigned = { group, left: group.count }
      this.#assigned.set(server, assigned)
    }
    assigned.left--
    return assigned.group
  }

  #nextGroup(server: Replica, peers: readonly Replica[]): PrefixGroup {
    let looked = 0
    for (const group of this.#groups.values()) {
      if (group.hash === null || homeOf(group.hash, peers) === server) return group
      if (++looked === SCAN_MAX) break
    }
    return this.#oldest()
  }
}

function isAtEnd({ batch, claim }: Run): boolean {
  const { line_order, is_gathered, chunk_count } = batch
  return line_order !== 'file' && is_gathered === 0 && claim.idx + 1 > (1 - END_SHARE) * chunk_count
}

/** The class of a length: equal for lengths that differ by less than a factor of about two. */
function lengthClass(tokens: number): number {
  return Math.round(Math.log2(Math.max(1, tokens)))
}

const hashes = new WeakMap<Replica, number>()

/** Chooses by rendezvous hashing: of the open replicas, the one with the highest hash of group and replica. */
function homeOf(group: number, replicas: readonly Replica[]): Replica | null {
  let home: Replica | null = null
  let highest = -1
  for (const replica of replicas) {
    if (!replica.circuit.closed) continue
    const score = mixed(group ^ hashOf(replica))
    if (score <= highest) continue
    highest = score
    home = replica
  }
  return home
}

/** The hash (FNV-1a) of the replica's name, which is the same in all workers. */
function hashOf(replica: Replica): number {
  let found = hashes.get(replica)
  if (found === undefined) {
    found = 0x811c9dc5
    for (const byte of Buffer.from(replica.name)) found = Math.imul(found ^ byte, 0x01000193)
    hashes.set(replica, found)
  }
  return found
}

/** The last steps of MurmurHash3: every bit of the result depends on every bit. */
function mixed(value: number): number {
  let h = value
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b)
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35)
  return (h ^ (h >>> 16)) >>> 0
}
