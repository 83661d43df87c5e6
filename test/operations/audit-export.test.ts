// Exports the audit log of a real service: page by page, and into files that are cut off anywhere and go on.
import assert from 'node:assert/strict'
import { appendFileSync } from 'node:fs'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { sql } from 'kysely'
import { createKey } from '../../src/admin/create-key.ts'
import { SETTLED_MS } from '../../src/audit/export-records.ts'
import type { Scope } from '../../src/domain/api-key.ts'
import { offpeak, runOffpeak } from '../fakes/offpeak.ts'
import { testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'
import { askApi } from '../support/api.ts'
import { listen } from '../support/listen.ts'

interface Exported {
  id: string
  kind: string
  cursor: string
  custom_id?: string
  path?: string
  project_id?: string
}

/** Makes what was recorded just now old enough to be exported. */
async function settle({ stores }: TestService): Promise<void> {
  const since = Date.now() - SETTLED_MS
  await stores.store.write(async (tx) => {
    for (const [table, time] of [
      ['http_requests', 'created'],
      ['chunks', 'sealed_at'],
    ] as const) {
      const column = sql.ref(time)
      await sql`UPDATE ${sql.table(table)} SET ${column} = ${column} - ${sql.lit(SETTLED_MS + 1000)} WHERE ${column} > ${sql.lit(since)}`.execute(
        tx,
      )
    }
  })
}

const get = (service: TestService, path: string): Promise<Response> => askApi(service, 'GET', path)

async function otherKey({ stores }: TestService, project: string, scopes?: Scope[]): Promise<string> {
  const { store } = stores
  return (await createKey(store, store.clock, 'local', { project, plan: 'payg', scopes })).key
}

const recordsIn = (text: string): Exported[] =>
  text
    .split('\n')
    .slice(0, -1)
    .map((record) => JSON.parse(record))

async function readPages(service: TestService, query: string): Promise<Exported[]> {
  const records: Exported[] = []
  for (let after = '', hasMore = true; hasMore; ) {
    const answer = await get(service, `/v1/audit?${query}${after === '' ? '' : `&after=${after}`}`)
    assert.equal(answer.status, 200)
    const page = recordsIn(await answer.text())
    records.push(...page)
    const next = answer.headers.get('x-next-after') ?? ''
    after = next
    hasMore = answer.headers.get('x-has-more') === 'true'
  }
  return records
}

test('the audit log has each call and each line once, in order, whatever the size of a page', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.url))
  await service.run([line('a'), line('b'), line('c', 'c', { model: 'nope' })])
  assert.deepEqual(await readPages(service, 'limit=1000'), [], 'records appear once they are settled')
  await service.run(Array.from({ length: 7 }, (_, i) => line(`d${i}`)))
  await settle(service)
  const all = await readPages(service, 'limit=1000')
  const calls = await service.stores.store.read.selectFrom('http_requests').select(['id', 'path']).execute()
  const exported = new Set(all.map(({ id }) => id))
  assert.equal(exported.size, all.length, 'none twice')
  const lines = all.filter(({ kind }) => kind === 'line').map(({ custom_id }) => custom_id)
  assert.deepEqual(lines, ['a', 'b', 'c', 'd0', 'd1', 'd2', 'd3', 'd4', 'd5', 'd6'])
  const before = calls.filter(({ path }) => path !== '/v1/audit')
  assert.ok(before.every(({ id }) => exported.has(id)))
  const times = all.map(({ cursor }) => Number(cursor.split('-')[0]))
  assert.deepEqual(
    times,
    times.toSorted((a, b) => a - b),
  )
  for (const limit of [1, 2, 3, 5])
    assert.deepEqual(await readPages(service, `limit=${limit}`), all, `${limit}`)
  const wrong = await get(service, '/v1/audit?after=req_1')
  assert.equal(wrong.status, 400)
  assert.equal((await get(service, '/v1/audit?project_id=all')).status, 403)
})

