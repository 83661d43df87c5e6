// Statistics that commits write: of each batch, and of the prompts of each model.
import { sql } from 'kysely'
import type { PromptStatistics } from '../domain/tokens.ts'
import { selectRows, updateRows } from './rows.ts'
import type { BatchStatisticsRow } from './schema.ts'
import { exactPlusExcluded } from './sql-parts.ts'
import type { Reader, Writer } from './store.ts'

// Statistics of batches that their commits write: errors by code and message, and what finished when. One row per
// batch, of bounded size (results/batch-statistics.ts).

/** The rows that there are, in no order. */
export async function readBatchStatistics(
  db: Reader,
  batch_ids: readonly string[],
): Promise<BatchStatisticsRow[]> {
  if (batch_ids.length === 0) return []
  return await selectRows(db, 'batch_statistics', { batch_id: batch_ids }).selectAll().execute()
}

/** Replaces the rows. The caller holds the rows of the batches themselves, so nobody else writes these. */
export async function writeBatchStatistics(tx: Writer, rows: readonly BatchStatisticsRow[]): Promise<void> {
  if (rows.length === 0) return
  await tx
    .insertInto('batch_statistics')
    .values(rows)
    .onConflict((conflict) =>
      conflict.column('batch_id').doUpdateSet(({ ref }) => ({
        errors: ref('excluded.errors'),
        timeline: ref('excluded.timeline'),
      })),
    )
    .execute()
}

// Sizes of prompts, in bytes and in reported tokens, summed by model. Large sums are halved, so that recent prompts
// outweigh those of an earlier tokenizer.

/** Tokens from which on sums are halved. */
const TOKENS_MAX = 10_000_000

/** Models are updated in the order of their names, so that two workers cannot deadlock. */
export async function addPromptStatistics(
  tx: Writer,
  seen: ReadonlyMap<string, PromptStatistics>,
): Promise<void> {
  const rows = [...seen].sort(([a], [b]) => (a < b ? -1 : 1)).map(([model, sums]) => ({ model, ...sums }))
  for (const row of rows) {
    await tx
      .insertInto('prompt_statistics')
      .values(row)
      .onConflict((oc) =>
        oc.column('model').doUpdateSet({
          bytes: exactPlusExcluded('prompt_statistics', 'bytes'),
          tokens: exactPlusExcluded('prompt_statistics', 'tokens'),
          long_bytes: exactPlusExcluded('prompt_statistics', 'long_bytes'),
          long_tokens: exactPlusExcluded('prompt_statistics', 'long_tokens'),
        }),
      )
      .execute()
    await updateRows(tx, 'prompt_statistics', { model: row.model })
      .set({
        bytes: sql<number>`bytes / 2`,
        tokens: sql<number>`tokens / 2`,
        long_bytes: sql<number>`long_bytes / 2`,
        long_tokens: sql<number>`long_tokens / 2`,
      })
      .where('tokens', '>', TOKENS_MAX)
      .execute()
  }
}

/** By model; a model without reports is absent. */
export async function readPromptStatistics(db: Reader): Promise<Map<string, PromptStatistics>> {
  const rows = await db.selectFrom('prompt_statistics').selectAll().execute()
  return new Map(rows.map(({ model, ...seen }) => [model, seen]))
}
