// A batch that asks a model about each row of an uploaded table.
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { test } from 'node:test'
import { gzipSync } from 'node:zlib'
import { echo, testUpstream } from '../fakes/upstream.ts'
import { configFor, TestService, type WireBatch, type WireFile } from '../service.ts'

const CHAT = '/v1/chat/completions'
const ORDER = { endpoint: CHAT, completion_window: '24h' }
const PARQUET = new URL('../fixtures/types.parquet', import.meta.url)

interface Failed {
  error: { code: string; message: string; param: string }
}

async function uploaded(
  service: TestService,
  name: string,
  content: string | Buffer,
  purposeFirst = true,
): Promise<Response> {
  const form = new FormData()
  if (purposeFirst) form.set('purpose', 'table')
  form.set('file', new Blob([new Uint8Array(Buffer.from(content))]), name)
  if (!purposeFirst) form.set('purpose', 'table')
  return await fetch(`${service.url}/v1/files`, {
    method: 'POST',
    headers: { authorization: `Bearer ${service.key}` },
    body: form,
  })
}

async function table(service: TestService, name: string, content: string | Buffer): Promise<WireFile> {
  const answer = await uploaded(service, name, content)
  assert.equal(answer.status, 200)
  return (await answer.json()) as WireFile
}

async function refused(service: TestService, order: object): Promise<string> {
  const answer = await service.request('POST', '/v1/batches', { ...ORDER, ...order })
  const { error } = (await answer.json()) as Failed
  assert.equal(answer.status, 400, error?.message)
  return `${error.param}: ${error.message}`
}

test('the rows of a table become lines, and each is answered', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const csv = 'sku,Review Text,note\r\nA-1,"good, really",\r\nB-2,"bad\nvery",x\r\n,,\r\n'
  const file = await table(service, 'reviews.csv', csv)
  assert.deepEqual([file.purpose, file.status, file.line_count], ['table', 'processed', 0])
  assert.equal(await service.content(file.id), csv)
  const answer = await service.request('POST', '/v1/batches', {
    ...ORDER,
    input_file_id: file.id,
    table: {
      ...{ model: 'm', prompt: 'Rate: {{Review Text}}', system: 'About {{sku}}', id_column: 'sku' },
      parameters: { max_tokens: 5, seed: 7 },
      schema: { type: 'object', properties: { rating: { type: 'integer' } } },
      skip_empty: true,
    },
    wait: '60s',
  })
  const batch = (await answer.json()) as WireBatch
  assert.deepEqual([batch.status, batch.request_counts.completed], ['completed', 2], JSON.stringify(batch))
  const lines = (await service.content(batch.input_file_id)).trimEnd().split('\n')
  assert.deepEqual(JSON.parse(lines[1] ?? ''), {
    custom_id: 'B-2',
    method: 'POST',
    url: CHAT,
    body: {
      ...{ max_tokens: 5, seed: 7, model: 'm' },
      messages: [
        { role: 'system', content: 'About B-2' },
        { role: 'user', content: 'Rate: bad\nvery' },
      ],
      response_format: {
        type: 'json_schema',
        json_schema: {
          name: 'answer',
          schema: { type: 'object', properties: { rating: { type: 'integer' } } },
        },
      },
    },
  })
  const made = await service.json<WireFile>('GET', `/v1/files/${batch.input_file_id}`)
  assert.deepEqual([made.filename, made.purpose, made.line_count], ['reviews.jsonl', 'batch', 2])
})

test('Parquet, JSONL and compressed tables are read, whatever the order of the form', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const asked = async (file: WireFile, prompt: string, more: object = {}): Promise<string[]> => {
    const order = { ...ORDER, input_file_id: file.id, table: { model: 'm', prompt, ...more } }
    const batch = await service.json<WireBatch>('POST', '/v1/batches', order)
    assert.equal((await service.ended(batch.id)).status, 'completed')
    const lines = (await service.content(batch.input_file_id)).trimEnd().split('\n')
    return lines.map((line) => {
      const { custom_id, body } = JSON.parse(line)
      return `${custom_id} ${body.messages[0].content}`
    })
  }
  const jsonl = await table(service, 'rows.jsonl', '{"a":{"b":9007199254740993}}\n{"c":1}\n')
  assert.deepEqual(await asked(jsonl, '{{a.b}}!'), ['row-1 9007199254740993!', 'row-2 !'])
  const zipped = await table(service, 'rows.tsv.gz', gzipSync('a\tb\n1\tx\n2\ty\n'))
  assert.deepEqual(await asked(zipped, '{{b}}', { limit: 1 }), ['row-1 x'])
  const parquet = await table(service, 'types.parquet', await readFile(PARQUET))
  const [first] = await asked(parquet, '{{i64}} {{s}}')
  assert.match(first ?? '', /^row-1 \S/)
  const late = await uploaded(service, 'late.csv', 'a\n1\n', false)
  assert.equal(((await late.json()) as WireFile).status, 'processed')
})

