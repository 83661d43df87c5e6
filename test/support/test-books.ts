// A database with one project and one batch of leased chunks, for tests of the ledger.
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { newId } from '../../src/domain/ids.ts'
import { NO_SPEND, plus, type Spend } from '../../src/domain/money.ts'
import { type EndedLine, Tallies, type Tally } from '../../src/ledger/tally.ts'
import { insertBatch } from '../../src/store/batches.ts'
import { insertChunks } from '../../src/store/chunks.ts'
import { insertLimit } from '../../src/store/limits.ts'
import { ensureProject } from '../../src/store/projects.ts'
import { insertRow } from '../../src/store/rows.ts'
import type { LimitRow } from '../../src/store/schema.ts'
import { sqliteStore } from '../../src/store/sqlite/store.ts'
import type { Store, Writer } from '../../src/store/store.ts'
import { makeMigratedSqlite } from './migrated-sqlite.ts'

export interface TestBooks extends AsyncDisposable {
  store: Store
}

/** How many cases a property is tried in: fewer where every statement is a round trip. */
export function booksRuns(): number {
  return elsewhere ? 300 : 2_000
}

/** Where books are opened from now on; null: a SQLite of their own. */
let elsewhere: (() => Promise<TestBooks>) | null = null

/** For a test file that runs the same tests on another database, before it imports them. */
export function keepBooksIn(open: () => Promise<TestBooks>): void {
  elsewhere = open
}

export async function testBooks(): Promise<TestBooks> {
  if (elsewhere) return await elsewhere()
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-books-'))
  const path = join(folder, 'offpeak.db')
  await makeMigratedSqlite(path)
  const store = sqliteStore({ path })
  return {
    store,
    async [Symbol.asyncDispose]() {
      await store.close()
      await rm(folder, { recursive: true, force: true })
    },
  }
}

export interface TestChunk {
  project_id: string
  key_id: string
  batch_id: string
  idx: number
  epoch: number
  commit_seq: number
}

/** A batch of `count` chunks, each leased to `worker_id`. */
export async function leasedChunks(
  tx: Writer,
  count: number,
  now: number,
  worker_id = 'wrk_1',
): Promise<TestChunk[]> {
  const name = newId('project', now)
  const { id: project_id } = await ensureProject(tx, { id: name, name, plan: 'payg', created: now })
  const fileId = newId('file', now)
  await insertRow(tx, 'files', {
    id: fileId,
    project_id,
    purpose: 'batch',
    filename: 'in.jsonl',
    bytes: 1,
    line_count: count * 1000,
    status: 'processed',
    created: now,
    expires_at: now + 1e9,
  })
  const batch = await insertBatch(tx, {
    id: newId('batch', now),
    project_id,
    key_id: 'key_1',
    endpoint: '/v1/chat/completions',
    input_file_id: fileId,
    completion_window: '24h',
    language: 'en',
    total: count * 1000,
    created: now,
    expires_at: now + 1e9,
  })
  const spans = Array.from({ length: count }, (_, index) => ({
    index,
    first_line: index * 1000 + 1,
    line_count: 1000,
    byte_start: index,
    byte_end: index + 1,
    model: null,
  }))
  await insertChunks(tx, batch, spans)
  await tx
    .updateTable('chunks')
    .set({ state: 'leased', worker_id, epoch: 1 })
    .where('batch_id', '=', batch.id)
    .execute()
  return spans.map(({ index: idx }) => ({
    ...{ project_id, key_id: 'key_1', batch_id: batch.id, idx, epoch: 1, commit_seq: 0 },
  }))
}

export async function addLimit(
  tx: Writer,
  project_id: string,
  part: Partial<LimitRow> & Pick<LimitRow, 'amount'>,
): Promise<string> {
  const id = newId('limit', 1)
  await insertLimit(tx, {
    id,
    project_id,
    scope: 'project',
    subject: '',
    model: '',
    metric: 'tokens',
    window: 'month',
    action: 'block',
    description: null,
    notify_at: '[]',
    created: 1,
    ...part,
  })
  return id
}

/** What so many tokens of one line cost at the price of these tests. */
export function spendOf(tokens: number, requests = 1): Spend {
  return { cost_nanos: tokens * 10, tokens, requests }
}

/** The sum of rows of amounts. */
export function total(rows: readonly Spend[]): Spend {
  return rows.reduce<Spend>(
    (sum, { cost_nanos, tokens, requests }) => plus(sum, { cost_nanos, tokens, requests }),
    NO_SPEND,
  )
}

export function tally(lines: Iterable<EndedLine>): readonly Tally[] {
  const tallies = new Tallies()
  for (const line of lines) tallies.add(line)
  return tallies.all
}

export function endedLine(part: Partial<EndedLine> & { tokens: number; projected: Spend }): EndedLine {
  const { tokens, ...rest } = part
  return {
    part: 'output',
    day: 0,
    model: 'm',
    entity: null,
    usage: { prompt_tokens: tokens, completion_tokens: 0, total_tokens: tokens },
    cost_nanos: tokens * 10,
    isReserved: true,
    saved_nanos: null,
    wasSent: true,
    ...rest,
  }
}
