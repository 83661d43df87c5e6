// Finds the answer to an identical line that another worker recorded, or this worker before a restart. The plan has
// stored which line of the batch was the first with the same request; the journals or blobs of its chunk have its
// result as soon as a commit has counted it.
import type { ResponseMemory } from '../backends/response-memory.ts'
import { isDamaged } from '../blobs/blobs.ts'
import { BoundedMap } from '../domain/bounded-map.ts'
import { sleep } from '../domain/clock.ts'
import { MIXED } from '../domain/endpoint.ts'
import { base32 } from '../domain/ids.ts'
import { nanosFromUsd } from '../domain/money.ts'
import { AnswerScanner } from '../jsonl/answer-scan.ts'
import { unpackNumbers } from '../jsonl/first-lines.ts'
import { listChunkStarts } from '../store/chunks.ts'
import { readRow } from '../store/rows.ts'
import type { BatchRow, ChunkRow } from '../store/schema.ts'
import type { Ports, Store } from '../store/store.ts'
import { chunkKey } from './chunk-results.ts'
import { finishedLines } from './finished-lines.ts'
import type { Span } from './line-index.ts'
import { RESULT_TAIL } from './line-record.ts'
import type { SharedAnswer } from './record-line.ts'

/** The interval in ms at which the chunk of an unfinished line is read again. */
const READ_AGAIN_MS = 500
/** The wait of a line in ms for a worker to claim the chunk of the other line. */
const CLAIM_WAIT_MS = 5_000
/** A longer answer is not read into memory: its request is sent again. */
const ANSWER_BYTES_MAX = 4 * 1024 * 1024
/** The multiple of its bytes that an answer takes while it is read: bytes, text and parsed value. */
const COPIES = 3
const REMEMBERED_MAX = 64

/** The row of a chunk when it was last read, and the places of its finished lines; null for a line that failed. */
interface SeenChunk {
  /** The time of the reading, by the steady clock. */
  at: number
  chunk: ChunkRow
  places: ReadonlyMap<number, Span | null>
}

/** An open chunk of this worker. */
interface OpenChunk {
  readonly claim: Pick<ChunkRow, 'first_lines'>
  readonly batch: BatchRow
  readonly stopped: string | null
  readonly lines: readonly { readonly line: number }[]
  isFinished(position: number): boolean
}

interface EarlierAnswersOptions extends Pick<Ports, 'sealed' | 'clock' | 'log'> {
  store: Pick<Store, 'read'>
  session: { readonly id: string }
  answers: Pick<ResponseMemory, 'untilRoom' | 'hold' | 'free'>
  runs: ReadonlyMap<string, OpenChunk>
}

export class EarlierAnswers {
  readonly #options: EarlierAnswersOptions
  readonly #firsts = new WeakMap<OpenChunk, Uint32Array>()
  readonly #starts = new BoundedMap<string, ReturnType<typeof listChunkStarts>>(REMEMBERED_MAX)
  readonly #seen = new BoundedMap<string, Promise<SeenChunk | null>>(REMEMBERED_MAX)
  readonly #scanner = new AnswerScanner()

  constructor(options: EarlierAnswersOptions) {
    this.#options = options
  }

  /** The number of the first line with the same request; 0 if it is this one, or none is known. */
  firstOf(run: OpenChunk, position: number): number {
    const { first_lines } = run.claim
    if (!first_lines) return 0
    const firsts = this.#firsts.get(run) ?? unpackNumbers(first_lines)
    this.#firsts.set(run, firsts)
    return firsts[position] ?? 0
  }

