// A batch API that misbehaves, one fault at a time: whatever it does, every line is answered or explained, billed once,
// and no batch is created twice that can be found there.
import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { test } from 'node:test'
import type { Log } from '../../src/domain/log.ts'
import {
  BATCH_API_TYPES,
  type BatchApiType,
  BatchServer,
  type Faults,
  type RemoteAnswer,
  type RemoteCall,
  testEachType,
} from '../fakes/batch-server.ts'
import { testUpstream } from '../fakes/upstream.ts'
import { TestService } from '../service.ts'
import { listen } from '../support/listen.ts'

/** Of a line: 10 tokens in, 5 out, in nano-dollars. */
const THERE = 1500
const ELSEWHERE = 3000

interface Case {
  faults: Partial<Faults>
  /** Batches there at the end; 1 unless told. */
  batches?: number
  /** Lines that another upstream had to answer; none unless told. Null: there is no other. */
  elsewhere?: number | null
  /** What the log says of it. */
  says?: RegExp
  /** The only type that can be so. */
  only?: BatchApiType
}

const isCreate = ({ method, path }: { method: string; path: string }): boolean =>
  method === 'POST' && path === '/batches'
const isContent = ({ path }: { path: string }): boolean => /\/(content|results)$/.test(path)
const isList = ({ method, path }: { method: string; path: string }): boolean =>
  method === 'GET' && path === '/batches'
const isLook = ({ method, path }: { method: string; path: string }): boolean =>
  method === 'GET' && /^\/batches\/batch-\d+$/.test(path)
const refused = (status: number, message: string, headers = {}): RemoteAnswer => ({
  status,
  headers,
  body: { error: { message } },
})
const withBody = (
  answer: RemoteAnswer,
  change: (body: Record<string, unknown>) => unknown,
): RemoteAnswer => ({
  ...answer,
  body: change(answer.body as Record<string, unknown>),
})
const each =
  (change: (line: string, i: number) => string | string[]) =>
  (lines: string[]): string =>
    `${lines.flatMap(change).join('\n')}\n`

/** Each call takes effect, and is answered so. */
const answered = (
  answer: (call: RemoteCall, done: RemoteAnswer) => RemoteAnswer | 'lost',
): Partial<Faults> => ({
  answer: (call, usual) => answer(call, usual()),
})
/** Creations lose their answers, and lists of batches are answered so. */
const lostAndListed = (list: (done: RemoteAnswer, call: RemoteCall) => RemoteAnswer): Partial<Faults> =>
  answered((call, done) => (isCreate(call) ? 'lost' : isList(call) ? list(done, call) : done))

