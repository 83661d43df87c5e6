// The results of a leased chunk, by position: the location of each finished line's bytes, in memory or in a journal,
// and the sums for the next commit. Results are written one after the other into slabs, each as an entry of a journal
// (journal.ts), so a journal is made of whole slabs and a line costs no objects.
import type { SealedBlob } from '../blobs/sealed.ts'
import type { AuditLog } from '../domain/audit-log.ts'
import { type ErrorGroup, groupErrors } from '../domain/batch-statistics.ts'
import type { ErrorCode } from '../domain/errors.ts'
import { freeBuffer } from '../domain/free-buffer.ts'
import { addSpend, type Spend } from '../domain/money.ts'
import { type EndedLine, Tallies } from '../ledger/tally.ts'
import type { ChunkRow } from '../store/schema.ts'
import { ByteWriter } from './byte-writer.ts'
import { entryHeadBytes, JOURNAL_OWNER, type Journalled, writeEntryHead } from './journal.ts'
import type { LineSizes } from './line-index.ts'
import { type Bytes, bytesIn } from './read-content.ts'
import type { ChunkTrace } from './traces.ts'

const SLAB_BYTES_MIN = 4 * 1024
const SLAB_BYTES_MAX = 64 * 1024
/** An upper bound of the bytes before an entry's result. */
const HEAD_BYTES_MAX = 32

/** The reason for which a line failed, as statistics and metrics count it. */
interface Failure {
  model: string | null
  code: ErrorCode
  message: string
}

/** The finished lines that one commit counts. */
export class Fresh {
  readonly positions: number[] = []
  readonly tallies = new Tallies()
  readonly failures: Failure[] = []
  expired_lines = 0
  /** The cost beyond reservations by the accounts to which it counts; null where no limit matches. */
  excess: Map<readonly string[], Spend> | null = null
  /** The bytes of the lines' entries. */
  bytes = 0

  get errors(): ErrorGroup[] {
    return groupErrors(this.failures)
  }
}

/** The end of a line; `expired`: the batch expired before. */
export interface Ended extends EndedLine {
  failure: Failure | null
  expired: boolean
}

const UNFINISHED = 0
const IN_MEMORY = 1
const JOURNALLED = 2

interface Slab {
  bytes: Buffer
  /** The number of lines that are in no journal, or whose journal need not be read. */
  lines: number
}

/** The name of a chunk in a worker. */
export function chunkKey(batch_id: string, idx: number): string {
  return `${batch_id} ${idx}`
}

export class ChunkResults {
  readonly #claim: ChunkRow | null
  /** The number of the last commit that took effect; each commit names the previous one. */
  commitSeq: number
  /** Whether reservations were ever requested for the chunk under this lease. */
  hasReservations = false
  /** The time of the chunk's first request (Unix ms), if its batch was queued when the chunk was opened. */
  begunAt: number | null = null
  /** The spans of the chunk; null if it is not sampled. */
  trace: ChunkTrace | null = null
  /** The audit log of the lines that end; undefined: none. */
  auditLog: AuditLog | undefined
  /** The running journal write of the chunk, for which sealing waits. */
  journalling: Promise<void> | null = null
  /** The finish time of the oldest finished line that is in no journal (Unix ms). */
  freshSince: number | null = null
  /** Whether any line is in a journal. */
  isJournalled: boolean

  readonly out = new ByteWriter()
  readonly #numbers: readonly { line: number }[]
  readonly #place: Uint8Array
  /** The indexes of lines' blobs in `#slabs` or `#journals`. */
  readonly #blob: Uint16Array
  readonly #start: Uint32Array
  readonly #resultBytes: Uint32Array
  readonly #auditBytes: Uint32Array
  readonly #isError: Uint8Array
  #slabs: (Slab | null)[] = []
  readonly #journals: SealedBlob[] = []
  #fresh = new Fresh()
  #unfinished: number
  #keptBytes = 0
  /** Offsets of the line that is being written. */
  #entryStart = 0
  #resultStart = 0
  #resultEnd = 0

  /** Makes the results of a chunk. `claim` is null for a chunk that is sealed without having been leased. */
  constructor(
    claim: ChunkRow | null,
    lines: readonly { line: number }[],
    journalled: readonly Journalled[] = [],
  ) {
    this.#claim = claim
    this.commitSeq = claim?.commit_seq ?? 0
    this.isJournalled = claim !== null && claim.completed + claim.failed > 0
    this.#numbers = lines
    const { length } = lines
    this.#place = new Uint8Array(length)
    this.#blob = new Uint16Array(length)
    this.#start = new Uint32Array(length)
    this.#resultBytes = new Uint32Array(length)
    this.#auditBytes = new Uint32Array(length)
    this.#isError = new Uint8Array(length)
    this.#unfinished = length
    if (journalled.length > 0) this.#placeJournalled(journalled)
  }