test('a project reads its own records, however many others lie between, and an operator all of them', async () => {
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1'), { worker: false })
  const mine = service.key
  await get(service, '/v1/models')
  service.key = await otherKey(service, 'other')
  await get(service, '/v1/models')
  await settle(service)
  await service.stores.store.write(async (tx) => {
    const [other] = await tx.selectFrom('http_requests').selectAll().orderBy('id', 'desc').limit(1).execute()
    const many = Array.from({ length: 6_000 }, (_, i) => ({
      ...{
        ...other!,
        id: `req_${String(i).padStart(26, '0')}`,
        created: other!.created + 1 + Math.floor(i / 10),
      },
    }))
    for (let at = 0; at < many.length; at += 1000)
      await tx
        .insertInto('http_requests')
        .values(many.slice(at, at + 1000))
        .execute()
  })
  service.key = mine
  const own = await readPages(service, 'limit=10')
  assert.deepEqual(
    own.map(({ path }) => path),
    ['/v1/models'],
  )
  service.key = await otherKey(service, 'ops', ['operator', 'requests:read'])
  const all = await readPages(service, 'project_id=all')
  assert.equal(all.length, 6_002)
  assert.equal(new Set(all.map(({ project_id }) => project_id)).size, 2)
})

test('an export that was cut off anywhere goes on behind the last whole record', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.url))
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-audit-'))
  const run = (name: string, ...args: string[]) =>
    offpeak(service, 'audit', 'export', '-o', join(folder, name), ...args)
  const read = (name: string): Promise<string> => readFile(join(folder, name), 'utf8')
  await service.run(Array.from({ length: 20 }, (_, i) => line(`a${i}`)))
  await settle(service)
  const first = await run('whole.ndjson')
  assert.match(first.err, /^\d+ records added to .*\. To go on in another file: --after \d+-req_\w+\n$/)
  const whole = await read('whole.ndjson')
  const bytes = Buffer.from(whole)
  for (let cut = 0; cut < bytes.length; cut += 997) {
    await writeFile(join(folder, 'cut.ndjson'), bytes.subarray(0, cut))
    assert.equal((await run('cut.ndjson')).code, 0)
    assert.equal(await read('cut.ndjson'), whole, `cut off at ${cut}`)
  }
  assert.match((await run('whole.ndjson')).err, /^0 records added/)
  const cursor = /--after (\S+)/.exec(first.err)?.[1] ?? ''
  await service.run([line('b')])
  await settle(service)
  assert.equal((await run('next.ndjson', '--after', cursor)).code, 0)
  await run('whole.ndjson')
  assert.equal(await read('whole.ndjson'), whole + (await read('next.ndjson')))
  assert.match(
    (await run('whole.ndjson', '--after', cursor)).err,
    /goes on behind its last one: leave --after out/,
  )
  await writeFile(join(folder, 'other.ndjson'), '{"a": 1}\n')
  assert.match(
    (await run('other.ndjson')).err,
    /is no export of the audit log: its last line has no "cursor"/,
  )
  assert.equal(await read('other.ndjson'), '{"a": 1}\n')
  await writeFile(join(folder, 'other.ndjson'), '{"a": 1}')
  assert.match((await run('other.ndjson')).err, /is no export of the audit log/)
  assert.equal(await read('other.ndjson'), '{"a": 1}', 'and is left as it is')
  await rm(folder, { recursive: true })
})

test('exports into one file at the same time, as of a job that starts again too soon, write no record twice', async () => {
  await using service = await TestService.start(configFor('http://127.0.0.1:1/v1'), { worker: false })
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-audit-'))
  const output = join(folder, 'one.ndjson')
  const run = () => offpeak(service, 'audit', 'export', '-o', output)
  for (let i = 0; i < 20; i++) await get(service, '/v1/models')
  await settle(service)
  await Promise.all([run(), run(), run()])
  await run()
  const records = recordsIn(await readFile(output, 'utf8'))
  assert.equal(records.filter(({ path }) => path === '/v1/models').length, 20)
  assert.equal(new Set(records.map(({ id }) => id)).size, records.length)
  const first = '{"id":"req_1","cursor":"1-req_1"}\n'
  const second = first.replaceAll('req_1', 'req_2')
  await writeFile(output, first)
  // Another export ends while this one waits for its page.
  const api = await listen(
    createServer(({ url }, response) => {
      if (url?.startsWith('/v1/audit')) appendFileSync(output, second)
      response.setHeader('x-next-after', '1-req_2').end(second)
    }),
  )
  const access = { baseUrl: api.url, apiKey: service.key }
  const { err } = await runOffpeak(['audit', 'export', '-o', output], { access })
  await api.close()
  assert.match(err, /another program, such as a second export, writes to .*one\.ndjson; wait for its end/)
  assert.equal(await readFile(output, 'utf8'), first + second)
  await rm(folder, { recursive: true })
})
