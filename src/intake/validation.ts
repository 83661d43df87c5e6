// Collects the invalid lines of an uploaded file: the first ones in full, the number of all, and a summary for
// `status_details`.
import type { SealedBlob } from '../blobs/sealed.ts'
import { CHUNK_BYTES_MAX, CHUNK_LINES_MAX, type ChunkSpan } from '../domain/batch.ts'
import { ERRORS, type ErrorCode } from '../domain/errors.ts'
import { counted, shortened } from '../domain/text.ts'
import { type LineSink, LineSplitter } from '../jsonl/byte-lines.ts'
import { type Entries, HashSet64, hashCustomId, type IdHash, SeededHash } from '../jsonl/custom-ids.ts'
import { type InputLine, LineScanner } from '../jsonl/line-scan.ts'
import { addLine, emptySums, type FileIndex, GROUPS_MAX, type TokenSums } from '../jsonl/projection.ts'
import { SharedBeginnings } from '../jsonl/shared-beginnings.ts'
import { IDS_IN_MEMORY_MAX, type StoredIds } from './stored-ids.ts'

interface LineError {
  /** The number of the line from 1, blank lines included. */
  line: number
  code: ErrorCode
  message: string
  param?: string
}

export const ERRORS_LISTED_MAX = 100
/** Validation stops after this many invalid lines. */
export const ERRORS_COUNTED_MAX = 10_000

class InvalidLines {
  /** The first ERRORS_LISTED_MAX invalid lines, in order. */
  readonly list: LineError[] = []
  count = 0

  add(line: number, code: ErrorCode, message: string, param?: string): void {
    this.count++
    if (this.list.length >= ERRORS_LISTED_MAX) return
    this.list.push(param === undefined ? { line, code, message } : { line, code, message, param })
  }

  /** The union of two disjoint sets of invalid lines. */
  merge(other: InvalidLines): InvalidLines {
    const merged = new InvalidLines()
    const errors = [...this.list, ...other.list].sort((a, b) => a.line - b.line)
    merged.list.push(...errors.slice(0, ERRORS_LISTED_MAX))
    merged.count = this.count + other.count
    return merged
  }
}

/** A text with the first invalid line, its error, the fix, and the number of further invalid lines. */
function describeInvalidLines(invalid: InvalidLines, read_to_end: boolean): string {
  const [first] = invalid.list
  if (first === undefined) throw new Error('there is no invalid line')
  const place = first.code === 'empty_file' ? '' : `Line ${first.line}: `
  const sentence = `${place}${first.message} ${ERRORS[first.code].advice} (${first.code})`
  const more = invalid.count - 1
  const least = read_to_end ? '' : 'at least '
  if (more === 0) return sentence
  return `${sentence} There ${more === 1 ? 'is' : 'are'} ${least}${counted(more, 'more invalid line')}.`
}

// Builds a file's index line by line: where its chunks lie, and the token sums by model and entity.

/** The limit of a model name's length; longer names are not stored. */
const MODEL_CHARACTERS_MAX = 256
/** The limit of models in `unattributed`; no configuration has as many. */
const MODELS_MAX = 1000
/**
 * The shortest and the longest beginning in bytes by which passes of a nested loop are told apart, as a share of the
 * first prompt; and the fewest lines of a pass.
 */
const PASS_BYTES = [256, 65_536] as const
const PASS_SHARE = 0.75
const PASS_LINES_MIN = 2 * CHUNK_LINES_MAX

export class FileIndexer {
  #chunks: ChunkSpan[] = []
  #chunk: ChunkSpan | null = null
  #groups: TokenSums[] = []
  #byModel = new Map<string | null, Map<string | null, TokenSums>>()
  #unattributed = new Map<string | null, TokenSums>()
  /** The group of the previous line, to which most lines belong. */
  #last = emptySums(null, null)
  #groupsMax: number
  readonly #beginnings = new SharedBeginnings()
  /** The beginning of the first line's prompt, and how many lines follow the last line that has it. */
  #first: Buffer | null = null
  #others = 0

