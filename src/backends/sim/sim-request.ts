// Parses a chat-completion request as a model server would, or says why the request is rejected.
import { isRecord, parsedJson } from '../../domain/json-record.ts'
import type { SimSettings } from '../../domain/simulated-server.ts'
import { estimateTokens } from '../../domain/tokens.ts'

export interface SimRequest {
  model: string
  prompt_tokens: number
  /** The value of max_completion_tokens or max_tokens; null when neither is set. */
  output_tokens_max: number | null
  /** The number of choices in the simulated answer. */
  n: number
  /** The tool to call; null: answer with text. */
  tool: Tool | null
  /** The format of the text: a JSON value of this schema, any JSON object, or plain text. */
  format: { kind: 'text' } | { kind: 'json' } | { kind: 'schema'; schema: unknown }
}

interface Tool {
  name: string
  parameters: unknown
}

/** An error in the form that model servers use. */
export class SimulatedError extends Error {
  readonly status: number
  readonly type: string
  readonly param: string | null
  readonly code: string | number

  constructor(status: number, type: string, message: string, param: string | null, code: string | number) {
    super(message)
    this.name = 'SimulatedError'
    this.status = status
    this.type = type
    this.param = param
    this.code = code
  }
}

const CHOICES_MAX = 128
/** Tokens that the chat template adds to each message, and once at the end. */
const TOKENS_PER_MESSAGE = 4
const TOKENS_PER_PROMPT = 3
const TOKENS_PER_IMAGE = 256

/** Parses a chat completion. Throws a SimulatedError. `random` chooses among several tools. */
export function readSimRequest(
  body: Uint8Array,
  settings: SimSettings,
  random: { next(): number },
): SimRequest {
  const { request, model } = readSimBody(body, settings)
  const { messages, prompt_tokens } = readMessages(request)
  const output_tokens_max =
    count(request.max_completion_tokens, 'max_completion_tokens') ?? count(request.max_tokens, 'max_tokens')
  refuseOverlong(prompt_tokens, output_tokens_max, settings.context_window)

  const n = count(request.n, 'n') ?? 1
  if (n > CHOICES_MAX) throw invalid(`n must be at most ${CHOICES_MAX}`, 'n')
  const last: unknown = messages.at(-1)
  const answersTool = isRecord(last) && last.role === 'tool'
  return {
    model,
    prompt_tokens,
    output_tokens_max,
    n,
    tool: answersTool ? null : chosenTool(request.tools, request.tool_choice, random),
    format: formatOf(request.response_format),
  }
}

/** Parses a message of Anthropic's API. Throws a SimulatedError. */
export function readSimMessage(
  body: Uint8Array,
  settings: SimSettings,
  random: { next(): number },
): SimRequest {
  const { request, model } = readSimBody(body, settings)
  const { messages, prompt_tokens } = readMessages(request)
  const output_tokens_max = count(request.max_tokens, 'max_tokens')
  if (output_tokens_max === null) throw invalid('max_tokens: Field required', 'max_tokens')
  refuseOverlong(prompt_tokens, output_tokens_max, settings.context_window)
  const last: unknown = messages.at(-1)
  const parts: unknown[] = isRecord(last) && Array.isArray(last.content) ? last.content : []
  const answersTool = parts.some((part) => isRecord(part) && part.type === 'tool_result')
  const offered = Array.isArray(request.tools) ? request.tools.filter(isRecord) : []
  const tools = offered.map(({ name, input_schema }) => ({ function: { name, parameters: input_schema } }))
  const choice = isRecord(request.tool_choice) ? request.tool_choice : {}
  const wanted = choice.type === 'tool' ? { function: { name: choice.name } } : choice.type
  const config = isRecord(request.output_config) ? request.output_config : {}
  const format = isRecord(config.format) ? config.format : {}
  return {
    model,
    prompt_tokens: prompt_tokens + contentTokens(request.system),
    output_tokens_max,
    n: 1,
    tool: answersTool ? null : chosenTool(tools, wanted, random),
    format: format.type === 'json_schema' ? { kind: 'schema', schema: format.schema } : { kind: 'text' },
  }
}

function readMessages({ messages, tools }: Record<string, unknown>): {
  messages: unknown[]
  prompt_tokens: number
} {
  if (!Array.isArray(messages) || messages.length === 0) {
    throw invalid('messages must be a non-empty array', 'messages')
  }
  return { messages, prompt_tokens: promptTokens(messages, tools) }
}

/** Parses the fields that every request has. Throws a SimulatedError. */
export function readSimBody(
  body: Uint8Array,
  { models }: Pick<SimSettings, 'models'>,
): { request: Record<string, unknown>; model: string } {
  const request = parse(body)
  const { model } = request
  if (typeof model !== 'string' || model === '') throw invalid('you must provide a model parameter', 'model')
  if (models !== null && !models.includes(model)) {
    throw new SimulatedError(404, 'NotFoundError', `The model \`${model}\` does not exist.`, 'model', 404)
  }
  if (request.stream === true) throw invalid('the simulator does not stream', 'stream')
  return { request, model }
}

function parse(body: Uint8Array): Record<string, unknown> {
  const parsed = parsedJson(Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString())
  if (parsed === undefined) throw invalid('the body is not valid JSON', null)
  if (!isRecord(parsed)) throw invalid('the body must be a JSON object', null)
  return parsed
}

