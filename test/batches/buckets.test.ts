// Batches whose input comes from a bucket and whose results are written to one.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createKey } from '../../src/admin/create-key.ts'
import { exportResults } from '../../src/results/export.ts'
import { setBatch } from '../../src/store/batches.ts'
import { type S3Server, s3Server, TEST_BUCKET } from '../fakes/s3-server.ts'
import { echo, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService, type WireBatch, type WireFile } from '../service.ts'

/** Of a fetch here. */
const PART = 64 * 1024
const URL = `s3://${TEST_BUCKET}/team-a`
const ORDER = { endpoint: '/v1/chat/completions', completion_window: '24h' }
const IN = { ...ORDER, input_url: `${URL}/in.jsonl` }

class BucketTest implements AsyncDisposable {
  readonly upstream: TestUpstream
  readonly s3: S3Server
  readonly service: TestService

  private constructor(upstream: TestUpstream, s3: S3Server, service: TestService) {
    this.upstream = upstream
    this.s3 = s3
    this.service = service
  }

  static async start(options: Parameters<typeof TestService.start>[1] = {}, more = ''): Promise<BucketTest> {
    const upstream = await testUpstream(echo)
    const s3 = await s3Server()
    const buckets = `
buckets:
  - {url: "${URL}?endpoint=${s3.endpoint}", projects: [a], access_key_id_env: A_ID, secret_access_key_env: A_SECRET}
  - {url: "s3://${TEST_BUCKET}/shared?endpoint=${s3.endpoint}", projects: [a, b], access: read}
${more}`
    const env = { A_ID: 'a-id', A_SECRET: 'a', AWS_ACCESS_KEY_ID: 'id', AWS_SECRET_ACCESS_KEY: 'secret' }
    const service = await TestService.start(configFor(upstream.base_url, buckets), {
      project: 'a',
      env,
      ...options,
      buckets: { schedule: (_, now) => now, part_bytes: PART, ...options.buckets },
    })
    return new BucketTest(upstream, s3, service)
  }

  /** Puts an object in place of what is there. */
  object(key: string, content: string | Buffer): void {
    this.s3.objects.set(key, { bytes: Buffer.from(content), modified: Date.now() })
  }

  create(order: object): Promise<WireBatch> {
    return this.service.json<WireBatch>('POST', '/v1/batches', order)
  }

  /** Status and code of a call that is refused. */
  async refused(order: object, query = ''): Promise<string> {
    const answer = await this.service.request('POST', `/v1/batches${query}`, order)
    const { error } = (await answer.json()) as { error?: { code: string; param?: string } }
    return `${answer.status} ${error?.code} ${error?.param}`
  }

  file(batch: WireBatch): Promise<WireFile> {
    return this.service.json<WireFile>('GET', `/v1/files/${batch.input_file_id}`)
  }

  /** Once its results are in their bucket, or will not be. */
  async written({ id }: WireBatch): Promise<WireBatch> {
    return await this.service.eventually(async () => {
      const batch = await this.service.get(id)
      return batch.output_url_status === 'pending' ? undefined : batch
    })
  }

  text(key: string): string | undefined {
    return this.s3.objects.get(key)?.bytes.toString()
  }

  async events(): Promise<{ type: string; data: Record<string, unknown> }[]> {
    return (
      await this.service.json<{ data: { type: string; data: Record<string, unknown> }[] }>(
        'GET',
        '/v1/events',
      )
    ).data
  }

  /** Blobs that can be opened. */
  async openBlobs(part: string): Promise<number> {
    const rows = await this.service.stores.store.read
      .selectFrom('blobs')
      .select('key')
      .where('deletion_pending_since', 'is', null)
      .execute()
    return rows.filter(({ key }) => key.includes(part)).length
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.s3.fault = () => null
    await this.service[Symbol.asyncDispose]()
    await this.s3[Symbol.asyncDispose]()
    await this.upstream.close()
  }
}

