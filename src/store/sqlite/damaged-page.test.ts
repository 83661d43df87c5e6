// SQLite keeps no checksums, so it notices only damage that breaks the format of a page. Every read of such a page must
// report the damage, and `check` must find it.
import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { test } from 'node:test'
import { DatabaseFailure, type Store } from '../store.ts'
import { sqliteStore } from './store.ts'

const ROWS = 400

async function marks(store: Store): Promise<{ name: string; value: string }[]> {
  return await store.read.selectFrom('database_properties').selectAll().orderBy('name').execute()
}

/** Pages of the table `database_properties` and of its index, as numbers from 1. */
function pagesOfMarks(path: string): { pages: number[]; page_bytes: number } {
  const db = new DatabaseSync(path)
  const pages = db
    .prepare(
      "SELECT pageno FROM dbstat WHERE name IN ('database_properties', 'sqlite_autoindex_database_properties_1')",
    )
    .all()
  const size = db.prepare('PRAGMA page_size').get()
  db.close()
  return { pages: pages.map((row) => Number(row.pageno)), page_bytes: Number(size?.page_size) }
}

test('whichever page rots, nothing that is on it is read as data, and the check names the damage', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-rot-'))
  try {
    const path = join(folder, 'one.db')
    const first = sqliteStore({ path })
    await first.migrate()
    await first.write(async (tx) => {
      for (let i = 0; i < ROWS; i++)
        await tx
          .insertInto('database_properties')
          .values({ name: `mark ${String(i).padStart(4, '0')}`, value: 'x'.repeat(i) })
          .execute()
    })
    const written = await marks(first)
    await first.close()
    const whole = await readFile(path)
    const { pages, page_bytes } = pagesOfMarks(path)
    assert.ok(pages.length > 20)
    for (const page of pages) {
      const rotten = Buffer.from(whole)
      rotten.fill(0xa5, (page - 1) * page_bytes, page * page_bytes)
      await writeFile(path, rotten)
      const store = sqliteStore({ path })
      try {
        const read = await marks(store).catch((error: unknown) => error)
        if (read instanceof DatabaseFailure) assert.match(read.message, /one\.db is damaged \(.*\)\. Stop /)
        else assert.deepEqual(read, written)
        assert.notDeepEqual(await store.check(), [], `page ${page}`)
      } finally {
        await store.close()
      }
    }
  } finally {
    await rm(folder, { recursive: true })
  }
})
