// Browsing the lines of a batch, while it runs and afterwards.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createKey } from '../../src/admin/create-key.ts'
import { SCOPES } from '../../src/domain/api-key.ts'
import { lineRequestId } from '../../src/domain/ids.ts'
import { readBlobRow } from '../../src/store/blobs.ts'
import type { FoundLine } from '../../src/wire/batch-line.ts'
import type { List } from '../../src/wire/shape.ts'
import { echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

interface Summary {
  id: string
  line: number
  custom_id: string
  status: string
  model: string | null
  entity: string | null
  error: { code: string; message: string } | null
  attempts: number
  usage: { total_tokens: number } | null
  cost_usd: number
  finished_at: number | null
}

interface Page {
  data: Summary[]
  has_more: boolean
  next_cursor: string | null
}

const page = (service: TestService, batch_id: string, query = ''): Promise<Page> =>
  service.json<Page>('GET', `/v1/batches/${batch_id}/lines${query}`)

const idsOf = ({ data }: Page): string[] => data.map(({ custom_id }) => custom_id)

async function all(service: TestService, batch_id: string, query: string): Promise<string[]> {
  const ids: string[] = []
  for (let after = '0'; ; ) {
    const one = await page(service, batch_id, `${query}&after=${after}`)
    ids.push(...idsOf(one))
    if (one.next_cursor === null) return ids
    after = one.next_cursor
  }
}

test('lines of a running batch are completed, failed or pending, in the order of the input', async () => {
  const held: (() => void)[] = []
  await using upstream = await testUpstream((call) => {
    const { content } = call.body.messages[0]!
    if (content === 'bad') send(call.response, 400, '{"error":{"message":"no such tool 17"}}')
    else if (content === 'held') held.push(() => echo(call))
    else echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const lines = [
    line('a'),
    line('b', 'bad'),
    { ...line('c', 'held'), metadata: { entity: 'user:7' } },
    line('d'),
    line('e', 'bad'),
  ]
  const file = await service.upload(lines.map((one) => JSON.stringify(one)).join('\n'))
  const { id } = await service.create(file.id, { metadata: { entity: 'user:1' } })
  await upstream.arrived(5)
  while ((await service.get(id)).request_counts.completed < 2);
  while ((await service.get(id)).request_counts.failed < 2);

  const running = await page(service, id)
  assert.deepEqual(
    running.data.map(({ line, custom_id, status, model, entity, attempts }) => {
      return [line, custom_id, status, model, entity, attempts]
    }),
    [
      [1, 'a', 'completed', 'm', 'user:1', 1],
      [2, 'b', 'failed', 'm', 'user:1', 1],
      [3, 'c', 'pending', 'm', 'user:7', 0],
      [4, 'd', 'completed', 'm', 'user:1', 1],
      [5, 'e', 'failed', 'm', 'user:1', 1],
    ],
  )
  assert.equal(running.has_more, false)
  assert.deepEqual(idsOf(await page(service, id, '?status=pending')), ['c'])
  assert.deepEqual(idsOf(await page(service, id, '?status=completed')), ['a', 'd'])
  assert.deepEqual(idsOf(await page(service, id, '?status=failed')), ['b', 'e'])
  const pending = await service.json<Record<string, unknown>>('GET', `/v1/batches/${id}/lines/3`)
  assert.deepEqual([pending.input, pending.result, pending.record], [lines[2], null, null])

  for (const answer of held) answer()
  await service.ended(id)
  const { data } = await page(service, id)
  assert.deepEqual(
    data.map(({ status }) => status),
    ['completed', 'failed', 'completed', 'completed', 'failed'],
  )
  assert.deepEqual(data[0]?.usage, { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 })
  assert.equal(data[0]?.cost_usd, 0.000003)
  assert.equal(data[1]?.error?.code, 'upstream_rejected')
})

test('filters find lines by code, message, model, entity and custom_id, over many chunks and short pages', async () => {
  await using upstream = await testUpstream((call) => {
    const { content } = call.body.messages[0]!
    const [, number] = /^fail-(\d+)$/.exec(content) ?? []
    if (number !== undefined) send(call.response, 400, `{"error":{"message":"bad token ${number}"}}`)
    else echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const ids = Array.from({ length: 2_050 }, (_, i) => `line-${i}`)
  const content = ids
    .map((id, i) => {
      const body = i % 1050 === 7 ? { model: 'unknown' } : {}
      const metadata = i % 500 === 3 ? { metadata: { entity: `team:${i}` } } : {}
      return JSON.stringify({ ...line(id, i % 400 === 5 ? `fail-${i}` : id, body), ...metadata })
    })
    .join('\n')
  const { id, input_file_id } = await service.run(content)

  assert.deepEqual(await all(service, id, '?limit=500'), ids)
  const failed = ids.filter((_, i) => i % 400 === 5 && i % 1050 !== 7)
  assert.deepEqual(await all(service, id, '?code=upstream_rejected'), failed)
  const first = await page(service, id, '?code=upstream_rejected&limit=1')
  assert.deepEqual([idsOf(first), first.has_more, first.next_cursor], [['line-5'], true, '6'])
  const pattern = encodeURIComponent(first.data[0]!.error!.message.replace(/\b\w*\d\w*\b/g, '0'))
  assert.deepEqual(await all(service, id, `?message=${pattern}`), failed)
  assert.deepEqual(
    await all(service, id, '?model=unknown'),
    ids.filter((_, i) => i % 1050 === 7),
  )
  assert.deepEqual(await all(service, id, '?entity=team:1503'), ['line-1503'])
  assert.deepEqual(
    await all(service, id, '?search=-99'),
    ids.filter((one) => one.includes('-99')),
  )
  assert.deepEqual(await all(service, id, '?status=pending'), [])
  // Of chunks without the text, the input alone is read.
  const { store, blobs } = service.stores
  const chunk = store.read.selectFrom('chunks').select('audit_blob').where('batch_id', '=', id)
  const { audit_blob } = await chunk.where('idx', '=', 0).executeTakeFirstOrThrow()
  const records = await readBlobRow(store.read, String(audit_blob))
  await blobs.delete(records!.key)
  assert.deepEqual(await all(service, id, '?search=line-2043'), ['line-2043'])
  // By the index of its custom_ids, neither.
  const index = store.read.selectFrom('files').select('ids_blob').where('id', '=', input_file_id)
  assert.ok((await index.executeTakeFirstOrThrow()).ids_blob)
  const later = await store.read
    .selectFrom('chunks')
    .select('audit_blob')
    .where('batch_id', '=', id)
    .where('idx', '=', 1)
    .executeTakeFirstOrThrow()
  await blobs.delete(String(later.audit_blob))
  assert.deepEqual(await all(service, id, '?custom_id=line-2043'), ['line-2043'])
  assert.deepEqual(await all(service, id, '?custom_id=line-20430'), [])
  // A reader may begin anywhere.
  const middle = await page(service, id, '?after=2000&limit=2')
  assert.deepEqual(idsOf(middle), ['line-2000', 'line-2001'])
})

test('lines are found by custom_id however their input writes it, before and after they have finished', async () => {
  const held: (() => void)[] = []
  await using upstream = await testUpstream((call) => {
    if (call.body.messages[0]!.content === 'held') held.push(() => echo(call))
    else echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const written = [
    'plain',
    '\\u0070lain\\u002d2',
    'a/b',
    'c\\/a/b',
    'M\u00fcller',
    'M\\u00fcller \\"2\\"',
    'tab\\there',
  ]
  const content = written
    .flatMap((id) => [id, `${id} held`])
    .map((id) => JSON.stringify(line('ID', id.endsWith('held') ? 'held' : 'said')).replace('"ID"', `"${id}"`))
    .join('\n\n')
  const { id, input_file_id } = await service.create((await service.upload(content)).id)
  const finds = async (): Promise<void> => {
    for (const [text, found] of [
      ['plain', ['plain', 'plain held', 'plain-2', 'plain-2 held']],
      ['n-2', ['plain-2', 'plain-2 held']],
      ['a/b', ['a/b', 'a/b held', 'c/a/b', 'c/a/b held']],
      ['c/a', ['c/a/b', 'c/a/b held']],
      ['M\u00fc', ['M\u00fcller', 'M\u00fcller held', 'M\u00fcller "2"', 'M\u00fcller "2" held']],
      ['"2"', ['M\u00fcller "2"', 'M\u00fcller "2" held']],
      ['\t', ['tab\there', 'tab\there held']],
      ['said', []],
    ] as const)
      assert.deepEqual(await all(service, id, `?search=${encodeURIComponent(text)}`), found, text)
    const own = written.flatMap((one) => [JSON.parse(`"${one}"`), JSON.parse(`"${one} held"`)])
    for (const text of [...own, 'plai', 'said', 'held'])
      assert.deepEqual(
        await all(service, id, `?custom_id=${encodeURIComponent(text)}`),
        own.filter((one) => one === text),
        text,
      )
  }
  await upstream.arrived(2 * written.length)
  while ((await service.get(id)).request_counts.completed < written.length);
  await finds()
  for (const answer of held) answer()
  await service.ended(id)
  await finds()
  // A damaged index of custom_ids is not needed.
  await service.stores.store.write((tx) =>
    tx.updateTable('files').set({ ids_blob: null }).where('id', '=', input_file_id).execute(),
  )
  await finds()
  // Their records have it, too.
  assert.equal((await service.request('DELETE', `/v1/files/${input_file_id}`)).status, 200)
  await finds()
})

test('one line is shown with the bytes of its input and its result', async () => {
  const exact = '{"n":12345678901234567890,"f":1.10}'
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const raw = `{"custom_id":"x","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"hi"}],"extra":${exact}}}`
  const batch = await service.run(`\n${raw}\r\n\n${JSON.stringify(line('y', 'y', { model: 'unknown' }))}`)
  const response = await service.request('GET', `/v1/batches/${batch.id}/lines/2`)
  const text = await response.text()
  assert.equal(response.headers.get('content-length'), String(Buffer.byteLength(text)))
  assert.ok(text.includes(`"input":${raw},"result":${(await service.content(batch.output_file_id)).trim()}`))
  const { record, custom_id, status } = JSON.parse(text)
  assert.deepEqual([custom_id, status], ['x', 'completed'])
  assert.deepEqual([record.kind, record.line, record.attempts.length], ['line', 2, 1])

  const failed = await service.json<Record<string, unknown>>('GET', `/v1/batches/${batch.id}/lines/4`)
  assert.equal(failed.status, 'failed')
  assert.deepEqual(failed.result, JSON.parse((await service.content(batch.error_file_id)).trim()))

  // Once the files are deleted, the record is left.
  for (const file of [batch.input_file_id, batch.output_file_id])
    assert.equal((await service.request('DELETE', `/v1/files/${file}`)).status, 200)
  const left = await service.json<Record<string, unknown>>('GET', `/v1/batches/${batch.id}/lines/2`)
  assert.deepEqual([left.input, left.result, left.custom_id], [null, null, 'x'])
  assert.deepEqual(left.record, record)
})

test('there are no lines of other projects, between lines, or behind the last', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run(`\n${JSON.stringify(line('x'))}`)
  for (const number of ['1', '3', '0', '-1', 'x', '1.5', '99999999999']) {
    const response = await service.request('GET', `/v1/batches/${batch.id}/lines/${number}`)
    assert.equal(response.status, 404, number)
    assert.match(await response.text(), /"line_not_found"/)
  }
  for (const query of ['?limit=0', '?limit=501', '?after=-1', '?status=done', '?part=all'])
    assert.equal((await service.request('GET', `/v1/batches/${batch.id}/lines${query}`)).status, 400, query)

  const { store } = service.stores
  const own = await store.read.selectFrom('projects').select('name').executeTakeFirstOrThrow()
  const other = await createKey(store, store.clock, 'local', {
    project: 'other',
    plan: 'payg',
    scopes: SCOPES,
  })
  const narrow = await createKey(store, store.clock, 'local', {
    project: own.name,
    plan: 'payg',
    scopes: ['batches:read'],
  })
  const ask = async (id: string, path: string, key: string): Promise<[number, string]> => {
    const response = await fetch(`${service.url}/v1/batches/${id}/${path}`, {
      headers: { authorization: `Bearer ${key}` },
    })
    return [response.status, await response.text()]
  }
  const record = async (number: number, key: string): Promise<number> => {
    const path = `${service.url}/v1/requests/${lineRequestId(batch.id, number)}`
    return (await fetch(path, { headers: { authorization: `Bearer ${key}` } })).status
  }
  assert.deepEqual(
    await Promise.all([record(2, service.key), record(3, service.key), record(2, other.key)]),
    [200, 404, 404],
  )
  for (const path of ['lines', 'lines/2', 'lines?status=failed']) {
    const never = await ask('batch_00000000000000000000000000', path, service.key)
    assert.equal(never[0], 404)
    assert.deepEqual(await ask(batch.id, path, other.key), never)
  }
  const [, seen] = await ask(batch.id, 'lines/2', narrow.key)
  assert.equal(JSON.parse(seen).input, null, 'without files:read')
  assert.notEqual(JSON.parse(seen).result, null)
})

test('lines are found in all batches of the project, page by page, the newest batch first', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const batches: string[] = []
  for (const name of ['first', 'second', 'third'])
    batches.push((await service.run([line(`${name}-a`), line('other'), line(`${name}-b`)])).id)
  const found: [string, string][] = []
  let cursor: string | null = ''
  while (cursor !== null) {
    const after: string = cursor === '' ? '' : `&starting_after=${cursor}`
    const { data, next_cursor }: List<FoundLine> = await service.json<List<FoundLine>>(
      'GET',
      `/v1/lines?search=-&limit=2${after}`,
    )
    assert.ok(data.length <= 2)
    found.push(...data.map(({ batch_id, custom_id }) => [batch_id, custom_id] as [string, string]))
    cursor = next_cursor
  }
  const [first, second, third] = batches
  assert.deepEqual(found, [
    [third, 'third-a'],
    [third, 'third-b'],
    [second, 'second-a'],
    [second, 'second-b'],
    [first, 'first-a'],
    [first, 'first-b'],
  ])
  const unknown = await service.request('GET', '/v1/lines?custom_id=a&starting_after=nothing')
  assert.equal(unknown.status, 404)
})
