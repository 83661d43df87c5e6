// Text that no database can store is refused where it comes in, with its place, and never reaches a statement.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { echo, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

const TEXTS = [
  ['U+0000', 'user:\0'],
  ['an unpaired surrogate', 'user:\ud800'],
] as const

const CURSORS = [
  ['/v1/batches?starting_after=%00', 'starting_after'],
  ['/v1/files?starting_after=a%00', 'starting_after'],
  ['/v1/limits?entity=%00', 'entity'],
  ['/v1/usage/entities?entity=%00', 'entity'],
] as const

async function apiError(answer: Response): Promise<{ error: { code: string; param?: string } }> {
  const body: { error: { code: string; param?: string } } = JSON.parse(await answer.text())
  return body
}

test('a file with text that cannot be stored is refused with its line and field', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  for (const [what, text] of TEXTS) {
    const lines = [line('a'), { ...line('b'), metadata: { entity: text } }]
    const { id } = await service.upload(lines.map((one) => JSON.stringify(one)).join('\n'))
    const file = await service.eventually(async () => {
      const now = await service.json<{ status: string; errors?: unknown }>('GET', `/v1/files/${id}`)
      return now.status === 'pending' ? undefined : now
    })
    assert.equal(file.status, 'error')
    assert.match(
      JSON.stringify(file),
      new RegExp(`entity.*contains (the character )?${what.replace('+', '\\+')}`),
    )
    assert.match(JSON.stringify(file), /"line":2/)
  }
})

test('a request with text that cannot be stored is a 400 that names where; an unknown ID stays a 404', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(JSON.stringify(line('a')))
  for (const [, text] of TEXTS) {
    const body = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    const limit = { scope: 'entity', metric: 'cost_usd', amount: 1, window: 'day' }
    const calls: [string, string, object | undefined, string][] = [
      ['POST', '/v1/batches', { ...body, metadata: { entity: text } }, 'metadata.entity'],
      ['POST', '/v1/batches', { ...body, metadata: { [text]: 'x' } }, 'metadata'],
      ['POST', '/v1/batches', { ...body, input_file_id: text }, 'input_file_id'],
      ['POST', '/v1/limits', { ...limit, entity: text }, 'entity'],
      ['POST', '/v1/limits', { ...limit, entity: 'user:a', description: text }, 'description'],
      ['POST', '/v1/webhooks', { url: 'https://example.com', description: text }, 'description'],
    ]
    for (const [method, path, sent, param] of calls) {
      const answer = await service.request(method, path, sent)
      const { error } = await apiError(answer)
      assert.deepEqual([answer.status, error.code, error.param], [400, 'invalid_request', param], path)
    }
  }
  for (const [path, param] of CURSORS) {
    const answer = await service.request('GET', path)
    const { error } = await apiError(answer)
    assert.deepEqual([answer.status, error.code, error.param], [400, 'invalid_request', param], path)
  }
  for (const kind of ['files', 'batches', 'limits', 'webhooks', 'requests', 'events', 'models'])
    assert.equal((await service.request('GET', `/v1/${kind}/a%00`)).status, 404, kind)
})
