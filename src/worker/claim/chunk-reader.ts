// Opens a claimed chunk: reads its lines from the input file and its finished lines from the journals.
import { BlobMissing, isDamaged } from '../../blobs/blobs.ts'
import { Run } from '../../dispatch/run.ts'
import type { AuditLog } from '../../domain/audit-log.ts'
import { stopReason } from '../../domain/batch.ts'
import { messageOf, wireError } from '../../domain/errors.ts'
import { type Model, projectedPrice } from '../../domain/model.ts'
import { NO_SPEND, type Price } from '../../domain/money.ts'
import {
  type ChunkLine,
  InputChanged,
  lineNumbers,
  lineThatCannotRun,
  readChunkLines,
} from '../../jsonl/chunk-lines.ts'
import { reverseJournal } from '../../results/commit.ts'
import { inputOfChunk } from '../../results/finished-lines.ts'
import { type Journalled, readChunkJournal } from '../../results/journal.ts'
import { type BatchInput, readBatchInput } from '../../store/batches.ts'
import type { ChunkRow, JournalPartRow } from '../../store/schema.ts'
import type { Ports } from '../../store/store.ts'

const JOURNAL_LOST =
  'a journal is damaged, missing or a repetition; its charges are reversed, and lines that no other journal has are run again'
const UNREADABLE = 'the input of a chunk was damaged; its unfinished lines end as errors'

interface ChunkReaderOptions extends Ports {
  models: ReadonlyMap<string, Model>
  auditLog?: AuditLog | undefined
}

export class ChunkReader {
  readonly #options: ChunkReaderOptions

  constructor(options: ChunkReaderOptions) {
    this.#options = options
  }

  /** The row and the input of each batch, read once for chunks that are claimed together, mostly of one batch. */
  inputs(claims: readonly ChunkRow[]): ReadonlyMap<string, Promise<BatchInput>> {
    return new Map(
      Array.from(new Set(claims.map(({ batch_id }) => batch_id)), (id) => {
        const input = this.#input(id)
        // Chunks may wait for it later, or not at all; until then a failure must not end the process.
        input.catch(() => {})
        return [id, input]
      }),
    )
  }

  async #input(batch_id: string): Promise<BatchInput> {
    const input = await readBatchInput(this.#options.store.read, batch_id)
    if (!input) throw new Error(`batch ${batch_id} is gone`)
    return input
  }

  /** Throws InputUnreadable while the input may still be restored before the batch's deadline. */
  async read(claim: ChunkRow, input: BatchInput): Promise<Run> {
    const run = await this.#read(claim, input)
    run.results.auditLog = this.#options.auditLog
    return run
  }

  async #read(claim: ChunkRow, { batch, content }: BatchInput): Promise<Run> {
    const { store, sealed, models, clock, log } = this.#options
    const { written: journalled, unusable } =
      claim.completed + claim.failed > 0
        ? await readChunkJournal({ db: store.read, sealed }, claim)
        : { written: [], unusable: [] }
    const damaged = unusable.map(({ part }) => part)
    try {
      const bytes = await inputOfChunk({ db: store.read, sealed }, content, claim)
      if (!bytes) throw new BlobMissing(`of the input of ${batch.id}`)
      const read = readChunkLines(bytes, { ...claim, index: claim.idx }, models, batch)
      const lines = claim.record_error === null ? read : rejectedLines(read)
      // Before anything is awaited: a reload may change them.
      const prices = pricesOf(lines, models)
      const run = new Run(await this.#reverseJournal(claim, damaged), batch, lines, bytes, journalled)
      run.prices = prices
      return run
    } catch (error) {
      if (!isDamage(error)) throw error
      if (stopReason(batch, clock.now()) === null) throw new InputUnreadable(error)
      log.error({ err: error, batch: batch.id, chunk: claim.idx }, UNREADABLE)
      const reversed = await this.#reverseJournal(claim, damaged)
      return new Run(reversed, batch, unreadableLines(reversed, journalled), Buffer.alloc(0), journalled)
    }
  }

  /** Drops unreadable journals and reverses the charges for their lines, which are sent again. */
  async #reverseJournal(claim: ChunkRow, damaged: readonly JournalPartRow[]): Promise<ChunkRow> {
    if (damaged.length === 0) return claim
    const { store, clock, log } = this.#options
    const reversed = await store.write((tx) => reverseJournal(tx, claim, damaged, clock.now()))
    if (!reversed) throw new Error(`chunk ${claim.idx} of ${claim.batch_id} was taken over by another worker`)
    const lines = claim.completed + claim.failed - reversed.completed - reversed.failed
    const journals = damaged.map(({ journal_blob }) => journal_blob)
    log.error({ batch: claim.batch_id, chunk: claim.idx, lines, journals }, JOURNAL_LOST)
    return reversed
  }
}

function pricesOf(lines: readonly ChunkLine[], models: ReadonlyMap<string, Model>): Map<string, Price> {
  const prices = new Map<string, Price>()
  for (const { known_model: id } of lines) {
    const model = id === null || prices.has(id) ? undefined : models.get(id)
    if (model) prices.set(model.id, projectedPrice(model))
  }
  return prices
}

// The input of a chunk may be damaged or missing. Reading is retried until the batch's deadline, because the input may be
// restored from a backup. After that the lines end as errors, so that the batch ends; their custom_ids are unknown.

/** Thrown for an input that an operator has to restore. */
export class InputUnreadable extends Error {
  constructor(cause: unknown) {
    super(`the input cannot be read: ${messageOf(cause)}; "offpeak doctor" says what to restore`, { cause })
    this.name = 'InputUnreadable'
  }
}

/** Whether the input itself is damaged, as opposed to a failure of the store. */
function isDamage(error: unknown): boolean {
  return isDamaged(error) || error instanceof InputChanged
}

/** Makes as many lines as the chunk has: its finished ones, and lines that cannot run in place of the others. */
function unreadableLines(
  { first_line, line_count, lines }: Pick<ChunkRow, 'first_line' | 'line_count' | 'lines'>,
  finished: readonly Pick<Journalled, 'line'>[],
): ChunkLine[] {
  const numbers = new Set(lineNumbers({ lines }) ?? finished.map(({ line }) => line))
  for (let line = first_line; numbers.size < line_count; line++) numbers.add(line)
  const fault = wireError('internal_error', 'The input of this line was damaged and can no longer be read.')
  return [...numbers].sort((a, b) => a - b).map((line) => lineThatCannotRun(line, fault))
}

/** The lines of a chunk whose results the database rejects, without the text that it rejects. */
function rejectedLines(lines: readonly ChunkLine[]): ChunkLine[] {
  const fault = wireError('internal_error', 'The result of this line could not be stored. It is not charged.')
  const unknown = { model: null, known_model: null, entity: null, projected: NO_SPEND }
  return lines.map((line) => ({ ...line, ...unknown, fault }))
}