const CASES: Record<string, Case> = {
  'a creation is answered 500 though it took effect': {
    faults: answered((call, done) => (isCreate(call) ? refused(500, 'oops') : done)),
  },
  'a creation is answered with HTML though it took effect': {
    faults: answered((call, done) => (isCreate(call) ? { status: 200, body: '<html>' } : done)),
  },
  'a creation lost its answer, and the list forgets metadata': {
    only: 'openai-batch',
    faults: lostAndListed((done) =>
      withBody(done, (body) => ({
        ...body,
        data: (body.data as object[]).map((one) => ({ ...one, metadata: null })),
      })),
    ),
  },
  'a creation lost its answer, and the list shows IDs alone': {
    only: 'openai-batch',
    faults: lostAndListed((done) =>
      withBody(done, (body) => ({ data: (body.data as { id: string }[]).map(({ id }) => ({ id })) })),
    ),
  },
  'a creation lost its answer, and the list comes in pages, oldest first, with times as text': {
    faults: lostAndListed((done, { query }) => {
      const own = (done.body as { data: Record<string, unknown>[] }).data
      const others = Array.from({ length: 250 }, (_, i) => ({
        id: `other-${i}`,
        status: 'completed',
        input_file_id: 'f',
        metadata: {},
        created_at: i < 120 ? '2020-01-01T00:00:00Z' : '1600000000',
      }))
      const all = [...others, ...own]
      const after = query.get('after') ?? query.get('after_id')
      const from = after === null ? 0 : all.findIndex(({ id }) => id === after) + 1
      const data = all.slice(from, from + 100)
      return { ...done, body: { object: 'list', data, has_more: from + 100 < all.length } }
    }),
  },
  'a creation lost its answer, and each page of the list is the first one': {
    faults: lostAndListed((done) => withBody(done, (body) => ({ ...body, has_more: true }))),
  },
  'a creation lost its answer, and nothing can be listed': {
    faults: {
      answer: (call, usual) => {
        if (isList(call)) return refused(404, 'no such path')
        const done = usual()
        return isCreate(call) && call.count === 1 ? 'lost' : done
      },
    },
    // Nothing tells whether it is there.
    batches: 2,
    says: /cannot be listed/,
  },
  'an upload is answered 429 with Retry-After': {
    only: 'openai-batch',
    faults: {
      answer: (call, usual) =>
        call.method === 'POST' && call.path === '/files' && call.count < 3
          ? refused(429, 'slow down', { 'retry-after': '0.05' })
          : usual(),
    },
    elsewhere: null,
  },
  'a creation is answered 429 with a date to retry after': {
    faults: {
      answer: (call, usual) =>
        isCreate(call) && call.count < 3
          ? refused(429, 'slow down', { 'retry-after': new Date(Date.now() + 100).toUTCString() })
          : usual(),
    },
    elsewhere: null,
  },
  'the key is refused for a while': {
    faults: {
      answer: (call, usual) =>
        (isCreate(call) && call.count < 8) || (isLook(call) && call.count === 2)
          ? refused(401, 'bad key')
          : usual(),
    },
    elsewhere: null,
  },
  'a batch fails because too many tokens are enqueued, three times': {
    only: 'openai-batch',
    faults: answered((call, done) => {
      if (!isLook(call) || call.count > 3) return done
      return withBody(done, (body) => ({
        ...body,
        status: 'failed',
        errors: {
          object: 'list',
          data: [{ code: 'token_limit_exceeded', message: 'Enqueued token limit reached', line: null }],
        },
      }))
    }),
    // Each is made again in two; a fourth fault would meet one of either size, as time has it.
    batches: 6,
    elsewhere: null,
  },
  'the status is one that nobody knows, and the batch is done': {
    faults: answered((call, done) => {
      if (!isLook(call)) return done
      return withBody(done, (body) => ({
        ...body,
        status: body.status === 'completed' ? 'all_done_wow' : 'pondering',
        request_counts: body.status === 'completed' ? { total: 20, completed: 20, failed: 0 } : null,
      }))
    }),
    says: /status that is not known/,
  },
  'statuses are spelled otherwise': {
    only: 'openai-batch',
    faults: {
      end: { status: 'cancelled', share: 0.5 },
      answer: (call, usual) => {
        const done = usual()
        const say = { completed: 'SUCCESS', cancelled: 'Canceled' } as Record<string, string>
        return isLook(call)
          ? withBody(done, (body) => ({ ...body, status: say[String(body.status)] ?? body.status }))
          : done
      },
    },
    elsewhere: 10,
  },
  'a batch is completed without any file': {
    faults: { output: () => null },
    elsewhere: 20,
    says: /do not have all of its results yet.*missing/s,
  },
  'the results are named some time after the end': {
    faults: answered((call, done) =>
      isLook(call) && call.count < 4 ? withBody(done, (body) => ({ ...body, output_file_id: null })) : done,
    ),
    says: /do not have all of its results yet/,
  },
  'the output is cut in its last line': {
    faults: { output: (lines) => lines.join('\n').slice(0, -30) },
    elsewhere: 1,
    says: /missing/,
  },
  'the output has lines that are no JSON, or no objects, or results of nobody': {
    faults: {
      output: each((one, i) =>
        i === 3 ? one.replace('"custom_id"', 'custom_id') : [one, '[]', '"x"', 'null'],
      ),
    },
    elsewhere: 1,
  },
  'the output has CRLF, a byte order mark and blank lines': {
    faults: { output: (lines) => `\uFEFF${lines.join('\r\n\r\n')}` },
  },
  'the output has each line three times, first with an error of the server': {
    faults: {
      output: each((one) => [
        one
          .replace('"status_code":200', '"status_code":503')
          .replace('"succeeded","message"', '"errored","error"'),
        one,
        one.replace('"error":null', '"error":{"code":"x","message":"y"}'),
      ]),
    },
  },
  'the output has far more lines than there were requests': {
    faults: {
      output: (lines) =>
        `${Array.from({ length: 20_000 }, (_, i) => lines[0]!.replace(/"custom_id":"[^"]*"/, `"custom_id":"x${i}"`)).join('\n')}\n${lines.join('\n')}\n`,
    },
  },
  'answers have no usage, or an absurd one': {
    faults: {
      output: each((one, i) =>
        i % 2 === 0
          ? one.replace(/"usage":\{[^}]*\}/, '"usage":null')
          : one.replace(
              /"usage":\{[^}]*\}/,
              '"usage":{"prompt_tokens":-5,"completion_tokens":1e300,"total_tokens":"x"}',
            ),
      ),
    },
  },
  'the output is a 404 for a while': {
    faults: {
      answer: (call, usual) => (isContent(call) && call.count < 2 ? refused(404, 'not yet') : usual()),
    },
    elsewhere: null,
  },
  'the output is a 404 for ever': {
    faults: { answer: (call, usual) => (isContent(call) ? refused(404, 'gone') : usual()) },
    elsewhere: 20,
    says: /cannot be read/,
  },
  'the output breaks off in the middle, twice': {
    faults: answered((call, done) => (isContent(call) && call.count < 3 ? { ...done, cutAt: 1500 } : done)),
    elsewhere: null,
    says: /cannot be read/,
  },
  'a batch is cancelled by somebody there': {
    faults: { end: { status: 'cancelled', share: 0.5 } },
    elsewhere: 10,
  },
}

