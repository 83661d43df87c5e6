import assert from 'node:assert/strict'
import { createServer, type IncomingMessage } from 'node:http'
import test, { type TestContext } from 'node:test'
import { listen } from '../../../test/support/listen.ts'
import { freePort } from '../../engines/engine-access.ts'
import { listUpstreamModels, servedFacts } from './server-facts.ts'

/** A server that answers every request alike; `seen` is the last request. */
async function serve(t: TestContext, status: number, body: string) {
  const seen: { request?: IncomingMessage } = {}
  const server = createServer((request, response) => {
    seen.request = request
    response.writeHead(status).end(body)
  })
  const { url, close } = await listen(server)
  t.after(close)
  return { base_url: `${url}/v1`, seen }
}

test('the IDs come in the order of the server, each once', async (t) => {
  const list = { object: 'list', data: [{ id: 'b' }, { id: 'a' }, { id: 'b' }, { name: 'no id' }] }
  const { base_url, seen } = await serve(t, 200, JSON.stringify(list))
  const listed = await listUpstreamModels(base_url, { api_key: 'sk-key' })
  assert.deepEqual(
    listed.map(({ id }) => id),
    ['b', 'a'],
  )
  assert.equal(seen.request?.url, '/v1/models')
  assert.equal(seen.request?.headers.authorization, 'Bearer sk-key')
})

test('a model serves what its server says of it, in whatever words', async (t) => {
  const generates = ['/v1/chat/completions', '/v1/completions', '/v1/responses']
  const alsoMessages = [...generates, '/v1/messages']
  const cases: [object, string[] | null][] = [
    [{}, null],
    [{ type: 'model', capabilities: ['flies'] }, null],
    [{ endpoints: ['/v1/embeddings', 'rerank', '/v2/dance'] }, ['/v1/embeddings', '/v1/rerank']],
    [{ supported_endpoints: ['/chat/completions', '/responses'] }, ['/v1/chat/completions', '/v1/responses']],
    [{ capabilities: ['embed'] }, ['/v1/embeddings']],
    [{ capabilities: { completion_chat: true, embedding: false } }, generates],
    [{ type: 'embeddings' }, ['/v1/embeddings']],
    [{ type: 'LLM' }, alsoMessages],
  ]
  for (const [said, endpoints] of cases) {
    const { base_url } = await serve(t, 200, JSON.stringify({ data: [{ id: 'm', ...said }] }))
    const [listed] = await listUpstreamModels(base_url)
    assert.deepEqual(listed?.endpoints, endpoints, JSON.stringify(said))
  }
})

test("Together's bare list of models is a list", async (t) => {
  const { base_url } = await serve(
    t,
    200,
    '[{"id":"meta-llama/Llama-3-8b","object":"model","created":0,"type":"chat","running":false,"context_length":8192}]',
  )
  assert.deepEqual(await listUpstreamModels(base_url), [
    {
      id: 'meta-llama/Llama-3-8b',
      endpoints: ['/v1/chat/completions', '/v1/completions', '/v1/responses'],
      ...{ context_window: 8192, parent: null, root: null },
    },
  ])
})

test('every way to fail says what to fix', async (t) => {
  const cases: [status: number, body: string, message: RegExp][] = [
    [401, '{"error":{"message":"bad key sk-secret-key"}}', /check the API key/],
    [404, '404 page not found', /does the base URL end in \/v1\?/],
    [500, '{"error":{"message":"broken"}}', /answered 500: broken/],
    [200, '<html></html>', /did not answer with a list of models/],
    [200, '{"models":[]}', /did not answer with a list of models/],
    [200, '{"object":"list","data":[]}', /lists no model/],
    [200, '{"object":"list","data":null}', /lists no model/],
  ]
  for (const [status, body, message] of cases) {
    const { base_url } = await serve(t, status, body)
    await assert.rejects(
      listUpstreamModels(base_url, { api_key: 'sk-secret-key' }),
      (error) =>
        error instanceof Error && message.test(error.message) && !error.message.includes('sk-secret'),
      `${status} ${body}`,
    )
  }
})

test('a list that is longer than any is not read to its end', async (t) => {
  const { base_url } = await serve(t, 200, `{"data":[]}${' '.repeat(9 * 2 ** 20)}`)
  await assert.rejects(listUpstreamModels(base_url), /the answer is larger than 8388608 bytes/)
})

test('a server that is not there is named', async () => {
  const base_url = `http://127.0.0.1:${await freePort()}/v1`
  await assert.rejects(
    listUpstreamModels(base_url),
    /GET http:\/\/127.*\/v1\/models got no answer .*ECONNREFUSED/,
  )
})

test('the context window is what a server says of it, the loaded one before that of the training', () => {
  const windowOf = (model: Record<string, unknown>) => servedFacts(model).context_window
  assert.equal(windowOf({ max_model_len: 2048 }), 2048)
  assert.equal(windowOf({ meta: { n_ctx: 1024, n_ctx_train: 8192 } }), 1024)
  assert.equal(windowOf({ meta: { n_ctx_train: 8192 } }), 8192)
  assert.equal(windowOf({ max_model_len: 'many', max_context_length: 4096 }), 4096)
  for (const absurd of [-1, 0, 1, 1e155, 2 ** 64, 2 ** 40])
    assert.equal(windowOf({ max_model_len: absurd, max_context_length: 4096 }), 4096, `${absurd}`)
})

test("LiteLLM's proxy tells input and output apart, of which the window has room for both", () => {
  assert.equal(servedFacts({ max_input_tokens: 777 }).context_window, 777)
  assert.equal(servedFacts({ max_input_tokens: 777, max_output_tokens: 2 ** 50 }).context_window, null)
  assert.equal(servedFacts({ max_input_tokens: 128_000, max_output_tokens: 16_384 }).context_window, 144_384)
})
