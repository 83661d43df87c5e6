// Finds out, while a file is validated, which of its lines have the beginnings of their prompts in common, since model
// servers cache the computation of a prefix: how many bytes they share, how far apart such lines are, and in which
// order its chunks should be claimed so that such lines are open at the same time.
//
// Memory is bounded: a sample of the beginnings is kept, chosen by their hashes, so that all lines with a beginning are
// counted or none. When the sample of a depth is full, it is halved, and those of greater depths with it. A signature,
// made of some of the bytes, tells at little cost that most lines are not in the sample; the beginnings in the sample
// are compared by a hash of all their bytes.
import { crc32 } from 'node:zlib'
import { CHUNK_LINES_MAX } from '../domain/batch.ts'
import type { InputLine } from './line-scan.ts'

export interface Sharing {
  prompt_bytes: number
  /** The bytes that repeat the beginning of an earlier line's prompt. */
  shared_bytes: number
  /** Shared bytes that repeat a prompt among the NEAR_BYTES before: a cache saves these in the order of the file. */
  near_bytes: number
  /** Bytes of a beginning by which lines should be ordered; 0: the order of the file is as good. */
  depth: number
  /** The order in which workers should claim the chunks; absent: the order of the file. */
  chunks?: number[]
  /** Whether lines with equal beginnings are far apart in any order of chunks. */
  isScattered?: true
}

/** Lengths of beginnings in bytes, from some 60 tokens to 16,000. */
const DEPTHS = [256, 384, 512, 704, 1024, 1472, 2048, 2880, 4096, 8192, 16_384, 32_768, 65_536]
/** The divisor of all depths, and the number of depths that a prompt reaches by its length in units of it. */
const UNIT_BITS = 6
const REACHED = Uint8Array.from(
  { length: (DEPTHS.at(-1)! >> UNIT_BITS) + 1 },
  (_, units) => DEPTHS.filter((depth) => depth <= units << UNIT_BITS).length,
)
/** Bytes of prompts that a server's cache is assumed to hold: some 65,000 tokens. */
const NEAR_BYTES = 256 * 1024
/** The sample size of a depth: at first, added for each chunk, and at most. */
const GROUPS_FIRST = 128
const GROUPS_PER_CHUNK = 3
const GROUPS_MAX = 1024
/** Sampled lines needed to place a chunk: fewer would make a random order. */
const LINES_PER_PLACE_MIN = 4
const CHUNKS_PER_GROUP_MAX = 64
/** The number of chunks that are assumed open at the same time. */
const OPEN_CHUNKS = 4
/** The least share of the prompts' bytes that another order of lines has to save. */
const WORTH = 0.02
/** The least gain in reach of another order of chunks: in a sample, smaller gains are chance. */
const REACH_MIN = 0.1
/** The reach below which lines count as scattered. */
const REACH_SCATTERED = 0.8

/** Bytes from which a call of native code is faster than a hash here. */
const NATIVE_BYTES = 1024
/** Lines with a beginning from which its signature stands for it, and how many of them until its bytes are checked. */
const COMMON_LINES = 16
const LINES_PER_CHECK = 64

/** The lines with one beginning. */
interface Group {
  /** Signatures and hashes of the beginning, by depth, at least down to its own. */
  signatures: Int32Array
  hashes: readonly number[]
  count: number
  /** The number of lines within NEAR_BYTES of the previous one. */
  near: number
  /** The number of lines in the same chunk as the previous one. */
  same: number
  /** The offset of the last line, among the bytes of all prompts. */
  at: number
  /** The position of the first line in the file. */
  first: number
  /** The first CHUNKS_PER_GROUP_MAX chunks, ascending. */
  chunks: number[]
}

/** A common beginning, whose signature stands for all its bytes between two checks. */
interface Common {
  /** The groups of lines by depth; empty where other beginnings have the same signature. */
  groups: readonly Group[]
  chunk: number
  lines: number
  /** Lines of the chunk near the previous one that the groups do not count yet, and the sum of their positions. */
  repeats: number
  positions: number
}

