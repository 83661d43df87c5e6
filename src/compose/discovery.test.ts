import assert from 'node:assert/strict'
import test from 'node:test'
import { testClock } from '../../test/fakes/clock.ts'
import { dnsServer } from '../../test/fakes/dns-server.ts'
import { Discovery } from './discovery.ts'

const LOG = { info() {}, warn() {}, error() {} }

test('addresses follow the name server, and the last ones stay where it has none or fails', async () => {
  await using dns = await dnsServer(['127.0.0.3', '127.0.0.2', '127.0.0.2'])
  const clock = testClock()
  let changes = 0
  const discovery = new Discovery({ resolve: dns.resolve, clock, log: LOG, onChange: () => changes++ })
  discovery.watch(new Set(['models.test']))
  await discovery.refresh()
  assert.deepEqual(discovery.of('models.test'), ['127.0.0.2', '127.0.0.3'])
  assert.equal(changes, 1)

  const seen: [answer: string[] | 'broken', addresses: string[], changes: number][] = [
    [['127.0.0.2', '127.0.0.3'], ['127.0.0.2', '127.0.0.3'], 1],
    [[], ['127.0.0.2', '127.0.0.3'], 1],
    ['broken', ['127.0.0.2', '127.0.0.3'], 1],
    [['127.0.0.4'], ['127.0.0.4'], 2],
  ]
  for (const [answer, addresses, count] of seen) {
    dns.answer = answer
    await discovery.refresh()
    assert.deepEqual(discovery.of('models.test'), addresses, String(answer))
    assert.equal(changes, count, String(answer))
  }
})

test('addresses that could not be taken up are offered again', async () => {
  let takes = 0
  const onChange = (): void => {
    if (++takes === 1) throw new Error('it cannot be taken up')
  }
  const resolve = async (): Promise<string[]> => ['127.0.0.2']
  const discovery = new Discovery({ resolve, clock: testClock(), log: LOG, onChange })
  discovery.watch(new Set(['a.test']))
  for (let i = 0; i < 3; i++) await discovery.refresh()
  assert.equal(takes, 2)
})

test('names are looked up again after some seconds, and only while they are watched', async () => {
  const clock = testClock()
  const asked: string[] = []
  const resolve = async (host: string): Promise<string[]> => {
    asked.push(host)
    return ['127.0.0.2']
  }
  const discovery = new Discovery({ resolve, clock, log: LOG, onChange() {} })
  discovery.tick()
  assert.deepEqual(asked, [])
  discovery.watch(new Set(['a.test']))
  discovery.tick()
  await discovery.refresh()
  assert.deepEqual(asked, ['a.test'])
  await clock.advance(4_999)
  discovery.tick()
  assert.deepEqual(asked, ['a.test'])
  await clock.advance(1)
  discovery.tick()
  await discovery.refresh()
  assert.deepEqual(asked, ['a.test', 'a.test'])
  discovery.watch(new Set())
  await clock.advance(10_000)
  discovery.tick()
  assert.equal(asked.length, 2)
})
