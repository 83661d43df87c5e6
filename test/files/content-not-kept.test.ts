// Batches with `retention` keep no content: results end once they were fetched, the input with its batch.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { createKey } from '../../src/admin/create-key.ts'
import { covers, withRange } from '../../src/domain/retention.ts'
import { runMaintenance } from '../../src/maintenance/maintenance.ts'
import { readKey } from '../../src/store/projects.ts'
import { s3Server, TEST_BUCKET } from '../fakes/s3-server.ts'
import { echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService, type WireBatch, type WireFile } from '../service.ts'

const LINES = [line('a', 'the question'), line('b', 'b', { model: 'none' })]
const NOT_KEPT = { retention: { results: '0h', grace: '1h' } }

const RESPONSE = JSON.stringify({
  ...{ id: 'resp_server', object: 'response', status: 'completed', output: [{ type: 'message' }] },
  usage: { input_tokens: 3, output_tokens: 2, total_tokens: 5 },
})

/** A service, and calls that tell status and code alone. */
async function world(plan = '', more = '', options: Parameters<typeof TestService.start>[1] = {}) {
  const upstream = await testUpstream((call) =>
    call.path === '/v1/responses' ? send(call.response, 200, RESPONSE) : echo(call),
  )
  const plans = `plans: {payg: {completion_windows: [24h]${plan}}}\n${more}`
  const yaml = configFor(upstream.base_url, plans).replace(
    '- id: m',
    '- id: m\n    endpoints: [chat/completions, responses]',
  )
  const service = await TestService.start(yaml, options)
  const { store, sealed } = service.stores
  const outcome = async (
    path: string,
    method = 'GET',
    body?: object,
    headers?: Record<string, string>,
  ): Promise<string> => {
    const response = await service.request(method, `/v1/${path}`, body, headers)
    const text = await response.text()
    const { error } = text.startsWith('{"error"') ? JSON.parse(text) : {}
    return error ? `${response.status} ${error.code}` : `${response.status}`
  }
  return {
    service,
    store,
    outcome,
    /** The end of results is recorded after the answer that brings them: there is no event to wait for. */
    async destroyed(path: string): Promise<void> {
      while ((await outcome(path, 'HEAD')) !== '410') await new Promise((resolve) => setImmediate(resolve))
      assert.equal(await outcome(path), '410 content_not_kept')
    },
    expires: async (id: string | null) =>
      (await store.read.selectFrom('files').select('expires_at').where('id', '=', id).executeTakeFirst())
        ?.expires_at ?? 0,
    /** Whether anything can still be decrypted but records. */
    async destroyedKeys(): Promise<boolean> {
      await runMaintenance({
        ...{ store, sealed },
        clock: { now: () => Date.now(), steady: () => 0, after: () => () => {}, soon() {} },
      })
      const rows = await store.read.selectFrom('blobs').select(['key', 'wrapped_key']).execute()
      return rows.every(({ key, wrapped_key }) => key.endsWith('-audit') || wrapped_key === '')
    },
    async [Symbol.asyncDispose]() {
      await service[Symbol.asyncDispose]()
      await upstream.close()
    },
  }
}

const contentOf = (id: string | null): string => `files/${id}/content`

test('what was fetched whole is destroyed, and what is left is the record', async () => {
  await using it = await world()
  const { service, outcome } = it
  const batch = await service.run(LINES, NOT_KEPT)
  const { output_file_id, error_file_id, input_file_id } = batch
  assert.deepEqual(batch.retention, { results: '0s', grace: '1h' })
  for (const path of [`files/${input_file_id}`, contentOf(input_file_id)])
    assert.equal(await outcome(path), '410 content_not_kept')
  const left = await it.expires(output_file_id)
  assert.ok(Math.abs(left - Date.now() - 3_600_000) < 60_000, 'until the end of the grace period')

  const { length } = Buffer.from(await service.content(output_file_id))
  assert.ok(length > 0)
  await it.destroyed(contentOf(output_file_id))
  assert.equal(await outcome(`files/${output_file_id}`), '410 content_not_kept')
  assert.equal((await service.lines(error_file_id)).length, 1, 'each file by itself')
  await it.destroyed(contentOf(error_file_id))

  const of = `batches/${batch.id}`
  assert.equal(await outcome(`${of}/results`), '410 content_not_kept')
  assert.equal(await outcome(`${of}/results?format=csv`), '410 content_not_kept')
  assert.equal(await outcome(`${of}/retry`, 'POST'), '410 content_not_kept')
  assert.equal(await outcome(`${of}/estimate`), '410 content_not_kept')
  const order = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' }
  assert.equal(await outcome('batches', 'POST', order), '410 content_not_kept')
  assert.equal(await outcome(of, 'GET'), '200')
  assert.equal(await outcome(`${of}/lines`), '200')
  const used = await service.json<{ cost_usd: number }>('GET', '/v1/usage/entities')
  assert.equal(used.cost_usd, batch.cost_usd)
  assert.ok(batch.cost_usd > 0)
  assert.ok(await it.destroyedKeys())
})

