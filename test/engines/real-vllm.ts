// A real vLLM: `npm run test:engine`. It needs Python, a package index and, on two cores, some minutes; where vLLM cannot be
// installed, the tests are skipped.
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { line as lineOf, TestService, type WireBatch, type WireLine } from '../service.ts'
import { isAlive, killIfThere, OffpeakProcess, until } from '../support/offpeak-process.ts'
import { type Installed, installPooling, installVllm } from './installed-engines.ts'
import { refusedLines } from './refused-lines.ts'
import { descendantsOf, VllmServer } from './vllm-server.ts'

const MODEL = 'm'
const SLOTS = 4
const ANSWER_TOKENS = 6
/** Long enough that several blocks of them are cached. */
const STORY = 'The ferry leaves the harbour at seven and comes back at nine. '.repeat(10)

const folder = mkdtempSync(join(tmpdir(), 'offpeak-real-vllm-'))
after(() => rmSync(folder, { recursive: true, force: true }))

interface Completion {
  choices: unknown[]
  usage: { prompt_tokens: number; prompt_tokens_details: { cached_tokens: number } }
}

function isNamed(pid: number, name: string): boolean {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(name)
  } catch {
    return false
  }
}

async function waitingCode(service: TestService, id: string): Promise<string | undefined> {
  return ((await service.get(id)).waiting_reason as { code: string } | null)?.code
}

const line = (custom_id: string, content: string, body: object = {}): object =>
  lineOf(custom_id, content, { model: MODEL, temperature: 0, max_tokens: ANSWER_TOKENS, ...body })

/** An answer as bytes, but for what differs each time, and for what we add. */
function comparable(text: string): string {
  return text
    .replace(/"id":"[^"]*"/, '"id":""')
    .replace(/"created":\d+/, '"created":0')
    .replace(/,"cost_usd":[^,}]+/, '')
}

/** Every line has an answer, and the batch costs what its answers do. */
async function assertBilledOnce(service: TestService, batch: WireBatch, tokens: number): Promise<void> {
  const { total, completed } = batch.request_counts
  assert.equal(completed, total)
  const lines = await service.lines(batch.output_file_id)
  assert.equal(new Set(lines.map(({ custom_id }) => custom_id)).size, total)
  const nano = lines.reduce((sum, { response }) => sum + Math.round(response!.body.usage.cost_usd * 1e9), 0)
  assert.equal(Math.round(batch.cost_usd * 1e9), nano)
  assert.equal((batch.usage as { output_tokens: number }).output_tokens, tokens)
}

let installed: Installed | null = null
let skip: string | false = false
try {
  installed = installVllm()
} catch (error) {
  skip = `vLLM cannot be installed: ${error}`
}

