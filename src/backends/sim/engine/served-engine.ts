// The simulated engine behind HTTP: it says when the simulator's answer is there, or each of its tokens.
import { hash } from 'node:crypto'
import type { ServerResponse } from 'node:http'
import type { Clock } from '../../../domain/clock.ts'
import { isRecord } from '../../json-record.ts'
import { errorText } from '../simulator.ts'
import { Engine } from './engine.ts'
import { engineMetrics } from './engine-metrics.ts'
import type { EngineSettings } from './engine-settings.ts'
import { streamedAnswer } from './streamed-answer.ts'

/** Bytes of English text per token, about. */
const TOKEN_BYTES = 4

/** A complete answer of the simulator. */
interface EngineAnswer {
  text: string
  prompt_tokens: number
  completion_tokens: number
}

type Reply = (status: number, text: string) => void

export class ServedEngine {
  readonly #engine: Engine
  readonly #clock: Clock
  #cancel: (() => void) | null = null

  constructor(settings: EngineSettings, clock: Clock) {
    this.#engine = new Engine(settings)
    this.#clock = clock
  }

  metrics(model: string): string {
    this.#engine.advance(this.#clock.now())
    return engineMetrics(this.#engine.stats, model)
  }

  /** `done` is called once, when nothing more is worked on for this request. */
  serve(
    body: Uint8Array,
    answer: EngineAnswer,
    response: ServerResponse,
    reply: Reply,
    done: () => void,
  ): void {
    const request: Record<string, unknown> = JSON.parse(Buffer.from(body).toString())
    const priority = typeof request.priority === 'number' ? request.priority : 0
    const output_tokens = Math.max(1, answer.completion_tokens)
    const rejection = this.#rejection(priority, answer.prompt_tokens + output_tokens)
    if (rejection !== null) {
      done()
      reply(rejection.status, errorText(rejection.message, rejection.type, null, rejection.status))
      return
    }
    const isStream = request.stream === true
    const options = request.stream_options
    const events = isStream
      ? streamedAnswer(answer.text, isRecord(options) && options.include_usage === true)
      : null
    const sequence = this.#engine.submit(
      {
        prompt_tokens: answer.prompt_tokens,
        output_tokens,
        priority,
        keys: blockKeys(request, answer.prompt_tokens, this.#engine.settings.block_tokens),
        onToken: (tokens) => {
          if (events === null) return
          if (!response.headersSent)
            response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' })
          response.write(events.piece(tokens))
        },
        onDone: () => {
          if (events === null) reply(200, answer.text)
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
    this.#cancel?.()
    this.#cancel = null
  }

  #arm(): void {
    const at = this.#engine.nextAt
    if (at === null || this.#cancel !== null) return
    this.#cancel = this.#clock.after(Math.max(0, at - this.#clock.now()), () => {
      this.#cancel = null
      this.#engine.advance(this.#clock.now())
      this.#arm()
    })
  }
}

/** What the prompt's full blocks are known by: their text and all before it. */
function blockKeys(request: Record<string, unknown>, prompt_tokens: number, block_tokens: number): string[] {
  const text = JSON.stringify(request.messages ?? request.prompt ?? request.input ?? '')
  const bytes = block_tokens * TOKEN_BYTES
  const count = Math.min(Math.floor(text.length / bytes), Math.floor(prompt_tokens / block_tokens))
  const keys: string[] = []
  for (let i = 0; i < count; i++)
    keys.push(hash('sha1', (keys[i - 1] ?? '') + text.slice(i * bytes, (i + 1) * bytes), 'base64'))
  return keys
}
