// Real answers of a real model through a managed server: `npm run test:engine`. It needs Python, a package index, and
// some minutes on two cores.
import assert from 'node:assert/strict'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, describe, test } from 'node:test'
import { TestService } from '../service.ts'
import { isAlive, killIfThere } from '../support/offpeak-process.ts'
import { installLlamaCpp } from './installed-engines.ts'

const GSM8K = new URL('../../examples/gsm8k.jsonl', import.meta.url)
const LINES = 20
const ANSWER_TOKENS = 12

interface Message {
  role: string
  content: string | null
  tool_calls?: { id: string; type: string; function: { name: string; arguments: string } }[]
}

const { server, model } = installLlamaCpp()
const folder = mkdtempSync(join(tmpdir(), 'offpeak-real-answers-'))
const received = join(folder, 'received')
after(() => rmSync(folder, { recursive: true, force: true }))

const proxy = new URL('recording-proxy.ts', import.meta.url).pathname
/** The model's own knows no tools. */
const template = new URL('tools.jinja', import.meta.url).pathname
const command = [
  ...[process.execPath, proxy, '{port}', received],
  ...[server, '--model', model, '--host', '127.0.0.1', '--port', '{inner}'],
  ...['--alias', '{model}', '--parallel', '4', '--ctx-size', '4096', '--metrics', '--jinja'],
  ...['--chat-template-file', template],
]
const CONFIG = `
models:
  - id: sim-1
    price: {input_per_mtok: 0.10, output_per_mtok: 0.40}
    upstreams:
      - type: openai
        concurrency_max: 8
        engine: {command: ${JSON.stringify(command)}, env: {LLAMA_API_KEY: "{api_key}"}}`

function request(custom_id: string, body: object): object {
  return { custom_id, method: 'POST', url: '/v1/chat/completions', body: { model: 'sim-1', ...body } }
}

function pids(): number[] {
  return readFileSync(`${received}.pids`, 'utf8').trim().split('\n').map(Number)
}

async function messagesOf(service: TestService, file_id: string | null): Promise<Map<string, Message>> {
  const lines = await service.lines(file_id)
  return new Map(
    lines.map(({ custom_id, response }) => {
      const [choice] = (response?.body.choices ?? []) as { message: Message }[]
      assert.ok(choice, `${custom_id} has an answer`)
      return [custom_id, choice.message]
    }),
  )
}

describe('a real model through a managed server', { timeout: 900_000 }, () => {
  test('questions, a kill -9 of the server among them, each forwarded byte for byte', async () => {
    await using service = await TestService.start(CONFIG)
    const lines = readFileSync(GSM8K, 'utf8')
      .split('\n')
      .slice(0, LINES)
      .map((text) => text.replace(/"max_tokens":\d+/, `"max_tokens":${ANSWER_TOKENS}`))
    const file = await service.upload(lines.join('\n'))
    const { id } = await service.create(file.id)
    for (;;) {
      const { request_counts } = await service.get(id)
      if (request_counts.completed >= 3) break
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
    for (const pid of pids()) killIfThere(pid)
    const batch = await service.ended(id)
    assert.deepEqual(batch.request_counts, { total: LINES, completed: LINES, failed: 0 })
    assert.equal(pids().length, 2, 'it was started twice')
    const bytes = readFileSync(received)
    for (const text of lines) {
      const body = text.slice(text.indexOf('"body":') + 7, -1)
      assert.ok(bytes.includes(body), `the server got ${body.slice(0, 60)}… as it is`)
    }
    for (const [custom_id, { content }] of await messagesOf(service, batch.output_file_id))
      assert.ok((content ?? '').trim().length > 0, `${custom_id} has words`)
    assert.ok(batch.cost_usd > 0)
    await service.worker.stop()
    assert.ok(!pids().some(isAlive))
    await service.restartWorker()
  })

  test('an answer by a schema, and a tool round', async () => {
    await using service = await TestService.start(CONFIG)
    const schema = {
      type: 'object',
      properties: { city: { type: 'string', enum: ['Paris', 'Rome'] }, days: { type: 'integer' } },
      required: ['city', 'days'],
      additionalProperties: false,
    }
    const first = await service.run([
      request('call', {
        max_tokens: 60,
        messages: [
          { role: 'user', content: 'Which city shall the weather be looked up for? Answer as JSON.' },
        ],
        response_format: { type: 'json_schema', json_schema: { name: 'weather', strict: true, schema } },
      }),
    ])
    const answers = await messagesOf(service, first.output_file_id)
    const told = answers.get('call')?.content ?? ''
    const { city, days }: { city: string; days: number } = JSON.parse(told)
    assert.ok(['Paris', 'Rome'].includes(city) && Number.isInteger(days))

    // So small a model hardly ever calls a tool by itself: its answer is put into the call.
    const call = { id: 'call_1', type: 'function', function: { name: 'weather', arguments: told } }
    const tools = [
      { type: 'function', function: { name: 'weather', description: 'The weather.', parameters: schema } },
    ]
    const second = await service.run([
      request('round-2', {
        max_tokens: ANSWER_TOKENS,
        messages: [
          { role: 'user', content: 'What is the weather like?' },
          { role: 'assistant', content: null, tool_calls: [call] },
          { role: 'tool', tool_call_id: call.id, content: 'sunny, 24 °C' },
        ],
        tools,
      }),
    ])
    assert.deepEqual(second.request_counts, { total: 1, completed: 1, failed: 0 })
  })

  test('a request that is too long for a slot says so, and is not tried again', async () => {
    await using service = await TestService.start(CONFIG)
    const batch = await service.run([
      request('long', { max_tokens: 4, messages: [{ role: 'user', content: 'two words '.repeat(3000) }] }),
      request('short', { max_tokens: 4, messages: [{ role: 'user', content: 'Hello' }] }),
    ])
    assert.deepEqual(batch.request_counts, { total: 2, completed: 1, failed: 1 })
    const [failed] = await service.lines(batch.error_file_id)
    assert.equal(failed?.error?.code, 'context_length_exceeded')
    assert.equal(failed.error.param, 'messages')
  })
})
