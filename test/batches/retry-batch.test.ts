// Failed lines run again, on the server's side.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createKey } from '../../src/admin/create-key.ts'
import type { BatchEstimate } from '../../src/wire/batch.ts'
import { echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService, type WireBatch, type WireFile } from '../service.ts'
import { uploadForm } from '../support/api.ts'

async function refused(
  service: TestService,
  path: string,
  body?: object,
  key = service.key,
): Promise<string> {
  const response = await service.request('POST', path, body, { authorization: `Bearer ${key}` })
  const { error } = JSON.parse(await response.text())
  return `${response.status} ${error.code}: ${error.message}`
}

test('exactly the failed lines run again, byte for byte, in a batch that names the old one', async () => {
  await using upstream = await testUpstream((call) => {
    if (call.body.messages[0]!.content.startsWith('bad'))
      send(call.response, 400, '{"error":{"message":"no"}}')
    else echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const rows = Array.from({ length: 1_100 }, (_, i) => {
    if (i === 700) return JSON.stringify(line(`x${i}`, 'x', { model: 'unknown' }))
    const body = i % 500 === 0 ? `bad ${i}` : `x${i}`
    // Spaces and a number beyond 2^53 show whether a line was rewritten.
    return JSON.stringify(line(`x${i}`, body, { seed: 1 })).replace('"seed":1', '"seed": 9007199254740993')
  })
  const old = await service.run(rows.join('\r\n'), { metadata: { entity: 'user:1', name: 'Reviews' } })
  assert.equal(old.request_counts.failed, 4)
  upstream.reply = echo
  const made = await service.json<WireBatch>('POST', `/v1/batches/${old.id}/retry`)
  assert.deepEqual(made.metadata, { entity: 'user:1', name: 'Reviews (retry)', retry_of: old.id })
  assert.deepEqual([made.completion_window, made.endpoint], [old.completion_window, old.endpoint])
  const wanted = rows.filter((_, i) => i % 500 === 0 || i === 700)
  assert.equal(await service.content(made.input_file_id), `${wanted.join('\n')}\n`)
  const done = await service.ended(made.id)
  assert.deepEqual(done.request_counts, { total: 4, completed: 3, failed: 1 })
  const again = await service.json<WireBatch>('POST', `/v1/batches/${made.id}/retry`)
  assert.equal(again.name, 'Reviews (retry 2)')
  await service.ended(again.id)
  const { lines, unknown_models } = await service.json<BatchEstimate>(
    'GET',
    `/v1/batches/${made.id}/estimate`,
  )
  assert.deepEqual([lines, unknown_models], [4, ['unknown']])

  const some = await service.json<WireBatch>('POST', `/v1/batches/${old.id}/retry`, {
    codes: ['model_not_found'],
  })
  assert.equal(await service.content(some.input_file_id), `${rows[700]}\n`)
  await service.ended(some.id)

  const { groups } = await service.json<{ groups: { pattern: string; lines: number }[] }>(
    'GET',
    `/v1/batches/${old.id}/errors`,
  )
  const message = groups.find(({ lines }) => lines === 3)?.pattern
  const group = { message, custom_id: 'x1000' }
  const one = await service.json<WireBatch>('POST', `/v1/batches/${old.id}/retry`, group)
  assert.equal(await service.content(one.input_file_id), `${rows[1000]}\n`)
  await service.ended(one.id)
  const retriesOf = async (id: string) =>
    (await service.json<{ data: WireBatch[] }>('GET', `/v1/batches?retry_of=${id}`)).data.map(({ id }) => id)
  assert.deepEqual(await retriesOf(old.id), [one.id, some.id, made.id])
  assert.deepEqual(await retriesOf(made.id), [again.id])
  assert.equal(
    await refused(service, `/v1/batches/${old.id}/retry`, { ...group, model: 'other' }),
    `422 batch_not_retryable: The batch has no failed line with message ${JSON.stringify(message)} and custom_id "x1000" and model "other".`,
  )
})

test('a file that is made of another one, and the results of a retry, are kept no longer than the caller wanted', async () => {
  await using upstream = await testUpstream(({ response }) =>
    send(response, 400, '{"error":{"message":"no"}}'),
  )
  await using service = await TestService.start(configFor(upstream.base_url))
  const keptFor = async (id: string | null): Promise<number> => {
    const { created, expires_at } = await service.json<WireFile>('GET', `/v1/files/${id}`)
    return Number(expires_at) - Number(created)
  }
  const short = (form: FormData): FormData => {
    form.set('expires_after[anchor]', 'created_at')
    form.set('expires_after[seconds]', '7200')
    return form
  }
  const file = await service.json<WireFile>('POST', '/v1/files', short(uploadForm([line('a')])))
  const output_expires_after = { anchor: 'created_at', seconds: 3600 }
  const old = await service.ended((await service.create(file.id, { output_expires_after })).id)
  const again = await service.json<WireBatch>('POST', `/v1/batches/${old.id}/retry`)
  const { error_file_id } = await service.ended(again.id)
  assert.deepEqual([await keptFor(again.input_file_id), await keptFor(error_file_id)], [7200, 3600])

  const table = short(uploadForm('text\nx\n', 'rows.csv'))
  table.set('purpose', 'table')
  const { id } = await service.json<WireFile>('POST', '/v1/files', table)
  const ofTable = await service.create(id, { table: { model: 'm', prompt: '{{text}}' } })
  assert.equal(await keptFor(ofTable.input_file_id), 7200)
  await service.ended(ofTable.id)
})

test('under an Idempotency-Key a batch is retried once', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const old = await service.run([line('a'), line('b', 'b', { model: 'x' })])
  const call = (): Promise<Response> =>
    service.request('POST', `/v1/batches/${old.id}/retry`, {}, { 'idempotency-key': 'again' })
  const [first, second] = [await call(), await call()]
  assert.equal(second.headers.get('idempotency-replayed'), 'true')
  const text = await first.text()
  assert.equal(await second.text(), text)
  await service.ended(JSON.parse(text).id)
  const files = await service.json<{ data: { purpose: string }[] }>('GET', '/v1/files?purpose=batch')
  assert.equal(files.data.length, 2, 'no file is left of the second call')
})

test('what cannot be retried says why, and leaves nothing', async () => {
  const held: (() => void)[] = []
  await using upstream = await testUpstream((call) => {
    if (call.body.messages[0]!.content === 'held') held.push(() => echo(call))
    else echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const good = await service.run([line('a')])
  const retry = `/v1/batches/${good.id}/retry`
  assert.equal(await refused(service, retry), '422 batch_not_retryable: The batch has no failed line.')

  const file = await service.upload(JSON.stringify(line('h', 'held')))
  const running = await service.create(file.id)
  await upstream.arrived(2)
  assert.match(
    await refused(service, `/v1/batches/${running.id}/retry`),
    /^422 batch_not_retryable: The batch is \w+\. Wait until it has ended\.$/,
  )
  for (const answer of held) answer()
  await service.ended(running.id)

  const failed = await service.run([line('a'), line('b', 'b', { model: 'x' })])
  const again = `/v1/batches/${failed.id}/retry`
  assert.equal(
    await refused(service, again, { codes: ['batch_expired', 'upstream_timeout'] }),
    '422 batch_not_retryable: The batch has no failed line with batch_expired or upstream_timeout.',
  )
  assert.match(await refused(service, again, { completion_window: 'soon' }), /^400 invalid_request/)
  assert.match(await refused(service, again, { codes: [] }), /^400 invalid_request/)
  assert.match(await refused(service, again, { lines: [1] }), /^400 invalid_request/)

  const { store } = service.stores
  const other = await createKey(store, store.clock, 'local', { project: 'other', plan: 'payg' })
  const never = await refused(service, '/v1/batches/batch_00000000000000000000000000/retry', {}, other.key)
  assert.match(never, /^404 batch_not_found/)
  assert.equal(await refused(service, again, {}, other.key), never)

  await service.request('DELETE', `/v1/files/${failed.input_file_id}`)
  assert.match(await refused(service, again), /^422 batch_not_retryable: The input file .* deleted/)
  const files = await service.json<{ data: object[] }>('GET', '/v1/files?purpose=batch')
  assert.equal(files.data.length, 2)
})
