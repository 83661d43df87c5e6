import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { testServer } from '../../test/support/test-server.ts'

test('a list is newest first and names the next cursor', async () => {
  await using server = await testServer()
  const made: string[] = []
  for (let i = 0; i < 3; i++) made.unshift((await server.upload()).id)
  const page = await server.call('GET', '/v1/files?limit=2')
  assert.deepEqual(page.ids, made.slice(0, 2))
  assert.deepEqual(
    { ...page.json, data: [] },
    { object: 'list', data: [], has_more: true, next_cursor: made[1], first_id: made[0], last_id: made[1] },
  )
  const last = await server.call('GET', `/v1/files?limit=2&starting_after=${made[1]}`)
  assert.deepEqual(last.ids, made.slice(2))
  assert.deepEqual([last.json.has_more, last.json.next_cursor, last.json.last_id], [false, null, made[2]])
  const exact = await server.call('GET', '/v1/files?limit=3')
  assert.equal(exact.json.has_more, false)
  const empty = await server.call('GET', '/v1/batches')
  assert.deepEqual(empty.json, {
    object: 'list',
    data: [],
    has_more: false,
    next_cursor: null,
    first_id: null,
    last_id: null,
  })
})

test('`after`, the cursor of OpenAI clients, takes precedence', async () => {
  await using server = await testServer()
  const made: string[] = []
  for (let i = 0; i < 3; i++) made.unshift((await server.upload()).id)
  assert.deepEqual((await server.call('GET', `/v1/files?after=${made[0]}`)).ids, made.slice(1))
  const both = await server.call('GET', `/v1/files?after=${made[1]}&starting_after=${made[0]}`)
  assert.deepEqual(both.ids, made.slice(2))
})

test('a limit outside 1 to 100 is rejected; the default is 20', async () => {
  await using server = await testServer()
  for (const limit of ['0', '101', '-1', 'x', '1.5', '', '1e1']) {
    const answer = await server.call('GET', `/v1/models?limit=${limit}`)
    assert.deepEqual([answer.outcome, answer.error.param], ['400 invalid_request', 'limit'], limit)
  }
  assert.equal((await server.call('GET', '/v1/models?limit=100')).status, 200)
  assert.equal(
    (await server.call('GET', '/v1/models?limit=0')).error.message,
    '`limit` must be at least 1, not the number 0.',
  )
  const file = await server.processedFile()
  for (let i = 0; i < 21; i++) await server.createBatch(file)
  assert.equal((await server.call('GET', '/v1/batches')).data.length, 20)
})

test('a cursor whose object is gone is a 404', async () => {
  await using server = await testServer()
  const { id } = await server.upload()
  await server.call('DELETE', `/v1/files/${id}`)
  for (const [query, param] of [
    [`starting_after=${id}`, 'starting_after'],
    ['after=file_never', 'after'],
  ]) {
    const answer = await server.call('GET', `/v1/files?${query}`)
    assert.deepEqual([answer.outcome, answer.error.param], ['404 cursor_not_found', param])
  }
  assert.equal((await server.call('GET', '/v1/models?after=nothing')).outcome, '404 cursor_not_found')
})

test('models are listed in pages too, and their IDs may contain slashes', async () => {
  await using server = await testServer()
  const all = await server.call('GET', '/v1/models')
  assert.deepEqual(all.ids, ['sim-1', 'org/large', 'free'])
  const page = await server.call('GET', '/v1/models?limit=1&starting_after=sim-1')
  assert.deepEqual([page.ids, page.json.next_cursor], [['org/large'], 'org/large'])
  for (const path of ['org/large', 'org%2Flarge'])
    assert.deepEqual((await server.call('GET', `/v1/models/${path}`)).json, all.data[1])
  assert.deepEqual(all.data[0]?.pricing, {
    input_per_mtok: 0.1,
    output_per_mtok: 0.4,
    currency: 'USD',
    configured: true,
  })
  const unknown = await server.call('GET', '/v1/models/gpt')
  assert.deepEqual([unknown.outcome, unknown.error.param], ['404 model_not_found', 'model'])
})

test('paging through a list shows every object that exists throughout exactly once', async () => {
  await using server = await testServer()
  const { store } = server.deps
  const change = fc.record({
    make: fc.nat(2),
    drop: fc.option(fc.nat(30), { nil: undefined }),
  })
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 1, max: 4 }),
      fc.array(change, { minLength: 8, maxLength: 8 }),
      async (limit, changes) => {
        await store.write((tx) => tx.updateTable('files').set({ deleted_at: 1 }).execute())
        const made: string[] = []
        const make = async (): Promise<void> => {
          await server.clock.advance(1)
          made.push((await server.upload('x')).id)
        }
        for (let i = 0; i < 9; i++) await make()
        const staying = new Set(made)
        const met: string[] = []
        let cursor: string | null = null
        for (const { make: more, drop } of [...changes, ...changes]) {
          const query: string = cursor === null ? '' : `&starting_after=${cursor}`
          const page = await server.call('GET', `/v1/files?limit=${limit}${query}`)
          assert.equal(page.status, 200, page.text)
          met.push(...page.ids)
          cursor = typeof page.json.next_cursor === 'string' ? page.json.next_cursor : null
          if (cursor === null) break
          for (let i = 0; i < more; i++) await make()
          const serviceProcess = drop === undefined ? undefined : made[drop % made.length]
          if (serviceProcess !== undefined && serviceProcess !== cursor) {
            await server.call('DELETE', `/v1/files/${serviceProcess}`)
            staying.delete(serviceProcess)
          }
        }
        assert.equal(cursor, null, 'the list has an end')
        assert.equal(new Set(met).size, met.length, 'nothing twice')
        assert.deepEqual([...met].sort().reverse(), met, 'newest first')
        for (const id of staying) assert.ok(met.includes(id), 'nothing missing')
      },
    ),
    { numRuns: 6 },
  )
})
