// Reading a batch while it runs: every line comes, in the order of the input, and none twice to who asks so.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { echo, send, testUpstream } from './fakes/upstream.ts'
import { configFor, line, TestService, type WireLine } from './service.ts'

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
    ids: text
      .split('\n')
      .filter(Boolean)
      .map((row) => (JSON.parse(row) as WireLine).custom_id),
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

  for (const answer of held) answer()
  await service.ended(id)
  const rest = await page(service, id, `?after=${first.next_after}&contiguous=true`)
  assert.deepEqual(rest, { ids: ['c', 'd', 'e'], next_after: 5, has_more: false, status: 'completed' })
  assert.deepEqual(await page(service, id, '?after=5'), { ...rest, ids: [] })
})

test('pages over sealed chunks hold every line once, blank lines in the input or not', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const ids = Array.from({ length: 2_300 }, (_, i) => `line-${i}`)
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
  for (const query of ['?limit=0', '?after=-1', '?part=both', '?limit=10001', '?contiguous=yes'])
    assert.equal((await service.request('GET', `/v1/batches/${batch.id}/results${query}`)).status, 400, query)
})
