// Programs that make one call at a time, before a service that a test controls.
import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Writable } from 'node:stream'
import { after, before, beforeEach, describe, test } from 'node:test'
import OpenAI from 'openai'
import { KnownRequests } from '../../src/cli/client/known-requests.ts'
import { runProgram } from '../../src/cli/program.ts'
import { systemClock } from '../../src/domain/clock.ts'
import { newId } from '../../src/domain/ids.ts'
import { launchOnly, TEST_VERSION } from '../fakes/offpeak.ts'
import { type FakeRequest, FakeSingleRequests } from '../fakes/single-requests.ts'
import { capturedTerminal } from '../fakes/terminal.ts'
import { echo, testUpstream } from '../fakes/upstream.ts'
import { configFor, TestService } from '../service.ts'

const CHAT = { model: 'sim-1', messages: [{ role: 'user' as const, content: 'hi' }] }
/** Numbers, escapes and an order of keys that parsing and printing would change. */
const ANSWER =
  '{"usage":{"prompt_tokens":3,"completion_tokens":1.0},"choices":[{"index":0,"message":{"role":"assistant","content":"\\u00e9"},"finish_reason":"stop"}],"seed":12345678901234567890}'
const COSTED = ANSWER.replace('1.0}', '1.0,"cost_usd":0.0000123}')

