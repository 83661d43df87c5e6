import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ERRORS } from '../../domain/errors.ts'
import { ApiError, adviceFor } from './api-error.ts'

test('no advice on the command line speaks of calls, headers or fields of an answer', () => {
  const ofTheApi =
    /`param`|`limit_id`|`resets_at`|`Allow`|Retry-After|Content-Range|X-Service|(GET|POST|DELETE) \/v1/
  for (const code of Object.keys(ERRORS)) assert.doesNotMatch(adviceFor(code) ?? '', ofTheApi, code)
})

test('an error whose message says it all ends with the message, and where it came from', () => {
  const error = { code: 'invalid_request', message: '`name` must be shorter.', param: 'name' }
  const answer = { status: 400, requestId: 'req_1', text: JSON.stringify({ error }) }
  assert.equal(
    new ApiError('POST /v1/webhooks', answer).message,
    '`name` must be shorter (400 invalid_request, POST /v1/webhooks, parameter name, request req_1).',
  )
})

test('an error of a code that is not known has no advice', () => {
  for (const code of ['code_of_the_future', 'toString']) assert.equal(adviceFor(code), null)
})