/** Valid lines of a KiB each. */
function lines(count: number): string {
  return Array.from({ length: count }, (_, i) => {
    const text = JSON.stringify(line(`l${i}`))
    return `${text.slice(0, -1).padEnd(1022)}}\n`
  }).join('')
}

const problem = ({ errors }: WireBatch) =>
  (errors as { data: { code: string; message: string; param: string }[] } | undefined)?.data[0]

test('a batch takes its input from a bucket and writes its results to one', async () => {
  await using world = await BucketTest.start({ worker: false })
  const { service } = world
  const input = [line('a'), line('b'), { ...line('c'), body: { model: 'none', messages: [] } }]
  const content = input.map((one) => JSON.stringify(one)).join('\n')
  world.object('team-a/2026/in put.jsonl', content)
  const order = { ...ORDER, input_url: `${URL}/2026/in put.jsonl`, output_url: `${URL}/out` }
  const batch = await world.create(order)
  assert.deepEqual(
    [batch.status, batch.request_counts.total, batch.input_url, batch.output_url, batch.output_url_status],
    ['validating', 0, order.input_url, order.output_url, 'pending'],
  )
  assert.equal(world.s3.requests.length, 0, 'the API waits for no bucket')
  const pending = await world.file(batch)
  assert.deepEqual(
    [pending.status, pending.filename, pending.bytes, pending.source],
    ['pending', 'in put.jsonl', 0, { url: order.input_url, etag: null }],
  )
  const read = await service.request('GET', `/v1/files/${pending.id}/content`)
  assert.equal(read.status, 422)
  await service.worker.start()
  const ended = await world.written(await service.ended(batch.id))
  assert.deepEqual(
    [ended.status, ended.request_counts, ended.output_url_status, ended.output_url_error],
    ['completed', { total: 3, completed: 2, failed: 1 }, 'delivered', null],
  )
  assert.equal(await service.content(batch.input_file_id), content)
  assert.equal(world.text(`team-a/out/${batch.id}/output.jsonl`), await service.content(ended.output_file_id))
  assert.equal(world.text(`team-a/out/${batch.id}/errors.jsonl`), await service.content(ended.error_file_id))
  const [event] = await world.events()
  assert.deepEqual(
    [event?.type, event?.data],
    [
      'batch.output_delivered',
      {
        id: batch.id,
        batch_id: batch.id,
        output_url: order.output_url,
        output_url_status: 'delivered',
        output_url_error: null,
      },
    ],
  )
  const signed = world.s3.requests.map(({ headers }) => headers.authorization ?? '')
  assert.ok(
    signed.every((text) => text.includes('a-id')),
    'with the credentials of the prefix',
  )
})

test('a large input is fetched in parts of one content, and its parts are deleted', async () => {
  await using world = await BucketTest.start()
  const content = lines(130)
  world.object('team-a/in.jsonl', content)
  const batch = await world.service.ended((await world.create(IN)).id)
  assert.deepEqual([batch.status, batch.request_counts.completed], ['completed', 130])
  assert.equal(await world.service.content(batch.input_file_id), content)
  const gets = world.s3.requests.filter(({ method }) => method === 'GET')
  assert.deepEqual(
    gets.map(({ headers }) => headers.range),
    ['bytes=0-65535', 'bytes=65536-131071', 'bytes=131072-133119'],
  )
  const { source } = await world.file(batch)
  assert.ok(gets.every(({ headers }) => headers['if-match'] === (source as { etag: string }).etag))
  assert.equal(await world.openBlobs('/part'), 0)
})