describe('offpeak gather', { timeout: 60_000 }, () => {
  let folder: string
  let fake: FakeSingleRequests

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'offpeak-gather-'))
    fake = await FakeSingleRequests.start()
  })
  after(async () => {
    await fake[Symbol.asyncDispose]()
    await rm(folder, { recursive: true, force: true })
  })
  beforeEach(() => {
    fake.reset()
    fake.respond = (request) => fake.end(request, { answer: COSTED })
  })

  /** Runs the command until it has ended. `state`: where it remembers requests; a folder of its own unless named. */
  async function run(
    args: readonly string[],
    state: string,
    interrupted: AbortSignal,
    stdout: Writable,
    { url: baseUrl, key: apiKey }: { url: string; key: string } = fake,
  ) {
    const terminal = { ...capturedTerminal(), stdout }
    const code = await runProgram(['gather', ...args], {
      launch: launchOnly(),
      access: { baseUrl, apiKey },
      terminal,
      clock: systemClock,
      interruption: () => interrupted,
      version: TEST_VERSION,
      env: { XDG_STATE_HOME: join(folder, state), PATH: process.env.PATH, NO_PROXY: 'other.example' },
      withStack: false,
    })
    return { code, err: terminal.err() }
  }

  /** Starts the command without a program; `stop` interrupts it. */
  function listening(state: string, ...args: string[]) {
    return listeningBefore(fake, state, args)
  }

  async function listeningBefore(
    service: { url: string; key: string },
    state: string,
    args: readonly string[] = [],
  ) {
    const interruption = new AbortController()
    const ready = Promise.withResolvers<string>()
    const stdout = new Writable({
      write(said: Buffer, _encoding, done) {
        ready.resolve(said.toString().trim().split(' ').at(-1) ?? '')
        done()
      },
    })
    const ended = run(['--port', '0', ...args], state, interruption.signal, stdout, service)
    const failed = ended.then(({ err }) => Promise.reject(new Error(err)))
    failed.catch(() => {})
    const url = await Promise.race([ready.promise, failed])
    const post = (path: string, body: object | string, signal?: AbortSignal) =>
      fetch(url.replace(/\/v1$/, path), {
        method: 'POST',
        body: typeof body === 'string' ? body : JSON.stringify(body),
        signal: signal ?? null,
      })
    const stop = () => {
      interruption.abort()
      return ended
    }
    return { url, post, stop, openai: new OpenAI({ baseURL: url, apiKey: 'none', maxRetries: 2 }) }
  }

  test('a call of any endpoint is answered with the bytes of the model, and reaches it as it is', async () => {
    const { post, stop } = await listening('bytes', '--entity', 'team:a', '--window', '4h')
    for (const path of ['chat/completions', 'completions', 'embeddings', 'responses', 'messages']) {
      const body = `{"model": "sim-1",\n "temperature": 1.0, "of": "${path}"}`
      // Programs on .NET may begin with a byte order mark.
      for (const [prefix, mark] of [
        ['/v1/', ''],
        ['/', '\ufeff'],
        ['/v1/v1/', ''],
      ] as const) {
        const answer = await post(prefix + path, mark + body)
        assert.deepEqual([answer.status, await answer.text()], [200, ANSWER], path)
        const made = fake.made.at(-1)
        assert.equal(made?.body, body)
        const { endpoint, completion_window, metadata } = made.order
        assert.deepEqual(
          { endpoint, completion_window, metadata },
          { endpoint: `/v1/${path}`, completion_window: '4h', metadata: { entity: 'team:a' } },
        )
      }
    }
    assert.match((await stop()).err, /15 calls: 15 answered, 0 failed, \$0\.000185/)
  })

  test('a stream is the whole answer in the events that each SDK reads', async () => {
    const { openai, post, stop } = await listening('streams')
    const usage = { prompt_tokens: 3, completion_tokens: 1, total_tokens: 4 }
    const call = { id: 'c', type: 'function', function: { name: 'f', arguments: '{"a":1}' } }
    const message = { role: 'assistant', content: 'Yes.', tool_calls: [call] }
    const head = { id: 'x', created: 1, model: 'sim-1' }
    const answer = (object: object): void => {
      fake.respond = (request) => fake.end(request, { answer: JSON.stringify(object) })
    }
    answer({
      ...head,
      object: 'chat.completion',
      choices: [{ index: 0, message, finish_reason: 'tool_calls' }],
      usage,
    })
    const chat = openai.chat.completions.stream({ ...CHAT, stream_options: { include_usage: true } })
    const { choices, usage: told } = await chat.finalChatCompletion()
    assert.deepEqual([choices[0]?.message.content, choices[0]?.message.tool_calls], ['Yes.', [call]])
    assert.deepEqual(told, usage)
    assert.deepEqual(
      [fake.made[0]?.order.body.stream, fake.made[0]?.order.body.stream_options],
      [false, null],
    )

    answer({
      ...head,
      object: 'text_completion',
      choices: [{ index: 0, text: 'Yes.', finish_reason: 'stop' }],
      usage,
    })
    let said = ''
    for await (const chunk of await openai.completions.create({ model: 'sim-1', prompt: 'hi', stream: true }))
      said += chunk.choices[0]?.text
    assert.equal(said, 'Yes.')

    const parts = [{ type: 'output_text', text: 'Yes.', annotations: [] }]
    const output = [
      { type: 'message', id: 'm', role: 'assistant', status: 'completed', content: parts },
      { type: 'function_call', id: 'f', call_id: 'c', name: 'f', arguments: '{"a":1}', status: 'completed' },
    ]
    answer({ ...head, object: 'response', status: 'completed', output })
    const types: string[] = []
    const response = openai.responses.stream({ model: 'sim-1', input: 'hi' })
    for await (const event of response) types.push(event.type)
    assert.deepEqual([types[0], types.at(-1)], ['response.created', 'response.completed'])
    assert.deepEqual((await response.finalResponse()).output_text, 'Yes.')

    const content = [
      { type: 'thinking', thinking: 'Well.', signature: 's' },
      { type: 'text', text: 'Yes.' },
      { type: 'tool_use', id: 't', name: 'f', input: { a: 1 } },
    ]
    answer({
      id: 'x',
      type: 'message',
      role: 'assistant',
      content,
      stop_reason: 'tool_use',
      usage: { output_tokens: 1 },
    })
    const events = await (await post('/v1/messages', { ...CHAT, max_tokens: 5, stream: true })).text()
    const changed = ['content_block_start', 'content_block_delta', 'content_block_stop']
    assert.deepEqual(
      [...events.matchAll(/^event: (\w+)\ndata: \{"type":"\1"/gm)].map(([, type]) => type),
      [
        'message_start',
        ...[...changed.slice(0, 2), ...changed.slice(1), ...changed, ...changed],
        ...['message_delta', 'message_stop'],
      ],
    )
    assert.match(events, /"delta":\{"type":"input_json_delta","partial_json":"\{\\"a\\":1\}"\}/)
    assert.match(
      events,
      /"delta":\{"stop_reason":"tool_use","stop_sequence":null\},"usage":\{"output_tokens":1\}/,
    )
    await stop()
  })

  test('a request that fails, and one that the service rejects, are errors that an SDK does not repeat', async () => {
    const { openai, post, stop } = await listening('errors')
    const error = { type: 'invalid_request_error', code: 'upstream_rejected', message: 'too long' }
    fake.respond = (request) => fake.end(request, { error })
    await assert.rejects(openai.chat.completions.create(CHAT), { status: 400, code: 'upstream_rejected' })
    const failed = await post('/v1/messages', CHAT)
    assert.equal(failed.status, 400)
    const { type, error: told } = (await failed.json()) as { type: string; error: { message: string } }
    assert.deepEqual([type, told.message], ['error', 'too long'])
    fake.fault = (method) =>
      method === 'POST'
        ? {
            status: 429,
            body: {
              error: {
                type: 'rate_limit_error',
                code: 'usage_limit_exceeded',
                message: 'No money.',
                param: 'body.model',
              },
            },
          }
        : undefined
    await assert.rejects(openai.chat.completions.create(CHAT), {
      status: 429,
      code: 'usage_limit_exceeded',
      param: 'model',
    })
    assert.equal(fake.calls.get('POST /v1/requests'), 3)
    const broken = await post('/v1/chat/completions', '{"model":')
    assert.equal(broken.status, 400)
    assert.match(await broken.text(), /invalid_json/)
    assert.equal((await post('/v1/chat', { stream: true })).status, 429)
    assert.equal((await fetch(`${openai.baseURL}/files`)).status, 404)
    const { err } = await stop()
    assert.equal([...err.matchAll(/upstream_rejected: too long/g)].length, 1)
  })

  test('an answer that is nested too deeply fails its own call alone', async () => {
    const { post, stop } = await listening('deep')
    fake.respond = (request) => {
      const depth = request.order.body.seed === 1 ? 99 : 1
      fake.end(request, { answer: `{"deep":${'['.repeat(depth)}${']'.repeat(depth)}}` })
    }
    const asked = [1, 2].map((seed) => post('/v1/chat/completions', { ...CHAT, seed }))
    const statuses = (await Promise.all(asked)).map(({ status }) => status)
    assert.deepEqual(statuses, [503, 200])
    await stop()
  })

  test('only programs of this machine are answered, and no page in a browser', async () => {
    const { url, stop } = await listening('browser')
    for (const headers of [{ origin: 'https://site.example' }, { 'sec-fetch-site': 'none' }]) {
      const answer = await fetch(`${url}/chat/completions`, {
        method: 'POST',
        headers,
        body: JSON.stringify(CHAT),
      })
      assert.equal(answer.status, 403)
    }
    assert.equal(fake.made.length, 0)
    await stop()
  })

  test('hundreds of open calls are waited for by a few calls of the service, in whatever order they end', async () => {
    fake.respond = () => {}
    const { post, stop } = await listening('many')
    const answers = Array.from({ length: 150 }, async (_, i) => {
      const answer = await post('/v1/chat/completions', { ...CHAT, seed: i })
      return ((await answer.json()) as { seed: number }).seed
    })
    await fake.hasMade(150)
    const answer = (request: FakeRequest) =>
      fake.end(request, { answer: JSON.stringify({ seed: request.order.body.seed }) })
    for (const request of fake.made.slice(50).toReversed()) answer(request)
    await Promise.any(answers)
    for (const request of fake.made.slice(0, 50)) answer(request)
    assert.deepEqual(await Promise.all(answers), [...Array(150).keys()])
    const looks = [...fake.calls].filter(([name]) => /^GET \/v1\/(?:requests|batches)/.test(name))
    assert.ok(looks.reduce((sum, [, calls]) => sum + calls, 0) < 75, JSON.stringify(looks))
    await stop()
  })

  test('a service that restarts, and an answer that is lost, cost no second request', async () => {
    fake.respond = () => {}
    const { post, stop } = await listening('restart')
    let lost = 0
    fake.fault = (method) => (method === 'POST' && lost++ === 0 ? 'lose' : undefined)
    const answer = post('/v1/chat/completions', CHAT)
    await fake.hasMade(1)
    await fake.restart()
    for (const request of fake.made) fake.end(request, { answer: COSTED })
    assert.equal(await (await answer).text(), ANSWER)
    assert.equal(fake.made.length, 1)
    assert.ok(lost > 1)
    await stop()
  })

  test('the answers of an interrupted run are not paid for again, unless --fresh asks anew', async () => {
    let failing = true
    fake.respond = (request) => {
      if (request.order.body.seed === 1 && failing)
        fake.end(request, { error: { type: 'api_error', code: 'upstream_timeout', message: 'late' } })
      else if (request.order.body.seed !== 2)
        fake.end(request, { answer: JSON.stringify({ was: request.id }) })
    }
    const asked = async (gather: Awaited<ReturnType<typeof listening>>, seed: number): Promise<string> => {
      const answer = await gather.post('/v1/chat/completions', { ...CHAT, seed })
      return await answer.text()
    }
    const first = await listening('resumed')
    const same = [await asked(first, 0), await asked(first, 0)]
    assert.notEqual(same[0], same[1])
    assert.match(await asked(first, 1), /upstream_timeout/)
    const open = asked(first, 2).catch(() => '')
    await fake.hasMade(4)
    await first.stop()
    await open
    assert.equal(fake.made[3]?.cancelled, true)

    failing = false
    const second = await listening('resumed')
    assert.deepEqual([await asked(second, 0), await asked(second, 0)], same)
    assert.equal(fake.made.length, 4)
    assert.match(await asked(second, 1), /was/)
    assert.notEqual(await asked(second, 0), same[0])
    assert.equal(fake.made.length, 6)
    const { err } = await second.stop()
    assert.match(err, /4 calls: 4 answered \(2 by requests of earlier runs; --fresh asks anew\)/)

    const third = await listening('resumed', '--fresh')
    assert.ok(!same.includes(await asked(third, 0)))
    assert.equal(fake.made.length, 7)
    await third.stop()
    const [name = ''] = fake.keyHashes
    const path = join(folder, 'resumed', 'offpeak', 'gather', name)
    assert.equal((await stat(path)).mode & 0o777, 0o600)
    assert.match(await readFile(path, 'utf8'), /^(?:[\w-]{43} \d+ req_\w+\n){7}$/)
  })

  test('the retry of a client that has stopped waiting waits for the same request', async () => {
    fake.respond = () => {}
    const { post, stop } = await listening('left')
    const patience = new AbortController()
    const left = post('/v1/chat/completions', CHAT, patience.signal)
    await fake.hasMade(1)
    patience.abort()
    await assert.rejects(left)
    const answer = post('/v1/chat/completions', CHAT)
    await fake.hasCalled('GET /v1/batches/…/results')
    for (const request of fake.made) fake.end(request, { answer: COSTED })
    assert.equal(await (await answer).text(), ANSWER)
    assert.equal(fake.made.length, 1)
    assert.match(
      (await stop()).err,
      /1 call: 1 answered, 0 failed, \$0\.0000123 \(\$0\.0000123 less than live calls\),/,
    )
  })

  test('--model changes the model of a call, and nothing else of it', async () => {
    const { post, stop } = await listening('model', '--model', 'sim-1')
    await post('/v1/chat/completions', '{"n": 1.0, "model" : "gpt-4o", "stream":true, "seed":1}')
    assert.equal(fake.made[0]?.body, '{"n": 1.0, "model" : "sim-1", "stream":false, "seed":1}')
    await stop()
  })

  test('a program finds the address in its environment, and ends the command with its exit code', async () => {
    fake.respond = () => {}
    const script = `
      const { OPENAI_BASE_URL, ANTHROPIC_BASE_URL, OPENAI_API_KEY, ANTHROPIC_API_KEY } = process.env;
      if (!OPENAI_API_KEY || OPENAI_API_KEY !== ANTHROPIC_API_KEY || OPENAI_API_KEY !== 'offpeak-gather') process.exit(1)
      if (process.env.NO_PROXY !== 'other.example,127.0.0.1') process.exit(1)
      fetch(OPENAI_BASE_URL + '/chat/completions', { method: 'POST', body: '{}' }).catch(() => {})
      fetch(ANTHROPIC_BASE_URL + '/v1/messages', { method: 'POST', body: '{}' }).catch(() => {})
      process.on('SIGTERM', () => process.exit(7))`
    const never = new AbortController().signal
    const ended = run(['--', process.execPath, '-e', script], 'program', never, capturedTerminal().stdout)
    await fake.hasMade(2)
    process.kill(process.pid, 'SIGTERM')
    const { code, err } = await ended
    assert.equal(code, 7, err)
    assert.deepEqual(
      fake.made.map(({ cancelled }) => cancelled),
      [true, true],
    )
    assert.match(err, /Cancelled 2 requests/)
  })

  test('what cannot run is an error that says so', async () => {
    const never = new AbortController().signal
    for (const [args, code, words] of [
      [[], 1, /name a program behind --, or a port/],
      [['--', 'no-such-program'], 127, /there is no program "no-such-program"/],
      [['--model', 'nope', '--', 'true'], 1, /There is no such model/],
      [['--window', '7h', '--', 'true'], 1, /--window 7h is not a completion window/],
    ] as const) {
      const ended = await run(args, 'wrong', never, capturedTerminal().stdout)
      assert.equal(ended.code, code, ended.err)
      assert.match(ended.err, words)
    }
  })

  test('before a real service, each call is one line, and equal calls of the next run send nothing', async () => {
    await using upstream = await testUpstream(echo)
    await using service = await TestService.start(configFor(upstream.base_url))
    const bodies = Array.from({ length: 12 }, (_, i) =>
      JSON.stringify({ ...CHAT, model: 'm', max_tokens: 1 + (i % 6) }),
    )
    for (const [state, known] of [
      ['real', ''],
      ['real', ' \\(12 by requests of earlier runs; --fresh asks anew\\)'],
    ] as const) {
      const { post, stop } = await listeningBefore(service, state)
      const answers = await Promise.all(
        bodies.map(async (body) => {
          const answer = await post('/v1/chat/completions', body)
          return [answer.status, await answer.text()]
        }),
      )
      for (const [status, text] of answers) {
        assert.equal(status, 200)
        assert.match(String(text), /"content":"hi"/)
        assert.doesNotMatch(String(text), /cost_usd/)
      }
      assert.match((await stop()).err, new RegExp(`12 calls: 12 answered${known}, 0 failed`))
      assert.deepEqual(upstream.calls.map(({ bytes }) => bytes.toString()).sort(), bodies.toSorted())
    }
  })

  test('any number of equal requests of earlier runs is known', async () => {
    const path = join(folder, 'equal')
    const [hash, id] = ['a'.repeat(43), newId('request', systemClock.now())]
    await writeFile(path, Array.from({ length: 150_000 }, (_, i) => `${hash} ${i} ${id}\n`).join(''))
    const known = await KnownRequests.open(path, false, systemClock.now())
    assert.deepEqual(known.take(hash), { hash, number: 0, id, isEarlier: true })
    assert.equal(await known.close(), null)
  })
})