describe('a result file counts as fetched', () => {
  test('when ranges in any order have brought all of it, and not before', async () => {
    await using it = await world()
    const { service, outcome } = it
    const { output_file_id } = await service.run([line('a'), line('b')], NOT_KEPT)
    const path = contentOf(output_file_id)
    const { bytes, id } = await service.json<WireFile>('GET', `/v1/files/${output_file_id}`)
    const part = (range: string): Promise<string> =>
      outcome(path, 'GET', undefined, { range: `bytes=${range}` })
    assert.equal(await outcome(path, 'HEAD'), '200')
    assert.equal(await outcome(path, 'GET', undefined, { 'if-none-match': `"${id}"` }), '304')
    assert.equal(await part(`${bytes - 10}-`), '206')
    assert.equal(await part('0-9'), '206')
    assert.equal(await part('5-30'), '206')
    assert.equal(await outcome(path, 'HEAD'), '200', 'the middle is missing')
    assert.equal(await part(`20-${bytes - 5}`), '206')
    await it.destroyed(path)
  })

  test('by the end of its pages, by a table, and with the answer that waited', async () => {
    await using it = await world()
    const { service, outcome } = it
    const paged = await service.run(LINES, NOT_KEPT)
    const results = `batches/${paged.id}/results`
    assert.equal(await outcome(results, 'HEAD'), '200')
    assert.equal(await outcome(`${results}?format=csv`, 'HEAD'), '200')
    assert.equal(await outcome(`${results}?limit=1`), '200')
    assert.equal(await outcome(`${results}?limit=1`), '200')
    assert.equal(await outcome(`${results}?after=1&limit=1`), '200')
    await it.destroyed(contentOf(paged.output_file_id))
    await it.destroyed(contentOf(paged.error_file_id))

    const table = await service.run(LINES, NOT_KEPT)
    assert.equal(await outcome(`batches/${table.id}/results?format=csv`), '200')
    await it.destroyed(contentOf(table.error_file_id))

    const order = { endpoint: '/v1/chat/completions', completion_window: '24h', ...NOT_KEPT }
    const waited = await service.json<WireBatch & { results: object[] }>('POST', '/v1/batches', {
      ...order,
      requests: LINES,
      wait: '30s',
    })
    assert.equal(waited.results.length, 2)
    await it.destroyed(contentOf(waited.output_file_id))
    assert.ok(await it.destroyedKeys(), 'nothing of it is kept for a repeated call')
  })

  test('not while its export is to be made, and then by the export', async () => {
    await using s3 = await s3Server()
    let isDown = true
    s3.fault = () => (isDown ? { status: 403, code: 'AccessDenied' } : null)
    const output_url = `s3://${TEST_BUCKET}/out/`
    const buckets = `buckets: [{url: "${output_url}?endpoint=${s3.endpoint}", projects: [p]}]`
    await using it = await world('', buckets, {
      project: 'p',
      env: { AWS_ACCESS_KEY_ID: 'id', AWS_SECRET_ACCESS_KEY: 'secret' },
      buckets: { schedule: (_, now) => now + 3_600_000 },
    })
    const { service } = it
    const batch = await service.run(LINES, { ...NOT_KEPT, output_url })
    await service.content(batch.output_file_id)
    assert.equal(await it.outcome(contentOf(batch.output_file_id)), '200')
    isDown = false
    await service.json('POST', `/v1/batches/${batch.id}/export`)
    await service.eventually(
      async () => (await service.get(batch.id)).output_url_status === 'delivered' || undefined,
    )
    await it.destroyed(contentOf(batch.output_file_id))
    await it.destroyed(contentOf(batch.error_file_id))
    assert.equal(await it.outcome(`batches/${batch.id}/export`, 'POST'), '410 content_not_kept')
  })
})

test('the shortest times of plan, key and batch hold, and wrong ones are told by their name', async () => {
  await using it = await world(', retention: {results: 2h, grace: 4h}')
  const { service, outcome } = it
  const ofPlan = await service.run(LINES, { retention: { results: '9h', grace: '3h' } })
  assert.deepEqual(ofPlan.retention, { results: '2h', grace: '3h' })
  await service.content(ofPlan.output_file_id)
  while ((await it.expires(ofPlan.output_file_id)) > Date.now() + 2 * 3_600_000)
    await new Promise((resolve) => setImmediate(resolve))
  assert.equal(await outcome(contentOf(ofPlan.output_file_id)), '200', 'so long it may be fetched again')

  const own = await readKey(it.store.read, `key_${service.key.split('_')[2]}`)
  const order = { project: own?.project_name ?? '', plan: 'payg', retention: { results: '0h', grace: '9h' } }
  service.key = (await createKey(it.store, it.store.clock, service.config.region, order)).key
  const ofKey = await service.run(LINES)
  assert.deepEqual(ofKey.retention, { results: '0s', grace: '4h' })
  await it.store.write((tx) => tx.updateTable('files').set({ expires_at: Date.now() }).execute())
  assert.equal(
    await outcome(contentOf(ofKey.output_file_id)),
    '410 content_not_kept',
    'the grace period is over',
  )
  const wrong = { endpoint: '/v1/chat/completions', completion_window: '24h', input_file_id: 'file_x' }
  const answer = await service.request('POST', '/v1/batches', { ...wrong, retention: { results: 'soon' } })
  const { error } = (await answer.json()) as { error: { param: string; message: string } }
  assert.equal(error.param, 'retention.results')
  assert.match(error.message, /a duration such as "0h"/)
})