test('an input that cannot be had makes a batch that fails, and says why', async () => {
  const limits = 'limits: {file_bytes_max: 100KiB, line_bytes_max: 2KiB}'
  await using world = await BucketTest.start({}, limits)
  const { service, s3 } = world
  world.object('team-a/large', Buffer.alloc(101 * 1024))
  world.object('team-a/packed', Buffer.from('1f8b0800000000000003', 'hex'))
  world.object('team-a/empty', '')
  world.object('team-a/replaced', lines(70))
  s3.fault = ({ key, headers }) => {
    // By another one of the same size, between two parts.
    if (key === 'team-a/replaced' && headers.range?.startsWith('bytes=65536-'))
      world.object(key, Buffer.alloc(70 * 1024))
    return key === 'team-a/closed' ? { status: 403, code: 'AccessDenied' } : null
  }
  const cases: [name: string, code: string, message: RegExp][] = [
    ['missing', 'input_url_failed', /missing was not fetched: there is no such object\. Check/],
    ['closed', 'input_url_failed', /allows the service no access to it/],
    ['large', 'payload_too_large', /large has 103424 bytes; a file has at most 102400/],
    ['packed', 'invalid_request', /compressed \(gzip\)/],
    ['empty', 'empty_file', /contains no request/],
    ['replaced', 'input_url_failed', /it was replaced while it was fetched/],
  ]
  await Promise.all(
    cases.map(async ([name, code, message]) => {
      const batch = await service.ended((await world.create({ ...IN, input_url: `${URL}/${name}` })).id)
      const file = await world.file(batch)
      assert.deepEqual([batch.status, file.status, file.bytes], ['failed', 'error', 0], name)
      assert.equal(problem(batch)?.code, code)
      assert.match(problem(batch)?.message ?? '', message)
      assert.match(file.status_details ?? '', message)
    }),
  )
  assert.equal(await world.openBlobs('/part'), 0)
})

test('a bucket that sends whole objects alone can be read as long as they are one part', async () => {
  await using world = await BucketTest.start()
  const { service, s3 } = world
  world.object('team-a/in.jsonl', JSON.stringify(line('a')))
  world.object('team-a/large', lines(70))
  s3.fault = ({ headers }) => {
    delete headers.range
    return null
  }
  assert.equal((await service.ended((await world.create(IN)).id)).status, 'completed')
  const before = s3.requests.length
  const batch = await service.ended((await world.create({ ...IN, input_url: `${URL}/large` })).id)
  assert.deepEqual([batch.status, problem(batch)?.code], ['failed', 'input_url_failed'])
  assert.match(problem(batch)?.message ?? '', /large was not fetched: .* ignores `Range`.* POST \/v1\/files/)
  const methods = s3.requests.slice(before).map(({ method }) => method)
  assert.deepEqual(methods, ['HEAD', 'GET'], 'it is fetched once')
  assert.equal(await world.openBlobs(batch.input_file_id), 0)
})

test('a bucket that is down for a while delays a batch', async () => {
  await using world = await BucketTest.start()
  world.object('team-a/in.jsonl', JSON.stringify(line('a')))
  let down = 6
  world.s3.fault = () => (down-- > 0 ? { status: 503, code: 'SlowDown' } : null)
  const batch = await world.service.ended((await world.create(IN)).id)
  assert.equal(batch.status, 'completed')
})

test('a project may use its own prefixes alone, and no path leaves them', async () => {
  await using world = await BucketTest.start({ worker: false })
  const { service } = world
  const other = `s3://${TEST_BUCKET}/team-b/x.jsonl`
  assert.equal(await world.refused({ ...IN, input_url: other }), '403 bucket_not_allowed input_url')
  const out = { ...IN, output_url: `s3://${TEST_BUCKET}/shared/` }
  assert.equal(await world.refused(out), '403 bucket_not_allowed output_url')
  for (const path of ['../team-b/x', '%2e%2e/team-b/x', 'a%2fb', 'a//b', ''])
    assert.equal(
      await world.refused({ ...IN, input_url: `${URL}/${path}` }),
      '400 invalid_request input_url',
      path,
    )
  assert.equal(await world.refused({ ...IN, input_file_id: 'file_x' }), '400 invalid_request input_url')
  assert.equal(await world.refused(IN, '?dry_run=true'), '400 invalid_request input_url')
  const { store } = service.stores
  const key = (project: string, scopes: Parameters<typeof createKey>[3]['scopes']) =>
    createKey(store, store.clock, 'local', { project, plan: 'payg', scopes })
  const own = service.key
  service.key = (await key('b', ['batches:write', 'files:write'])).key
  assert.equal(await world.refused(IN), '403 bucket_not_allowed input_url')
  assert.equal(
    (await world.create({ ...IN, input_url: `s3://${TEST_BUCKET}/shared/x` })).status,
    'validating',
  )
  service.key = (await key('a', ['batches:write'])).key
  assert.match(await world.refused(IN), /^403 missing_scope/)
  service.key = (await key('a', ['batches:write', 'files:write'])).key
  assert.match(await world.refused({ ...IN, output_url: `${URL}/` }), /^403 missing_scope/)
  service.key = own
  assert.equal(world.s3.requests.length, 0)
})

