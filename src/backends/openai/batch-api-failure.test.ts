import assert from 'node:assert/strict'
import { test } from 'node:test'
import { blamedByBatch, blamedByCall, refusedCall } from './batch-api-failure.ts'

const same = (text: string): string => text
const ID = `req_${'0123456789abcdefghijklmnopqrstuvw'}`

test('what is about timing, capacity, keys or the state of the file blames no line, whatever its words name', () => {
  const codes = [
    ...[
      'file_not_processed',
      'File Not Processed',
      'file-not-ready',
      'file_pending',
      'file_expired',
      'file_not_found',
      'InputFileDeleted',
    ],
    ...[
      'rate_limit_exceeded',
      'too_many_requests',
      'insufficient_funds',
      'quota_exceeded',
      'billing_hard_limit_reached',
    ],
    ...['token_limit_exceeded', 'model_overloaded', 'server_error', 'service_unavailable', 'timeout'],
    ...['invalid_api_key', 'authentication_error', 'permission_denied', 'idempotency_key_reused', 'conflict'],
  ]
  for (const code of codes) {
    const message = `line 3 of the file: ${ID}`
    for (const status of [400, 413, 422])
      assert.equal(blamedByCall(status, [code, 'invalid_request_error'], message), null, code)
    assert.equal(blamedByBatch({ errors: { data: [{ code, message, line: 3 }] } }, same), null, code)
  }
})

test('a batch API whose account has no money left blames no line, and operators are told', () => {
  const message = 'Your credit balance is too low to access the Anthropic API.'
  const text = JSON.stringify({ type: 'error', error: { type: 'invalid_request_error', message } })
  const { blamed, hadNoEffect, result } = refusedCall({ statusCode: 400, headers: {} }, text, same, 0)
  assert.deepEqual([blamed, hadNoEffect], [null, true])
  assert.match(JSON.stringify(result), /no quota left.*check quota and budget of the account/)
})

test('only a status that blames the request blames lines', () => {
  for (const status of [401, 402, 403, 404, 409, 429, 500, 503])
    assert.equal(blamedByCall(status, ['invalid_request'], 'line 3 is invalid'), null, String(status))
})

test('lines are named by number or by custom_id; others are blamed without a name', () => {
  const named = (message: string) => blamedByCall(400, ['invalid_request'], message)
  assert.deepEqual(
    named('line 3: no model')?.map(({ line }) => line),
    [3],
  )
  assert.deepEqual(
    named('errors on Line number 12 and line 4')?.map(({ line }) => line),
    [12, 4],
  )
  assert.deepEqual(
    named(`${ID}: the body is invalid, see line 1`)?.map(({ custom_id, line }) => [custom_id, line]),
    [[ID, null]],
  )
  assert.deepEqual(named('one of the requests is invalid'), [])
  const errors = { data: [{ code: 'invalid_json_line', message: 'not JSON', line: 7 }] }
  assert.deepEqual(
    blamedByBatch({ errors }, same)?.map(({ line }) => line),
    [7],
  )
  assert.equal(blamedByBatch({ errors: null }, same), null, 'nothing is said')
})

test('what a batch API quotes of a line holds no secret, and is bounded', () => {
  const said = (message: string) =>
    blamedByBatch({ errors: { data: [{ message, line: 7 }] } }, (text) => text.replace('sk-1', '…'))?.[0]
  assert.equal(said('the key sk-1')?.message, 'the key …')
  assert.equal(said('x'.repeat(1e6))?.message.length, 600)
})

test('a spending limit of another Offpeak is not waited for until its window ends', () => {
  const text = JSON.stringify({
    error: { message: 'no', type: 'rate_limit_error', code: 'usage_limit_exceeded' },
  })
  const { hadNoEffect, result } = refusedCall(
    { statusCode: 429, headers: { 'retry-after': '86400' } },
    text,
    same,
    0,
  )
  const { kind, retry_after_ms } = result
  assert.deepEqual([kind, retry_after_ms, hadNoEffect], ['throttled', undefined, true])
})
