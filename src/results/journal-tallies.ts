// The journalled lines of a chunk as the ledger counts them, by their audit records, for the comparison with it.
import type { SealedBlobs } from '../blobs/sealed.ts'
import { dayOf } from '../domain/days.ts'
import { nanosFromUsd } from '../domain/money.ts'
import { NO_SPEND } from '../domain/spend.ts'
import type { EndedLine } from '../ledger/tally.ts'
import type { ChunkRow } from '../store/schema.ts'
import type { Store } from '../store/store.ts'
import { readChunkJournal } from './chunk-journal.ts'
import { readSpans } from './read-spans.ts'

/** The journalled lines of an open chunk. Throws if a journal is damaged or repeats another one. */
export async function linesOfOpenChunk(
  { store, sealed }: { store: Store; sealed: SealedBlobs },
  chunk: Pick<ChunkRow, 'batch_id' | 'idx'>,
): Promise<EndedLine[]> {
  const { written, unusable } = await readChunkJournal({ db: store.read, sealed }, chunk)
  const [first] = unusable
  if (first)
    throw new Error(`${first.part.journal_blob} is damaged, missing or repeats lines of another journal`)
  const pieces: Buffer[] = []
  const spans = written.map(({ audit }) => audit)
  for await (const piece of readSpans(sealed, spans)) pieces.push(piece)
  const records = Buffer.concat(pieces).toString('utf8').split('\n').filter(Boolean)
  return records.map((record, i) => endedLine(JSON.parse(record), written[i]!.part))
}

function endedLine(record: Record<string, unknown>, part: EndedLine['part']): EndedLine {
  const usage = Object(record.usage)
  const text = (value: unknown): string | null => (typeof value === 'string' ? value : null)
  return {
    part,
    day: dayOf(Number(record.created) * 1000),
    model: text(record.model),
    entity: text(record.entity),
    usage:
      record.usage === null
        ? null
        : {
            prompt_tokens: Number(usage.prompt_tokens),
            completion_tokens: Number(usage.completion_tokens),
            total_tokens: Number(usage.total_tokens),
            cached_tokens: Number(usage.cached_tokens ?? 0),
            reasoning_tokens: Number(usage.reasoning_tokens ?? 0),
          },
    cost_nanos: nanosFromUsd(Number(record.cost_usd)),
    projected: NO_SPEND,
    isReserved: false,
    saved_nanos: null,
  }
}
