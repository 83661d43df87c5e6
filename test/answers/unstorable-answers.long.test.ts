// Text that no database can store, in everything that other servers say. Whatever they say, a batch ends, a cancel ends it,
// and what was said can be read. PostgreSQL rejects more than SQLite, and is used where it is installed.
import assert from 'node:assert/strict'
import { after, describe, test } from 'node:test'
import { BatchServer, type RemoteAnswer, type RemoteCall } from '../fakes/batch-server.ts'
import { withoutPostgres } from '../fakes/postgres-server.ts'
import { testReceiver } from '../fakes/receiver.ts'
import { sharedStorage } from '../fakes/shared-storage.ts'
import { echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

if (!withoutPostgres) {
  const storage = await sharedStorage()
  after(() => storage[Symbol.asyncDispose]())
  TestService.storage = () => storage.make()
}

const TEXTS: Readonly<Record<string, string>> = {
  'U+0000': 'a\0b',
  'unpaired surrogates': '\udc00a\ud800',
  'a text that is longer than an index takes': Array.from({ length: 2_000 }, (_, i) =>
    (i ** 3).toString(36),
  ).join(''),
}

const LINES = Array.from({ length: 4 }, (_, i) => line(`l${i}`))

function remoteConfig({ base_url }: BatchServer): string {
  return `
models:
  - id: m
    upstreams: [{type: openai-batch, name: provider, base_url: "${base_url}", timeout: 500ms}]
retry: {attempts_max: 2, backoff_min: 5ms, backoff_max: 20ms, outage_patience: 100ms}
worker: {flush_interval: 20ms, lease: 2s}`
}

/** Every page on which a batch, or what was said about it, may be shown. */
async function isReadable(service: TestService, id: string): Promise<void> {
  for (const path of ['', '/lines', '/timeline', '/results']) {
    const answer = await service.request('GET', `/v1/batches/${id}${path}`)
    assert.equal(answer.status, 200, `${path}: ${await answer.text()}`)
  }
  const own = service.key
  service.key = await service.operatorKey()
  assert.equal((await service.request('GET', '/v1/status')).status, 200)
  service.key = own
}

type Body = Record<string, unknown>
type Change = (call: RemoteCall, body: Body, text: string) => Body

const isUpload = ({ method, path }: RemoteCall): boolean => method === 'POST' && path === '/files'
const isCreation = ({ method, path }: RemoteCall): boolean => method === 'POST' && path === '/batches'
const isLook = ({ method, path }: RemoteCall): boolean => method === 'GET' && /^\/batches\/./.test(path)

const BATCH_API: Readonly<Record<string, Change>> = {
  'the ID of a file': (call, body, id) => (isUpload(call) ? { ...body, id } : body),
  'the ID of a batch': (call, body, id) => (isCreation(call) ? { ...body, id } : body),
  'the status of a batch': (call, body, status) =>
    isLook(call) && body.status === 'in_progress' ? { ...body, status } : body,
  'the failure of a batch': (call, body, message) =>
    isLook(call) ? { ...body, status: 'failed', errors: { data: [{ code: message, message }] } } : body,
  'the ID of an output file': (call, body, output_file_id) =>
    isLook(call) ? { ...body, output_file_id, error_file_id: output_file_id } : body,
  'counts and costs': (call, body, text) =>
    isLook(call) ? { ...body, request_counts: { [text]: text, completed: text }, cost_usd: text } : body,
}

for (const [what, text] of Object.entries(TEXTS))
  describe(what, { concurrency: 4 }, () => {
    for (const [where, change] of Object.entries(BATCH_API))
      test(`${what} in ${where} of a batch API: the batch ends, and so does a cancelled one`, async () => {
        const answer = (call: RemoteCall, usual: () => RemoteAnswer): RemoteAnswer => {
          const done = usual()
          return {
            ...done,
            body: typeof done.body === 'object' ? change(call, done.body as Body, text) : done.body,
          }
        }
        await using remote = await BatchServer.start({ answer })
        await using service = await TestService.start(remoteConfig(remote))
        const file = await service.upload(LINES.map((one) => JSON.stringify(one)).join('\n'))
        const { id } = await service.create(file.id)
        // A batch API that does not know its own IDs, or fails every batch, answers nothing until the batch is cancelled.
        let isCancelled = /^the (status|failure)|^the ID of a batch/.test(where)
        remote.faults.holds = where.startsWith('the status')
        if (isCancelled) {
          // An ID that cannot be sent is never looked for.
          await remote.until(() => remote.calls.length > 3 || undefined)
          await isReadable(service, id)
          const { status } = await service.request('POST', `/v1/batches/${id}/cancel`)
          // Its lines may have failed before.
          isCancelled = status !== 422
        }
        const batch = await service.ended(id)
        assert.equal(batch.status, isCancelled ? 'cancelled' : 'completed')
        await isReadable(service, id)
      })

    test(`${what} in the results of a batch API`, async () => {
      const output = (lines: string[]): string =>
        lines
          .map((one, i) => {
            const result = JSON.parse(one)
            const error = { code: text, message: text, type: text, param: text }
            if (i === 0) return JSON.stringify({ ...result, response: null, error })
            if (i === 1)
              return JSON.stringify({
                ...result,
                response: null,
                error: { ...error, type: 'invalid_request_error' },
              })
            if (i === 2) return JSON.stringify({ ...result, response: { status_code: 500, body: { error } } })
            result.response.body.choices[0].message.content = text
            return JSON.stringify(result)
          })
          .join('\n')
      await using remote = await BatchServer.start({ output })
      await using service = await TestService.start(remoteConfig(remote))
      const batch = await service.run(LINES)
      assert.equal(batch.status, 'completed')
      await isReadable(service, batch.id)
      const [answered] = await service.lines(batch.output_file_id)
      assert.equal(answered?.response?.body.choices[0]?.message.content, text)
    })

    test(`${what} in the errors and answers of a model server`, async () => {
      const error = { message: text, type: text, code: text, param: text }
      await using upstream = await testUpstream((call) => {
        const content = call.body.messages[0]?.content
        if (content === 'answer')
          return echo({ ...call, body: { ...call.body, messages: [{ role: 'user', content: text }] } })
        send(call.response, Number(content), JSON.stringify({ error }), { 'x-request-id': 'a' })
      })
      await using service = await TestService.start(configFor(upstream.base_url))
      const lines = ['400', '404', '413', '422', '500', 'answer'].map((content) => line(content, content))
      const file = await service.upload(lines.map((one) => JSON.stringify(one)).join('\n'))
      const { id } = await service.create(file.id)
      await isReadable(service, id)
      const batch = await service.ended(id)
      assert.deepEqual([batch.status, batch.request_counts.completed], ['completed', 1])
      await isReadable(service, id)
    })

    test(`${what} in the answer of a webhook's receiver`, async () => {
      await using upstream = await testUpstream(echo)
      await using receiver = await testReceiver()
      receiver.answer = ({ response }) => {
        response.writeHead(receiver.received.length === 1 ? 500 : 410).end(JSON.stringify(text) + text)
      }
      await using service = await TestService.start(
        `${configFor(upstream.base_url)}\nwebhooks: {allow_private_networks: true}`,
        { delivery: { schedule: (_: unknown, now: number) => now } },
      )
      const { id } = await service.json<{ id: string }>('POST', '/v1/webhooks', { url: receiver.url })
      await service.run([line('a')])
      const [delivery] = await service.eventually(async () => {
        const { data } = await service.json<{ data: { status: string; last_error: string }[] }>(
          'GET',
          `/v1/webhooks/${id}/deliveries`,
        )
        return data.length > 0 && data.every(({ status }) => status === 'failed') ? data : undefined
      })
      assert.match(delivery!.last_error, /^status 410/)
    })

    test(`${what} in the headers, names and paths of calls`, async () => {
      await using upstream = await testUpstream(echo)
      await using service = await TestService.start(configFor(upstream.base_url))
      const bytes = Buffer.from(text.toWellFormed().replaceAll('\0', '')).toString('latin1').slice(0, 4_000)
      const names = ['user-agent', 'x-request-id', 'traceparent', 'accept-language', 'idempotency-key']
      for (const name of names) {
        const answer = await service.request('GET', '/v1/batches', undefined, { [name]: bytes })
        assert.ok(answer.status < 500, `${name}: ${answer.status} ${await answer.text()}`)
      }
      const path = encodeURIComponent(text.toWellFormed()).slice(0, 4_000)
      for (const url of [`/v1/batches/${path}`, `/v1/${path}`, `/v1/batches?status=${path}`]) {
        const answer = await service.request('GET', url)
        assert.ok(answer.status >= 400 && answer.status < 500, `${url.slice(0, 40)}: ${answer.status}`)
      }
      const file = await service.upload(JSON.stringify(line('a')), text)
      assert.equal(file.status, 'processed')
      const { data } = await service.json<{ data: object[] }>('GET', '/v1/requests')
      assert.ok(data.length > 0)
    })
  })