test('a repeated call makes one batch, whose input counts in the quota of its project', async () => {
  const plan = 'plans: {payg: {quotas: {stored_bytes: 1KiB}}}'
  await using world = await BucketTest.start({}, plan)
  const { service } = world
  world.object('team-a/in.jsonl', JSON.stringify(line('a', 'x'.repeat(2000))))
  const create = async () => {
    const answer = await service.request('POST', '/v1/batches', IN, { 'idempotency-key': 'once' })
    return ((await answer.json()) as WireBatch).id
  }
  const id = await create()
  assert.equal(await create(), id)
  const { data } = await service.json<{ data: WireFile[] }>('GET', '/v1/files')
  assert.equal(data.length, 1)
  const batch = await service.ended(id)
  assert.deepEqual([batch.status, problem(batch)?.code], ['failed', 'quota_exceeded'])
})

test('a cancel, the end of its window and the deletion of the file end a batch whose input is being fetched', async () => {
  await using world = await BucketTest.start()
  const { service, s3 } = world
  const { store } = service.stores
  world.object('team-a/in.jsonl', lines(70))
  for (const how of ['cancelled', 'expired', 'failed'] as const) {
    const reached = Promise.withResolvers<void>()
    const released = Promise.withResolvers<null>()
    s3.fault = ({ headers }) => {
      if (!headers.range?.startsWith('bytes=65536-')) return null
      reached.resolve()
      return released.promise
    }
    const batch = await world.create(IN)
    await reached.promise
    assert.equal(await world.openBlobs('/part'), 1, 'one part is here, and the other on its way')
    if (how === 'cancelled') await service.json('POST', `/v1/batches/${batch.id}/cancel`)
    if (how === 'expired')
      await store.write((tx) =>
        tx.updateTable('batches').set({ expires_at: 1 }).where('id', '=', batch.id).execute(),
      )
    if (how === 'failed') await service.json('DELETE', `/v1/files/${batch.input_file_id}`)
    assert.equal((await service.ended(batch.id)).status, how)
    released.resolve(null)
    await service.eventually(async () => ((await world.openBlobs('files/')) === 0 ? true : undefined))
  }
})

test('results that cannot be written are tried again, and leave no upload behind', async () => {
  await using world = await BucketTest.start()
  const { service, s3 } = world
  world.object('team-a/in.jsonl', JSON.stringify(line('a')))
  let failures = 2
  const isWrite = (method: string) => method === 'POST' || method === 'PUT'
  const released = Promise.withResolvers<null>()
  s3.fault = ({ method }) => {
    if (!isWrite(method)) return null
    return failures-- > 0 ? { status: 403, code: 'AccessDenied' } : released.promise
  }
  const batch = await world.create({ ...IN, output_url: `${URL}/` })
  const key = `team-a/${batch.id}/output.jsonl`
  // Of an attempt whose worker crashed.
  s3.uploads.set('left', { key, initiated: Date.now(), parts: new Map() })
  const seen = await service.eventually(async () => {
    const { output_url_error } = await service.get(batch.id)
    return output_url_error ?? undefined
  })
  assert.equal(seen, 'the bucket answered 403 AccessDenied')
  released.resolve(null)
  const ended = await world.written(batch)
  assert.deepEqual([ended.output_url_status, ended.output_url_error], ['delivered', null])
  assert.equal(world.text(key), await service.content(ended.output_file_id))
  assert.equal(s3.uploads.size, 0)
  const puts = s3.requests.filter(({ method }) => method === 'PUT')
  assert.ok(puts.every(({ headers }) => headers['content-md5'] !== undefined))
})

