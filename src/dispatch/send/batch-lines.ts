// The unsent lines that one batch has in a lane, in piles of lines that begin alike. A server works through one pile after
// the other: first through piles that are its own by rendezvous hashing, so that replicas cache different beginnings and
// all workers send a beginning to the same replica; and if it has none, through the pile that waits longest, because a
// miss in a cache costs less than a place that stays empty. Lines that share no beginning with others are in piles of
// their chunk, which belong to nobody.
//
// A server leaves a pile after as many lines as were there when it began, though more may have come meanwhile: each
// line is sent after at most one round through all piles, so chunks get finished.
import type { OpenChunk } from '../../results/open-chunk.ts'
import { type Beginning, beginningsOf, sharedDepth } from './beginnings.ts'

/** A server as lines are shared out: what is closed gets no lines, so its piles belong to others. */
export interface Replica {
  readonly name: string
  readonly circuit: { readonly closed: boolean }
}

export interface NextLine {
  chunk: OpenChunk
  position: number
}

/** Piles that are looked at for one that belongs to a server. */
const SCAN_MAX = 256
const SHA1_START = 6

interface Run {
  chunk: OpenChunk
  positions: readonly number[]
  next: number
}

interface Pile {
  key: string
  /** What its replicas are ranked by; null: it belongs to nobody. */
  hash: number | null
  runs: Run[]
  count: number
}

interface Visit {
  pile: Pile
  /** Lines until the next pile. */
  left: number
}

export class BatchLines {
  readonly batch_id: string
  readonly deadline: number
  /** Those that wait longest first. */
  readonly #piles = new Map<string, Pile>()
  readonly #visits = new Map<Replica, Visit>()
  /** The bytes of a beginning; 0 as long as no chunk had beginnings that are shared. */
  #depth = 0
  #count = 0

  constructor(chunk: OpenChunk) {
    this.batch_id = chunk.batch.id
    this.deadline = chunk.claim.deadline
  }

  get count(): number {
    return this.#count
  }

  get sharesBeginnings(): boolean {
    return this.#depth > 0
  }

  /** Adds lines of a chunk, in the order of their prompts. */
  add(chunk: OpenChunk, positions: readonly number[]): void {
    this.#count += positions.length
    for (const { key, hash, positions: of } of this.#pilesOf(chunk, positions)) {
      let pile = this.#piles.get(key)
      if (!pile) {
        pile = { key, hash, runs: [], count: 0 }
        this.#piles.set(key, pile)
      }
      pile.runs.push({ chunk, positions: of, next: 0 })
      pile.count += of.length
    }
  }

  #pilesOf(chunk: OpenChunk, positions: readonly number[]): (Beginning & { hash: number | null })[] {
    if (this.#depth === 0) this.#depth = sharedDepth(chunk, positions)
    if (this.#depth === 0) return [{ key: `${chunk.claim.idx}`, hash: null, positions }]
    return beginningsOf(chunk, positions, this.#depth).map((one) => ({
      ...one,
      hash: Buffer.from(one.key.slice(0, SHA1_START), 'base64').readUInt32BE(),
    }))
  }

  /** Removes the chunk's lines. */
  remove(chunk: OpenChunk): number[] {
    const left: number[] = []
    for (const pile of [...this.#piles.values()]) {
      for (const run of pile.runs.filter((one) => one.chunk === chunk)) {
        const unsent = run.positions.slice(run.next)
        left.push(...unsent)
        pile.runs.splice(pile.runs.indexOf(run), 1)
        this.#taken(pile, unsent.length)
      }
    }
    return left
  }

  /** The next line for a server, of which `peers` are the replicas, itself included. */
  take(server: Replica | null, peers: readonly Replica[]): NextLine {
    const pile = server === null || this.#piles.size === 1 ? this.#oldest() : this.#visit(server, peers)
    const run = pile.runs[0]!
    const position = run.positions[run.next++]!
    if (run.next === run.positions.length) pile.runs.shift()
    this.#taken(pile, 1)
    return { chunk: run.chunk, position }
  }

  /** A line from anywhere; `at` is in [0, 1). */
  draw(at: number): NextLine {
    let skip = Math.floor(at * this.#count)
    for (const pile of this.#piles.values()) {
      for (const run of pile.runs) {
        const left = run.positions.length - run.next
        if (skip >= left) {
          skip -= left
          continue
        }
        const positions = run.positions.slice(run.next)
        const [position] = positions.splice(skip, 1)
        run.positions = positions
        run.next = 0
        if (positions.length === 0) pile.runs.splice(pile.runs.indexOf(run), 1)
        this.#taken(pile, 1)
        return { chunk: run.chunk, position: position! }
      }
    }
    throw new Error('a batch without lines was asked for one')
  }

  #taken(pile: Pile, count: number): void {
    pile.count -= count
    this.#count -= count
    if (pile.count === 0) this.#piles.delete(pile.key)
  }

  #oldest(): Pile {
    return this.#piles.values().next().value!
  }

  /** The pile that the server works through, or else the next one. */
  #visit(server: Replica, peers: readonly Replica[]): Pile {
    let visit = this.#visits.get(server)
    if (!visit || visit.left === 0 || visit.pile.count === 0) {
      const pile = this.#nextPile(server, peers)
      if (pile.hash === null) return pile
      // Whoever comes next begins with another one.
      this.#piles.delete(pile.key)
      this.#piles.set(pile.key, pile)
      visit = { pile, left: pile.count }
      this.#visits.set(server, visit)
    }
    visit.left--
    return visit.pile
  }

  #nextPile(server: Replica, peers: readonly Replica[]): Pile {
    const able = peers.filter(({ circuit }) => circuit.closed)
    let looked = 0
    for (const pile of this.#piles.values()) {
      if (pile.hash === null || homeOf(pile.hash, able) === server) return pile
      if (++looked === SCAN_MAX) break
    }
    return this.#oldest()
  }
}

const hashes = new WeakMap<Replica, number>()

/** Rendezvous hashing: of the replicas, the one with the highest hash of pile and replica. */
function homeOf(pile: number, replicas: readonly Replica[]): Replica | null {
  let home: Replica | null = null
  let highest = -1
  for (const replica of replicas) {
    const score = mixed(pile ^ hashOf(replica))
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
