// A model server for tests: real HTTP, answers as the test says, remembers the bytes of every request.
import { createServer, type Server, type ServerResponse } from 'node:http'
import { type Listening, listen } from '../support/listen.ts'

export interface Call {
  path: string
  /** The body as it arrived. */
  bytes: Buffer
  /** The body, parsed. */
  body: { model: string; messages: { role: string; content: string }[]; [key: string]: unknown }
  /** How many calls came before this one. */
  index: number
  response: ServerResponse
}

export type Reply = (call: Call) => void | Promise<void>

export interface TestUpstream extends Listening {
  base_url: string
  server: Server
  /** In the order of arrival. */
  calls: Call[]
  /** Changes how calls are answered from now on. */
  reply: Reply
  /** The list of models, which is no call; null: it has none. */
  models: object | null
  /** Whether a reading of its metrics is a call, which `reply` answers; false: it has none. */
  hasMetrics: boolean
  /** Resolves when `count` calls have arrived, over its whole life. */
  arrived(count: number): Promise<void>
}

/** Answers with the last message's text and ten tokens in, five out. */
export function echo({ path, body, response }: Call): void {
  const content = body.messages.at(-1)?.content ?? ''
  send(response, 200, path.endsWith('/messages') ? message(content) : completion(content))
}

/** The same in Anthropic's form. */
export function message(text: string): string {
  return JSON.stringify({
    id: 'msg_1',
    type: 'message',
    role: 'assistant',
    model: 'm',
    content: [{ type: 'text', text }],
    stop_reason: 'end_turn',
    usage: { input_tokens: 10, output_tokens: 5 },
  })
}

export function completion(
  content: string,
  usage: object | null = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 },
): string {
  return JSON.stringify({
    id: 'chatcmpl-1',
    object: 'chat.completion',
    created: 1,
    model: 'm',
    choices: [{ index: 0, message: { role: 'assistant', content }, finish_reason: 'stop' }],
    ...(usage ? { usage } : {}),
  })
}

export function send(
  response: ServerResponse,
  status: number,
  text: string,
  headers: Record<string, string> = {},
): void {
  response.writeHead(status, { 'content-type': 'application/json', ...headers })
  response.end(text)
}

export async function testUpstream(reply: Reply = echo, port = 0, host = '127.0.0.1'): Promise<TestUpstream> {
  const waiting: { count: number; resolve: () => void }[] = []
  const server = createServer((request, response) => {
    if (request.method !== 'POST' && !(request.url === '/metrics' && upstream.hasMetrics)) {
      if (request.url !== '/metrics' && upstream.models) send(response, 200, JSON.stringify(upstream.models))
      else send(response, 404, '{"error":{"message":"Not Found"}}')
      return
    }
    const pieces: Buffer[] = []
    request.on('data', (piece: Buffer) => pieces.push(piece))
    request.on('end', () => {
      const bytes = Buffer.concat(pieces)
      const path = request.url ?? ''
      const call: Call = {
        path,
        bytes,
        body: JSON.parse(bytes.toString() || '{}'),
        index: upstream.calls.length,
        response,
      }
      upstream.calls.push(call)
      for (const one of waiting) if (upstream.calls.length >= one.count) one.resolve()
      void upstream.reply(call)
    })
  })
  const at = await listen(server, port, host)
  const upstream: TestUpstream = {
    ...at,
    base_url: `${at.url}/v1`,
    server,
    calls: [],
    reply,
    models: null,
    hasMetrics: false,
    arrived: (count) =>
      new Promise((resolve) => {
        if (upstream.calls.length >= count) resolve()
        else waiting.push({ count, resolve })
      }),
  }
  return upstream
}
