import assert from 'node:assert/strict'
import { test } from 'node:test'
import { proxyFromEnv } from './settings.ts'

const PROXY = 'http://proxy:3128'

test('the variables for the protocol name the proxy, in either case', () => {
  assert.equal(proxyFromEnv('https://api.example.com/v1', { HTTPS_PROXY: PROXY }), PROXY)
  assert.equal(proxyFromEnv('http://api.example.com/v1', { HTTPS_PROXY: PROXY }), null)
  assert.equal(proxyFromEnv('http://api.example.com/v1', { http_proxy: 'proxy:3128' }), PROXY)
})

test('NO_PROXY excepts names, what is below them, and ports; loopback is excepted always', () => {
  const through = (url: string, NO_PROXY: string): boolean =>
    proxyFromEnv(url, { HTTP_PROXY: PROXY, NO_PROXY }) !== null
  assert.equal(through('http://gpu.internal/v1', 'other.internal, .internal'), false)
  assert.equal(through('http://gpu.internal/v1', 'internal'), false)
  assert.equal(through('http://gpuinternal/v1', 'internal'), true)
  assert.equal(through('http://gpu:8000/v1', 'gpu:8001'), true)
  assert.equal(through('http://gpu:8000/v1', 'gpu:8000'), false)
  assert.equal(through('http://gpu:8000/v1', '*'), false)
  assert.equal(through('http://127.0.0.1:8000/v1', ''), false)
})
