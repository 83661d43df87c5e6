import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server } from 'node:http'
import { after, before, beforeEach, test } from 'node:test'
import { BatchApiError } from '../batch-api/batch-api.ts'
import { HttpBatchApi } from './http-batch-api.ts'

/** What a batch API, and a server beside it, answer to a path: a file, or where it redirects to. */
let redirects: Record<string, string> = {}
let asked: { server: string; path: string; key: string | undefined }[] = []
const servers = { api: listener('api'), store: listener('store') }
let api = ''
let store = ''

function listener(name: string): Server {
  return createServer(({ url = '', headers }: IncomingMessage, response) => {
    asked.push({ server: name, path: url, key: headers.authorization })
    const location = redirects[`${name} ${url}`]
    if (location === undefined) response.end('{"a":1}\n')
    else response.writeHead(302, { location }).end()
  })
}

async function origin(server: Server): Promise<string> {
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const address = server.address()
  assert.ok(typeof address === 'object' && address !== null)
  return `http://127.0.0.1:${address.port}`
}

before(async () => {
  api = await origin(servers.api)
  store = await origin(servers.store)
})

beforeEach(() => {
  redirects = {}
  asked = []
})

after(() => {
  for (const server of Object.values(servers)) server.close()
})

async function read(resultsFrom: readonly string[]): Promise<string[]> {
  const one = new HttpBatchApi({
    base_url: `${api}/v1`,
    api_key: 'the-key',
    api_key_file: null,
    certificates: {},
    proxy: null,
    headers: {},
    timeout_ms: 10_000,
    completion_window: '24h',
    file_purpose: null,
    lineMetadata: false,
    keepFiles: false,
    resultsFrom,
    now: () => 0,
  })
  try {
    const lines: string[] = []
    for await (const line of one.lines('f')) lines.push(String(line))
    return lines
  } finally {
    await one.close()
  }
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