  constructor(groupsMax = GROUPS_MAX) {
    this.#groupsMax = groupsMax
  }

  /** Adds a line with its number and its bytes in the file; `byte_end` is after its line break. */
  add(line: InputLine, number: number, byte_start: number, byte_end: number): void {
    if (this.#beginsPass(line)) this.#chunk = null
    const chunk = this.#place(number, byte_start, byte_end, modelOf(line))
    this.#chunk = chunk
    this.#beginnings.add(line, chunk.index, chunk.line_count - 1)
    addLine(this.#group(line), line.body)
  }

  finish(): FileIndex {
    const unattributed = [...this.#unattributed.values()]
    const sharing = this.#beginnings.finish(this.#chunks.length)
    return { chunks: this.#chunks, groups: this.#groups, unattributed, sharing }
  }

  /**
   * Whether a nested loop, as over questions and then documents, begins its next pass with the line: it begins as the first
   * line does, and many before it do not. A chunk begins there, so that those of all passes have lines of the same documents.
   */
  #beginsPass({ body: { prompt }, bytes }: InputLine): boolean {
    const [least, most] = PASS_BYTES
    const { start, end } = prompt
    this.#first ??= Buffer.from(bytes.subarray(start, start + Math.min(most, PASS_SHARE * (end - start))))
    const first = this.#first
    const to = start + first.length
    const isSame =
      first.length >= least &&
      to <= end &&
      bytes[to - 1] === first[first.length - 1] &&
      bytes.compare(first, 0, first.length, start, to) === 0
    const others = this.#others
    this.#others = isSame ? 0 : others + 1
    return isSame && others >= PASS_LINES_MIN
  }

  /** Adds the line to the current chunk, or to a new one; returns the chunk. */
  #place(number: number, byte_start: number, byte_end: number, model: string | null): ChunkSpan {
    const open = this.#chunk
    if (open !== null && open.line_count < CHUNK_LINES_MAX && byte_end - open.byte_start <= CHUNK_BYTES_MAX) {
      open.line_count++
      open.byte_end = byte_end
      if (open.model !== model) open.model = null
      return open
    }
    const index = this.#chunks.length
    const chunk = { index, first_line: number, line_count: 1, byte_start, byte_end, model }
    this.#chunks.push(chunk)
    return chunk
  }

  #group(line: InputLine): TokenSums {
    const model = modelOf(line)
    const { entity } = line
    const last = this.#last
    if (last.lines > 0 && last.model === model && last.entity === entity) return last
    const found = this.#byModel.get(model)?.get(entity)
    if (found === undefined && this.#groups.length >= this.#groupsMax) return this.#unattributedSums(model)
    this.#last = found ?? this.#newGroup(model, entity)
    return this.#last
  }

  #newGroup(model: string | null, entity: string | null): TokenSums {
    const sums = emptySums(model, entity)
    this.#groups.push(sums)
    const entities = this.#byModel.get(model)
    if (entities === undefined) this.#byModel.set(model, new Map([[entity, sums]]))
    else entities.set(entity, sums)
    return sums
  }

  #unattributedSums(model: string | null): TokenSums {
    const kept = this.#unattributed.has(model) || this.#unattributed.size < MODELS_MAX ? model : null
    const found = this.#unattributed.get(kept)
    if (found !== undefined) return found
    const sums = emptySums(kept, null)
    this.#unattributed.set(kept, sums)
    return sums
  }
}

function modelOf({ body: { model } }: InputLine): string | null {
  return model !== null && model.length <= MODEL_CHARACTERS_MAX ? model : null
}

/**
 * The first pass over an uploaded file: scans each line, builds the index, and collects the hashes of custom_ids that
 * may be duplicates.
 */
