import assert from 'node:assert/strict'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { after, before, beforeEach, test } from 'node:test'
import { type Listening, listen } from '../../../test/support/listen.ts'
import { NO_CERTIFICATES } from '../../domain/credentials.ts'
import { BatchApiError } from '../batch-api/batch-api.ts'
import { dialectOf } from './batch-api-calls.ts'
import { HttpBatchApi } from './http-batch-api.ts'

/** The targets of redirects, by path, at the batch API and at another server; other paths have files. */
let redirects: Record<string, string> = {}
/** A handler in place of files and redirects. */
let answer: ((response: ServerResponse) => void) | null = null
let asked: { server: string; path: string; key: string | undefined }[] = []
const servers: Listening[] = []
let api = ''
let store = ''

async function serve(name: string): Promise<string> {
  const server = createServer(({ url = '', headers }: IncomingMessage, response) => {
    asked.push({ server: name, path: url, key: headers.authorization })
    const location = redirects[`${name} ${url}`]
    if (answer) return answer(response)
    if (location === undefined) response.end('{"a":1}\n')
    else response.writeHead(302, { location }).end()
  })
  const at = await listen(server)
  servers.push(at)
  return at.url
}

before(async () => {
  api = await serve('api')
  store = await serve('store')
})

beforeEach(() => {
  redirects = {}
  answer = null
  asked = []
})

after(() => Promise.all(servers.map((server) => server.close())))

interface Options {
  resultsFrom?: readonly string[]
  timeout_ms?: number
  api_key?: string
}

function batchApi({ resultsFrom = [], timeout_ms = 10_000, api_key = 'the-key' }: Options): HttpBatchApi {
  return new HttpBatchApi({
    base_url: `${api}/v1`,
    api_key,
    keyFile: null,
    certificates: () => NO_CERTIFICATES,
    proxy: null,
    headers: {},
    timeout_ms,
    completion_window: '24h',
    file_purpose: null,
    lineMetadata: false,
    keepFiles: false,
    resultsFrom,
    now: () => 0,
  })
}

async function read(resultsFrom: readonly string[], options = {}): Promise<string[]> {
  const one = batchApi({ resultsFrom, ...options })
  try {
    const lines: string[] = []
    for await (const line of one.lines('f')) lines.push(String(line))
    return lines
  } finally {
    await one.close()
  }
}

/** Answers with a byte every few milliseconds, without end. */
function trickle(response: ServerResponse): void {
  const drip = setInterval(() => response.write(' '), 5)
  response.on('close', () => clearInterval(drip))
}

const CONTENT = 'api /v1/files/f/content'

test('a redirect to another address is not followed, wherever it comes in a row of them', async () => {
  const rows: Record<string, string>[] = [
    { [CONTENT]: `${store}/internal` },
    { [CONTENT]: '/moved', 'api /moved': `${store}/internal` },
    { [CONTENT]: `//${new URL(store).host}/internal` },
    { [CONTENT]: 'file:///etc/passwd' },
    { [CONTENT]: 'http://[' },
  ]
  for (const row of rows) {
    redirects = row
    await assert.rejects(read([]), (error) => {
      assert.ok(error instanceof BatchApiError)
      assert.match(JSON.stringify(error.result), /a redirect that is not followed/)
      return true
    })
  }
  assert.deepEqual(
    asked.filter(({ server }) => server !== 'api'),
    [],
  )
})

test('the operator is told where a redirect leads, and callers are not', async () => {
  redirects = { [CONTENT]: `${store}/internal` }
  await assert.rejects(read([]), (error) => {
    assert.ok(error instanceof BatchApiError)
    const { result } = error
    assert.ok(result.kind === 'failed')
    assert.ok(result.operatorReason?.includes(`${store}: where results may be there`))
    assert.ok(!result.reason.includes(store))
    return true
  })
})

test('redirects within the address, and to those that are configured, are followed; only the first get the key', async () => {
  redirects = { [CONTENT]: '/moved', 'api /moved': `${store}/signed?x=1` }
  assert.deepEqual(await read([store]), ['{"a":1}'])
  assert.deepEqual(asked, [
    { server: 'api', path: '/v1/files/f/content', key: 'Bearer the-key' },
    { server: 'api', path: '/moved', key: 'Bearer the-key' },
    { server: 'store', path: '/signed?x=1', key: undefined },
  ])
})