test('an input outlives its batch while another one reads it, and the table behind it goes with it', async () => {
  await using it = await world()
  const { service, outcome } = it
  const file = await service.upload(LINES)
  const paused = await service.create(file.id, NOT_KEPT)
  await service.json('POST', `/v1/batches/${paused.id}/pause`)
  const first = await service.ended((await service.create(file.id, NOT_KEPT)).id)
  assert.equal(first.status, 'completed')
  const { status } = await service.get(paused.id)
  if (status !== 'completed') {
    assert.equal(await outcome(`files/${file.id}`), '200')
    await service.json('POST', `/v1/batches/${paused.id}/resume`)
    await service.ended(paused.id)
  }
  assert.equal(await outcome(`files/${file.id}`), '410 content_not_kept')

  const form = new FormData()
  form.set('purpose', 'table')
  form.set('file', new Blob(['review\ngood\n']), 'reviews.csv')
  const table = await service.json<WireFile>('POST', '/v1/files', form)
  const asked = await service.create(table.id, { ...NOT_KEPT, table: { model: 'm', prompt: '{{review}}' } })
  assert.equal((await service.ended(asked.id)).status, 'completed')
  assert.equal(await outcome(contentOf(table.id)), '410 content_not_kept')
})

test('requests that come one at a time are not kept longer than the plan says', async () => {
  await using it = await world(', retention: {results: 0h, grace: 2h}', 'requests: {gather: {lines: 1}}')
  const { service, outcome } = it
  const body = { model: 'm', messages: [{ role: 'user', content: 'a' }] }
  const { id, batch_id } = await service.json<{ id: string; batch_id: string }>('POST', '/v1/requests', {
    endpoint: '/v1/chat/completions',
    body,
  })
  assert.equal(await outcome(`requests/${id}?wait=30s`), '200')
  const batch = await service.ended(batch_id)
  assert.deepEqual(batch.retention, { results: '0s', grace: '2h' })
  assert.equal(await outcome(contentOf(batch.input_file_id)), '410 content_not_kept')
  assert.equal(await outcome(contentOf(batch.output_file_id), 'HEAD'), '200', 'until all is fetched')
  await service.content(batch.output_file_id)
  await it.destroyed(contentOf(batch.output_file_id))
  assert.ok(await it.destroyedKeys())
})

test('a response whose content is gone is said to be gone, not shown as one without output', async () => {
  for (const [plan, gone] of [
    [', retention: {results: 0h, grace: 2h}', '410 content_not_kept'],
    ['', '404 request_not_found'],
  ] as const) {
    await using it = await world(plan, 'requests: {gather: {lines: 1}}')
    const { service, outcome } = it
    const order = { model: 'm', input: 'a', background: true }
    const { id } = await service.json<{ id: string }>('POST', '/v1/responses', order)
    const { batch_id } = await service.json<{ batch_id: string }>(
      'GET',
      `/v1/requests/${id.replace('resp_', 'req_')}?wait=30s`,
    )
    const { input_file_id, output_file_id } = await service.ended(batch_id)
    for (const file of [input_file_id, output_file_id]) await outcome(`files/${file}`, 'DELETE')
    assert.equal(await outcome(`responses/${id}`), gone)
    assert.equal(await outcome(`responses/${id}/input_items`), gone)
    assert.equal(await outcome(`responses/${id}/cancel`, 'POST'), gone)
  }
})

test('ranges that overlap or touch are one, and those that leave a gap cover nothing', () => {
  const add = (...ranges: [number, number][]) =>
    ranges.reduce<ReturnType<typeof withRange>>((all, range) => withRange(all, range), [])
  assert.deepEqual(add([5, 9], [0, 2], [2, 5]), [[0, 9]])
  assert.ok(covers(add([5, 9], [0, 6]), 9))
  assert.ok(!covers(add([5, 9], [0, 4]), 9))
  assert.ok(!covers(add([1, 9]), 9))
  const apart = Array.from({ length: 2_000 }, (_, i): [number, number] => [2 * i, 2 * i + 1])
  assert.equal(add(...apart).length, 1_000)
})