/** Throws vLLM's error for a prompt and output (tokens) that exceed the context window. */
export function refuseOverlong(prompt: number, output: number | null, window: number): void {
  if (prompt + (output ?? 1) <= window) return
  const asked = output ?? 0
  throw new SimulatedError(
    400,
    'BadRequestError',
    `This model's maximum context length is ${window} tokens. However, you requested ${asked} output tokens and ` +
      `your prompt contains ${prompt} input tokens, for a total of ${prompt + asked} tokens. Please reduce the ` +
      'length of the input prompt or the number of requested output tokens.',
    'input_tokens',
    400,
  )
}

function promptTokens(messages: unknown[], tools: unknown): number {
  let tokens = TOKENS_PER_PROMPT
  for (const [index, message] of messages.entries()) {
    if (!isRecord(message) || typeof message.role !== 'string') {
      throw invalid(`messages[${index}] must be an object with a role`, `messages[${index}]`)
    }
    tokens += TOKENS_PER_MESSAGE + contentTokens(message.content)
    if (message.tool_calls !== undefined) tokens += jsonTokens(message.tool_calls)
  }
  return tools === undefined ? tokens : tokens + jsonTokens(tools)
}

export function contentTokens(content: unknown): number {
  if (typeof content === 'string') return estimateTokens(Buffer.byteLength(content))
  if (!Array.isArray(content)) return 0
  return content.reduce((tokens: number, part: unknown) => {
    if (isRecord(part) && typeof part.text === 'string') {
      return tokens + estimateTokens(Buffer.byteLength(part.text))
    }
    return tokens + TOKENS_PER_IMAGE
  }, 0)
}

function jsonTokens(value: unknown): number {
  return estimateTokens(Buffer.byteLength(JSON.stringify(value) ?? ''))
}

export function count(value: unknown, param: string): number | null {
  if (value === undefined || value === null) return null
  if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < 1) {
    throw invalid(`${param} must be a whole number of at least 1`, param)
  }
  return value
}

function chosenTool(tools: unknown, choice: unknown, random: { next(): number }): Tool | null {
  if (tools === undefined || tools === null) return null
  if (!Array.isArray(tools)) throw invalid('tools must be an array', 'tools')
  const offered = tools.map(toolOf)
  if (choice === 'none' || offered.length === 0) return null
  if (!isRecord(choice)) return offered[random.next() % offered.length] ?? null
  const name = isRecord(choice.function) ? choice.function.name : null
  const named = offered.find((tool) => tool.name === name)
  if (named === undefined) throw invalid('tool_choice names a tool that is not offered', 'tool_choice')
  return named
}

function toolOf(tool: unknown, index: number): Tool {
  const given = isRecord(tool) ? tool.function : null
  if (!isRecord(given) || typeof given.name !== 'string') {
    throw invalid(`tools[${index}] must have a function with a name`, `tools[${index}]`)
  }
  return { name: given.name, parameters: given.parameters ?? { type: 'object', properties: {} } }
}

function formatOf(format: unknown): SimRequest['format'] {
  if (!isRecord(format) || format.type === 'text') return { kind: 'text' }
  if (format.type === 'json_object') return { kind: 'json' }
  if (format.type === 'json_schema') {
    const schema = isRecord(format.json_schema) ? format.json_schema.schema : undefined
    if (schema === undefined) {
      throw invalid('response_format.json_schema.schema is required', 'response_format')
    }
    return { kind: 'schema', schema }
  }
  throw invalid('response_format.type must be text, json_object or json_schema', 'response_format')
}

export function invalid(message: string, param: string | null): SimulatedError {
  return new SimulatedError(400, 'invalid_request_error', message, param, 'invalid_value')
}

// Limits the work of the simulator for one request, all its choices together. A request of a few bytes can ask for
// anything: strings and lists of any length, patterns, definitions that refer to each other, a hundred times over.

/** The limit of the answer's text, and of the values that are generated for it, in bytes. */
const ANSWER_BYTES_MAX = 1024 * 1024
/** The limit of visited parts of schemas and patterns; some tens of milliseconds. */
const STEPS_MAX = 200_000

/** The budget of one request's generation. Each method throws a SimulatedError once it is spent. */
export class GenerationBudget {
  #steps = STEPS_MAX
  #value_bytes = ANSWER_BYTES_MAX
  #text_bytes = ANSWER_BYTES_MAX

  steps(count: number): void {
    this.#steps -= count
    if (this.#steps < 0) throw overBudget(`takes more than ${STEPS_MAX} steps to work out`)
  }

  /** Spends the budget's bytes for values before they are generated. */
  bytes(count: number): void {
    this.#value_bytes -= count
    if (this.#value_bytes < 0) throw tooLong()
  }

  /** Spends the bytes of a value that is copied from the request into the answer. */
  quoted(value: unknown): void {
    this.bytes(JSON.stringify(value)?.length ?? 0)
  }

  /** Spends the budget's bytes for the answer's text. */
  text(count: number): void {
    this.#text_bytes -= count
    if (this.#text_bytes < 0) throw tooLong()
  }
}

function tooLong(): SimulatedError {
  return overBudget(`would be longer than ${ANSWER_BYTES_MAX} bytes`)
}

function overBudget(why: string): SimulatedError {
  const message =
    `The answer ${why}, which is more than the simulator makes. Ask for fewer choices (\`n\`), or for less in ` +
    'the JSON Schema of `response_format` or `tools`.'
  return new SimulatedError(400, 'invalid_request_error', message, null, 'invalid_value')
}
