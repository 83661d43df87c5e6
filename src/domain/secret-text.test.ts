import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { keyBox } from '../blobs/key-box.ts'
import { masterKeyFromText } from '../blobs/master-key.ts'
import { newSigningSecret } from '../notify/signing.ts'
import { makeApiKey } from './api-key.ts'
import { newId } from './ids.ts'
import { withoutSecrets } from './secret-text.ts'

const box = keyBox(masterKeyFromText(randomBytes(32).toString('base64'), 'the test'))

test('every secret that is made is found, wherever in a text it stands', () => {
  for (let i = 0; i < 200; i++) {
    const { key } = makeApiKey('eu-central', newId('key', i))
    const { text } = newSigningSecret(box, 'proj_1', 'wh_1')
    assert.equal(withoutSecrets(`x${key}, ${text}`), 'x[secret], [secret]')
    assert.equal(withoutSecrets(JSON.stringify({ a: text, b: key })), '{"a":"[secret]","b":"[secret]"}')
    assert.equal(withoutSecrets(`/v1/files/${key}?x=${text}`), '/v1/files/[secret]?x=[secret]')
  }
})

test('a text without secrets stays as it is', () => {
  for (const text of ['', 'whsec_', 'opk_local', 'req_01k0a7c5m3q8r2t6v9x1z4b7dg'])
    assert.equal(withoutSecrets(text), text)
})
