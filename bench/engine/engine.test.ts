import assert from 'node:assert/strict'
import test from 'node:test'
import OpenAI from 'openai'
import { request } from 'undici'
import { Engine, type EngineOptions, engineSettings } from './engine.ts'
import { engineServer } from './served-engine.ts'

const PLAIN: EngineOptions = { step_ms: 10, seq_ms: 1, prefill_token_ms: 0.1, block_tokens: 16 }

class Run {
  readonly engine: Engine
  readonly first = new Map<string, number>()
  readonly done = new Map<string, number>()

  constructor(options: EngineOptions) {
    this.engine = new Engine(engineSettings({ ...PLAIN, ...options }))
  }

  submit(
    name: string,
    prompt_tokens: number,
    output_tokens: number,
    priority = 0,
    keys: string[] = [],
    now = 0,
  ) {
    return this.engine.submit(
      {
        prompt_tokens,
        output_tokens,
        priority,
        keys,
        onToken: (tokens, at) => tokens === 1 && this.first.set(name, at),
        onDone: (at) => this.done.set(name, at),
      },
      now,
    )
  }

  /** Until nothing is left. */
  finish(): void {
    for (let at = this.engine.nextAt; at !== null; at = this.engine.nextAt) this.engine.advance(at)
  }
}

test('a step takes its time for itself, for each request that gets a token, and for each prompt token', () => {
  const run = new Run({})
  run.submit('a', 100, 3)
  run.finish()
  // The prompt's step makes the first token; two more follow.
  assert.deepEqual([run.first.get('a'), run.done.get('a')], [20, 42])
  const { running, waiting, kv_usage, prompt_tokens, generation_tokens } = run.engine.stats
  assert.deepEqual([running, waiting, kv_usage, prompt_tokens, generation_tokens], [0, 0, 0, 100, 3])
})

test('a long prompt is computed in pieces beside the requests that get their tokens', () => {
  const run = new Run({ max_num_batched_tokens: 50, max_num_seqs: 4 })
  run.submit('a', 10, 100)
  run.engine.advance(11)
  run.submit('b', 120, 1, 0, [], 11)
  // The step that began at 11 is under way; then 49, 49 and 22 tokens beside one of `a`.
  const steps = [12, 10 + 1 + 4.9, 10 + 1 + 4.9, 10 + 1 + 2.2]
  run.engine.advance(70)
  assert.ok(Math.abs(run.first.get('b')! - (10 + steps.reduce((sum, ms) => sum + ms, 0))) < 2)
  assert.equal(run.engine.stats.running, 1)
})

test('requests without a slot wait in the order of arrival, or of their priority', () => {
  const order = (scheduling_policy: 'fcfs' | 'priority'): string[] => {
    const run = new Run({ max_num_seqs: 1, scheduling_policy })
    run.submit('batch', 16, 4, 10)
    run.submit('late batch', 16, 2, 10)
    run.submit('live', 16, 2, 0)
    assert.equal(run.engine.stats.running, 1)
    run.finish()
    return [...run.done].sort(([, a], [, b]) => a - b).map(([name]) => name)
  }
  assert.deepEqual(order('fcfs'), ['batch', 'late batch', 'live'])
  assert.deepEqual(order('priority'), ['batch', 'live', 'late batch'])
})

test('a request that finds no block preempts the last one, which computes everything again', () => {
  const run = new Run({ kv_blocks: 5, prefix_caching: false })
  run.submit('a', 32, 20)
  run.submit('b', 32, 4)
  run.finish()
  const { preemptions, prompt_tokens, generation_tokens, kv_usage } = run.engine.stats
  assert.equal(preemptions, 1)
  assert.ok(run.done.get('b')! > run.first.get('b')!)
  assert.ok(prompt_tokens > 64)
  assert.deepEqual([generation_tokens, kv_usage], [24, 0])
})

