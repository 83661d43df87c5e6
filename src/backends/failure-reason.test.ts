import assert from 'node:assert/strict'
import { test } from 'node:test'
import { reasonForCaller, reasonForLog, reasonForOperator, withoutAddresses } from './failure-reason.ts'

test('the words of a server are for the caller of the line and for operators, never for the log', () => {
  const failure = { reason: '503', words: 'no room at 10.0.0.7:8000' }
  assert.equal(reasonForCaller(failure), '503: no room at [address]')
  assert.equal(reasonForOperator(failure), '503: no room at 10.0.0.7:8000')
  assert.equal(reasonForLog(failure), '503')
})

test('where only operators can help, callers read no words of the server', () => {
  const failure = {
    reason: 'not admitted (403)',
    words: 'org-7 is not verified',
    operatorReason: 'check the key',
  }
  assert.equal(reasonForCaller(failure), 'not admitted (403)')
  assert.equal(reasonForOperator(failure), 'check the key: org-7 is not verified')
  assert.equal(reasonForLog(failure), 'check the key')
})

test('addresses and internal names of hosts are struck out, as proxies, runtimes and clients write them', () => {
  const hidden = [
    'dial tcp 10.4.0.17:8000: connect: connection refused',
    'dial tcp: lookup vllm-7 on 10.0.0.10:53: no such host',
    'dial tcp [fd00::17]:8000: i/o timeout',
    'connect ECONNREFUSED ::1:8000',
    'getaddrinfo ENOTFOUND vllm-7',
    "HTTPConnectionPool(host='vllm-7', port=8000): Max retries exceeded",
    'Cannot connect to host vllm-7:8000 ssl:default',
    'could not resolve host: vllm-7',
    'upstream http://vllm-7:8000/v1 failed',
    'upstream http://user:pw@vllm-7.models.svc.cluster.local/v1 failed',
    'no healthy upstream vllm-7.models.svc.cluster.local',
    'no healthy upstream vllm-7.eu.example.com:8443',
    'no answer from localhost:11434',
  ]
  for (const words of hidden) {
    const shown = withoutAddresses(words)
    assert.match(shown, /\[address\]/, words)
    assert.doesNotMatch(shown, /vllm-7|10\.|fd00|::1|11434|localhost|pw/, words)
  }
})

test('numbers, versions, times and public documentation stay as they are', () => {
  const shown = [
    'max_tokens:4096 exceeds 2048; see https://platform.openai.com/docs/errors',
    'messages.0.content: expected text at 12:30:45',
    'vLLM 0.10.2 cannot do that (line 1:2)',
    'std::runtime_error: failed to parse grammar',
    "Expected ')' at line 1, 'root ::= (' ^ ''",
    "This model's maximum context length is 8192 tokens",
  ]
  for (const words of shown) assert.equal(withoutAddresses(words), words)
})

for (const piece of ['a', 'a.', 'a-', 'a.b:', '-', 'lookup ', 'http://a@'])
  test(`addresses are found in a time that grows with the text: ${piece}${piece}…`, () => {
    const begun = performance.now()
    withoutAddresses(piece.repeat(2 ** 18 / piece.length))
    assert.ok(performance.now() - begun < 5_000)
  })
