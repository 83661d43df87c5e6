import assert from 'node:assert/strict'
import test from 'node:test'
import type { Backend } from '../../backends/backend.ts'
import { sendOnce } from './send-once.ts'

function backendOf(send: Backend['send']): Backend {
  return { name: 'upstream', send, close: async () => {} }
}

test('an exception in a backend fails the attempt, and only the log has its text', async () => {
  const logged: object[] = []
  const log = { info: () => {}, warn: () => {}, error: (fields: object) => void logged.push(fields) }
  const overflow = (depth: number): number => overflow(depth + 1) + 1
  const backends = [
    backendOf(() => Promise.reject(new Error('text of a body'))),
    backendOf(() => {
      throw new TypeError('text of a body')
    }),
    backendOf(async () => {
      overflow(0)
      throw new Error('not reached')
    }),
  ]
  for (const backend of backends) {
    const result = await sendOnce(
      backend,
      { endpoint: '/v1/chat/completions', project_id: 'p', body: Buffer.from('{}') },
      log,
    )
    assert.ok(result.kind === 'failed')
    assert.equal(result.code, 'internal_error')
    assert.doesNotMatch(result.reason, /text of a body/)
  }
  assert.equal(logged.length, backends.length)
})
