import assert from 'node:assert/strict'
import { test } from 'node:test'
import { webhookUrl } from './webhook-url.ts'

test('a URL of the public internet over https is taken, without its fragment', () => {
  assert.equal(webhookUrl('https://Example.com/a?b=c#d', false), 'https://example.com/a?b=c')
  assert.equal(webhookUrl('https://1.1.1.1', false), 'https://1.1.1.1/')
})

test('what is no URL, not https, or holds a password is refused', () => {
  const refused = [
    '',
    'example.com',
    'http://example.com',
    'ftp://example.com',
    'https://u:p@example.com',
    'https://',
  ]
  for (const url of ['http://example.com/', 'https://10.0.0.1/'])
    assert.throws(() => webhookUrl(url, false), /operator .* `webhooks\.allow_private_networks: true`/)
  for (const url of [...refused, `https://example.com/${'a'.repeat(2048)}`])
    assert.throws(() => webhookUrl(url, false), { code: 'invalid_request', details: { param: 'url' } }, url)
})

test('a private address is refused however it is written, unless private networks are allowed', () => {
  for (const host of [
    '127.0.0.1',
    '2130706433',
    '0x7f.1',
    '0177.0.0.1',
    '[::1]',
    '[::ffff:127.0.0.1]',
    '10.0.0.1',
  ]) {
    assert.throws(() => webhookUrl(`https://${host}/`, false), { code: 'invalid_request' }, host)
    webhookUrl(`https://${host}/`, true)
    webhookUrl(`http://${host}/`, true)
  }
})
