// Reading a batch while it runs: every line comes, in the order of the input, and none twice to who asks so.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parquetReadObjects } from 'hyparquet'
import { createKey } from '../../src/admin/create-key.ts'
import { ProjectQueue } from '../../src/domain/project-queue.ts'
import { HeavyRead } from '../../src/http/response/long-calls.ts'
import { readResultsTable } from '../../src/http/routes/batch-results.ts'
import { encodeLineNumbers } from '../../src/jsonl/chunk-lines.ts'
import { readResultLines } from '../../src/results/finished-lines.ts'
import { setBatch } from '../../src/store/batches.ts'
import { insertBlobs, readBlobRow } from '../../src/store/blobs.ts'
import { insertChunks } from '../../src/store/chunks.ts'
import { readRow } from '../../src/store/rows.ts'
import { SchemaChecks } from '../../src/tables/schema-checks.ts'
import { completion, echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService, type WireLine } from '../service.ts'
import { parsedLines } from '../support/api.ts'

interface Page {
  ids: string[]
  next_after: number
  has_more: boolean
  status: string
}

async function page(service: TestService, batch_id: string, query: string): Promise<Page> {
  const response = await service.request('GET', `/v1/batches/${batch_id}/results${query}`)
  const text = await response.text()
  assert.equal(response.status, 200, text)
  assert.equal(response.headers.get('content-type'), 'application/x-ndjson')
  return {
    ids: parsedLines<WireLine>(text).map(({ custom_id }) => custom_id),
    next_after: Number(response.headers.get('x-next-after')),
    has_more: response.headers.get('x-has-more') === 'true',
    status: String(response.headers.get('x-batch-status')),
  }
}