  /** The stored answer of an identical line, waited for while another worker has that line; null: the request is to be sent. */
  async find(run: OpenChunk, position: number, signal: AbortSignal): Promise<SharedAnswer | null> {
    try {
      return await this.#find(run.batch, this.firstOf(run, position), signal)
    } catch (err) {
      this.#options.log.warn(
        { err },
        'the answer of an identical line could not be read; the request is sent',
      )
      return null
    }
  }

  async #find(batch: BatchRow, line: number, signal: AbortSignal): Promise<SharedAnswer | null> {
    const { clock, runs, session } = this.#options
    const idx = await this.#chunkOf(batch.id, line)
    let unread: { seen: SeenChunk; place: Span } | undefined
    for (const since = clock.steady(); !signal.aborted; ) {
      const own = runs.get(chunkKey(batch.id, idx))
      const isOpenHere = own !== undefined && own.stopped === null
      // The two meet in memory.
      if (isOpenHere && own.lines.some((one, at) => one.line === line && !own.isFinished(at))) return null
      const seen = await this.#seenNow(batch.id, idx, unread?.seen)
      const place = seen?.places.get(line)
      if (seen && place) {
        try {
          return await this.#read(batch, line, place, signal)
        } catch (error) {
          // If the chunk was sealed meanwhile, its journals are deleted, and the answer is in its blobs.
          if (!isDamaged(error) || place === unread?.place) throw error
          unread = { seen, place }
          continue
        }
      }
      if (!seen || place === null || seen.chunk.state === 'sealed' || seen.chunk.state === 'parked')
        return null
      const isElsewhere = seen.chunk.state === 'leased' && seen.chunk.worker_id !== session.id
      if (!isElsewhere && !isOpenHere && clock.steady() - since >= CLAIM_WAIT_MS) return null
      await sleep(clock, READ_AGAIN_MS, signal)
    }
    return null
  }

  async #chunkOf(batch_id: string, line: number): Promise<number> {
    const starts = remembered(this.#starts, batch_id, () =>
      listChunkStarts(this.#options.store.read, batch_id),
    )
    return (await starts).findLast(({ first_line }) => first_line <= line)?.idx ?? -1
  }

  /** The chunk as it is now, or was a moment ago. `unread`: a reading that is out of date, since a place of it could not be read. */
  async #seenNow(batch_id: string, idx: number, unread: SeenChunk | undefined): Promise<SeenChunk | null> {
    const key = chunkKey(batch_id, idx)
    const now = this.#options.clock.steady()
    const last = this.#seen.get(key)
    const known = await last
    const isOld =
      known && (known === unread || (known.chunk.state !== 'sealed' && now - known.at >= READ_AGAIN_MS))
    // Of many lines that ask at once, one reads.
    if (isOld && this.#seen.get(key) === last) this.#seen.delete(key)
    return await remembered(this.#seen, key, () => this.#readChunk(batch_id, idx, known ?? null))
  }

  async #readChunk(batch_id: string, idx: number, known: SeenChunk | null): Promise<SeenChunk | null> {
    const { store, sealed, clock } = this.#options
    const at = clock.steady()
    const chunk = await readRow(store.read, 'chunks', { batch_id, idx })
    if (!chunk) return null
    const isSame = known?.chunk.epoch === chunk.epoch && known.chunk.commit_seq === chunk.commit_seq
    if (known && isSame && known.chunk.state === chunk.state) return { ...known, at, chunk }
    const places = new Map<number, Span | null>()
    const ports = { db: store.read, sealed, now: clock.now() }
    for (const { line, part, result } of await finishedLines(ports, chunk))
      places.set(line, part === 'error' ? null : result)
    return { at, chunk, places }
  }

  async #read(batch: BatchRow, line: number, place: Span, signal: AbortSignal): Promise<SharedAnswer | null> {
    const { answers, clock } = this.#options
    const bytes = place.range.end - place.range.start
    if (bytes > ANSWER_BYTES_MAX) return null
    await answers.untilRoom(clock, signal)
    answers.hold('examined', COPIES * bytes)
    try {
      return await this.#readNow(batch, line, place)
    } finally {
      answers.free('examined', COPIES * bytes)
    }
  }

  async #readNow(batch: BatchRow, line: number, place: Span): Promise<SharedAnswer | null> {
    const bytes = await this.#options.sealed.readAll(place.project_id, place.blob, place.range)
    const { id, custom_id, shared_from, response } = JSON.parse(bytes.toString('utf8'))
    const head = `"request_id":"${id}","body":`
    const end = bytes.lastIndexOf(`}${RESULT_TAIL.trimEnd()}`)
    const body = bytes.subarray(bytes.indexOf(head) + head.length, end)
    // A batch of several endpoints shares no answers.
    const answer = batch.endpoint === MIXED ? null : this.#scanner.scan(body, batch.endpoint)
    if (!answer || !id.endsWith(base32(line))) return null
    const from = shared_from ?? { id, custom_id }
    return {
      body,
      answer,
      // Of a line that shares its answer itself, 0.
      cost_nanos: nanosFromUsd(Number(response.body.usage?.cost_usd ?? 0)),
      from: { request_id: from.id, custom_id_json: JSON.stringify(from.custom_id) },
    }
  }
}

/** Remembers the values that were asked for last, but no failure. */
function remembered<T>(values: Map<string, Promise<T>>, key: string, make: () => Promise<T>): Promise<T> {
  const value = values.get(key) ?? make()
  values.set(key, value)
  value.catch(() => values.delete(key))
  return value
}