const NAMED_CASES = BATCH_API_TYPES.flatMap((type) =>
  Object.entries(CASES)
    .filter(([, { only = type }]) => only === type)
    .map(([name, one]) => ({ name: `${type}: ${name}`, type, ...one })),
)

for (const { name, type, faults, batches = 1, elsewhere = 0, says } of NAMED_CASES)
  test(name, async () => {
    await using remote = await BatchServer.start(faults, type)
    await using hosted = await testUpstream()
    const said: string[] = []
    const note = (fields: object, message: string): void =>
      void said.push(`${message} ${JSON.stringify(fields)}`)
    const log: Log = { info: note, warn: note, error: note }
    const other = `      - {type: openai, name: hosted, base_url: "${hosted.base_url}", tier: 1}`
    const yaml = config(remote, elsewhere === null ? '' : other)
    await using service = await TestService.start(yaml, { log, endpoint: remote.endpoint })
    const batch = await service.run(remote.lines(20))
    assert.deepEqual(batch.request_counts, { total: 20, completed: 20, failed: 0 })
    assert.equal(remote.batches.size, batches)
    assert.equal(hosted.calls.length, elsewhere ?? 0)
    if (!/usage/.test(name)) {
      const there = 20 - (elsewhere ?? 0)
      assert.equal(Math.round(batch.cost_usd * 1e9), there * THERE + (elsewhere ?? 0) * ELSEWHERE)
    }
    const ids = (await service.lines(batch.output_file_id)).map(({ custom_id }) => custom_id)
    assert.deepEqual(
      ids,
      Array.from({ length: 20 }, (_, i) => `l${i}`),
    )
    if (says) assert.match(said.join('\n'), says)
  })

testEachType('results are read where a redirect leads, without the key', async (type) => {
  const asked: (string | undefined)[] = []
  let content = ''
  const store = createServer((request, response) => {
    asked.push(request.headers.authorization)
    response.end(content)
  })
  await using at = await listen(store)
  await using remote = await BatchServer.start(
    {
      answer: (call, usual) => {
        const done = usual()
        if (!isContent(call)) return done
        content = String(done.body)
        return { status: 302, headers: { location: `${at.url}/signed?x=1` }, body: '' }
      },
    },
    type,
  )
  await using service = await TestService.start(
    config(remote, '').replace(
      'timeout:',
      `headers: {authorization: "Bearer a-key-of-it"}, results_from: "${at.url}", timeout:`,
    ),
    { endpoint: remote.endpoint },
  )
  const batch = await service.run(remote.lines(20))
  assert.equal(batch.request_counts.completed, 20)
  assert.deepEqual(asked, [undefined])
})

testEachType(
  'what a batch leaves there is deleted, also when that fails at first; `keep_files` leaves it',
  async (type) => {
    await using remote = await BatchServer.start(
      {
        answer: (call, usual) =>
          call.method === 'DELETE' && call.count < 3
            ? refused(call.count === 1 ? 500 : 401, 'not now')
            : usual(),
      },
      type,
    )
    const yaml = config(remote, '')
    await using service = await TestService.start(yaml, { endpoint: remote.endpoint })
    await service.run(remote.lines(20))
    await remote.until(() => (remote.files.size === 0 ? true : undefined))
    await using keeping = await TestService.start(yaml.replace('timeout:', 'keep_files: true, timeout:'), {
      endpoint: remote.endpoint,
    })
    await keeping.run(remote.lines(20))
    await keeping.worker.stop()
    assert.equal(remote.files.size, 2)
  },
)

interface Waiting {
  waiting_reason: { code: string; message: string } | null
}

