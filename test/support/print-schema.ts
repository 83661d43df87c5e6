// Prints the schema of a new SQLite database and its migrations, as test/fixtures/schemas has them of each release.
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { sqliteStore } from '../../src/store/sqlite/store.ts'

const folder = mkdtempSync(join(tmpdir(), 'offpeak-schema-'))
const path = join(folder, 'offpeak.db')
await using store = sqliteStore({ path })
await store.migrate()
using database = new DatabaseSync(path, { readOnly: true })
const made = database.prepare(
  "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'",
)
for (const { sql } of made.all()) process.stdout.write(`${sql};\n`)
for (const { name } of database.prepare('SELECT name FROM kysely_migration ORDER BY name').all())
  process.stdout.write(`INSERT INTO kysely_migration VALUES ('${name}', '2026-01-01T00:00:00Z');\n`)
rmSync(folder, { recursive: true })
