import assert from 'node:assert/strict'
import { after, before, beforeEach, describe, test } from 'node:test'
import { fastClock } from '../../../test/fakes/clock.ts'
import { apiError, type Reply, ScriptedApi } from '../../../test/fakes/scripted-api.ts'
import { ERRORS } from '../../domain/errors.ts'
import { quotaExceeded } from '../../domain/plan.ts'
import { Failure, Interrupted } from '../terminal/failure.ts'
import { AnyObject, ApiClient, ApiError, adviceFor, retryDelayMs, worthRetrying } from './client.ts'

describe('a call of the API', () => {
  const api = new ScriptedApi()
  let client: ApiClient
  let clock = fastClock()

  before(() => api.start())
  after(() => api.stop())
  beforeEach(() => {
    clock = fastClock()
    api.script = {}
    api.seen.length = 0
    client = new ApiClient({ baseUrl: api.url, apiKey: api.key, clock, patienceMs: 60_000 })
  })

  test('a call to a server that was never reached fails at once', async () => {
    const lost = new ApiClient({ baseUrl: 'http://127.0.0.1:9', apiKey: 'k', clock })
    await assert.rejects(
      lost.get(AnyObject, '/v1/files'),
      (error: unknown) =>
        error instanceof Failure && /127\.0\.0\.1:9 cannot be reached .*offpeak serve/.test(error.message),
    )
    assert.deepEqual(clock.waits, [])
  })

  test('a call over TLS to a server without it says so in one line', async () => {
    const lost = new ApiClient({ baseUrl: api.url.replace('http:', 'https:'), apiKey: 'k', clock })
    await assert.rejects(lost.get(AnyObject, '/v1/files'), {
      name: 'Failure',
      message: /cannot be reached \(it does not speak TLS: try http:\/\/, GET \/v1\/files\); start it/,
    })
  })

  test('calls to a server that was reached before are retried for a limited time', async () => {
    api.script = { fault: (_seen, nth) => (nth === 1 ? undefined : 'reset') }
    await client.get(AnyObject, '/v1/models')
    await assert.rejects(client.get(AnyObject, '/v1/models'), Failure)
    const waitedMs = clock.waits.reduce((sum, ms) => sum + ms, 0)
    assert.ok(waitedMs >= 60_000 && waitedMs < 80_000, `${waitedMs}`)
  })

  test('a call whose answer breaks off is retried', async () => {
    const headers = { 'content-length': '1000', connection: 'close' }
    api.script = { fault: (_seen, nth) => (nth === 1 ? { status: 200, headers, body: {} } : undefined) }
    await client.get(AnyObject, '/v1/models')
    assert.equal(api.seen.length, 2)
  })

  test('a permanent error is not retried', async () => {
    api.script = { fault: () => apiError(403, 'missing_scope', 'The API key lacks a scope.') }
    await assert.rejects(
      client.get(AnyObject, '/v1/files'),
      (error: unknown) => error instanceof ApiError && error.status === 403 && error.code === 'missing_scope',
    )
    assert.equal(api.seen.length, 1)
  })

  test('a quota is waited for, unless the call alone is larger than the quota', async () => {
    const refused = (more: number): Reply => {
      const error = quotaExceeded('queued_lines', 10, 10, more).toWire()
      return { status: 429, body: { error } }
    }
    api.script = { fault: (_seen, nth) => (nth === 1 ? refused(5) : undefined) }
    await client.get(AnyObject, '/v1/models')
    assert.equal(api.seen.length, 2)
    api.script = { fault: () => refused(11) }
    const seen = api.seen.length
    await assert.rejects(
      client.get(AnyObject, '/v1/files'),
      /`queued_lines` is too small for this call.*alone would add 11\. Split it/,
    )
    assert.equal(api.seen.length, seen + 1)
  })

  test('an answer from another server is reported as such', async () => {
    api.script = { fault: (): Reply => ({ status: 404, body: Buffer.from('<html>nginx') }) }
    await assert.rejects(
      client.get(AnyObject, '/v1/files'),
      /a proxy or another server answered instead of Offpeak \(404, GET \/v1\/files.*OFFPEAK_BASE_URL/,
    )
    api.script = { fault: (): Reply => ({ status: 413, body: Buffer.from('<html>nginx') }) }
    await assert.rejects(
      client.post(AnyObject, '/v1/files', {}),
      /a proxy or another server .* \(413, POST \/v1\/files.* client_max_body_size/,
    )
    api.script = { fault: (): Reply => ({ status: 200, body: Buffer.from('<html>') }) }
    await assert.rejects(
      client.get(AnyObject, '/v1/files'),
      /is not JSON; check that http:.* is an Offpeak server/,
    )
  })

  test('a list is read page by page until there are enough objects', async () => {
    const page = (data: object[], next: string | null): Reply => ({
      status: 200,
      body: { object: 'list', data, has_more: next !== null, next_cursor: next },
    })
    api.script = {
      fault: (_seen, nth) => page([{ id: `${nth}-a` }, { id: `${nth}-b` }], nth < 3 ? `${nth}-b` : null),
    }
    const all = await client.list(AnyObject, '/v1/things', 1000)
    assert.equal(all.length, 6)
    api.seen.length = 0
    assert.equal((await client.list(AnyObject, '/v1/things', 4)).length, 4)
    assert.equal(api.seen.length, 2)
  })

  test('an interruption ends a call that waits for its retry', async () => {
    const controller = new AbortController()
    api.script = {
      fault() {
        controller.abort()
        return apiError(503, 'service_unavailable', 'Later.')
      },
    }
    const interrupted = new ApiClient({
      baseUrl: api.url,
      apiKey: api.key,
      clock,
      signal: controller.signal,
    })
    await assert.rejects(interrupted.get(AnyObject, '/v1/files'), Interrupted)
    assert.equal(api.seen.length, 1)
  })
})

test('no advice on the command line speaks of calls, headers or fields of an answer', () => {
  const ofTheApi =
    /`param`|`limit_id`|`resets_at`|`Allow`|Retry-After|Content-Range|X-Service|(GET|POST|DELETE) \/v1/
  for (const code of Object.keys(ERRORS)) assert.doesNotMatch(adviceFor({ code }) ?? '', ofTheApi, code)
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
  for (const code of ['code_of_the_future', 'toString']) assert.equal(adviceFor({ code }), null)
})

test('a cap that refuses is named in the command that raises it', () => {
  const advice = adviceFor({ code: 'usage_limit_exceeded', limit_id: 'lim_1' })
  assert.match(advice ?? '', /"offpeak limits set lim_1 --amount N"/)
})

test('delays double, stay between half and whole, and end at ten seconds', () => {
  assert.deepEqual(
    [1, 2, 3].map((attempt) => retryDelayMs(attempt, null, 0)),
    [125, 250, 500],
  )
  assert.equal(retryDelayMs(1, null, 0.999_999_9) <= 250, true)
  assert.equal(retryDelayMs(50, null, 0.5), 7500)
})

test('no retry comes before Retry-After', () => {
  assert.equal(retryDelayMs(1, 7000, 0.5), 7000)
  assert.equal(retryDelayMs(9, 1, 0), 5000)
})

test('a spending limit that is used up is not retried like a rate limit', () => {
  assert.equal(worthRetrying(429, 'rate_limit_exceeded'), true)
  assert.equal(worthRetrying(429, null), true)
  assert.equal(worthRetrying(429, 'usage_limit_exceeded'), false)
  for (const status of [500, 502, 503, 504]) assert.equal(worthRetrying(status, null), true)
  for (const status of [400, 401, 403, 404, 409, 422, 501]) assert.equal(worthRetrying(status, null), false)
})
