// The rows that a line leaves behind and its cost in SQL: statements, transactions, rows and bytes per 1,000 lines, on
// SQLite and a folder, with every statement counted. Prompts are real text; the upstream is another process, answers
// at once, and always the same, so that results count as what surrounds an answer.
//
//   node bench/footprint.ts [--lines 20000] [--bytes 1024]
import { readFileSync, statSync } from 'node:fs'
import { DatabaseSync, StatementSync } from 'node:sqlite'
import { sql } from 'kysely'
import { TABLE_NAMES } from '../src/store/table-copy.ts'
import { TestService } from '../test/service.ts'
import { Bench, modelAt, option } from './harness.ts'

const lines = option('lines', 20_000)
const lineBytes = option('bytes', 1024)
await using bench = new Bench('footprint')

/** By its first word. */
const counted = new Map<string, number>()
for (const method of ['run', 'all'] as const) {
  const original: (...parameters: never[]) => unknown = StatementSync.prototype[method]
  Object.defineProperty(StatementSync.prototype, method, {
    value(this: StatementSync, ...parameters: unknown[]) {
      const verb = this.sourceSQL.trimStart().split(/\s/, 1)[0]!.toLowerCase()
      counted.set(verb, (counted.get(verb) ?? 0) + 1)
      return Reflect.apply(original, this, parameters)
    },
  })
}

const service = await TestService.start(
  `rate_limit: {requests_per_minute: 0}\n${modelAt(await bench.upstream())}`,
)
bench.defer(() => service[Symbol.asyncDispose]())
const body = { model: 'bench', messages: [{ role: 'user', content: '' }] }
const rest =
  lineBytes -
  JSON.stringify({ custom_id: '0000000', method: 'POST', url: '/v1/chat/completions', body }).length
/** Real text, so that it compresses like real text; nothing comes again within a frame. */
const questions = readFileSync(new URL('../examples/gsm8k.jsonl', import.meta.url), 'utf8')
  .trimEnd()
  .split('\n')
  .map((line) => JSON.parse(line).body.messages.at(-1).content)
const input = Array.from({ length: lines }, (_, i) => {
  let content = `${i} `
  for (let at = i * 5; content.length < rest; at++) content += questions[at % questions.length]
  content = content.slice(0, rest)
  const messages = [{ role: 'user', content }]
  return JSON.stringify({
    custom_id: String(i).padStart(7, '0'),
    method: 'POST',
    url: '/v1/chat/completions',
    body: { ...body, messages },
  })
}).join('\n')

const file = await service.upload(input)
const rowsBefore = await rows()
const writtenBefore = await changes()
const bytesBefore = databaseBytes()
counted.clear()
const started = performance.now()
const created = await service.create(file.id)
const batch = await service.ended(created.id)
const seconds = (performance.now() - started) / 1000
const statements = new Map(counted)
if (batch.request_counts.completed !== lines) throw new Error(JSON.stringify(batch.request_counts))
const per1000 = (count: number): number => Math.round((count / lines) * 1000 * 100) / 100

console.log(
  `${lines} lines of ${Math.round(input.length / lines)} bytes, ${Math.round(lines / seconds)} lines/s with every statement counted`,
)
console.log('SQL statements per 1,000 lines:')
console.table(Object.fromEntries([...statements].map(([verb, count]) => [verb, per1000(count)])))
const sum = [...statements.values()].reduce((total, one) => total + one, 0)
bench.figure('SQL statements per 1,000 lines, on SQLite', per1000(sum))
bench.figure(
  'rows changed per 1,000 lines (inserted, updated, deleted)',
  per1000((await changes()) - writtenBefore),
)
const left = await rows()
console.log('rows that stay, per 1,000 lines:')
console.table(
  Object.fromEntries(
    TABLE_NAMES.map(
      (name) => [name, per1000((left.get(name) ?? 0) - (rowsBefore.get(name) ?? 0))] as const,
    ).filter(([, count]) => count > 0),
  ),
)

const grown = databaseBytes() - bytesBefore
bench.figure('growth of the database per 1,000 lines, bytes', (grown / lines) * 1000)
const sizes: Record<string, number> = {}
for await (const blob of service.stores.blobs.list('')) {
  const [folder = ''] = blob.key.split('/')
  const kind = folder === 'batches' ? blob.key.split('-').at(-1)! : folder
  sizes[kind] = (sizes[kind] ?? 0) + blob.bytes
}
console.log('bytes per line in the blob store:')
console.table(
  Object.fromEntries(Object.entries(sizes).map(([kind, bytes]) => [kind, Math.round(bytes / lines)])),
)

/** The size of the file, once everything is in it. */
function databaseBytes(): number {
  const { database } = service.config
  if (database.kind !== 'sqlite') throw new Error('this counts on SQLite')
  const beside = new DatabaseSync(database.path)
  beside.exec('PRAGMA wal_checkpoint(TRUNCATE)')
  beside.close()
  return statSync(database.path).size
}

async function rows(): Promise<Map<string, number>> {
  const found = new Map<string, number>()
  for (const name of TABLE_NAMES) {
    const { n } = await service.stores.store.read
      .selectFrom(sql<{ n: number }>`(SELECT count(*) AS n FROM ${sql.table(name)})`.as('counted'))
      .select('n')
      .executeTakeFirstOrThrow()
    found.set(name, n)
  }
  return found
}

/** The changes by the connection that writes. */
async function changes(): Promise<number> {
  return await service.stores.store.write(async (tx) => {
    const { rows } = await sql<{ n: number }>`SELECT total_changes() AS n`.execute(tx)
    return rows[0]!.n
  })
}
