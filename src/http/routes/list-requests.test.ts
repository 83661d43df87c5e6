import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testServer } from '../../../test/support/test-server.ts'
import { newId } from '../../domain/ids.ts'
import { ROWS_LOOKED_AT_MAX } from '../../store/page.ts'
import { insertRows } from '../../store/rows.ts'
import type { HttpRequestRow } from '../../store/schema.ts'

test('the calls of a project are listed with filters, newest first, and those of others are not', async () => {
  await using server = await testServer()
  const { key, id: key_id } = await server.issue()
  const other = await server.issue({ project: 'other' })
  await server.call('GET', '/v1/files', { key: other.key })
  const first = await server.call('GET', '/v1/files')
  await server.clock.advance(10_000)
  const second = await server.call('GET', '/v1/files/none', { key })
  const third = await server.call('POST', '/v1/limits', { body: {} })
  const order = { input_file_id: 'file_none', endpoint: '/v1/chat/completions', completion_window: '24h' }
  const dry = await server.call('POST', '/v1/batches?dry_run=true', { body: order })
  const list = async (query: string): Promise<string[]> =>
    (await server.call('GET', `/v1/requests${query}`)).ids
  const all = await server.call('GET', '/v1/requests?limit=2')
  assert.deepEqual(all.ids, [dry.request_id, third.request_id])
  assert.equal(all.data[0]?.path, '/v1/batches?dry_run=true')
  assert.equal(all.json.has_more, true)
  assert.deepEqual(await list(`?starting_after=${all.json.next_cursor}`), [
    second.request_id,
    first.request_id,
  ])
  const begun = Math.floor(server.clock.now() / 1000)
  assert.deepEqual(await list('?method=POST'), [dry.request_id, third.request_id])
  assert.deepEqual(await list('?reads=false'), [third.request_id])
  assert.deepEqual(await list('?status=404'), [dry.request_id, second.request_id])
  assert.deepEqual(await list('?status=4xx'), [dry.request_id, third.request_id, second.request_id])
  assert.deepEqual(await list('?path=/v1/files'), [second.request_id, first.request_id])
  assert.deepEqual(await list('?path=/v1/fil_s'), [])
  assert.deepEqual(await list(`?api_key_id=${key_id}`), [second.request_id])
  assert.deepEqual(await list(`?until=${begun}`), [first.request_id])
  assert.deepEqual(await list(`?since=${begun}&path=/v1/files`), [second.request_id])
  const [record] = (await server.call('GET', '/v1/requests?method=POST')).data
  assert.equal(record?.response, null)

  for (const query of ['?status=600', '?status=abc', '?method=PUT', '?since=-1', '?until=x', '?key=1'])
    assert.equal((await server.call('GET', `/v1/requests${query}`)).outcome, '400 invalid_request', query)
  const foreign = await server.call('GET', `/v1/requests?starting_after=${first.request_id}`, {
    key: other.key,
  })
  assert.equal(foreign.outcome, '404 cursor_not_found')
})

test('calls that are older than a month are listed when they are asked for', async () => {
  await using server = await testServer()
  const old = await server.call('GET', '/v1/files')
  await server.clock.advance(31 * 86_400_000)
  assert.deepEqual((await server.call('GET', '/v1/requests?path=/v1/files')).ids, [])
  assert.deepEqual((await server.call('GET', '/v1/requests?path=/v1/files&since=0')).ids, [old.request_id])
})

test('a filter that matches few calls is answered in pages of a bounded search, and finds all of them', async () => {
  await using server = await testServer()
  const { project_id, id: key_id } = server.key
  const call = (path: string): HttpRequestRow => {
    const created = server.clock.now()
    return {
      ...{ id: newId('request', created), project_id, key_id, method: 'GET', path, status: 200, created },
      ...{ duration_ms: 1, entity: null, response: null, traceparent: null },
    }
  }
  const rare = [call('/v1/rare'), call('/v1/rare')]
  const others = Array.from({ length: ROWS_LOOKED_AT_MAX }, () => call('/v1/files'))
  await server.deps.store.write((tx) =>
    insertRows(tx, 'http_requests', [...rare, ...others, call('/v1/rare')]),
  )
  const found: string[] = []
  const pages: number[] = []
  for (let cursor: string | null = ''; cursor !== null; ) {
    const behind: string = cursor === '' ? '' : `&starting_after=${cursor}`
    const { ids, json } = await server.call('GET', `/v1/requests?path=/v1/rare&limit=2${behind}`)
    assert.equal(json.has_more, json.next_cursor !== null)
    pages.push(ids.length)
    found.push(...ids)
    cursor = json.next_cursor === null ? null : String(json.next_cursor)
  }
  assert.deepEqual(pages, [1, 2])
  assert.deepEqual(found.slice(1), rare.map(({ id }) => id).toReversed())
})

test('batches are listed by the time of their creation', async () => {
  await using server = await testServer()
  // Beyond the times of the tests before it.
  await server.clock.advance(100 * 86_400_000)
  const ids: string[] = []
  for (let i = 0; i < 3; i++) {
    await server.clock.advance(1000)
    ids.push((await server.createBatch(await server.processedFile())).id)
  }
  const all = await server.call('GET', '/v1/batches?order=asc')
  const [, since, until] = all.data.map(({ created }) => Number(created))
  const list = async (query: string): Promise<string[]> =>
    (await server.call('GET', `/v1/batches?${query}`)).ids
  assert.deepEqual(await list(`since=${since}&until=${until}`), [ids[1]])
  assert.deepEqual(await list(`since=${since}`), [ids[2], ids[1]])
  assert.deepEqual(await list(`until=${until}&order=asc`), [ids[0], ids[1]])
  assert.deepEqual(await list(`since=${since}&order=asc&after=${ids[0]}&limit=1`), [ids[1]])
})
