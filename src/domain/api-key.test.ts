import assert from 'node:assert/strict'
import { test } from 'node:test'
import { hashSecret, makeApiKey, parseApiKey, secretMatches } from './api-key.ts'
import { newId } from './ids.ts'

test('a key that was made parses into its region, its row and its secret', () => {
  const key_id = newId('key', 1_700_000_000_000)
  const { key, secret_sha256 } = makeApiKey('eu-1', key_id)
  const parsed = parseApiKey(key)
  assert.equal(parsed?.region, 'eu-1')
  assert.equal(parsed?.keyId, key_id)
  assert.equal(hashSecret(parsed?.secret ?? ''), secret_sha256)
  assert.ok(secretMatches(parsed?.secret ?? '', secret_sha256))
})

test('two keys for one row have different secrets', () => {
  const key_id = newId('key', 1_700_000_000_000)
  assert.notEqual(makeApiKey('local', key_id).key, makeApiKey('local', key_id).key)
})

test('a secret that differs in one character does not match', () => {
  const { key, secret_sha256 } = makeApiKey('local', newId('key', 1))
  const secret = parseApiKey(key)?.secret ?? ''
  const other = (secret[0] === 'A' ? 'B' : 'A') + secret.slice(1)
  assert.equal(secretMatches(other, secret_sha256), false)
})

test('a text that is not exactly a key is none', () => {
  const { key } = makeApiKey('local', newId('key', 1))
  for (const text of ['', 'sk-123', key.slice(1), `${key}x`, `${key} `, `\n${key}`, key.toUpperCase()])
    assert.equal(parseApiKey(text), null, JSON.stringify(text))
})

test('a region that would make the key ambiguous is refused', () => {
  assert.throws(() => makeApiKey('eu_1', newId('key', 1)), RangeError)
})
