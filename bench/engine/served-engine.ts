// The simulated engine behind HTTP: it signals when the simulator's answer, or each of its tokens, is ready.
import { hash } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { json } from 'node:stream/consumers'
import { errorText, Simulator } from '../../src/backends/sim/simulator.ts'
import { Alarm, type Clock, systemClock } from '../../src/domain/clock.ts'
import { isRecord } from '../../src/domain/json-record.ts'
import type { SimOptions } from '../../src/domain/simulated-server.ts'
import {
  Engine,
  type EngineOptions,
  type EngineSettings,
  type EngineStats,
  engineSettings,
} from './engine.ts'

/** Bytes of English text per token, about. */
const TOKEN_BYTES = 4

const MODEL = 'sim-1'
const ENDPOINTS = ['/v1/chat/completions', '/v1/completions'] as const

export interface EngineServer extends AsyncDisposable {
  /** The base URL for clients: `http://127.0.0.1:port/v1`. */
  base_url: string
}

/** Starts an engine as a server, with the simulator's answers. */
export async function engineServer(
  options: EngineOptions,
  { port = 0, ...sim }: SimOptions & { port?: number } = {},
): Promise<EngineServer> {
  const simulator = new Simulator(sim)
  const engine = new ServedEngine(engineSettings(options), { ...systemClock, now: systemClock.steady })
  const server = createServer({ keepAliveTimeout: 65_000, requestTimeout: 0 }, async (request, response) => {
    const reply = (status: number, text: string): void => {
      response.writeHead(status, { 'content-type': 'application/json' }).end(text)
    }
    const endpoint = ENDPOINTS.find((path) => path === request.url)
    if (request.method !== 'POST' || endpoint === undefined) {
      request.resume()
      if (request.url?.startsWith('/metrics')) reply(200, engine.metrics(MODEL))
      else reply(200, JSON.stringify({ object: 'list', data: [{ id: MODEL, object: 'model' }] }))
      return
    }
    const asked = (await json(request)) as Record<string, unknown>
    // The simulator makes whole answers, which are sent token by token here.
    const body = { ...asked, stream: undefined, stream_options: undefined }
    const { fate } = simulator.arrive(Buffer.from(JSON.stringify(body)), endpoint)
    const release = (): void => simulator.release()
    if (fate.kind === 'answer' && fate.status === 200)
      return engine.serve(asked, fate.text, response, reply, release)
    release()
    if (fate.kind === 'answer') reply(fate.status, fate.text)
    else response.destroy()
  })
  server.listen(port, '127.0.0.1')
  await once(server, 'listening')
  return {
    base_url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`,
    async [Symbol.asyncDispose]() {
      engine.close()
      server.closeAllConnections()
      await new Promise((closed) => server.close(closed))
    },
  }
}

class ServedEngine {
  readonly #engine: Engine
  readonly #clock: Clock
  readonly #alarm: Alarm

  constructor(settings: EngineSettings, clock: Clock) {
    this.#engine = new Engine(settings)
    this.#clock = clock
    this.#alarm = new Alarm(clock, () => {
      this.#engine.advance(clock.now())
      this.#arm()
    })
  }

  metrics(model: string): string {
    this.#engine.advance(this.#clock.now())
    return engineMetrics(this.#engine.stats, model)
  }

  /** `done` is called once, when nothing more is worked on for this request. */
  serve(
    request: Record<string, unknown>,
    answer: string,
    response: ServerResponse,
    reply: (status: number, text: string) => void,
    done: () => void,
  ): void {
    const priority = typeof request.priority === 'number' ? request.priority : 0
    const { prompt_tokens, completion_tokens } = JSON.parse(answer).usage
    const output_tokens = Math.max(1, completion_tokens)
    const rejection = this.#rejection(priority, prompt_tokens + output_tokens)
    if (rejection !== null) {
      done()
      reply(rejection.status, errorText(rejection.message, rejection.type, null, rejection.status))
      return
    }
    const isStream = request.stream === true
    const options = request.stream_options
    const events = isStream
      ? streamedAnswer(answer, isRecord(options) && options.include_usage === true)
      : null
    const sequence = this.#engine.submit(
      {
        prompt_tokens,
        output_tokens,
        priority,
        keys: blockKeys(request, prompt_tokens, this.#engine.settings.block_tokens),
        onToken: (tokens) => {
          if (events === null) return
          if (!response.headersSent)
            response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' })
          response.write(events.piece(tokens))
        },
        onDone: () => {
          if (events === null) reply(200, answer)
          else response.end(events.end())
        },
      },
      this.#clock.now(),
    )
    response.on('close', () => {
      this.#engine.abort(sequence)
      done()
    })
    this.#arm()
  }

  #rejection(priority: number, tokens: number): { status: number; message: string; type: string } | null {
    const { isFull, settings } = this.#engine
    const type = 'BadRequestError'
    if (isFull) return { status: 503, message: 'The request queue is full.', type: 'service_unavailable' }
    if (priority !== 0 && settings.scheduling_policy === 'fcfs')
      return {
        status: 400,
        message: `Got priority ${priority} but priority scheduling is not enabled.`,
        type,
      }
    if (this.#engine.fits(tokens)) return null
    return { status: 400, message: 'The request needs more than the whole KV cache.', type }
  }

  close(): void {
    this.#alarm.set(Number.POSITIVE_INFINITY)
  }

  #arm(): void {
    this.#alarm.set(this.#engine.nextAt ?? Number.POSITIVE_INFINITY)
  }
}

/** The keys of the prompt's full blocks: their text and all before it. */
function blockKeys(request: Record<string, unknown>, prompt_tokens: number, block_tokens: number): string[] {
  const text = JSON.stringify(request.messages ?? request.prompt ?? request.input ?? '')
  const bytes = block_tokens * TOKEN_BYTES
  const count = Math.min(Math.floor(text.length / bytes), Math.floor(prompt_tokens / block_tokens))
  const keys: string[] = []
  for (let i = 0; i < count; i++)
    keys.push(hash('sha1', (keys[i - 1] ?? '') + text.slice(i * bytes, (i + 1) * bytes), 'base64'))
  return keys
}

// The simulated engine's state as vLLM's /metrics shows it. The cache's usage has both names: vLLM called it
// gpu_cache_usage_perc before it was kv_cache_usage_perc.
// https://docs.vllm.ai/en/latest/usage/metrics/

function engineMetrics(stats: EngineStats, model: string): string {
  const label = `{engine="0",model_name=${JSON.stringify(model)}}`
  const metric = (kind: 'gauge' | 'counter', name: string, help: string, value: number): string =>
    `# HELP vllm:${name} ${help}\n# TYPE vllm:${name} ${kind}\nvllm:${name}${label} ${value}\n`
  return [
    metric('gauge', 'num_requests_running', 'Number of requests in the running batch.', stats.running),
    metric('gauge', 'num_requests_waiting', 'Number of requests waiting to be processed.', stats.waiting),
    metric('gauge', 'kv_cache_usage_perc', 'KV-cache usage. 1 means 100 percent usage.', stats.kv_usage),
    metric('gauge', 'gpu_cache_usage_perc', 'The same under its earlier name.', stats.kv_usage),
    metric('counter', 'num_preemptions_total', 'Preemptions of requests.', stats.preemptions),
    metric('counter', 'prompt_tokens_total', 'Prompt tokens computed.', stats.prompt_tokens),
    metric('counter', 'generation_tokens_total', 'Tokens generated.', stats.generation_tokens),
    metric('counter', 'prefix_cache_queries_total', 'Prompt tokens looked up.', stats.prefix_queries),
    metric('counter', 'prefix_cache_hits_total', 'Prompt tokens found in the cache.', stats.prefix_hits),
  ].join('')
}

// A finished answer as a stream of events, a piece for each token, as a client sees it that asks for `stream: true`.

interface StreamedAnswer {
  /** The event of one more token. */
  piece(tokens: number): string
  /** The text after the last token: the rest, the reason, the usage where it was asked for, and the end. */
  end(): string
}

function streamedAnswer(text: string, withUsage: boolean): StreamedAnswer {
  const answer: Record<string, unknown> = JSON.parse(text)
  const { id, created, model, usage, choices } = answer
  const choice: unknown = Array.isArray(choices) ? choices[0] : null
  const first = isRecord(choice) ? choice : {}
  const message = isRecord(first.message) ? first.message : null
  const content = message === null ? first.text : message.content
  const words = typeof content === 'string' ? content.split(/(?<= )/) : []
  const object = message === null ? 'text_completion' : 'chat.completion.chunk'
  let sent = 0

  const event = (value: object): string =>
    `data: ${JSON.stringify({ id, object, created, model, ...value })}\n\n`
  const chunk = (words: string, finish_reason: unknown): string => {
    const delta = message === null ? { text: words } : { delta: deltaOf(words) }
    return event({ choices: [{ index: 0, ...delta, logprobs: null, finish_reason }] })
  }
  const deltaOf = (words: string): object => ({
    ...(sent === 0 ? { role: 'assistant' } : {}),
    ...(Array.isArray(message?.tool_calls) ? { tool_calls: message.tool_calls } : { content: words }),
  })

  return {
    piece(tokens) {
      const piece = chunk(words.slice(sent, tokens).join(''), null)
      sent = tokens
      return piece
    },
    end() {
      const last = chunk(words.slice(sent).join(''), first.finish_reason)
      return `${last}${withUsage ? event({ choices: [], usage }) : ''}data: [DONE]\n\n`
    },
  }
}
