// Retries and tables whose lines take long to make: the call answers with its batch, and a worker goes on.
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { type TestContext, test } from 'node:test'
import { freePort } from '../../src/engines/engine-access.ts'
import { folderOf, NGINX, startNginx } from '../fakes/programs.ts'
import { echo, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService, type WireBatch, type WireFile } from '../service.ts'
import { uploadForm } from '../support/api.ts'

type Failed = WireBatch & { errors: { data: { code: string; message: string; param: string | null }[] } }

/** Lines that are being made wait until they are released; a call waits for them for a moment only. */
class Slow implements AsyncDisposable {
  readonly service: TestService
  readonly upstream: Awaited<ReturnType<typeof testUpstream>>
  #release = Promise.withResolvers<void>()
  #held = Promise.withResolvers<void>()
  #fails = 0

  private constructor(service: TestService, upstream: Awaited<ReturnType<typeof testUpstream>>) {
    this.service = service
    this.upstream = upstream
    const { sealed } = service.stores
    const put = sealed.put.bind(sealed)
    sealed.put = async (project_id, key, content) => {
      if (key.includes('/made-')) {
        this.#held.resolve()
        await this.#release.promise
        if (this.#fails-- > 0) throw new Error('the worker is killed')
      }
      return await put(project_id, key, content)
    }
  }

  static async start(): Promise<Slow> {
    const upstream = await testUpstream(echo)
    const yaml = `${configFor(upstream.base_url)}\ncreate: {wait_for_file: 20ms}\n`
    return new Slow(await TestService.start(yaml), upstream)
  }

  /** The lines are being made. */
  get held(): Promise<void> {
    return this.#held.promise
  }

  release(fails = 0): void {
    this.#fails = fails
    this.#release.resolve()
  }

  async failedBatch(lines = 3): Promise<string> {
    const rows = Array.from({ length: lines }, (_, i) => line(`x${i}`, 'x', { model: i % 2 ? 'none' : 'm' }))
    return (await this.service.run(rows)).id
  }

  async table(content: string): Promise<WireFile> {
    const form = uploadForm(content, 'rows.csv')
    form.set('purpose', 'table')
    return await this.service.json<WireFile>('POST', '/v1/files', form)
  }

  async post(
    path: string,
    body: object,
    key?: string,
  ): Promise<{ text: string; batch: WireBatch; replayed: boolean }> {
    const headers: Record<string, string> = key === undefined ? {} : { 'idempotency-key': key }
    const answer = await this.service.request('POST', path, body, headers)
    const text = await answer.text()
    assert.equal(answer.status, 200, text)
    return { text, batch: JSON.parse(text), replayed: answer.headers.has('idempotency-replayed') }
  }

  askTable(file: WireFile, key?: string): ReturnType<Slow['post']> {
    const table = { model: 'm', prompt: '{{a}}' }
    return this.post('/v1/batches', { ...ORDER, input_file_id: file.id, table }, key)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.release()
    await this.service[Symbol.asyncDispose]()
    await this.upstream[Symbol.asyncDispose]()
  }
}

const ORDER = { endpoint: '/v1/chat/completions', completion_window: '24h' }

test('a long retry and a long table answer with the batch, replay it, and go on', async () => {
  await using slow = await Slow.start()
  const old = await slow.failedBatch()
  const file = await slow.table('a\n1\n2\n')
  const calls = [
    () => slow.post(`/v1/batches/${old}/retry`, {}, 'a retry'),
    () => slow.askTable(file, 'a table'),
  ]
  const made: WireBatch[] = []
  for (const call of calls) {
    const { text, batch } = await call()
    assert.deepEqual([batch.status, batch.request_counts.total], ['validating', 0])
    const again = await call()
    assert.deepEqual([again.text, again.replayed], [text, true])
    made.push(batch)
  }
  await slow.held
  slow.release()
  const [retry, table] = await Promise.all(made.map(({ id }) => slow.service.ended(id)))
  assert.deepEqual(retry?.request_counts, { total: 1, completed: 0, failed: 1 })
  assert.deepEqual(table?.request_counts, { total: 2, completed: 2, failed: 0 })
  const { data } = await slow.service.json<{ data: object[] }>('GET', '/v1/files?purpose=batch')
  assert.equal(data.length, 3, 'no file is left of the repeated calls')
})

test('lines that were not made when their worker was killed are made by the next', async () => {
  await using slow = await Slow.start()
  const old = await slow.failedBatch()
  const { batch } = await slow.post(`/v1/batches/${old}/retry`, {})
  await slow.held
  slow.release(1)
  assert.equal((await slow.service.ended(batch.id)).request_counts.total, 1)
})

test('what would have been an error of the call is an error of the batch', async () => {
  await using slow = await Slow.start()
  const old = await slow.failedBatch()
  const none = await slow.post(`/v1/batches/${old}/retry`, { codes: ['batch_expired'] })
  const uneven = await slow.askTable(await slow.table('a,b\n1,2\n3\n'))
  const limited = await slow.askTable(await slow.table('a\n1\n'))
  await slow.service.json('POST', '/v1/limits', {
    ...{ scope: 'project', metric: 'tokens', amount: 0, window: 'month' },
  })
  slow.release()
  for (const [{ batch }, code, message] of [
    [none, 'batch_not_retryable', /^The batch has no failed line with batch_expired\.$/],
    [uneven, 'invalid_request', /^rows\.csv, line 3: this row has more or fewer cells/i],
    [limited, 'usage_limit_exceeded', /limit/],
  ] as const) {
    const { status, errors } = (await slow.service.ended(batch.id)) as Failed
    assert.equal(status, 'failed')
    assert.equal(errors.data[0]?.code, code)
    assert.match(errors.data[0]?.message ?? '', message)
  }
  assert.equal(slow.upstream.calls.length, 2, 'those of the batch that is retried')
})

test('a batch that is cancelled while its lines are made ends at once, and its lines are not made', async () => {
  await using slow = await Slow.start()
  const { batch } = await slow.askTable(await slow.table('a\n1\n'))
  await slow.held
  await slow.service.json('POST', `/v1/batches/${batch.id}/cancel`)
  assert.equal((await slow.service.ended(batch.id)).status, 'cancelled')
  slow.release(1)
  const file = await slow.service.eventually(async () => {
    const found = await slow.service.json<WireFile>('GET', `/v1/files/${batch.input_file_id}`)
    return found.status === 'pending' ? undefined : found
  })
  assert.match(file.status_details ?? '', /^Its lines were not made: its batch has ended before\.$/)
})

test('nginx with its default timeouts passes the ID on', {
  skip: existsSync(NGINX) ? false : 'nginx is not installed',
}, async (t: TestContext) => {
  await using slow = await Slow.start()
  const port = await freePort()
  const http = `server { listen 127.0.0.1:${port}; location / { proxy_pass ${slow.service.url}; } }`
  await startNginx(t, await folderOf(t), http, port)
  const old = await slow.failedBatch()
  const answer = await fetch(`http://127.0.0.1:${port}/v1/batches/${old}/retry`, {
    method: 'POST',
    headers: { authorization: `Bearer ${slow.service.key}` },
  })
  assert.equal(answer.status, 200)
  const { id } = (await answer.json()) as WireBatch
  slow.release()
  assert.equal((await slow.service.ended(id)).request_counts.total, 1)
})
