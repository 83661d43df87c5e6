import assert from 'node:assert/strict'
import test from 'node:test'
import { requestHead } from './exchange.ts'

test('the head names host, path and headers, and lacks only the length', () => {
  const head = requestHead('host:8000', '/v1/chat/completions?a=b', new Map([['x-team', 'batch']]))
  assert.equal(
    head.toString(),
    'POST /v1/chat/completions?a=b HTTP/1.1\r\nhost: host:8000\r\nx-team: batch\r\nconnection: keep-alive\r\ncontent-length: ',
  )
})

test('a configured host has its way', () => {
  const head = requestHead('10.0.0.1:8000', '/', new Map([['host', 'models.internal']])).toString()
  assert.equal(head.match(/host:/g)?.length, 1)
  assert.match(head, /host: models\.internal\r\n/)
})

test('headers that would break out of the head, or that say where it ends, are refused without being quoted', () => {
  for (const [name, value] of [
    ['x', 'secret\r\nx-other: 1'],
    ['x\r\ny', 'secret'],
    ['x y', 'secret'],
    ['content-length', 'secret'],
    ['transfer-encoding', 'secret'],
    ['connection', 'secret'],
  ] as const) {
    assert.throws(
      () => requestHead('h', '/', new Map([[name, value]])),
      (error) => error instanceof TypeError && !error.message.includes('secret'),
    )
  }
})
