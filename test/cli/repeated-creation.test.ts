// Creating commands whose answer is lost or unreadable, and that are repeated: by themselves, or by their user.
import assert from 'node:assert/strict'
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, beforeEach, describe, test } from 'node:test'
import { fastClock } from '../fakes/clock.ts'
import { runOffpeak, TEST_VERSION } from '../fakes/offpeak.ts'
import { type UnreliableProxy, unreliableProxy } from '../fakes/unreliable-proxy.ts'
import { TestService } from '../service.ts'

const CREATING = /^\/v1\/(batches|limits|batches\/\w+\/retry)$/

describe('a creating command', { timeout: 60_000 }, () => {
  let service: TestService
  let proxy: UnreliableProxy
  let folder: string
  let file: string
  let failed: string

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'offpeak-repeated-'))
    service = await TestService.start('models: [{id: sim-1, upstreams: [{type: sim}]}]')
    proxy = await unreliableProxy(service.url)
    const path = join(folder, 'in.jsonl')
    const line = (custom_id: string, model: string) =>
      `${JSON.stringify({ custom_id, method: 'POST', url: '/v1/chat/completions', body: { model, messages: [{ role: 'user', content: 'x' }] } })}\n`
    await writeFile(path, line('good', 'sim-1') + line('bad', 'none'))
    file = (await command('files', 'upload', path)).out.trim()
    failed = (await command('batches', 'create', file)).out.trim()
    await command('batches', 'wait', failed)
  })

  after(async () => {
    await proxy.close()
    await service[Symbol.asyncDispose]()
    await rm(folder, { recursive: true })
  })

  beforeEach(() => {
    proxy.lose = () => null
    proxy.rewrite = null
  })

  const command = (...args: string[]) =>
    runOffpeak(args, {
      access: { baseUrl: proxy.url, apiKey: service.key },
      env: { XDG_STATE_HOME: folder },
      clock: fastClock(),
    })

  async function count(): Promise<number> {
    const lists = await Promise.all(
      ['batches', 'limits'].map((kind) => service.json<{ data: object[] }>('GET', `/v1/${kind}?limit=100`)),
    )
    return lists.reduce((sum, { data }) => sum + data.length, 0)
  }

  const commands = (): string[][] => [
    ['batches', 'create', file],
    ['retry', failed],
    ['ask', '--model', 'sim-1', 'Why?'],
    ['limits', 'create', '--entity', 'user:1', '--usd', '5'],
  ]

  test('sends its call again, and creates one object, where the first connection breaks', async () => {
    for (const args of commands()) {
      const before = await count()
      let lost = 0
      proxy.lose = ({ method, path }) =>
        method === 'POST' && CREATING.test(path) && lost++ === 0 ? 'answer lost' : null
      const { code, out, err } = await command(...args)
      assert.deepEqual([code, out === ''], [0, false], err)
      assert.equal(await count(), before + 1, args.join(' '))
      assert.deepEqual(await readdir(join(folder, 'offpeak/calls')), [])
    }
  })

  test('that is repeated after an answer that cannot be read creates nothing twice', async () => {
    for (const args of commands()) {
      const before = await count()
      proxy.rewrite = (body, { method, path }) => (method === 'POST' && CREATING.test(path) ? ['?'] : body)
      assert.match((await command(...args)).err, /has an unexpected shape/)
      assert.equal(await count(), before + 1)
      proxy.rewrite = null
      const { code, out, err } = await command(...args)
      assert.deepEqual([code, out === ''], [0, false], err)
      assert.match(err, /The same call was interrupted before/)
      assert.equal(await count(), before + 1, args.join(' '))
      // It has ended: the next is another one.
      assert.equal((await command(...args)).code, 0)
      assert.equal(await count(), before + 2)
    }
  })

  test('for a webhook or its secret is not sent again: a second secret would replace one that nobody saw', async () => {
    const url = 'https://example.com/hook'
    const { id } = await service.json<{ id: string }>('POST', '/v1/webhooks', { url })
    for (const [args, path] of [
      [['create', url], '/v1/webhooks'],
      [['rotate', id], `/v1/webhooks/${id}/rotate_secret`],
    ] as const) {
      const sent = proxy.passed.length
      proxy.lose = (call) => (call.method === 'POST' && call.path === path ? 'answer lost' : null)
      const { code, err } = await command('webhooks', ...args)
      assert.deepEqual([code, /may have had its effect: look before you repeat it/.test(err)], [1, true], err)
      assert.equal(proxy.passed.slice(sent).filter((call) => call.path === path).length, 1)
    }
  })

  test('prints the ID whatever the rest of the answer is', async () => {
    proxy.rewrite = (body) => ({ ...(body as object), request_counts: 'many', status: 7, groups: 'none' })
    for (const args of [
      ['batches', 'create', file],
      ['retry', failed],
    ])
      assert.match((await command(...args)).out, /^batch_\w+\n$/)
    assert.match((await command('ask', '--model', 'sim-1', 'x')).err, /for batch_\w+ has an unexpected shape/)
  })

  test('that is refused is another call when it is repeated', async () => {
    const kept = () => readdir(join(folder, 'offpeak/calls'))
    const before = await kept()
    const refused = await command('batches', 'create', file, '--window', '7h')
    assert.match(refused.err, /completion window/)
    assert.deepEqual(await kept(), before)
  })

  test('says once that the service has another version', async () => {
    const same = await command('batches', 'list')
    assert.doesNotMatch(same.err, /version/)
    proxy.rewrite = (body, { path }) => (path === '/readyz' ? { version: '9.9.9' } : body)
    const { code, err } = await command('batches', 'wait', failed)
    assert.equal(code, 0)
    assert.deepEqual(err.split('\n').filter((line) => line.includes('version')).length, 1, err)
    assert.match(err, new RegExp(`has version 9\\.9\\.9, and this command line ${TEST_VERSION}`))
    assert.equal((await command('batches', 'list', '-q')).err, '')
    const [call] = proxy.passed.slice(-1)
    assert.equal(call?.headers['user-agent'], `offpeak/${TEST_VERSION}`)
  })
})
