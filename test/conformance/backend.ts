// What every backend promises to those who send lines through it, told as tests. Each adapter runs them
// against a model server that behaves as SimOptions say.
import assert from 'node:assert/strict'
import test, { type TestContext } from 'node:test'
import type { Backend, BackendResult } from '../../src/backends/backend.ts'
import type { SimOptions } from '../../src/domain/simulated-server.ts'
import { sendTo } from '../fakes/scripted-backend.ts'

export interface BackendUnderTest {
  backend: Backend
  /** Requests that the model server is working on right now. */
  in_flight(): number
  /** Resolves when as many requests are being worked on. */
  reaches(in_flight: number): Promise<void>
  /** Everything but the backend itself. */
  release(): Promise<void>
}

export interface Circumstances extends SimOptions {
  /** The longest an answer may take. */
  timeout_ms?: number
}

export type MakeBackend = (circumstances: Circumstances) => Promise<BackendUnderTest>

const NAME = 'under-test'

/** Runs the suite; `make` is to call its backend `under-test`. */
export function backendConformance(adapter: string, make: MakeBackend): void {
  const contract = (promise: string, check: (t: TestContext) => Promise<void>): void => {
    test(`${adapter}: ${promise}`, check)
  }

  async function start(t: TestContext, circumstances: Circumstances = {}): Promise<BackendUnderTest> {
    const made = await make(circumstances)
    t.after(async () => {
      await made.backend.close()
      await made.release()
    })
    return made
  }

  contract('it bears the name it was given', async (t) => {
    const { backend } = await start(t)
    assert.equal(backend.name, NAME)
  })

  contract(
    'a result comes once, and not before the call returns, of an aborted request as well',
    async (t) => {
      const { backend } = await start(t)
      for (const signal of [new AbortController().signal, AbortSignal.abort()]) {
        const results: BackendResult[] = []
        const { promise, resolve } = Promise.withResolvers<void>()
        const call = { endpoint: '/v1/chat/completions', project_id: 'p', body: chat('x'), signal } as const
        backend.send(call, (result) => {
          results.push(result)
          resolve()
        })
        assert.deepEqual(results, [])
        await promise
        await new Promise(setImmediate)
        assert.equal(results.length, 1)
      }
    },
  )

  contract('an answer comes as it was received, with what was found in it', async (t) => {
    const { backend } = await start(t)
    const result = await sendTo(backend, {
      endpoint: '/v1/chat/completions',
      project_id: 'p',
      body: chat('hello'),
    })
    assert.ok(result.kind === 'answered', JSON.stringify(result))
    assert.equal(result.status, 200)
    const body = JSON.parse(result.body.toString())
    assert.equal(body.choices.length, 1)
    const { usage, generated_bytes } = result.answer
    assert.deepEqual(usage, body.usage)
    assert.equal(generated_bytes, JSON.stringify(body.choices[0].message).length)
    assert.ok(usage && usage.total_tokens === usage.prompt_tokens + usage.completion_tokens)
  })

  contract('the same bytes get the same answer, other bytes another', async (t) => {
    const { backend } = await start(t)
    const texts = []
    for (const body of [chat('a'), chat('a'), chat('b')]) {
      const result = await sendTo(backend, { endpoint: '/v1/chat/completions', project_id: 'p', body })
      texts.push(result.kind === 'answered' ? result.body.toString() : result)
    }
    assert.equal(texts[0], texts[1])
    assert.notEqual(texts[0], texts[2])
  })

  contract('many attempts at once each get their own answer', async (t) => {
    const { backend } = await start(t, { latency_ms: { min: 0, max: 5 } })
    const bodies = Array.from({ length: 100 }, (_, i) => chat(`line ${i}`))
    const results = await Promise.all(
      bodies.map((body) => sendTo(backend, { endpoint: '/v1/chat/completions', project_id: 'p', body })),
    )
    const texts = results.map((result) =>
      result.kind === 'answered' ? result.body.toString() : JSON.stringify(result),
    )
    assert.equal(new Set(texts).size, 100)
    assert.ok(results.every((result) => result.kind === 'answered'))
  })

  contract('an answer without usage is an answer', async (t) => {
    const { backend } = await start(t, { faults: { missing_usage: 1 } })
    const result = await sendTo(backend, {
      endpoint: '/v1/chat/completions',
      project_id: 'p',
      body: chat('hello'),
    })
    assert.ok(result.kind === 'answered')
    assert.equal(result.answer.usage, null)
  })

  contract('a request that can never succeed is refused, and says why', async (t) => {
    const { backend } = await start(t, { context_window: 50, models: ['known'] })
    const cases: [body: Uint8Array, code: string, param?: string][] = [
      [chat('x'.repeat(1000), 'known'), 'context_length_exceeded', 'messages'],
      [chat('short', 'unknown'), 'model_not_found', 'model'],
      [Buffer.from('{"model":"known","messages":[]}'), 'upstream_rejected', 'messages'],
    ]
    for (const [body, code, param] of cases) {
      const result = await sendTo(backend, { endpoint: '/v1/chat/completions', project_id: 'p', body })
      assert.ok(result.kind === 'refused', JSON.stringify(result))
      assert.deepEqual([result.code, result.param], [code, param])
      assert.notEqual(result.message, '')
    }
  })

  contract('a server without room throttles, and says for how long', async (t) => {
    for (const fault of ['429', '503'] as const) {
      const { backend } = await start(t, { faults: { [fault]: 1 }, retry_after_ms: 1500 })
      const result = await sendTo(backend, {
        endpoint: '/v1/chat/completions',
        project_id: 'p',
        body: chat('hello'),
      })
      assert.ok(result.kind === 'throttled', JSON.stringify(result))
      assert.deepEqual([result.status, result.retry_after_ms], [Number(fault), 1500])
      assert.notEqual(result.reason, '')
    }
  })

  contract('a server whose slots are taken throttles what comes on top', async (t) => {
    const { backend, reaches } = await start(t, { capacity: 2, faults: { hang: 1 } })
    const abort = new AbortController()
    const held = [chat('a'), chat('b')].map((body) =>
      sendTo(backend, { endpoint: '/v1/chat/completions', project_id: 'p', body, signal: abort.signal }),
    )
    await reaches(2)
    const result = await sendTo(backend, {
      endpoint: '/v1/chat/completions',
      project_id: 'p',
      body: chat('c'),
    })
    assert.deepEqual([result.kind, result.status], ['throttled', 429])
    abort.abort()
    await Promise.all(held)
  })

  contract('a server that breaks is a failure worth another attempt', async (t) => {
    const cases: [fault: '500' | 'reset' | 'garbage', code: string, status: number | null][] = [
      ['500', 'upstream_unavailable', 500],
      ['reset', 'upstream_unavailable', null],
      ['garbage', 'upstream_invalid_response', 200],
    ]
    for (const [fault, code, status] of cases) {
      const { backend } = await start(t, { faults: { [fault]: 1 } })
      for (let i = 0; i < 8; i++)
        expectFailed(
          await sendTo(backend, { endpoint: '/v1/chat/completions', project_id: 'p', body: chat(`${i}`) }),
          code,
          status,
        )
    }
  })

  contract('an answer that does not come in time is a timeout', async (t) => {
    const { backend } = await start(t, { faults: { hang: 1 }, timeout_ms: 30 })
    expectFailed(
      await sendTo(backend, { endpoint: '/v1/chat/completions', project_id: 'p', body: chat('hello') }),
      'upstream_timeout',
      null,
    )
  })

  contract('an abort ends the attempt and frees the server of it', async (t) => {
    const { backend, reaches } = await start(t, { faults: { hang: 1 } })
    const abort = new AbortController()
    const attempts = ['a', 'b', 'c'].map((text) =>
      sendTo(backend, {
        endpoint: '/v1/chat/completions',
        project_id: 'p',
        body: chat(text),
        signal: abort.signal,
      }),
    )
    await reaches(3)
    abort.abort()
    for (const result of await Promise.all(attempts)) expectFailed(result, 'upstream_unavailable', null)
    await reaches(0)
  })

  contract('an abort before the attempt sends nothing', async (t) => {
    const { backend, in_flight } = await start(t, { faults: { hang: 1 } })
    const result = await sendTo(backend, {
      endpoint: '/v1/chat/completions',
      project_id: 'p',
      body: chat('hello'),
      signal: AbortSignal.abort(),
    })
    expectFailed(result, 'upstream_unavailable', null)
    assert.equal(in_flight(), 0)
  })

  contract('an abort after the answer changes nothing', async (t) => {
    const { backend } = await start(t)
    const abort = new AbortController()
    const result = await sendTo(backend, {
      endpoint: '/v1/chat/completions',
      project_id: 'p',
      body: chat('hello'),
      signal: abort.signal,
    })
    abort.abort()
    assert.equal(result.kind, 'answered')
    assert.equal(
      (await sendTo(backend, { endpoint: '/v1/chat/completions', project_id: 'p', body: chat('hello') }))
        .kind,
      'answered',
    )
  })

  contract('close aborts what is in flight; what comes later fails, and nothing throws', async (t) => {
    const { backend, reaches } = await start(t, { faults: { hang: 1 } })
    const attempt = sendTo(backend, {
      endpoint: '/v1/chat/completions',
      project_id: 'p',
      body: chat('hello'),
    })
    await reaches(1)
    await backend.close()
    expectFailed(await attempt, 'upstream_unavailable', null)
    expectFailed(
      await sendTo(backend, { endpoint: '/v1/chat/completions', project_id: 'p', body: chat('late') }),
      'upstream_unavailable',
      null,
    )
    await backend.close()
  })

  contract('whatever the body is, send does not throw', async (t) => {
    const { backend } = await start(t)
    for (const text of ['', 'null', '[]', '{', '{"model":"m"}', `${'['.repeat(50_000)}`]) {
      const result = await sendTo(backend, {
        endpoint: '/v1/chat/completions',
        project_id: 'p',
        body: Buffer.from(text),
      })
      assert.equal(result.kind, 'refused', text.slice(0, 20))
    }
  })
}

function expectFailed(result: BackendResult, code: string, status: number | null): void {
  assert.ok(result.kind === 'failed', JSON.stringify(result))
  assert.deepEqual([result.code, result.status], [code, status])
  assert.notEqual(result.reason, '')
}

function chat(content: string, model = 'sim-1'): Uint8Array {
  return Buffer.from(JSON.stringify({ model, messages: [{ role: 'user', content }] }))
}
