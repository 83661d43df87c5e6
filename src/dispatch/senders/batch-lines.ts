// The unsent lines that one batch has in a lane, grouped by the prefix of their prompts. A server works through one
// group after the other: first through the groups that rendezvous hashing assigns to it, so that replicas cache
// different prefixes and all workers send a prefix to the same replica; then through the group that waits longest,
// because a cache miss costs less than an empty slot. Lines without a shared prefix form a group of their chunk, which
// is assigned to no server.
//
// A server leaves a group after as many lines as were in it when the server began, though more may have arrived
// meanwhile: each line is sent after at most one round through all groups, so chunks get finished.
import { hash } from 'node:crypto'
import type { Run } from '../run.ts'

/** A server among which groups are divided; a closed server gets no groups. */
export interface Replica {
  readonly name: string
  readonly circuit: { readonly closed: boolean }
}

/** A line in a queue; it counts only if its run says so. */
export interface Entry {
  readonly run: Run
  readonly position: number
}

/** The least number of waiting lines of a batch whose lines share prefixes: the more wait, the more go to one server in a row. */
const LINES_AHEAD_SHARED = 4000
/** Groups that are looked at for one that belongs to a server. */
const SCAN_MAX = 256
const SHA1_START = 6

interface Segment {
  run: Run
  positions: readonly number[]
  next: number
}

interface PrefixGroup {
  key: string
  /** The hash that its replicas are ranked by; null: it belongs to no server. */
  hash: number | null
  segments: Segment[]
  count: number
}

interface Assignment {
  group: PrefixGroup
  /** Lines until the next group. */
  left: number
}

export class BatchLines {
  readonly batch_id: string
  readonly deadline: number
  /** Groups, the one that waits longest first. */
  readonly #groups = new Map<string, PrefixGroup>()
  readonly #assigned = new Map<Replica, Assignment>()
  /** The bytes of a prefix; 0 as long as neither the whole input nor a chunk had prefixes that are shared. */
  #depth: number
  readonly #linesAhead: number
  #count = 0

  constructor(run: Run) {
    this.batch_id = run.batch.id
    this.deadline = run.claim.deadline
    this.#depth = run.batch.prefix_bytes
    this.#linesAhead = run.batch.lines_ahead
  }

  /** Entries, some of which may no longer count. */
  get count(): number {
    return this.#count
  }

  /** Below so many lines that wait, further chunks are opened. */
  get linesAhead(): number {
    return this.#depth === 0 ? 0 : Math.max(this.#linesAhead, LINES_AHEAD_SHARED)
  }

  add(run: Run, positions: readonly number[]): void {
    if (positions.length === 0) return
    this.#count += positions.length
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

  /** Takes out what no longer counts, and second entries of a line; returns how many entries that were. */
  dropStale(): number {
    const before = this.#count
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
    return before - this.#count
  }

  /** The next line for a server, of which `peers` are the replicas, itself included; null if none is left. */
  next(server: Replica | null, peers: readonly Replica[]): Entry | null {
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

  /** A line from anywhere; `at` is in [0, 1). */
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

  /** The group that the server works through, or else the next one. */
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

const hashes = new WeakMap<Replica, number>()

/** Rendezvous hashing: of the replicas that take lines, the one with the highest hash of group and replica. */
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

/** FNV-1a of its name, which is the same in all workers. */
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

// The prefixes that the prompts of a chunk share. Model servers cache the computation of a prefix, so lines that
// share one go to the same server, one after the other.

/** A shorter prefix saves a server too little: some 60 tokens. */
const DEPTH_MIN = 256
const DEPTH_MAX = 64 * 1024
const BLOCK = 256
/**
 * The unit of the length of prefixes: bytes that the lines of one chunk share by chance, such as the first digit of their
 * numbers, would keep them apart from those of other chunks.
 */
const DEPTH_STEP = 128

type Prompts = Pick<Run, 'bytes' | 'lines'>

interface PrefixLines {
  /** Equal for lines that share the prefix, whatever their chunk. */
  key: string
  positions: readonly number[]
}

/** Lines that share a prefix go one after the other. */
export function inPromptOrder({ bytes, lines }: Prompts, positions: number[]): number[] {
  return positions.sort((a, b) => {
    const left = lines[a]!.prompt
    const right = lines[b]!.prompt
    return bytes.compare(bytes, right.start, right.end, left.start, left.end) || a - b
  })
}

/**
 * How many bytes a prefix should have, 0 for none: as many as make the bytes that lines share with their neighbours the
 * most. `positions` are in the order of the prompts.
 */
function sharedDepth(of: Prompts, positions: readonly number[]): number {
  const shared: number[] = []
  for (let i = 1; i < positions.length; i++) {
    const length = sharedBytes(of, positions[i - 1]!, positions[i]!)
    if (length >= DEPTH_MIN) shared.push(length)
  }
  shared.sort((a, b) => b - a)
  let depth = 0
  let most = 0
  for (const [i, length] of shared.entries()) {
    const saved = length * (i + 1)
    if (saved < most) continue
    most = saved
    depth = length
  }
  return depth - (depth % DEPTH_STEP)
}

/** The lines by their first `depth` bytes, in the order of `positions`, which is that of the prompts. */
function byPrefix(of: Prompts, positions: readonly number[], depth: number): PrefixLines[] {
  const { bytes, lines } = of
  const found: PrefixLines[] = []
  let first = 0
  for (let i = 1; i <= positions.length; i++) {
    if (i < positions.length && sharesPrefix(of, positions[i - 1]!, positions[i]!, depth)) continue
    const { start, end } = lines[positions[first]!]!.prompt
    const key = hash('sha1', bytes.subarray(start, Math.min(end, start + depth)), 'base64')
    found.push({ key, positions: positions.slice(first, i) })
    first = i
  }
  return found
}

function sharesPrefix({ bytes, lines }: Prompts, a: number, b: number, depth: number): boolean {
  const left = lines[a]!.prompt
  const right = lines[b]!.prompt
  if (left.end - left.start < depth || right.end - right.start < depth) return false
  return isAlike(bytes, left.start, right.start, depth)
}

function sharedBytes({ bytes, lines }: Prompts, a: number, b: number): number {
  const left = lines[a]!.prompt
  const right = lines[b]!.prompt
  const max = Math.min(left.end - left.start, right.end - right.start, DEPTH_MAX)
  let shared = 0
  while (shared + BLOCK <= max && isAlike(bytes, left.start + shared, right.start + shared, BLOCK))
    shared += BLOCK
  while (shared < max && bytes[left.start + shared] === bytes[right.start + shared]) shared++
  return shared
}

function isAlike(bytes: Buffer, a: number, b: number, length: number): boolean {
  // Most prompts differ early, and a comparison by the runtime costs more than that of a byte.
  if (bytes[a] !== bytes[b]) return false
  return bytes.compare(bytes, b, b + length, a, a + length) === 0
}
