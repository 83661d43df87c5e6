// What journalled lines came to, by their audit records: for parts of a journal that were written before their sums
// were kept beside them, and for whoever compares the two.
import type { SealedBlobs } from '../blobs/sealed.ts'
import { nanosFromUsd } from '../domain/money.ts'
import { NO_SPEND } from '../domain/spend.ts'
import type { EndedLine, Tally } from '../ledger/tally.ts'
import { settledOfChunk } from '../store/book-sums.ts'
import type { ChunkRow } from '../store/schema.ts'
import type { Store, Writer } from '../store/store.ts'
import { usageOfEntity } from '../store/usage-days.ts'
import { readChunkJournal } from './chunk-journal.ts'
import { fieldOf, type Journalled } from './journal.ts'
import { readSpans } from './read-spans.ts'

/** Each line by itself, in the order of `lines`. */
export async function journalledLines(
  sealed: SealedBlobs,
  lines: readonly Journalled[],
): Promise<EndedLine[]> {
  const pieces: Buffer[] = []
  for await (const piece of readSpans(
    sealed,
    lines.map((line) => fieldOf(line, 'audit')),
  ))
    pieces.push(piece)
  const records = Buffer.concat(pieces).toString('utf8').split('\n').filter(Boolean)
  return records.map((record, i) => endedLine(JSON.parse(record), lines[i]!.part))
}

function endedLine(record: Record<string, unknown>, part: EndedLine['part']): EndedLine {
  const usage = Object(record.usage)
  const text = (value: unknown): string | null => (typeof value === 'string' ? value : null)
  return {
    part,
    finished_at: Number(record.created) * 1000,
    model: text(record.model),
    entity: text(record.entity),
    usage:
      record.usage === null
        ? null
        : {
            prompt_tokens: Number(usage.prompt_tokens),
            completion_tokens: Number(usage.completion_tokens),
            total_tokens: Number(usage.total_tokens),
          },
    cost_nanos: nanosFromUsd(Number(record.cost_usd)),
    projected: NO_SPEND,
    isReserved: false,
  }
}

/** The lines that the journals of an open chunk have; throws where one of them is damaged or repeats another one. */
export async function linesOfOpenChunk(
  { store, sealed }: { store: Store; sealed: SealedBlobs },
  { batch_id, idx }: Pick<ChunkRow, 'batch_id' | 'idx'>,
): Promise<EndedLine[]> {
  const { written, damaged } = await readChunkJournal(store.read, sealed, batch_id, idx)
  const [first] = damaged
  if (first) throw new Error(`${first.journal_blob} is damaged, gone, or repeats lines of another journal`)
  return await journalledLines(sealed, written)
}

/**
 * What the ledger has of the chunk beyond `known`: the lines of parts that nobody can read any more. Counts, tokens
 * and costs of each entity and day are exact; of which model they were is told by what the entity used most that day,
 * and so is how its tokens divide. What the lines had been projected to cost stays settled.
 */
export async function unknownTallies(tx: Writer, claim: ChunkRow, known: readonly Tally[]): Promise<Tally[]> {
  let failed = claim.failed
  const read = new Map<string, { lines: number; tokens: number; cost_nanos: number }>()
  for (const one of known) {
    failed -= one.failed
    const key = `${one.day} ${one.entity ?? ''}`
    const sums = read.get(key) ?? { lines: 0, tokens: 0, cost_nanos: 0 }
    sums.lines += one.succeeded + one.failed
    sums.tokens += one.total_tokens
    sums.cost_nanos += one.cost_nanos
    read.set(key, sums)
  }
  const settled = await settledOfChunk(tx, claim)
  const rest = settled.map((row) => {
    const sums = read.get(`${row.day} ${row.entity}`)
    return {
      ...row,
      lines: row.lines - (sums?.lines ?? 0),
      tokens: row.tokens - (sums?.tokens ?? 0),
      cost_nanos: row.cost_nanos - (sums?.cost_nanos ?? 0),
    }
  })
  // What cost something was answered: the lines that failed are looked for elsewhere first.
  rest.sort((a, b) => a.tokens - b.tokens)
  const tallies: Tally[] = []
  for (const { day, entity, lines, tokens, cost_nanos } of rest) {
    if (lines === 0 && tokens === 0 && cost_nanos === 0) continue
    const lost = Math.min(Math.max(0, failed), lines)
    failed -= lost
    const [most] = await usageOfEntity(tx, claim.project_id, entity, day)
    const share = most && most.total_tokens > 0 ? most.prompt_tokens / most.total_tokens : 0
    const prompt_tokens = Math.round(tokens * share)
    tallies.push({
      day,
      entity: entity === '' ? null : entity,
      model: claim.model ?? (most?.model || null),
      succeeded: lines - lost,
      failed: lost,
      prompt_tokens,
      completion_tokens: tokens - prompt_tokens,
      total_tokens: tokens,
      cost_nanos,
      projected: { ...NO_SPEND },
      reserved: { ...NO_SPEND },
    })
  }
  return tallies
}
