// Sums of journalled lines, from their audit records: for journal parts of versions that stored no sums, and for the
// comparison with the ledger.
import type { SealedBlobs } from '../blobs/sealed.ts'
import { dayOf } from '../domain/days.ts'
import { nanosFromUsd } from '../domain/money.ts'
import { NO_SPEND } from '../domain/spend.ts'
import type { EndedLine, Tally } from '../ledger/tally.ts'
import { settledOfChunk } from '../store/ledger.ts'
import type { ChunkRow } from '../store/schema.ts'
import type { Store, Writer } from '../store/store.ts'
import { usageOfEntity } from '../store/usage.ts'
import { readChunkJournal } from './chunk-journal.ts'
import { type Journalled, spanOf } from './journal.ts'
import { readSpans } from './read-spans.ts'

/** In the order of `lines`. */
export async function journalledLines(
  sealed: SealedBlobs,
  lines: readonly Journalled[],
): Promise<EndedLine[]> {
  const pieces: Buffer[] = []
  for await (const piece of readSpans(
    sealed,
    lines.map((line) => spanOf(line, 'audit')),
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

/** The journalled lines of an open chunk. Throws if a journal is damaged or repeats another one. */
export async function linesOfOpenChunk(
  { store, sealed }: { store: Store; sealed: SealedBlobs },
  chunk: Pick<ChunkRow, 'batch_id' | 'idx'>,
): Promise<EndedLine[]> {
  const { written, unusable } = await readChunkJournal({ db: store.read, sealed }, chunk)
  const [first] = unusable
  if (first)
    throw new Error(`${first.part.journal_blob} is damaged, missing or repeats lines of another journal`)
  return await journalledLines(sealed, written)
}

/**
 * The sums that the ledger has for the chunk beyond `known`, which are those of unreadable parts. Counts, tokens and
 * costs per entity and day are exact. Their model, and the split into prompt and completion tokens, are those of the
 * entity's main usage of that day.
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
  // Failed lines cost nothing, so they are assigned to the smallest sums first.
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