test('results that could not be written for days, or are deleted before, fail with an event', async () => {
  let next: number | null = 0
  await using world = await BucketTest.start({ buckets: { schedule: () => next } })
  const { service } = world
  world.object('team-a/in.jsonl', JSON.stringify(line('a')))
  world.s3.fault = ({ method }) => (method === 'PUT' ? { status: 404, code: 'NoSuchBucket' } : null)
  const order = { ...IN, output_url: `${URL}/out/` }
  const first = await service.ended((await world.create(order)).id)
  await service.json('DELETE', `/v1/files/${first.output_file_id}`)
  const deleted = await world.written(first)
  next = null
  const late = await world.written(await world.create(order))
  for (const [batch, error] of [
    [deleted, 'the result file was deleted before it was written'],
    [late, 'the bucket answered 404 NoSuchBucket'],
  ] as const) {
    const { status, output_url_status, output_url_error } = batch
    assert.deepEqual([status, output_url_status, output_url_error], ['completed', 'failed', error])
    const event = (await world.events()).find(
      ({ type, data }) => type === 'batch.output_failed' && data.id === batch.id,
    )
    assert.equal(event?.data.output_url_error, error)
  }
})

test('results that were not written are written again when asked, also to another place', async () => {
  await using world = await BucketTest.start({ buckets: { schedule: () => null } })
  const { service, s3 } = world
  const { store } = service.stores
  world.object('team-a/in.jsonl', JSON.stringify(line('a')))
  s3.fault = ({ method }) => (method === 'PUT' ? { status: 403, code: 'AccessDenied' } : null)
  const failed = await world.written(await world.create({ ...IN, output_url: `${URL}/out/` }))
  assert.equal(failed.output_url_status, 'failed')
  const again = (order?: object) => service.json<WireBatch>('POST', `/v1/batches/${failed.id}/export`, order)
  const tasks = () => store.read.selectFrom('tasks').selectAll().where('kind', '=', 'export').execute()
  const asked = await again()
  assert.deepEqual([asked.output_url_status, asked.output_url_error], ['pending', null])
  assert.deepEqual((await world.written(failed)).output_url_status, 'failed')
  // While an attempt is on its way to the old place.
  const reached = Promise.withResolvers<void>()
  const released = Promise.withResolvers<null>()
  s3.fault = ({ key, method }) => {
    if (method !== 'PUT' || !key.startsWith('team-a/out/')) return null
    reached.resolve()
    return released.promise
  }
  await again()
  await reached.promise
  await Promise.all([again({ output_url: `${URL}/b` }), again({ output_url: `${URL}/b` })])
  assert.equal((await tasks()).length, 1)
  released.resolve(null)
  const written = await world.written(failed)
  assert.deepEqual([written.output_url, written.output_url_status], [`${URL}/b`, 'delivered'])
  const content = await service.content(written.output_file_id)
  assert.equal(world.text(`team-a/b/${failed.id}/output.jsonl`), content)
  // What was written is lost.
  s3.objects.clear()
  await again()
  await world.written(failed)
  assert.equal(world.text(`team-a/b/${failed.id}/output.jsonl`), content)
  assert.equal((await tasks()).length, 0)
  await service.json('DELETE', `/v1/files/${written.output_file_id}`)
  const gone = await service.request('POST', `/v1/batches/${failed.id}/export`)
  assert.deepEqual([gone.status, (await gone.text()).includes('were deleted, or have expired')], [404, true])
  assert.equal((await service.get(failed.id)).output_url_status, 'delivered')
})

