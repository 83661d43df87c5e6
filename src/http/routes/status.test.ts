import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testServer } from '../../../test/support/test-server.ts'

test('operators alone read the configuration', async () => {
  await using server = await testServer({ settings: () => ({ region: 'local' }) })
  assert.equal((await server.call('GET', '/v1/settings')).outcome, '403 missing_scope')
  const { key } = await server.issue({ scopes: ['operator'] })
  const answer = await server.call('GET', '/v1/settings', { key })
  assert.deepEqual(answer.json, {
    object: 'settings',
    version: '0.0.0-test',
    configuration: { region: 'local' },
  })
})