test('prompts that begin alike share blocks, of which the ones unused for longest go first', () => {
  const run = new Run({ kv_blocks: 8 })
  const keys = (name: string): string[] => [`${name}1`, `${name}2`, `${name}3`]
  for (const name of ['x', 'x']) {
    run.submit(name, 50, 1, 0, keys('x'))
    run.finish()
  }
  assert.deepEqual([run.engine.stats.prefix_queries, run.engine.stats.prefix_hits], [100, 48])
  for (const name of ['y', 'z', 'x']) {
    run.submit(name, 50, 1, 0, keys(name))
    run.finish()
  }
  // Eight blocks hold two prompts: of `x`, all but the beginning went when `z` came.
  assert.equal(run.engine.stats.prefix_hits, 48 + 16)
})

test('a request that is given up frees its slot and its blocks', () => {
  const run = new Run({ max_num_seqs: 1 })
  const gone = run.submit('gone', 16, 1_000)
  run.submit('next', 16, 1)
  run.engine.advance(30)
  run.engine.abort(gone)
  run.finish()
  assert.equal(run.done.has('gone'), false)
  assert.ok(run.done.get('next')! < 100)
  assert.equal(run.engine.stats.kv_usage, 0)
})

test('options that make no sense are named', () => {
  assert.throws(() => engineSettings({ kv_blocks: 0 }), /kv_blocks must be at least 1/)
  assert.throws(() => engineSettings({ step_ms: -1 }), /step_ms must be at least 0/)
  assert.throws(() => engineSettings({ max_num_batched_tokens: 8 }), /at least max_num_seqs/)
})

async function post(base_url: string, body: string): Promise<{ status: number; text: string }> {
  const answer = await request(`${base_url}/chat/completions`, { method: 'POST', body })
  return { status: answer.statusCode, text: await answer.body.text() }
}

test('behind the simulated engine, answers stream token by token, and its metrics are those of vLLM', async () => {
  const engine = { step_ms: 1, seq_ms: 0, prefill_token_ms: 0 }
  await using server = await engineServer(engine)
  const { base_url } = server
  const client = new OpenAI({ baseURL: base_url, apiKey: 'any', maxRetries: 0 })
  const asked = { model: 'm', messages: [{ role: 'user' as const, content: 'hi' }], max_tokens: 9 }
  const whole = await client.chat.completions.create(asked)
  let text = ''
  let pieces = 0
  let usage: OpenAI.CompletionUsage | null = null
  const stream = await client.chat.completions.create({
    ...asked,
    stream: true,
    stream_options: { include_usage: true },
  })
  for await (const chunk of stream) {
    const piece = chunk.choices[0]?.delta.content ?? ''
    if (piece !== '') pieces++
    text += piece
    usage = chunk.usage ?? usage
  }
  assert.equal(pieces, 9)
  assert.match(text, /^Simulated answer /)
  assert.deepEqual(usage, whole.usage)
  await assert.rejects(
    client.chat.completions.create({ ...asked, ...{ priority: 3 } }),
    /priority scheduling is not enabled/,
  )
  const metrics = await request(base_url.replace('/v1', '/metrics'))
  const shown = await metrics.body.text()
  assert.match(shown, /^vllm:num_requests_running\{.*\} 0$/m)
  assert.match(shown, /^vllm:generation_tokens_total\{.*\} 18$/m)
})

test('the simulated engine refuses what its queue has no place for', async () => {
  const engine = { max_num_seqs: 1, queue_max: 1, step_ms: 20 }
  await using server = await engineServer(engine)
  const { base_url } = server
  const texts = ['a', 'b', 'c', 'd'].map((content) =>
    JSON.stringify({ model: 'm', messages: [{ role: 'user', content }], max_tokens: 3 }),
  )
  const answers = await Promise.all(texts.map((text) => post(base_url, text)))
  const refused = answers.filter(({ status }) => status === 503)
  assert.ok(refused.length > 0)
  assert.match(refused[0]!.text, /request queue is full/)
  assert.ok(answers.some(({ status }) => status === 200))
})
