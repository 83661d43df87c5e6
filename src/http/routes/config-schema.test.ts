import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { testServer } from '../../../test/support/test-server.ts'

const SCHEMA = new URL('../../../docs/offpeak.schema.json', import.meta.url)

test('the schema of the configuration file is served without a key, also to a browser with a query', async () => {
  await using server = await testServer()
  for (const path of ['/config.schema.json', '/config.schema.json?version=1']) {
    const { status, json } = await server.call('GET', path, { key: null })
    assert.equal(status, 200)
    assert.deepEqual(json, JSON.parse(readFileSync(SCHEMA, 'utf8')))
  }
})

test('the schema of the configuration file cannot be changed', async () => {
  await using server = await testServer()
  const { status, json } = await server.call('DELETE', '/config.schema.json', { key: null })
  assert.equal(status, 405)
  assert.ok('error' in json)
})