describe('a real vLLM', { timeout: 900_000, skip, concurrency: false }, () => {
  let vllm: VllmServer
  before(async () => {
    vllm = await VllmServer.start(installed!, [
      ...['--served-model-name', MODEL, '--max-num-seqs', String(SLOTS), '--scheduling-policy', 'priority'],
      '--enable-prompt-tokens-details',
    ])
  })
  after(() => vllm.stop())

  const configFor = (more: string): string => `
models:
  - id: ${MODEL}
    price: {input_per_mtok: 1, cached_input_per_mtok: 0.1, output_per_mtok: 2}
    upstreams: [{type: openai, base_url: "${vllm.url}/v1", ${more}}]
retry: {attempts_max: 3, backoff_min: 100ms, backoff_max: 200ms}
worker: {flush_interval: 20ms}`

  test('answers are those of direct calls, byte for byte, and say what came from the cache', async () => {
    await using service = await TestService.start(configFor('concurrency_max: 1'))
    const lines = ['When does it leave?', 'When is it back?', 'Where does it leave?'].map((question, i) =>
      line(`q${i}`, `${STORY}${question}`),
    )
    const direct: string[] = []
    // The second time, all prompts are cached, as they are for the batch.
    for (const _ of [1, 2])
      for (const [i, one] of lines.entries())
        direct[i] = await (await vllm.ask((one as { body: object }).body)).text()
    const batch = await service.run(lines)
    assert.deepEqual(batch.request_counts, { total: 3, completed: 3, failed: 0 })
    const content = await service.content(batch.output_file_id)
    let cached = 0
    for (const [i, text] of content.trim().split('\n').entries()) {
      const body = JSON.stringify((JSON.parse(text) as WireLine).response?.body)
      assert.ok(text.includes(body), 'the answer is compact JSON, so that its bytes can be compared')
      assert.equal(comparable(body), comparable(direct[i]!))
      cached += (JSON.parse(body) as Completion).usage.prompt_tokens_details.cached_tokens
    }
    const usage = batch.usage as {
      input_tokens: number
      output_tokens: number
      input_tokens_details: { cached_tokens: number }
    }
    assert.equal(usage.input_tokens_details.cached_tokens, cached)
    assert.ok(cached > 0.7 * usage.input_tokens, `${cached} of ${usage.input_tokens}`)
    const micros = usage.input_tokens - 0.9 * cached + 2 * usage.output_tokens
    assert.ok(Math.abs(batch.cost_usd - micros / 1e6) < 1e-9, 'cached tokens have their own price')
  })

  test('each of many wrong bodies is explained, and costs the good line beside it nothing', async () => {
    await using service = await TestService.start(configFor(`concurrency_max: ${SLOTS}`))
    const wrong = Object.entries(refusedLines)
    const batch = await service.run([
      ...wrong.map(([custom_id, { body }]) => line(custom_id, 'Hello', body)),
      line('good', 'Hello'),
    ])
    assert.deepEqual(batch.request_counts, { total: wrong.length + 1, completed: 1, failed: wrong.length })
    const errors = new Map(
      (await service.lines(batch.error_file_id)).map(({ custom_id, error }) => [custom_id, error]),
    )
    for (const [custom_id, { code = 'upstream_rejected', param, words }] of wrong) {
      const error = errors.get(custom_id)
      assert.equal(error?.code, code, custom_id)
      assert.equal(error.param, param, custom_id)
      assert.match(error.message, words, custom_id)
    }
  })

  test('lines behind other requests wait in the server, and others overtake them', async () => {
    await using service = await TestService.start(configFor('concurrency_max: 16, priority: deadline'))
    const lines = Array.from({ length: 16 }, (_, i) =>
      line(`l${i}`, `Count to ${i}.`, { max_tokens: 24, ignore_eos: true }),
    )
    const file = await service.upload(lines)
    const { id } = await service.create(file.id)
    await until(async () => (await vllm.metric('num_requests_waiting')) >= SLOTS)
    await vllm.ask({ model: MODEL, max_tokens: 1, messages: [{ role: 'user', content: 'Hello' }] })
    assert.ok((await vllm.metric('num_requests_waiting')) > 0, 'lines still wait, though they came first')
    const { request_counts } = await service.ended(id)
    assert.equal(request_counts.completed, lines.length)
  })

  test('lines give way to live traffic, and use what it leaves', async () => {
    await using service = await TestService.start(configFor('concurrency_max: 16, live: {}'))
    let isLive = true
    const ask = async (): Promise<void> => {
      while (isLive)
        await (
          await vllm.ask({
            model: MODEL,
            max_tokens: 24,
            ignore_eos: true,
            messages: [{ role: 'user', content: 'Hi' }],
          })
        ).text()
    }
    const traffic = Array.from({ length: 2 * SLOTS }, ask)
    await until(async () => (await vllm.metric('num_requests_waiting')) > 0)
    const file = await service.upload(Array.from({ length: 12 }, (_, i) => line(`l${i}`, `Count to ${i}.`)))
    const { id } = await service.create(file.id)
    await until(async () => {
      assert.ok((await service.get(id)).request_counts.completed < 12, 'lines wait for the other requests')
      return (await waitingCode(service, id)) === 'live_traffic'
    })
    isLive = false
    await Promise.all(traffic)
    const { request_counts } = await service.ended(id)
    assert.equal(request_counts.completed, 12)
  })

  test('a server that is killed in the middle of a batch, and started again, costs it no line, and none is billed twice', async () => {
    await using service = await TestService.start(configFor(`concurrency_max: ${SLOTS}`))
    const file = await service.upload(
      Array.from({ length: 12 }, (_, i) => line(`l${i}`, `Count to ${i}.`, { ignore_eos: true })),
    )
    const { id } = await service.create(file.id)
    await until(async () => (await service.get(id)).request_counts.completed > 0)
    await vllm.stop()
    await until(async () => (await waitingCode(service, id)) !== undefined)
    await vllm.restart()
    await assertBilledOnce(service, await service.ended(id), 12 * ANSWER_TOKENS)
  })

  test('a server that stops answering costs a batch no line, and none is billed twice', async () => {
    await using service = await TestService.start(configFor(`concurrency_max: ${SLOTS}, timeout: 20s`))
    const file = await service.upload(
      Array.from({ length: 8 }, (_, i) =>
        line(`l${i}`, `Count to ${i}.`, { max_tokens: 12, ignore_eos: true }),
      ),
    )
    const { id } = await service.create(file.id)
    await until(async () => (await service.get(id)).request_counts.completed > 0)
    vllm.signal('SIGSTOP')
    try {
      await until(async () => (await waitingCode(service, id)) !== undefined)
    } finally {
      vllm.signal('SIGCONT')
    }
    await assertBilledOnce(service, await service.ended(id), 8 * 12)
  })

  test('`run --engine vllm` answers a file though the engine is killed, and leaves no process', async () => {
    const input = join(folder, 'in.jsonl')
    const output = join(folder, 'out.jsonl')
    const lines = Array.from({ length: 24 }, (_, i) =>
      line(`l${i}`, `${STORY}Count to ${i}.`, { max_tokens: 32, ignore_eos: true }),
    )
    writeFileSync(input, lines.map((one) => JSON.stringify(one)).join('\n'))
    const { server, model } = installed!
    const args = [
      'run',
      input,
      '--engine',
      'vllm',
      '--model',
      model,
      '-o',
      output,
      '--data',
      join(folder, 'data'),
    ]
    const run = new OffpeakProcess(args, { env: { OFFPEAK_VLLM: server } })
    const engines = (): number[] => descendantsOf(run.child.pid!).filter((pid) => isNamed(pid, 'VLLM::'))
    await until(() => engines().length > 0 && run.log.includes('in_progress'))
    for (const pid of engines()) killIfThere(pid)
    await until(() => engines().length > 0)
    const seen = engines()
    assert.equal(await run.ended, 0, run.log)
    const answers = readFileSync(output, 'utf8').trim().split('\n')
    assert.equal(answers.length, lines.length)
    const cached = answers.map(
      (text) => (JSON.parse(text) as WireLine).response?.body as unknown as Completion,
    )
    assert.ok(cached.some(({ usage }) => usage.prompt_tokens_details.cached_tokens > 0))
    assert.ok(!seen.some(isAlive))
  })
})