test('what is finished of a running batch can be read, and read on until it has ended', async () => {
  const held: (() => void)[] = []
  await using upstream = await testUpstream((call) => {
    const { content } = call.body.messages[0]!
    if (content === 'bad') send(call.response, 400, '{"error":{"message":"no"}}')
    else if (content === 'held') held.push(() => echo(call))
    else echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const lines = [line('a'), line('b', 'bad'), line('c', 'held'), line('d'), line('e')]
  const file = await service.upload(lines.map((one) => JSON.stringify(one)).join('\n'))
  const { id } = await service.create(file.id)
  await upstream.arrived(5)
  while ((await service.get(id)).request_counts.completed < 3);

  // Behind the gap there is nothing yet that a reader could miss: it is where the next page begins.
  const all = await page(service, id, '')
  assert.deepEqual(all, { ids: ['a', 'b', 'd', 'e'], next_after: 2, has_more: false, status: 'in_progress' })
  const first = await page(service, id, '?contiguous=true')
  assert.deepEqual([first.ids, first.next_after, first.has_more], [['a', 'b'], 2, false])
  assert.deepEqual((await page(service, id, '?after=2&contiguous=true')).ids, [])
  assert.deepEqual((await page(service, id, '?part=error')).ids, ['b'])
  assert.deepEqual((await page(service, id, '?part=output')).ids, ['a', 'd', 'e'])
  const two = await page(service, id, '?limit=2')
  assert.deepEqual([two.ids, two.next_after, two.has_more], [['a', 'b'], 2, true])
  const next = await page(service, id, `?limit=2&after=${two.next_after}`)
  assert.deepEqual([next.ids, next.has_more], [['d', 'e'], false])

  // Single lines, as far as they are finished.
  assert.deepEqual((await page(service, id, '?lines=4,3,1,99')).ids, ['a', 'd'])
  assert.deepEqual((await page(service, id, '?lines=3')).ids, [])

  for (const answer of held) answer()
  await service.ended(id)
  assert.deepEqual((await page(service, id, '?lines=4,3')).ids, ['c', 'd'])
  const rest = await page(service, id, `?after=${first.next_after}&contiguous=true`)
  assert.deepEqual(rest, { ids: ['c', 'd', 'e'], next_after: 5, has_more: false, status: 'completed' })
  assert.deepEqual(await page(service, id, '?after=5'), { ...rest, ids: [] })
})

test('pages over sealed chunks hold every line once, blank lines in the input or not', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const ids = Array.from({ length: 1_100 }, (_, i) => `line-${i}`)
  const text = ids.map((id, i) => `${JSON.stringify(line(id))}\n${i % 7 === 0 ? '\n' : ''}`).join('')
  const batch = await service.run(text)
  const read: string[] = []
  for (let after = 0, more = true; more; ) {
    const one = await page(service, batch.id, `?after=${after}&limit=700`)
    read.push(...one.ids)
    after = one.next_after
    more = one.has_more
  }
  assert.deepEqual(read, ids)

  // A file that is deleted meanwhile does not end the whole early.
  const { store, sealed } = service.stores
  const ports = { db: store.read, sealed, now: store.clock.now() }
  const lines = readResultLines(ports, batch, 100)
  for (let i = 0; i < 1_000; i++) await lines.next()
  await service.request('DELETE', `/v1/files/${batch.output_file_id}`)
  await assert.rejects(lines.next(), { code: 'file_not_found' })
  // Without what was deleted before, it is read.
  const later = { ...ports, now: store.clock.now() }
  assert.deepEqual(await readResultLines(later, batch, 100).next(), { done: true, value: undefined })
})

test('chunks that divide stretches of the file are read in the order of its lines', async () => {
  await using upstream = await testUpstream((call) => {
    if (call.body.messages[0]!.content.endsWith('bad')) send(call.response, 400, '{"error":{"message":"no"}}')
    else echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const ids = Array.from({ length: 20 }, (_, i) => `l${i + 1}`)
  const failed = ['l2', 'l3', 'l9', 'l16']
  const rows = ids.map((id) => JSON.stringify(line(id, failed.includes(id) ? 'bad' : id)))
  const text = rows.join('\n\n')
  const start_after = Math.floor(Date.now() / 1000) + 3600
  const file = await service.upload(text)
  const { id } = await service.create(file.id, { start_after })
  const { store, sealed } = service.stores
  const batch = await service.eventually(async () => {
    const row = await readRow(store.read, 'batches', { id })
    return row && row.chunk_count > 0 ? row : undefined
  })
  // Every second line is blank.
  const cut = [
    [
      [1, 7, 11, 19],
      [3, 5, 17],
      [9, 13, 15],
    ],
    [
      [21, 39],
      [23, 25, 27, 29, 31, 33, 35, 37],
    ],
  ]
  const half = text.indexOf(rows[10]!)
  const spans = cut.flatMap((stretch, part) =>
    stretch.map((lines, group) => ({
      ...{ first_line: lines[0]!, line_count: lines.length, lines: encodeLineNumbers(lines), model: 'm' },
      ...(part === 0 ? { byte_start: 0, byte_end: half } : { byte_start: half, byte_end: text.length }),
      ...{ stretch_line: stretch[0]![0]!, claim_group: group + 1 },
    })),
  )
  const copied = Buffer.from([1, 4, 6, 10].map((at) => `${rows[at - 1]}\n`).join(''))
  const blob = await sealed.put(batch.project_id, 'batches/copied', [copied])
  await store.write(async (tx) => {
    await insertBlobs(tx, batch.project_id, [blob], 1)
    await tx.deleteFrom('chunks').where('batch_id', '=', id).execute()
    await insertChunks(
      tx,
      batch,
      spans.map((span, index) => ({ ...span, index, ...(index === 0 ? { input_blob: blob.key } : {}) })),
    )
    await setBatch(tx, id, { chunk_count: spans.length })
  })
  const ended = await service.ended(id)
  assert.equal(await readBlobRow(store.read, blob.key), undefined)

  const done = ids.filter((one) => !failed.includes(one))
  const output = await service.content(ended.output_file_id)
  const idsOf = (lines: string): string[] => parsedLines<WireLine>(lines).map(({ custom_id }) => custom_id)
  assert.deepEqual(idsOf(output), done)
  assert.deepEqual(idsOf(await service.content(ended.error_file_id)), failed)
  for (const [start, end] of [
    [10, 700],
    [1_500, 1_501],
    [2_000, output.length - 1],
  ] as const) {
    const range = { range: `bytes=${start}-${end}` }
    const part = await service.request('GET', `/v1/files/${ended.output_file_id}/content`, undefined, range)
    assert.equal(await part.text(), output.slice(start, end + 1))
  }
  assert.deepEqual((await page(service, id, '?after=3&limit=9&contiguous=true')).ids, ids.slice(2, 11))
  const list = await service.json<{ data: { line: number }[] }>(
    'GET',
    `/v1/batches/${id}/lines?after=9&limit=7`,
  )
  assert.deepEqual(
    list.data.map((one) => one.line),
    [11, 13, 15, 17, 19, 21, 23],
  )
  for (const at of [1, 9, 17, 39]) {
    const one = await service.json<{ custom_id: string }>('GET', `/v1/batches/${id}/lines/${at}`)
    assert.equal(one.custom_id, `l${(at + 1) / 2}`)
  }
  const retry = await service.json<{ input_file_id: string }>('POST', `/v1/batches/${id}/retry`)
  assert.deepEqual(idsOf(await service.content(retry.input_file_id)), failed)
})

test('the lines are the bytes that the files hold, and only the own project may read them', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run([line('x'), line('y'), line('z', 'z', { model: 'unknown' })])
  const read = async (part: string): Promise<string> =>
    await (await service.request('GET', `/v1/batches/${batch.id}/results?part=${part}`)).text()
  assert.equal(await read('output'), await service.content(batch.output_file_id))
  assert.equal(await read('error'), await service.content(batch.error_file_id))
  const missing = await service.request('GET', '/v1/batches/batch_00000000000000000000000000/results')
  assert.equal(missing.status, 404)
  for (const query of [
    '?limit=0',
    '?after=-1',
    '?part=both',
    '?limit=10001',
    '?contiguous=yes',
    '?lines=1,',
    '?lines=1&after=1',
  ])
    assert.equal((await service.request('GET', `/v1/batches/${batch.id}/results${query}`)).status, 400, query)
})

test('results are a table with a column for each property that the requests ask for', async () => {
  await using upstream = await testUpstream((call) => {
    const { content } = call.body.messages[0]!
    if (content === 'bad') send(call.response, 400, '{"error":{"message":"no"}}')
    else
      send(
        call.response,
        200,
        completion(
          JSON.stringify({
            label: content === '3' ? 'three' : `=${content}, "x"`,
            score: Number(content) / 4,
            tags: content === '2' ? ['x', 5] : content === '4' ? ['x', 'y'] : [],
          }),
        ),
      )
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const properties = {
    label: { type: 'string', pattern: '^=' },
    score: { type: 'number' },
    tags: { type: 'array', items: { type: 'string' } },
  }
  const response_format = { type: 'json_schema', json_schema: { name: 'x', schema: { properties } } }
  const rows = Array.from({ length: 1_100 }, (_, i) =>
    line(`l${i}`, i === 1 ? 'bad' : String(i), { response_format }),
  )
  const { id } = await service.run(rows)
  const table = async (query: string): Promise<Response> => {
    const response = await service.request('GET', `/v1/batches/${id}/results?${query}`)
    assert.equal(response.status, 200)
    assert.equal(response.headers.get('x-batch-status'), 'completed')
    return response
  }
  const csv = await table('format=csv')
  assert.match(csv.headers.get('content-type') ?? '', /^text\/csv/)
  assert.match(csv.headers.get('content-disposition') ?? '', new RegExp(`${id}\\.csv`))
  const text = (await csv.text()).split('\n')
  assert.equal(text.length, 1_102)
  assert.equal(text[0], 'custom_id,label,score,tags,error,input_tokens,output_tokens,cost_usd')
  assert.match(text[1] ?? '', /^l0,"=0, ""x""",0,\[\],,\d+,\d+,\d/)
  assert.match(text[2] ?? '', /^l1,,,,"upstream_rejected: .*no.*",,,$/)
  assert.match(text[3] ?? '', /,0\.5,,"not_schema: tags is .*, not a list in which each item is a string",/)
  assert.match(text[4] ?? '', /^l3,three,0\.75,\[\],"?not_schema: label must match pattern/)
  const spreadsheet = await (await table('format=csv&spreadsheet=true')).text()
  assert.ok(spreadsheet.includes('\r\nl0,"\'=0, ""x""",0,'))
  const parquet = await (await table('format=parquet')).arrayBuffer()
  const read = await parquetReadObjects({ file: parquet, columns: ['custom_id', 'label', 'score', 'tags'] })
  assert.equal(read.length, 1_100)
  assert.deepEqual(read[1_099], { custom_id: 'l1099', label: '=1099, "x"', score: 274.75, tags: [] })
  assert.deepEqual(read[4]?.tags, ['x', 'y'])

  const paged = await service.request('GET', `/v1/batches/${id}/results?format=csv&limit=5`)
  assert.deepEqual([paged.status, JSON.parse(await paged.text()).error.param], [400, 'limit'])
})

test('the results of embeddings are a table of vectors', async () => {
  await using service = await TestService.start('models: [{id: m, upstreams: [{type: sim}]}]')
  const url = '/v1/embeddings'
  const row = { custom_id: 'a', method: 'POST', url, body: { model: 'm', input: 'hello', dimensions: 2 } }
  const { id } = await service.run([row], { endpoint: url })
  const table = (format: string) => service.request('GET', `/v1/batches/${id}/results?format=${format}`)
  assert.match(
    await (await table('csv')).text(),
    /^custom_id,embedding,error,.*\na,"\[-?0[.\d]+,-?0[.\d]+\]",,/,
  )
  const file = await (await table('parquet')).arrayBuffer()
  const [read] = await parquetReadObjects({ file, columns: ['embedding'] })
  assert.equal(read?.embedding.length, 2)
})

test('a reader who leaves ends the table', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const { id } = await service.run(Array.from({ length: 300 }, (_, i) => line(`l${i}`, 'x'.repeat(2_000))))
  const ports = tablePorts(service)
  const row = await readRow(ports.db, 'batches', { id })
  assert(row)
  const table = readResultsTable(ports, row, { format: 'csv', spreadsheet: false }, readUntil())
  const first = await table.next()
  assert.match(String(first.value), /^custom_id,answer,error,/)
  await table.return(undefined)
  assert.equal((await table.next()).done, true)
})

test('a project has four large reads open; a fifth waits for a place, and other projects do not', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  // More than connections hold that nobody reads from.
  const { id } = await service.run(Array.from({ length: 16 }, (_, i) => line(`l${i}`, 'x'.repeat(1_000_000))))
  const tables = await Promise.all(
    Array.from({ length: 4 }, () => service.request('GET', `/v1/batches/${id}/results?format=csv`)),
  )
  const order: string[] = []
  const further = ['lines', 'lines/1', 'results?limit=1', 'results?format=parquet'].map(async (path) => {
    await (await service.request('GET', `/v1/batches/${id}/${path}`)).arrayBuffer()
    order.push('same project')
  })
  const { store } = service.stores
  const other = await createKey(store, store.clock, 'local', { project: 'other', plan: 'payg' })
  const authorization = `Bearer ${other.key}`
  for (let i = 0; i < 5; i++) {
    await (await service.request('GET', `/v1/batches/${id}/lines`, undefined, { authorization })).text()
    order.push('other')
  }
  await tables[0]?.body?.cancel()
  await Promise.all(further)
  assert.deepEqual(order.slice(0, 5), ['other', 'other', 'other', 'other', 'other'])
  for (const table of tables) await table.body?.cancel()
})

function tablePorts({ stores: { store, sealed } }: TestService, checks = new SchemaChecks()) {
  return { db: store.read, sealed, now: Date.now(), checks }
}

function readUntil(closed = new AbortController().signal): HeavyRead {
  return new HeavyRead(new ProjectQueue({ atOnce: 1, perProject: 1 }), 'p', closed)
}

/** An answer that the expression divides in all ways before it does not fit. */
const SLOW_PATTERN = '^(a+)+$'
const SLOW_ANSWER = `${'a'.repeat(60)}b`

async function slowBatch(service: TestService): Promise<string> {
  const schema = { properties: { name: { type: 'string', pattern: SLOW_PATTERN } } }
  const response_format = { type: 'json_schema', json_schema: { name: 'x', schema } }
  const prompts = ['aaa', SLOW_ANSWER, 'b']
  return (await service.run(prompts.map((prompt, i) => line(`l${i}`, prompt, { response_format })))).id
}

test('an answer that takes long to check says so in its row, and other calls are answered meanwhile', async () => {
  await using upstream = await testUpstream(({ body, response }) =>
    send(response, 200, completion(JSON.stringify({ name: body.messages[0]!.content }))),
  )
  await using service = await TestService.start(configFor(upstream.base_url))
  const id = await slowBatch(service)
  const order: string[] = []
  const table = service.request('GET', `/v1/batches/${id}/results?format=csv`).then(async (response) => {
    const text = await response.text()
    order.push('table')
    return text
  })
  for (let i = 0; i < 5; i++) {
    assert.equal((await service.get(id)).status, 'completed')
    order.push('status')
  }
  const rows = (await table).split('\n')
  assert.match(rows[1] ?? '', /^l0,aaa,,/)
  assert.match(
    rows[2] ?? '',
    /^l1,a+b,not_checked: the answer could not be checked by the schema within 0\.25 s,\d/,
  )
  assert.match(rows[3] ?? '', /^l2,b,"?not_schema: name must match pattern/)
  assert.deepEqual(order, [...Array.from({ length: 5 }, () => 'status'), 'table'])
})

test('a caller who leaves ends the check that runs', async () => {
  await using upstream = await testUpstream(({ body, response }) =>
    send(response, 200, completion(JSON.stringify({ name: body.messages[0]!.content }))),
  )
  await using service = await TestService.start(configFor(upstream.base_url))
  const checks = new SchemaChecks({ answerMs: 3_600_000, tableMs: 3_600_000, processes: 1 })
  const ports = tablePorts(service, checks)
  const row = await readRow(ports.db, 'batches', { id: await slowBatch(service) })
  assert(row)
  const left = new AbortController()
  const table = readResultsTable(ports, row, { format: 'csv', spreadsheet: false }, readUntil(left.signal))
  assert.match(String((await table.next()).value), /^custom_id,name,error,/)
  const piece = table.next()
  left.abort()
  await assert.rejects(piece, /were closed/)
  // The place of its process is free.
  const other = checks.begin('other', {})
  assert.deepEqual(await other.verdicts(['{}']), [null])
  other.close()
})