test('a file that trickles is left', async () => {
  answer = trickle
  await assert.rejects(read([], { timeout_ms: 300 }), /answers too slowly/)
})

test('a redirect that trickles is followed without its body', { timeout: 5_000 }, async () => {
  answer = (response) => trickle(response.writeHead(302, { location: '/elsewhere' }))
  await assert.rejects(read([], { timeout_ms: 300 }), /answered 302/)
})

test('the ID of a file that nobody can mean is a failure that says so', async () => {
  const one = batchApi({})
  answer = (response) => response.end(JSON.stringify({ id: 'f'.repeat(513) }))
  await assert.rejects(one.upload('b', []), /an ID of more than 512 characters/)
  await one.close()
})

test('entries of a list whose IDs cannot be sent keep no other one from being found', async () => {
  const one = batchApi({})
  const own = { id: 'b1', status: 'in_progress', metadata: { offpeak_remote_batch: 'b' } }
  const others = ['\\ud800', '', '..'].map((id) => `{"id":"${id}","status":"in_progress"}`)
  answer = (response) => response.end(`{"data":[${others.join(',')},${JSON.stringify(own)}]}`)
  const wanted = { name: 'b', file_id: null, line_count: 1, since: 0, taken: async () => new Set<string>() }
  assert.deepEqual(
    (await one.find(wanted))?.map(({ id }) => id),
    ['b1'],
  )
  await one.close()
})

test('every other call ends in time although its answer trickles, whatever its status', async () => {
  const one = batchApi({ timeout_ms: 300 })
  answer = trickle
  const calls = [
    one.read('b'),
    one.cancel('b'),
    one.findFile('f'),
    one.find({ name: 'b', file_id: null, line_count: 1, since: 0, taken: async () => new Set() }),
  ]
  await Promise.all(calls.map((call) => assert.rejects(call, /answers too slowly/)))
  answer = (response) => trickle(response.writeHead(500))
  await assert.rejects(one.read('b'), /answered 500/)
  await one.close()
})

test('no answer is read beyond a bound; of an error, the beginning says what it is', async () => {
  const one = batchApi({})
  let sent = 0
  const endless =
    (status: number) =>
    (response: ServerResponse): void => {
      response.writeHead(status)
      const piece = Buffer.alloc(64 * 1024, ' ')
      const write = (): void => {
        while (!response.destroyed && response.write(piece)) sent += piece.length
      }
      response.on('drain', write)
      write()
    }
  answer = endless(200)
  await assert.rejects(one.read('b'), /more than 8 MiB/)
  answer = endless(500)
  await assert.rejects(one.read('b'), /answered 500/)
  await one.close()
  assert.ok(sent < 64 * 1024 * 1024, `${sent} bytes were sent`)
})

test('Together takes uploads at a path and with fields of its own; whatever is not known speaks as OpenAI', () => {
  const together = dialectOf('https://api.together.ai/v1')
  assert.equal(together.upload_path, '/files/upload')
  assert.equal(together.file_purpose, 'batch-api')
  assert.deepEqual(together.upload_fields('a.jsonl'), { file_name: 'a.jsonl', file_type: 'jsonl' })
  const cell = dialectOf('http://cell:8080/v1')
  assert.deepEqual([cell.upload_path, cell.file_purpose, cell.pollMsMin], ['/files', 'batch', 0])
})

test('a call that cannot be sent as the batch API is configured reaches nobody, and its reason says so', async () => {
  const one = batchApi({ api_key: 'sk-one\nsk-two' })
  const error: unknown = await one.read('batch_1').catch((failure: unknown) => failure)
  await one.close()
  assert.ok(error instanceof BatchApiError && error.result.kind === 'failed')
  assert.ok(error.hadNoEffect && error.result.unreachable)
  assert.match(error.result.reason, /cannot be sent as it is configured/)
  assert.doesNotMatch(JSON.stringify(error.result), /sk-one/)
  assert.deepEqual(asked, [])
})