describe('a real vLLM with a model of embeddings', { timeout: 900_000, skip, concurrency: false }, () => {
  const documents = ['A ferry crosses the bay.', 'Bread is baked at dawn.', 'The harbour is closed.']
  const requests: Readonly<Record<string, { url: string; body: object }>> = {
    numbers: { url: '/v1/embeddings', body: { input: documents[0] } },
    base64: { url: '/v1/embeddings', body: { input: documents, encoding_format: 'base64' } },
    score: { url: '/v1/score', body: { text_1: 'When does the boat leave?', text_2: documents } },
    rerank: { url: '/v1/rerank', body: { query: 'When does the boat leave?', documents, top_n: 2 } },
  }
  const wrong: Readonly<Record<string, { url: string; body: object; code?: string; words: RegExp }>> = {
    'too long': {
      url: '/v1/embeddings',
      body: { input: 'two words '.repeat(600) },
      code: 'context_length_exceeded',
      words: /256|512/,
    },
    'too few dimensions': {
      url: '/v1/embeddings',
      body: { input: 'x', dimensions: 7 },
      words: /dimensions|matryoshka/i,
    },
    'an unknown encoding': {
      url: '/v1/embeddings',
      body: { input: 'x', encoding_format: 'x' },
      words: /encoding_format/,
    },
    'no documents': { url: '/v1/rerank', body: { query: 'x', documents: [] }, words: /documents/ },
    'a number as a query': { url: '/v1/rerank', body: { query: 5, documents }, words: /query/ },
    'no second text': { url: '/v1/score', body: { text_1: 'x' }, words: /text_2/ },
  }

  test('embeddings, scores and ranks are those of direct calls, byte for byte, and wrong lines are explained', async () => {
    const vllm = await VllmServer.start(installPooling(), ['--served-model-name', MODEL])
    try {
      const config = `
models:
  - id: ${MODEL}
    endpoints: [embeddings, score, rerank]
    price: {input_per_mtok: 1, output_per_mtok: 0}
    upstreams: [{type: openai, base_url: "${vllm.url}/v1", concurrency_max: 1}]`
      await using service = await TestService.start(config, { endpoint: 'mixed' })
      const all = Object.entries({ ...requests, ...wrong })
      const batch = await service.run(
        all.map(([custom_id, { url, body }]) => ({
          ...{ custom_id, method: 'POST', url, body: { model: MODEL, ...body } },
        })),
      )
      const [good, bad] = [Object.entries(requests), Object.entries(wrong)]
      const answers = (await service.content(batch.output_file_id)).trim().split('\n')
      const errors = await service.lines(batch.error_file_id)
      assert.deepEqual([answers.length, errors.length], [good.length, bad.length])
      let tokens = 0
      for (const [i, [name, { url, body }]] of good.entries()) {
        const direct = await (await vllm.ask({ model: MODEL, ...body }, url)).text()
        // `JSON.stringify` writes some numbers in another form than vLLM.
        const answer = answers[i]!.slice(answers[i]!.indexOf('"body":'))
        assert.ok(comparable(answer).includes(comparable(direct)), `${name}: ${direct.slice(0, 200)}`)
        tokens += JSON.parse(direct).usage.prompt_tokens
      }
      assert.ok(Math.abs(batch.cost_usd - tokens / 1e6) < 1e-9, 'its tokens are billed')
      for (const [i, [name, { code, words }]] of bad.entries()) {
        const error = errors[i]?.error
        assert.match(error?.message ?? '', words, name)
        if (code !== undefined) assert.equal(error?.code, code, name)
      }
    } finally {
      await vllm.stop()
    }
  })
})