test('a batch gets an output_url later, under a prefix of its project and with the scopes for it', async () => {
  await using world = await BucketTest.start({ worker: false })
  const { service } = world
  world.object('team-a/in.jsonl', JSON.stringify(line('a')))
  const batch = await world.create(IN)
  const again = async (order?: object): Promise<string> => {
    const answer = await service.request('POST', `/v1/batches/${batch.id}/export`, order)
    const { error } = (await answer.json()) as { error?: { code: string; param?: string } }
    return `${answer.status} ${error?.code} ${error?.param}`
  }
  assert.equal(await again(), '422 batch_not_exportable undefined')
  const shared = { output_url: `s3://${TEST_BUCKET}/shared/` }
  assert.equal(await again(shared), '403 bucket_not_allowed output_url')
  const own = service.key
  service.key = await service.issueKey(['batches:write'])
  assert.match(await again({ output_url: URL }), /^403 missing_scope/)
  service.key = own
  assert.equal(await again({ output_url: URL }), '200 undefined undefined')
  await service.worker.start()
  const ended = await world.written(batch)
  assert.deepEqual([ended.status, ended.output_url_status], ['completed', 'delivered'])
  assert.ok(world.text(`team-a/${batch.id}/output.jsonl`))
})

test('a retry writes where its batch did as long as its key and its project may, or elsewhere, or nowhere', async () => {
  await using world = await BucketTest.start()
  const { service } = world
  const failing = { ...line('b'), body: { model: 'none', messages: [] } }
  const order = { ...ORDER, requests: [line('a'), failing], output_url: `${URL}/out/` }
  const batch = await service.ended((await world.create(order)).id)
  const retry = async (body: object, key = ''): Promise<string> => {
    const headers: Record<string, string> = key === '' ? {} : { 'idempotency-key': key }
    const answer = await service.request('POST', `/v1/batches/${batch.id}/retry`, body, headers)
    const { error, output_url } = (await answer.json()) as {
      error?: { code: string; param?: string }
      output_url?: string
    }
    return [answer.status, error?.code, error?.param ?? output_url].filter(Boolean).join(' ')
  }
  assert.equal(await retry({}), `200 ${URL}/out/`)
  assert.equal(await retry({ output_url: `${URL}/b` }, 'once'), `200 ${URL}/b`)
  assert.equal(await retry({ output_url: null }, 'none'), '200')
  assert.equal(await retry({}, 'none'), '409 idempotency_key_reused')
  const elsewhere = { output_url: `s3://${TEST_BUCKET}/shared/` }
  assert.equal(await retry(elsewhere), '403 bucket_not_allowed output_url')
  const own = service.key
  service.key = await service.issueKey(['batches:write'])
  assert.match(await retry({}), /^403 missing_scope/, 'it may read no results')
  assert.equal(await retry({ output_url: null }), '200')
  service.key = own
  // Of a prefix that the operator has taken away since.
  const { store } = service.stores
  const gone = `s3://${TEST_BUCKET}/team-b/`
  await store.write((tx) =>
    tx.updateTable('batches').set({ output_url: gone }).where('id', '=', batch.id).execute(),
  )
  assert.equal(await retry({}), '403 bucket_not_allowed output_url')
})

test('an export that fails after another worker has ended it changes nothing', async () => {
  await using world = await BucketTest.start()
  const { store, sealed } = world.service.stores
  world.object('team-a/in.jsonl', JSON.stringify(line('a')))
  const batch = await world.create({ ...IN, output_url: `${URL}/` })
  await world.written(batch)
  const { id } = batch
  const status = (output_url_status: 'pending' | 'delivered') =>
    store.write((tx) => setBatch(tx, id, { output_url_status }))
  await status('pending')
  const project_id = 'another worker has ended the task'
  const task = { id: 'task_1', kind: 'export', subject: id, project_id, state: 'leased', epoch: 1 } as const
  const lost = {
    ...task,
    ...{ large: 0, worker_id: 'w', attempts: 1, last_error: null, run_at: 0, created: Date.now() },
  }
  const openBucket = async (): Promise<never> => {
    await status('delivered')
    throw new Error('the connection broke')
  }
  const deps = { store, sealed, clock: store.clock, random: () => 0, openBucket }
  await exportResults(deps, lost, new AbortController().signal)
  assert.equal((await world.service.get(id)).output_url_status, 'delivered')
})