export class SharedBeginnings {
  readonly #levels = DEPTHS.map(() => new Level())
  readonly #common = new Map<number, Common>()
  /** The signatures of the current line, by depth, and the groups that it belongs to. */
  readonly #signatures = new Int32Array(DEPTHS.length)
  #groups: Group[] = []
  /** The number of lines by the number of depths that they reach, and their bytes before the first depth. */
  readonly #reached = new Float64Array(DEPTHS.length + 1)
  #leadBytes = 0
  #bytes = 0
  #model: string | null = null
  #modelHash = 0
  #viewed: Buffer | null = null
  #view: DataView = new DataView(new ArrayBuffer(0))

  /** Adds a line of `chunk`, the last chunk so far; `before`: the chunk's lines before it. */
  add(line: InputLine, chunk: number, before: number): void {
    const { body, bytes } = line
    if (body.endpoint.usage.output === null) return
    if (body.model !== this.#model) this.#modelHash = crc32(body.model ?? '') | 0
    this.#model = body.model
    if (bytes !== this.#viewed) this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
    this.#viewed = bytes
    const { start, end } = body.prompt
    let leadBytes = 0
    let signature = this.#modelHash
    if (body.hasLead)
      for (const { role, start: from, end: to } of body.found) {
        if ((role !== 'tools' && role !== 'prompt') || from === start) continue
        leadBytes += to - from
        signature = signatureOf(signature ^ (to - from), this.#view, from, to, Math.max(8, (to - from) >> 4))
      }
    const at = this.#bytes
    this.#bytes += leadBytes + end - start
    const reached = REACHED[Math.min(REACHED.length - 1, (end - start) >> UNIT_BITS)]!
    this.#reached[reached]!++
    if (reached === 0) return
    this.#leadBytes += leadBytes
    let depths = 0
    for (let from = start; depths < reached; depths++) {
      const to = start + DEPTHS[depths]!
      signature = signatureOf(signature, this.#view, from, to, depths === 0 ? 16 : (to - from) >> 1)
      if ((signature & this.#levels[depths]!.signatureMask) !== 0) break
      this.#signatures[depths] = signature
      from = to
    }
    if (depths === 0) return
    const position = chunk * CHUNK_LINES_MAX + before
    const common = this.#common.get(this.#signatures[depths - 1]!)
    const isKnown = common?.groups.length === depths && ++common.lines % LINES_PER_CHECK !== 0
    if (!isKnown) this.#addUnknown(line, start, depths, common, { at, chunk, position })
    else if (common.chunk === chunk && at - common.groups[depths - 1]!.at <= NEAR_BYTES) {
      // A line that is near in the last group is so in all.
      common.repeats++
      common.positions += position
      for (let depth = 0; depth < depths; depth++) common.groups[depth]!.at = at
    } else {
      this.#count(common)
      common.chunk = chunk
      for (let depth = 0; depth < depths; depth++)
        this.#levels[depth]!.repeat(common.groups[depth]!, { at, chunk, position })
    }
  }

  /** Counts the lines of a common beginning in its groups. */
  #count(common: Common): void {
    const { groups, chunk, repeats, positions } = common
    if (repeats === 0) return
    for (let depth = 0; depth < groups.length; depth++)
      this.#levels[depth]!.add(groups[depth]!, chunk, repeats, positions, repeats)
    common.repeats = common.positions = 0
  }

  #addUnknown(
    line: InputLine,
    start: number,
    depths: number,
    common: Common | undefined,
    place: Place,
  ): void {
    this.#groups = []
    if (!this.#addHashed(line, start, depths, place)) return
    const groups = this.#groups
    const last = groups[depths - 1]!
    if (common === undefined && last.count < COMMON_LINES) return
    if (common && common.groups.at(-1) === last) return
    if (common) this.#count(common)
    this.#common.set(this.#signatures[depths - 1]!, {
      groups: common ? [] : groups,
      ...{ chunk: place.chunk, lines: 0, repeats: 0, positions: 0 },
    })
  }

  /** Adds the line to the groups of its beginnings; false if it is not in the sample of each depth. */
  #addHashed({ body, bytes }: InputLine, start: number, depths: number, place: Place): boolean {
    let hash = this.#modelHash
    for (const { role, start: from, end: to } of body.found)
      if (from !== start && (role === 'tools' || role === 'prompt'))
        hash = crc32(bytes.subarray(from, to), hash >>> 0)
    const hashes: number[] = []
    let signatures: Int32Array | undefined
    for (let depth = 0, from = start; depth < depths; depth++) {
      const level = this.#levels[depth]!
      const to = start + DEPTHS[depth]!
      hash =
        to - from < NATIVE_BYTES
          ? signatureOf(hash, this.#view, from, to, 4)
          : crc32(bytes.subarray(from, to), hash >>> 0) | 0
      if ((hash & level.hashMask) !== 0) return false
      hashes.push(hash)
      let group = level.groups.get(hash)
      if (group) level.repeat(group, place)
      else {
        signatures ??= this.#signatures.slice(0, depths)
        group = level.begin(hash, { signatures, hashes }, place)
        const most = Math.min(GROUPS_MAX, GROUPS_FIRST + GROUPS_PER_CHUNK * place.chunk)
        while (level.groups.size > most) this.#halve(depth, most / 2)
      }
      this.#groups.push(group)
      from = to
    }
    return true
  }

  /** Drops half of the sample of a depth: by signatures of the first one with `least` beginnings, or else by hashes. */
  #halve(depth: number, least: number): void {
    for (const common of this.#common.values()) this.#count(common)
    const to = this.#levels.findIndex(
      (level, i) => i <= depth && level.groups.size >= least && level.isHalvedBySignatures(i),
    )
    const level = this.#levels[to === -1 ? depth : to]!
    if (to === -1) level.hashMask = 2 * level.hashMask + 1
    else level.signatureMask = 2 * level.signatureMask + 1
    for (const one of this.#levels.slice(this.#levels.indexOf(level)))
      one.keep(({ signatures, hashes }) =>
        to === -1 ? (hashes[depth]! & level.hashMask) === 0 : (signatures[to]! & level.signatureMask) === 0,
      )
    this.#common.clear()
  }

  finish(chunkCount: number): Sharing {
    for (const common of this.#common.values()) this.#count(common)
    const sharing: Sharing = { prompt_bytes: this.#bytes, shared_bytes: 0, near_bytes: 0, depth: 0 }
    let best = this.#levels[0]!
    let most = 0
    for (const [i, level] of this.#levels.entries()) {
      const { any, near } = level.shares()
      const lines = this.#reached.subarray(i + 1).reduce((sum, count) => sum + count, 0)
      const bytes = i === 0 ? this.#leadBytes + lines * DEPTHS[0]! : lines * (DEPTHS[i]! - DEPTHS[i - 1]!)
      sharing.shared_bytes += Math.round(any * bytes)
      sharing.near_bytes += Math.round(near * bytes)
      // The bytes that lines could save which repeat this beginning, but not near an earlier line.
      const saved = (any - near) * lines * DEPTHS[i]!
      if (saved <= most) continue
      most = saved
      best = level
      sharing.depth = DEPTHS[i]!
    }
    if (sharing.shared_bytes - sharing.near_bytes < WORTH * this.#bytes) return { ...sharing, depth: 0 }
    const asWritten = Array.from({ length: chunkCount }, (_, chunk) => chunk)
    const chunks = best.order(chunkCount)
    const [before, reach] = [best.reach(asWritten), best.reach(chunks)]
    if (reach > before + REACH_MIN) sharing.chunks = chunks
    return Math.max(before, reach) < REACH_SCATTERED ? { ...sharing, isScattered: true } : sharing
  }
}

interface Place {
  /** Bytes of prompts before the line. */
  at: number
  chunk: number
  /** The place in the file, as if each chunk had CHUNK_LINES_MAX lines. */
  position: number
}

/** The sampled beginnings of one depth. */
class Level {
  /** The sampled groups by the hash of their common beginning. */
  readonly groups = new Map<number, Group>()
  /** Bits that must be zero in the signature and in the hash of a sampled beginning. */
  signatureMask = 0
  hashMask = 0
  /** Sums by chunk: distances, in positions, of repeated beginnings to their first; repeated; and new beginnings. */
  readonly #distances: number[] = []
  readonly #repeated: number[] = []
  readonly #fresh: number[] = []

  /** Adds a line to the group of its beginning. */
  repeat(group: Group, { at, chunk, position }: Place): void {
    this.add(group, chunk, 1, position, at - group.at <= NEAR_BYTES ? 1 : 0)
    group.at = at
  }

  /** Adds lines of one chunk to the group of their beginning. `positions`: the sum of them. */
  add(group: Group, chunk: number, lines: number, positions: number, near: number): void {
    if (chunk >= this.#fresh.length) this.#reach(chunk)
    this.#repeated[chunk]! += lines
    this.#distances[chunk]! += positions - lines * group.first
    group.count += lines
    group.near += near
    if (group.chunks.includes(chunk)) group.same += lines
    else if (group.chunks.length < CHUNKS_PER_GROUP_MAX) group.chunks.push(chunk)
  }

  begin(hash: number, of: Pick<Group, 'signatures' | 'hashes'>, { at, chunk, position }: Place): Group {
    this.#reach(chunk)
    this.#fresh[chunk]!++
    const group = { ...of, count: 1, near: 0, same: 0, at, first: position, chunks: [chunk] }
    this.groups.set(hash, group)
    return group
  }

  #reach(chunk: number): void {
    while (this.#fresh.length <= chunk)
      for (const counts of [this.#distances, this.#repeated, this.#fresh]) counts.push(0)
  }

  /** Whether the next bit of signatures divides the groups about in half. */
  isHalvedBySignatures(depth: number): boolean {
    const mask = 2 * this.signatureMask + 1
    let kept = 0
    for (const { signatures } of this.groups.values()) if ((signatures[depth]! & mask) === 0) kept++
    return kept > this.groups.size / 4 && kept < (3 * this.groups.size) / 4
  }

  keep(isKept: (group: Group) => boolean): void {
    for (const [hash, group] of this.groups) if (!isKept(group)) this.groups.delete(hash)
  }

  /** The share of sampled lines that repeat an earlier beginning, and the share near an earlier one. */
  shares(): { any: number; near: number } {
    const sums = { lines: 0, repeated: 0, near: 0 }
    for (const { count, near } of this.groups.values()) {
      sums.lines += count
      sums.repeated += count - 1
      sums.near += near
    }
    const lines = Math.max(1, sums.lines)
    return { any: sums.repeated / lines, near: sums.near / lines }
  }

  /** The order of chunks that places each near the chunks in which its beginnings occur first. */
  order(chunkCount: number): number[] {
    const places: number[] = []
    let [distances, repeated, fresh] = [0, 0, 0]
    for (let chunk = 0, from = 0; chunk < chunkCount; chunk++) {
      distances += this.#distances[chunk] ?? 0
      repeated += this.#repeated[chunk] ?? 0
      fresh += this.#fresh[chunk] ?? 0
      if (repeated + fresh < LINES_PER_PLACE_MIN && chunk < chunkCount - 1) continue
      const distance = repeated > fresh ? distances / repeated / CHUNK_LINES_MAX : 0
      for (; from <= chunk; from++) places.push(from - distance)
      distances = repeated = fresh = 0
    }
    return Array.from(places, (_, chunk) => chunk).sort((a, b) => places[a]! - places[b]! || a - b)
  }

  /** The reach of an order of chunks: the share of repeated beginnings whose previous chunk is still open. */
  reach(order: readonly number[]): number {
    const ranks: number[] = []
    for (const [rank, chunk] of order.entries()) ranks[chunk] = rank
    let near = 0
    let all = 0
    for (const { chunks, same } of this.groups.values()) {
      const own = chunks.map((chunk) => ranks[chunk]!).sort((a, b) => a - b)
      near += same + own.filter((rank, i) => i > 0 && rank - own[i - 1]! < OPEN_CHUNKS).length
      all += same + own.length - 1
    }
    return all === 0 ? 1 : near / all
  }
}

/** A hash of every `step`-th word of the bytes; a sum, since its products do not wait for each other. */
function signatureOf(seed: number, bytes: DataView, from: number, to: number, step: number): number {
  // Numbers that are known to be whole take half of the time.
  const last = (to - 4) | 0
  let hash = seed | 0
  let factor = 0x4c9e2d51
  for (let at = from | 0; at <= last; at = (at + step) | 0) {
    hash = (hash + Math.imul(bytes.getInt32(at, true), factor)) | 0
    factor = (factor + 0x1e3779b2) | 0
  }
  hash = Math.imul(hash ^ (hash >>> 15), 0x85ebca6b)
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35)
  return hash ^ (hash >>> 16)
}
