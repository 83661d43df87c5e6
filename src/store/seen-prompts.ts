// What servers reported of prompts, summed by model. Older sums fade: once they are large enough they are halved, so
// that what is seen now soon counts more than what was seen with another tokenizer.
import { sql } from 'kysely'
import type { SeenPrompts } from '../domain/tokens.ts'
import { exactPlusExcluded } from './exact-sum.ts'
import type { Reader, Writer } from './store.ts'

/** Tokens from which on sums are halved. */
const TOKENS_MAX = 10_000_000

/** In the order of the models' names, so that no two workers wait for each other in a circle. */
export async function addSeenPrompts(tx: Writer, seen: ReadonlyMap<string, SeenPrompts>): Promise<void> {
  const rows = [...seen].sort(([a], [b]) => (a < b ? -1 : 1)).map(([model, sums]) => ({ model, ...sums }))
  for (const row of rows) {
    await tx
      .insertInto('seen_prompts')
      .values(row)
      .onConflict((oc) =>
        oc.column('model').doUpdateSet({
          bytes: exactPlusExcluded('seen_prompts', 'bytes'),
          tokens: exactPlusExcluded('seen_prompts', 'tokens'),
          long_bytes: exactPlusExcluded('seen_prompts', 'long_bytes'),
          long_tokens: exactPlusExcluded('seen_prompts', 'long_tokens'),
        }),
      )
      .execute()
    await tx
      .updateTable('seen_prompts')
      .set({
        bytes: sql<number>`bytes / 2`,
        tokens: sql<number>`tokens / 2`,
        long_bytes: sql<number>`long_bytes / 2`,
        long_tokens: sql<number>`long_tokens / 2`,
      })
      .where('model', '=', row.model)
      .where('tokens', '>', TOKENS_MAX)
      .execute()
  }
}

/** By model; of all models that anything is known of. */
export async function readSeenPrompts(db: Reader): Promise<Map<string, SeenPrompts>> {
  const rows = await db.selectFrom('seen_prompts').selectAll().execute()
  return new Map(rows.map(({ model, ...seen }) => [model, seen]))
}
