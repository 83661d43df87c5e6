// GET /v1/live: batches as they change, in a stream that outlives neither its key nor the server.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createKey } from '../../src/admin/create-key.ts'
import { revokeKey } from '../../src/store/projects.ts'
import { echo, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

interface Update {
  object: string
  batches: { id: string; status: string; request_counts: { completed: number } }[]
  versions: Record<string, string>
}

/** The updates of a stream, until it ends. */
async function* updates(response: Response): AsyncGenerator<Update, void, undefined> {
  assert.equal(response.status, 200)
  assert.equal(response.headers.get('content-type'), 'text/event-stream')
  let text = ''
  for await (const piece of response.body!.pipeThrough(new TextDecoderStream())) {
    text += piece
    for (let end = text.indexOf('\n\n'); end !== -1; end = text.indexOf('\n\n')) {
      const event = text.slice(0, end)
      text = text.slice(end + 2)
      const [, data] = /^event: update\ndata: (.*)$/.exec(event) ?? []
      if (data !== undefined) yield JSON.parse(data)
    }
  }
}

const listen = (service: TestService, key = service.key): Promise<Response> =>
  fetch(`${service.url}/v1/live`, {
    headers: { accept: 'text/event-stream', authorization: `Bearer ${key}` },
  })

test('a stream tells of a new batch, its progress and its end, once each, and only of its project', async () => {
  const held: (() => void)[] = []
  await using upstream = await testUpstream((call) => {
    if (call.body.messages[0]!.content === 'held') held.push(() => echo(call))
    else echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const { store } = service.stores
  const other = await createKey(store, store.clock, 'local', { project: 'other', plan: 'payg' })
  const stream = updates(await listen(service))
  const foreign = updates(await listen(service, other.key))
  assert.deepEqual((await stream.next()).value?.batches, [])
  assert.deepEqual((await foreign.next()).value?.batches, [])

  const file = await service.upload(
    [line('a'), line('b', 'held')].map((one) => JSON.stringify(one)).join('\n'),
  )
  const { id } = await service.create(file.id)
  const until = async (done: (batch: Update['batches'][number]) => boolean): Promise<void> => {
    for await (const { batches } of { [Symbol.asyncIterator]: () => ({ next: () => stream.next() }) }) {
      // Its servers change, too.
      if (batches.length === 0) continue
      assert.deepEqual(
        batches.map((batch) => batch.id),
        [id],
      )
      if (batches.some(done)) return
    }
  }
  await until(({ request_counts }) => request_counts.completed === 1)
  const now = await service.json<Update>('GET', '/v1/live')
  assert.deepEqual([now.object, now.batches.map((batch) => batch.id)], ['live', [id]])
  for (const answer of held) answer()
  await until(({ status }) => status === 'completed')
  assert.deepEqual((await service.json<Update>('GET', '/v1/live')).batches, [])

  // The stream of the other project has had nothing; it ends with its key.
  await store.write((tx) => revokeKey(tx, other.id, store.clock.now()))
  assert.equal((await foreign.next()).done, true)

  // A stream is one call, whatever it has told.
  const calls = await store.read
    .selectFrom('http_requests')
    .select('id')
    .where('path', '=', '/v1/live')
    .execute()
  assert.equal(calls.length, 4)
  await stream.return()
})

test('a stream that begins just before a batch ends tells of its end', async () => {
  const held: (() => void)[] = []
  await using upstream = await testUpstream((call) => void held.push(() => echo(call)))
  await using service = await TestService.start(configFor(upstream.base_url))
  const { id } = await service.create((await service.upload(JSON.stringify(line('a')))).id)
  await upstream.arrived(1)
  const stream = updates(await listen(service))
  assert.equal((await stream.next()).value?.batches[0]?.id, id)
  for (const answer of held) answer()
  await service.ended(id)
  const told: Update['batches'] = []
  while (told.at(-1)?.status !== 'completed') told.push(...((await stream.next()).value?.batches ?? []))
  assert.equal(told.at(-1)?.id, id)
  await stream.return()
})

test('a stream ends with the server', async () => {
  await using upstream = await testUpstream()
  let stream: AsyncGenerator<Update, void, undefined>
  {
    await using service = await TestService.start(configFor(upstream.base_url), { worker: false })
    stream = updates(await listen(service))
    await stream.next()
    assert.equal((await fetch(`${service.url}/v1/live`)).status, 401)
  }
  assert.equal((await stream.next()).done, true)
})

test('a stream names what has changed beside batches', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url), { worker: false })
  const stream = updates(await listen(service))
  const { versions: before } = (await stream.next()).value ?? assert.fail()
  assert.equal(before.limits, undefined)
  await service.json('GET', '/v1/limits')
  await service.json('POST', '/v1/limits', { scope: 'project', metric: 'tokens', amount: 1, window: 'day' })
  const { versions } = (await stream.next()).value ?? assert.fail()
  assert.deepEqual(
    Object.keys(versions).filter((name) => versions[name] !== before[name]),
    ['limits', 'requests'],
  )
  const now = await service.json<Update>('GET', '/v1/live')
  assert.deepEqual(now.versions, versions, 'the same for a caller without a stream')
  await stream.return()
})