export interface ValidationLimits {
  lines_max: number
  line_bytes_max: number
  /** The number of lines whose custom_ids are in memory; set by tests. */
  ids_in_memory_max?: number
}

// Lines whose custom_id has the hash of an earlier one: their number, and the first of them, by line.

class Collisions {
  count = 0
  #found: { lo: number; hi: number; line: number }[] = []

  add(lo: number, hi: number, line: number): void {
    this.count++
    this.#found.push({ lo, hi, line })
    if (this.#found.length > 2 * ERRORS_COUNTED_MAX) this.#cut()
  }

  first(): { hashes: HashSet64; lastLine: number } {
    this.#cut()
    const hashes = new HashSet64()
    for (const { lo, hi } of this.#found) hashes.add(lo, hi)
    return { hashes, lastLine: this.#found.at(-1)?.line ?? 0 }
  }

  #cut(): void {
    this.#found.sort((a, b) => a.line - b.line)
    this.#found.length = Math.min(this.#found.length, ERRORS_COUNTED_MAX)
  }
}

const BLANK_ENTITY = '`metadata.entity` is blank. Name an entity, or leave the key out.'

class FirstPass implements LineSink {
  readonly bad = new InvalidLines()
  /** Requests so far, including invalid ones. */
  line_count = 0
  /** Whether reading on is pointless. */
  stopped = false
  readonly collisions = new Collisions()

  #scanner = new LineScanner()
  #ids = new HashSet64()
  #indexer = new FileIndexer()
  #hash: IdHash
  #limits: ValidationLimits

  constructor(limits: ValidationLimits, hash: IdHash) {
    this.#limits = limits
    this.#hash = hash
  }

  index(): FileIndex {
    return this.#indexer.finish()
  }

  /** Whether the custom_ids take their limit of memory. */
  get isFull(): boolean {
    return this.#ids.size >= (this.#limits.ids_in_memory_max ?? IDS_IN_MEMORY_MAX)
  }

  /** The custom_ids since the last call; they are not compared with those of later lines. */
  takeIds(): Entries[] {
    return this.#ids.drain()
  }

  line(
    bytes: Buffer,
    start: number,
    end: number,
    number: number,
    byte_start: number,
    byte_end: number,
  ): void {
    if (!this.#counts(number)) return
    const line = this.#scanner.scan(bytes, start, end)
    if (!line.ok) {
      this.bad.add(number, line.code, line.message, line.param)
      return
    }
    if (line.entity_is_blank) {
      this.bad.add(number, 'invalid_metadata', BLANK_ENTITY, 'metadata.entity')
      return
    }
    hashCustomId(line, this.#hash)
    const { lo, hi } = this.#hash
    if (!this.#ids.add(lo, hi, number)) this.collisions.add(lo, hi, number)
    if (this.bad.count === 0) this.#indexer.add(line, number, byte_start, byte_end)
  }

  tooLong(number: number): void {
    if (!this.#counts(number)) return
    this.bad.add(number, 'line_too_long', `The line is longer than ${this.#limits.line_bytes_max} bytes.`)
  }

  notUtf8(number: number): void {
    if (this.#counts(number)) this.bad.add(number, 'invalid_utf8', 'The line is not valid UTF-8.')
  }

  /** Counts a request; false when further requests are not checked. */
  #counts(number: number): boolean {
    if (this.stopped) return false
    if (this.bad.count + this.collisions.count >= ERRORS_COUNTED_MAX) {
      this.stopped = true
      return false
    }
    if (this.line_count === this.#limits.lines_max) {
      this.bad.add(
        number,
        'too_many_lines',
        `The file contains more than ${counted(this.#limits.lines_max, 'request')}.`,
      )
      this.stopped = true
      return false
    }
    this.line_count++
    return true
  }
}

// The second pass over a file in which custom_ids have equal hashes: compares the IDs themselves, and names the line
// that used an ID first.

const SHOWN_CHARACTERS_MAX = 80

class SecondPass implements LineSink {
  readonly bad = new InvalidLines()
  stopped = false

  /** The first line of each ID whose hash collides; the first pass bounds their number. */
  #firstLines = new Map<string, number>()
  #scanner = new LineScanner()
  #collided: HashSet64
  #lastLine: number
  #hash: IdHash

  /** Makes a check for equal IDs. `collided`: hashes that occur twice; `lastLine`: the last line with one. */
  constructor(collided: HashSet64, lastLine: number, hash: IdHash) {
    this.#collided = collided
    this.#lastLine = lastLine
    this.#hash = hash
  }

  line(bytes: Buffer, start: number, end: number, number: number): void {
    if (number > this.#lastLine) {
      this.stopped = true
      return
    }
    const line = this.#scanner.scan(bytes, start, end)
    if (!line.ok) return
    hashCustomId(line, this.#hash)
    if (!this.#collided.has(this.#hash.lo, this.#hash.hi)) return
    const id = line.custom_id
    const first = this.#firstLines.get(id)
    if (first === undefined) this.#firstLines.set(id, number)
    else {
      const message = `The custom_id ${shown(id)} was already used on line ${first}.`
      this.bad.add(number, 'duplicate_custom_id', message, 'custom_id')
    }
  }

  // The first pass has reported lines of excessive length, which have no custom_id to compare.
  tooLong(): void {}
  notUtf8(): void {}
}

function shown(id: string): string {
  return JSON.stringify(shortened(id, SHOWN_CHARACTERS_MAX))
}

// Validates an uploaded file: every line must be well formed and every custom_id unique. Memory grows by one row of the
// index per chunk. If two hashes are equal, a second pass compares the IDs.

export type Validation =
  | {
      ok: true
      bytes: number
      line_count: number
      index: FileIndex
      /** The index of the custom_ids; null without `ids`, and where two hashes are equal. */
      custom_ids: SealedBlob | null
    }
  | {
      ok: false
      /** Requests in the file; absent when validation stopped early. */
      line_count?: number
      /** The first ERRORS_LISTED_MAX invalid lines, in order. */
      errors: LineError[]
      /** Invalid lines found; there may be more when validation stopped early. */
      error_count: number
      /** The text of `status_details`: the first invalid line, its error, the fix, and the number of further ones. */
      details: string
    }

export interface ValidateOptions {
  signal?: AbortSignal
  /** Called with the bytes read so far, after each block of the first pass. */
  onProgress?: (bytes: number) => void
  /** The store of custom_ids and their index; without it, for a file that was valid before, only some are compared. */
  ids?: StoredIds
  /** The hash of custom_ids; tests set a weak one to cause collisions. */
  hash?: IdHash
}

/**
 * Validates a file. `open` reads the file from its beginning, a second time only if two custom_ids may be equal. Throws
 * the errors of the source, and the signal's reason once it is aborted.
 */
export async function validateContent(
  open: () => AsyncIterable<Buffer>,
  limits: ValidationLimits,
  options: ValidateOptions = {},
): Promise<Validation> {
  const { signal, onProgress, ids, hash = new SeededHash() } = options
  const first = new FirstPass(limits, hash)
  const bytes = await read(open(), limits, first, signal, async (read) => {
    onProgress?.(read)
    if (first.isFull) {
      const taken = first.takeIds()
      await ids?.add(taken)
    }
  })
  if (first.line_count === 0 && first.bad.count === 0) {
    first.bad.add(1, 'empty_file', ERRORS.empty_file.message)
  }
  const custom_ids = await storeIds(first, hash, ids)
  const bad =
    first.collisions.count === 0
      ? first.bad
      : first.bad.merge(await duplicates(open(), limits, first, hash, signal))
  if (bad.count > 0) {
    const { list: errors, count: error_count } = bad
    const details = describeInvalidLines(bad, !first.stopped)
    if (first.stopped) return { ok: false, errors, error_count, details }
    return { ok: false, line_count: first.line_count, errors, error_count, details }
  }
  // A file with so many equal 64-bit hashes was not read to its end.
  if (first.stopped) throw new Error('the hash of custom_ids does not tell them apart')
  const { line_count } = first
  return { ok: true, bytes, line_count, index: first.index(), custom_ids }
}

/** Stores the index of custom_ids and reports collisions with IDs that are not in memory; null without an index. */
async function storeIds(
  first: FirstPass,
  hash: IdHash,
  ids: StoredIds | undefined,
): Promise<SealedBlob | null> {
  const { bad, collisions } = first
  const isGood = bad.count === 0 && collisions.count === 0
  const seed = isGood && hash instanceof SeededHash ? hash.seed : null
  const index = await ids?.storeIndex(seed, first.takeIds(), (...collision) => collisions.add(...collision))
  if (bad.count + collisions.count > ERRORS_COUNTED_MAX) first.stopped = true
  return index ?? null
}

async function duplicates(
  blocks: AsyncIterable<Buffer>,
  limits: ValidationLimits,
  first: FirstPass,
  hash: IdHash,
  signal: AbortSignal | undefined,
): Promise<InvalidLines> {
  const { hashes, lastLine } = first.collisions.first()
  const second = new SecondPass(hashes, lastLine, hash)
  await read(blocks, limits, second, signal)
  return second.bad
}

/** Passes the lines of the file to `pass` until it has stopped; returns the bytes read. */
async function read(
  blocks: AsyncIterable<Buffer>,
  limits: ValidationLimits,
  pass: LineSink & { readonly stopped: boolean },
  signal: AbortSignal | undefined,
  onBlock?: (bytes: number) => Promise<void>,
): Promise<number> {
  const splitter = new LineSplitter(limits.line_bytes_max, pass)
  let bytes = 0
  signal?.throwIfAborted()
  for await (const block of blocks) {
    signal?.throwIfAborted()
    splitter.push(block)
    bytes += block.length
    await onBlock?.(bytes)
    if (pass.stopped) return bytes
  }
  splitter.end()
  return bytes
}

/**
 * Validates a file while it arrives. Its only positive result is a valid file and its index. For an invalid line or
 * two custom_ids with equal hashes it gives up, and the file is validated from its blob, with messages for each line.
 */
export interface ValidFile {
  line_count: number
  /** The file's index as stored JSON. */
  index_json: string
  /** The seed of the custom_ids' hashes, and the custom_ids that `takeIds` has not returned. */
  seed: Uint32Array<ArrayBuffer>
  ids: Entries[]
}

export class StreamingValidator {
  readonly #first: FirstPass
  readonly #splitter: LineSplitter
  readonly #hash = new SeededHash()

  constructor(limits: ValidationLimits) {
    this.#first = new FirstPass(limits, this.#hash)
    this.#splitter = new LineSplitter(limits.line_bytes_max, this.#first)
  }

  /** Removes and returns the custom_ids, by shard, if they take their limit of memory; null otherwise. */
  takeIds(): Entries[] | null {
    return this.#first.isFull ? this.#first.takeIds() : null
  }

  /** Reads the next block of the file; false once the result can only be null, so that reading on is pointless. */
  push(block: Buffer): boolean {
    this.#splitter.push(block)
    return !this.#inDoubt
  }

  /** The result after the last block; null if the file has to be validated from its blob. */
  end(): ValidFile | null {
    this.#splitter.end()
    const { line_count } = this.#first
    if (this.#inDoubt || line_count === 0) return null
    const index_json = JSON.stringify(this.#first.index())
    return { line_count, index_json, seed: this.#hash.seed, ids: this.#first.takeIds() }
  }

  get #inDoubt(): boolean {
    return this.#first.stopped || this.#first.bad.count > 0 || this.#first.collisions.count > 0
  }
}
