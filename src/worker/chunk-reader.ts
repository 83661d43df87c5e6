// Opens a claimed chunk: reads its lines from the input file and its finished lines from the journals.
import { BlobMissing } from '../blobs/blobs.ts'
import type { SealedBlobs } from '../blobs/sealed.ts'
import { Run } from '../dispatch/run.ts'
import { stopReason } from '../domain/batch.ts'
import type { Clock } from '../domain/clock.ts'
import type { Log } from '../domain/log.ts'
import type { Model } from '../domain/model.ts'
import { readChunkLines } from '../jsonl/chunk-lines.ts'
import { tally } from '../ledger/tally.ts'
import { readChunkJournal } from '../results/chunk-journal.ts'
import type { Journalled } from '../results/journal.ts'
import { journalledLines } from '../results/journal-tallies.ts'
import { lacksSums, reverseJournal } from '../results/reverse-journal.ts'
import type { BatchInput } from '../store/batches.ts'
import type { ChunkRow, JournalPartRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'
import { InputUnreadable, isDamage, rejectedLines, unreadableLines } from './unreadable-chunk.ts'

const JOURNAL_LOST =
  'a journal is damaged, missing or a repetition; its charges are reversed, and lines that no other journal has are run again'
const UNREADABLE = 'the input of a chunk was damaged; its unfinished lines end as errors'

interface ChunkReaderOptions {
  store: Store
  sealed: SealedBlobs
  clock: Clock
  log: Log
  models: ReadonlyMap<string, Model>
}

export class ChunkReader {
  readonly #options: ChunkReaderOptions

  constructor(options: ChunkReaderOptions) {
    this.#options = options
  }

  /** Throws InputUnreadable while the input may still be restored before the batch's deadline. */
  async read(claim: ChunkRow, { batch, content }: BatchInput): Promise<Run> {
    const { store, sealed, models, clock, log } = this.#options
    const { written: journalled, unusable } =
      claim.completed + claim.failed > 0
        ? await readChunkJournal({ db: store.read, sealed }, claim)
        : { written: [], unusable: [] }
    const damaged = unusable.map(({ part }) => part)
    const range = { start: claim.byte_start, end: claim.byte_end }
    try {
      if (!content) throw new BlobMissing(`of the input of ${batch.id}`)
      const bytes = await sealed.readAll(content.project_id, content, range)
      const read = readChunkLines(bytes, { ...claim, index: claim.idx }, models, {
        endpoint: batch.endpoint,
        metadata: batch.metadata === null ? {} : JSON.parse(batch.metadata),
        header_entity: batch.header_entity,
      })
      const lines = claim.record_error === null ? read : rejectedLines(read)
      return new Run(await this.#reverseJournal(claim, damaged, journalled), batch, lines, bytes, journalled)
    } catch (error) {
      if (!isDamage(error)) throw error
      if (stopReason(batch, clock.now()) === null) throw new InputUnreadable(error)
      log.error({ err: error, batch: batch.id, chunk: claim.idx }, UNREADABLE)
      const reversed = await this.#reverseJournal(claim, damaged, journalled)
      return new Run(reversed, batch, unreadableLines(reversed, journalled), Buffer.alloc(0), journalled)
    }
  }

  /** Drops unreadable journals and reverses the charges for their lines, which are sent again. */
  async #reverseJournal(
    claim: ChunkRow,
    damaged: readonly JournalPartRow[],
    journalled: readonly Journalled[],
  ): Promise<ChunkRow> {
    if (damaged.length === 0) return claim
    const { store, sealed, clock, log } = this.#options
    const kept = lacksSums(damaged) ? tally(await journalledLines(sealed, journalled)) : []
    const reversed = await store.write((tx) => reverseJournal(tx, claim, damaged, kept, clock.now()))
    if (!reversed) throw new Error(`chunk ${claim.idx} of ${claim.batch_id} was taken over by another worker`)
    const lines = claim.completed + claim.failed - reversed.completed - reversed.failed
    const journals = damaged.map(({ journal_blob }) => journal_blob)
    log.error({ batch: claim.batch_id, chunk: claim.idx, lines, journals }, JOURNAL_LOST)
    return reversed
  }
}