test('what is wrong is named before a line is sent, and nothing is left of it', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const uneven = await table(service, 'uneven.csv', 'a,b\n1,2\n3\n')
  const file = await table(service, 'rows.csv', 'a,b\n1,2\n')
  const ask = (more: object): Promise<string> =>
    refused(service, { input_file_id: file.id, table: { model: 'm', prompt: '{{a}}', ...more } })
  const cells = refused(service, { input_file_id: uneven.id, table: { model: 'm', prompt: '{{a}}' } })
  assert.match(await cells, /^table: uneven\.csv, line 3: this row has more or fewer cells/)
  assert.match(
    await ask({ prompt: '{{c}}' }),
    /`table\.prompt` names the column "c", which rows\.csv does not/,
  )
  assert.match(await ask({ prompt: '{{#a}}' }), /`table\.prompt` is not a valid template/)
  assert.match(await ask({ id_column: 'c' }), /`table\.id_column` names the column "c"/)
  assert.match(await ask({ parameters: { messages: [] } }), /^table\.parameters: .*cannot have `messages`/)
  assert.match(await ask({ idcolumn: 'a' }), /^table\.idcolumn: `table\.idcolumn` is no field here/)
  assert.match(await ask({ schema: { type: 'string' } }), /^table\.schema: /)
  assert.match(await ask({ images: ['a'] }), /row 1: the image 1 is no address/)
  const endpoint = { endpoint: '/v1/embeddings', input_file_id: file.id, table: { model: 'm', prompt: 'x' } }
  assert.match(await refused(service, endpoint), /^endpoint: /)
  assert.match(await refused(service, { input_file_id: file.id }), /The file is a table\. Say in `table`/)
  const empty = await table(service, 'empty.csv', 'a\n')
  const none = { input_file_id: empty.id, table: { model: 'm', prompt: '{{a}}' } }
  assert.match(await refused(service, none), /the table has columns, but no rows/)
  const binary = await table(service, 'broken.parquet', 'PAR1 nothing PAR1')
  const broken = { input_file_id: binary.id, table: { model: 'm', prompt: '{{a}}' } }
  assert.match(await refused(service, broken), /broken\.parquet cannot be read as a Parquet file/)
  const unnamed = await table(service, 'rows.txt', 'a\n1\n')
  assert.equal(unnamed.status, 'error')
  const order = { ...ORDER, input_file_id: unnamed.id, table: { model: 'm', prompt: '{{a}}' } }
  const answer = await service.request('POST', '/v1/batches', order)
  assert.equal(answer.status, 422)
  assert.match(
    ((await answer.json()) as Failed).error.message,
    /^No table: the name rows\.txt does not say a table format; /,
  )
  const { data } = await service.json<{ data: WireFile[] }>('GET', '/v1/files')
  assert.deepEqual([...new Set(data.map(({ purpose }) => purpose))], ['table'])
  assert.equal(upstream.calls.length, 0)
})

test('two rows with one ID make a batch that fails and names the line', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await table(service, 'rows.csv', 'id,text\nx,1\nx,2\n')
  const order = {
    ...ORDER,
    input_file_id: file.id,
    table: { model: 'm', prompt: '{{text}}', id_column: 'id' },
  }
  const { id } = await service.json<WireBatch>('POST', '/v1/batches', order)
  const { status, errors } = (await service.ended(id)) as WireBatch & { errors: { data: object[] } }
  assert.equal(status, 'failed')
  assert.match(JSON.stringify(errors.data), /"line":2/)
})

test('a table that is deleted while it is read makes no batch', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await table(service, 'rows.csv', 'a\n1\n')
  const { sealed } = service.stores
  const readAll = sealed.readAll.bind(sealed)
  sealed.readAll = async (project_id, blob, range) => {
    await service.json('DELETE', `/v1/files/${file.id}`)
    await sealed.delete(blob.key)
    return await readAll(project_id, blob, range)
  }
  const order = { ...ORDER, input_file_id: file.id, table: { model: 'm', prompt: '{{a}}' } }
  const answer = await service.request('POST', '/v1/batches', order)
  const { error } = (await answer.json()) as Failed
  assert.deepEqual([answer.status, error.code, error.param], [404, 'file_not_found', 'input_file_id'])
  assert.deepEqual((await service.json<{ data: object[] }>('GET', '/v1/files')).data, [])
})