async function reasonOf(service: TestService, id: string, wanted: RegExp): Promise<string> {
  for (;;) {
    const { waiting_reason } = await service.json<Waiting>('GET', `/v1/batches/${id}`)
    if (wanted.test(waiting_reason?.message ?? '')) return waiting_reason!.code
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

testEachType('the waiting reason tells how the batch does there', async (type) => {
  let mode: 'runs' | 'refuses' | 'unreadable' = 'runs'
  await using remote = await BatchServer.start(
    {
      answer: (call, usual) => {
        if (isLook(call) && mode === 'refuses') return refused(401, 'bad key')
        if (isContent(call) && mode === 'unreadable') return refused(500, 'try later')
        return usual()
      },
      holds: true,
    },
    type,
  )
  await using service = await TestService.start(config(remote, ''), { endpoint: remote.endpoint })
  const { id } = await start(service, remote)
  assert.equal(
    await reasonOf(service, id, /^provider has 20 lines of it in the batch batch-2 \(in_progress\)/),
    'remote_batch',
  )
  mode = 'refuses'
  await reasonOf(
    service,
    id,
    /nothing can be learned of them: the batch API does not admit this service \(401\)/,
  )
  mode = 'unreadable'
  remote.faults.holds = false
  await reasonOf(service, id, /their results cannot be read: the batch API answered 500: try later/)
  mode = 'runs'
  const batch = await service.ended(id)
  assert.equal(batch.request_counts.completed, 20)
})

testEachType(
  'a batch that may be late is called back: what it had finished is billed, the rest is answered elsewhere',
  async (type) => {
    await using remote = await BatchServer.start(
      { holds: true, end: { status: 'completed', share: 0.25 } },
      type,
    )
    await using hosted = await testUpstream()
    const other = `      - {type: openai, name: hosted, base_url: "${hosted.base_url}", tier: 1}`
    await using service = await TestService.start(config(remote, other, '6s'), { endpoint: remote.endpoint })
    const { id } = await start(service, remote)
    const batch = await service.ended(id)
    assert.deepEqual(
      [batch.status, batch.request_counts],
      ['completed', { total: 20, completed: 20, failed: 0 }],
    )
    assert.deepEqual([remote.batches.size, hosted.calls.length], [1, 15])
    assert.equal(Math.round(batch.cost_usd * 1e9), 5 * THERE + 15 * ELSEWHERE)
  },
)

testEachType(
  'a batch that is never cancelled is given up in time for others to answer its lines',
  async (type) => {
    await using remote = await BatchServer.start(
      {
        answer: (call, usual) => (call.path.endsWith('/cancel') ? refused(409, 'not now') : usual()),
        holds: true,
      },
      type,
    )
    await using hosted = await testUpstream()
    const other = `      - {type: openai, name: hosted, base_url: "${hosted.base_url}", tier: 1}`
    await using service = await TestService.start(config(remote, other, '10s'), { endpoint: remote.endpoint })
    const { id } = await start(service, remote)
    const batch = await service.ended(id)
    assert.deepEqual([batch.status, batch.request_counts.completed], ['completed', 20])
    assert.equal(Math.round(batch.cost_usd * 1e9), 20 * ELSEWHERE)
  },
)

test('a batch that will be through in time is not called back', async () => {
  await using remote = await BatchServer.start({
    answer: (call, usual) => {
      const done = usual()
      const share = remote.faults.holds ? 19 : 20
      return isLook(call)
        ? withBody(done, (body) => ({
            ...body,
            request_counts: { total: 20, completed: share, failed: 0 },
          }))
        : done
    },
    holds: true,
  })
  await using hosted = await testUpstream()
  const other = `      - {type: openai, name: hosted, base_url: "${hosted.base_url}", tier: 1}`
  await using service = await TestService.start(config(remote, other, '6s'), { endpoint: remote.endpoint })
  const { id, expires_at } = await start(service, remote)
  await remote.until(() => (Date.now() > expires_at * 1000 - 1200 ? true : undefined))
  remote.faults.holds = false
  const batch = await service.ended(id)
  assert.deepEqual([batch.status, hosted.calls.length], ['completed', 0])
})

async function start(service: TestService, remote: BatchServer): Promise<{ id: string; expires_at: number }> {
  const file = await service.upload(remote.lines(20))
  return await service.create(file.id)
}

function config(remote: BatchServer, other: string, window = '24h'): string {
  return `
plans: {payg: {completion_windows: [${window}], file_retention: 90d}}
models:
  - id: m
    price: {input_per_mtok: 0.10, output_per_mtok: 0.40}
    spill: {when_down: 50ms}
    upstreams:
      - {type: ${remote.type}, name: provider, base_url: "${remote.base_url}", timeout: 300ms, price: {input_per_mtok: 0.05, output_per_mtok: 0.20}}
${other}
retry: {attempts_max: 4, backoff_min: 5ms, backoff_max: 20ms, outage_patience: 3s}
worker: {flush_interval: 20ms, lease: 2s}`
}