  #placeJournalled(journalled: readonly Journalled[]): void {
    const positions = new Map(this.#numbers.map(({ line }, position) => [line, position]))
    const keys = new Map<string, number>()
    for (const { line, part, result, audit } of journalled) {
      const position = positions.get(line)
      if (position === undefined || this.isFinished(position))
        throw new Error(`line ${line} is in journals of the chunk, and not in the chunk once`)
      const { key } = result.blob
      const blob = keys.get(key) ?? this.#journals.push(result.blob) - 1
      keys.set(key, blob)
      this.#place[position] = JOURNALLED
      this.#blob[position] = blob
      this.#start[position] = result.range.start
      this.#resultBytes[position] = bytesIn(result)
      this.#auditBytes[position] = bytesIn(audit)
      this.#isError[position] = part === 'error' ? 1 : 0
      this.#unfinished--
    }
  }

  /** The lease that the next commit names. */
  get lease(): ChunkRow {
    if (this.#claim === null) throw new Error('the chunk is not leased')
    return { ...this.#claim, commit_seq: this.commitSeq }
  }

  get lineCount(): number {
    return this.#numbers.length
  }

  get unfinished(): number {
    return this.#unfinished
  }

  /** Bytes of memory that results take, committed ones included. */
  get keptBytes(): number {
    return this.#keptBytes
  }

  get hasFresh(): boolean {
    return this.#fresh.positions.length > 0
  }

  /** The lines that the next commit counts. */
  get fresh(): Fresh {
    return this.#fresh
  }

  isFinished(position: number): boolean {
    return this.#place[position] !== UNFINISHED
  }

  isError(position: number): boolean {
    return this.#isError[position] === 1
  }

  /** Begins to write a line, of up to `bytesMax` bytes, to `out`: first its result, then its audit record. */
  begin(position: number, part: Ended['part'], bytesMax: number): void {
    if (this.isFinished(position)) throw new Error(`line ${this.#numbers[position]?.line} finished twice`)
    const { out } = this
    if (out.bytes.length - out.at < bytesMax + HEAD_BYTES_MAX) this.#addSlab(bytesMax + HEAD_BYTES_MAX)
    this.#entryStart = out.at
    writeEntryHead(out, this.#numbers[position]!.line, part)
    this.#resultStart = out.at
  }

  endResult(): void {
    this.#resultEnd = this.out.at
  }

  /** Ends the writing of a line. The first line of a chunk sets `freshSince`. */
  end(position: number, ended: Ended, now: number): void {
    const { out } = this
    const slab = this.#slabs.length - 1
    this.#slabs[slab]!.lines++
    this.#place[position] = IN_MEMORY
    this.#blob[position] = slab
    this.#start[position] = this.#resultStart
    this.#resultBytes[position] = this.#resultEnd - this.#resultStart
    this.#auditBytes[position] = out.at - this.#resultEnd
    this.#isError[position] = ended.part === 'error' ? 1 : 0
    this.#unfinished--
    const fresh = this.#fresh
    if (fresh.positions.length === 0) this.freshSince = now
    fresh.positions.push(position)
    fresh.bytes += out.at - this.#entryStart
    fresh.tallies.add(ended)
    if (ended.failure) fresh.failures.push(ended.failure)
    if (ended.expired) fresh.expired_lines++
  }

  #addSlab(bytesMin: number): void {
    const { out } = this
    const last = out.bytes.length
    const bytes = Buffer.allocUnsafeSlow(
      Math.max(bytesMin, Math.min(SLAB_BYTES_MAX, Math.max(SLAB_BYTES_MIN, 2 * last))),
    )
    this.#slabs.push({ bytes, lines: 0 })
    this.#keptBytes += bytes.length
    out.bytes = bytes
    out.at = 0
  }

  /** Removes and returns the lines of the next commit. */
  takeFresh(): Fresh {
    const fresh = this.#fresh
    this.#fresh = new Fresh()
    this.freshSince = null
    return fresh
  }

  /** The entries of lines in memory, in the given order; adjacent entries are one piece. */
  entriesOf(positions: readonly number[]): Buffer[] {
    const pieces: Buffer[] = []
    let slab = -1
    let start = 0
    let end = 0
    const cut = (): void => {
      if (slab !== -1) pieces.push(this.#slabs[slab]!.bytes.subarray(start, end))
    }
    for (const position of positions) {
      const entryStart = this.#start[position]! - this.#headBytes(position)
      if (this.#blob[position] !== slab || entryStart !== end) {
        cut()
        slab = this.#blob[position]!
        start = entryStart
      }
      end = this.#start[position]! + this.#resultBytes[position]! + this.#auditBytes[position]!
    }
    cut()
    return pieces
  }

  #headBytes(position: number): number {
    const { line } = this.#numbers[position]!
    return entryHeadBytes(line, this.isError(position) ? 'error' : 'output')
  }

  /** Returns lines that could not be committed; the next commit counts them. */
  putBack(fresh: Fresh): void {
    const since = this.#fresh
    this.#fresh = fresh
    fresh.bytes += since.bytes
    fresh.positions.push(...since.positions)
    for (const one of since.tallies.all) fresh.tallies.join(one)
    fresh.failures.push(...since.failures)
    fresh.expired_lines += since.expired_lines
    if (since.excess) {
      fresh.excess ??= new Map()
      for (const [accounts, spend] of since.excess) addSpend(fresh.excess, accounts, spend)
    }
    this.freshSince ??= 0
  }

  /** Marks lines as stored in a journal from `byte_start` on, which frees their bytes in memory. */
  moveToJournal(positions: readonly number[], journal: SealedBlob, byte_start: number): void {
    const blob = this.#journals.push(journal) - 1
    let at = byte_start
    for (const position of positions) {
      at += this.#headBytes(position)
      if (this.#place[position] === IN_MEMORY) {
        this.#release(this.#blob[position]!)
        this.#place[position] = JOURNALLED
        this.#blob[position] = blob
        this.#start[position] = at
      }
      at += this.#resultBytes[position]! + this.#auditBytes[position]!
    }
  }

  #release(at: number): void {
    const slab = this.#slabs[at]!
    slab.lines--
    if (slab.lines > 0) return
    this.#slabs[at] = null
    this.#keptBytes -= slab.bytes.length
    if (slab.bytes === this.out.bytes) this.#endSlab()
    freeBuffer(slab.bytes)
  }

  #endSlab(): void {
    this.out.bytes = NOTHING
    this.out.at = 0
  }

  /** Frees the memory of a sealed chunk's results. */
  free(): void {
    for (const slab of this.#slabs) if (slab) freeBuffer(slab.bytes)
    this.#slabs = []
    this.#endSlab()
  }

  /** The sizes of the finished lines, in input order. */
  sizes(positions: readonly number[]): LineSizes[] {
    return positions.map((position) => ({
      line: this.#numbers[position]!.line,
      part: this.isError(position) ? 'error' : 'output',
      resultBytes: this.#resultBytes[position]!,
      auditBytes: this.#auditBytes[position]!,
    }))
  }

  /** Whether no result is in a journal only. */
  get isInMemory(): boolean {
    return !this.#place.includes(JOURNALLED)
  }

  /** A field of a line: its bytes, or their location. */
  fieldOf(position: number, field: 'result' | 'audit'): Bytes {
    const start = this.#fieldStart(position, field)
    const end = start + this.fieldBytes(position, field)
    const blob = this.#blob[position]!
    if (this.#place[position] === IN_MEMORY) return this.#slabs[blob]!.bytes.subarray(start, end)
    return { project_id: JOURNAL_OWNER, blob: this.#journals[blob]!, range: { start, end } }
  }

  /** The total bytes of one field of these lines. */
  bytesOf(positions: readonly number[], field: 'result' | 'audit'): number {
    let bytes = 0
    for (const position of positions) bytes += this.fieldBytes(position, field)
    return bytes
  }

  /** Copies a field of a line in memory, from its byte `from`, as far as `to` has room; returns the number of bytes. */
  copyField(position: number, field: 'result' | 'audit', from: number, to: Buffer, at: number): number {
    const start = this.#fieldStart(position, field)
    const { bytes } = this.#slabs[this.#blob[position]!]!
    return bytes.copy(to, at, start + from, start + this.fieldBytes(position, field))
  }

  #fieldStart(position: number, field: 'result' | 'audit'): number {
    return this.#start[position]! + (field === 'result' ? 0 : this.#resultBytes[position]!)
  }

  fieldBytes(position: number, field: 'result' | 'audit'): number {
    return field === 'result' ? this.#resultBytes[position]! : this.#auditBytes[position]!
  }
}

const NOTHING = Buffer.alloc(0)
