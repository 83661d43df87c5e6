// Makes the simulator's answers for each endpoint, always the same for the same bytes. A text has the same vector and
// the same score in every request.
import { hash } from 'node:crypto'
import type { BuiltInPath } from '../../domain/endpoint.ts'
import { isRecord } from '../../domain/json-record.ts'
import { estimateTokens } from '../../domain/tokens.ts'
import { randomOfHash } from './seeded-random.ts'
import {
  contentTokens,
  count,
  invalid,
  readSimBody,
  readSimMessage,
  readSimRequest,
  refuseOverlong,
} from './sim-request.ts'
import {
  answerOfChoices,
  generated,
  SIM_CREATED,
  type SimCall,
  type SimulatedAnswer,
  simulatedAnswer,
  textOfAnswer,
} from './simulated-answer.ts'

/** The function that makes the answer of each endpoint; it throws a SimulatedError for a request that it rejects. */
export const ANSWERS: Readonly<Record<BuiltInPath, (call: SimCall) => SimulatedAnswer>> = {
  '/v1/chat/completions': (call) =>
    simulatedAnswer(readSimRequest(call.body, call.settings, call.random), call),
  '/v1/completions': answerCompletion,
  '/v1/embeddings': answerEmbeddings,
  '/v1/responses': answerResponse,
  '/v1/messages': answerMessage,
  '/v1/rerank': answerRerank,
  '/v1/score': answerScore,
}

const CHOICES_MAX = 128
const DIMENSIONS = 384
const DIMENSIONS_MAX = 16_384
/** The most values in one answer, all its vectors together: a second or two of work. */
const VALUES_MAX = 4 * 1024 * 1024

function answerCompletion(call: SimCall): SimulatedAnswer {
  const { request, model } = readSimBody(call.body, call.settings)
  const prompts = inputsOf(request.prompt, 'prompt')
  const most = count(request.max_tokens, 'max_tokens')
  for (const prompt of prompts) refuseOverlong(tokensOf([prompt]), most, call.settings.context_window)
  const choices = (count(request.n, 'n') ?? 1) * prompts.length
  if (choices > CHOICES_MAX * CHOICES_MAX) throw invalid('there are too many choices', 'n')
  const kind = { id: 'cmpl', object: 'text_completion', model, prompt_tokens: tokensOf(prompts) }
  return answerOfChoices(call, kind, choices, () => {
    const { text, tokens, cut } = generated(call, most)
    return { content: `"text":"${text}"`, finish_reason: cut ? 'length' : 'stop', tokens }
  })
}

function answerEmbeddings({ body, settings, with_usage }: SimCall): SimulatedAnswer {
  const { request, model } = readSimBody(body, settings)
  const inputs = inputsOf(request.input, 'input')
  const dimensions = count(request.dimensions, 'dimensions') ?? DIMENSIONS
  if (dimensions > DIMENSIONS_MAX) throw invalid(`dimensions must be at most ${DIMENSIONS_MAX}`, 'dimensions')
  if (dimensions * inputs.length > VALUES_MAX)
    throw invalid(`the vectors would have more than ${VALUES_MAX} values in all`, 'input')
  const base64 = request.encoding_format === 'base64'
  for (const input of inputs) refuseOverlong(tokensOf([input]), 0, settings.context_window)
  const data = inputs.map((input, index) => {
    const vector = vectorOf(model, textOf(input), dimensions)
    const embedding = base64 ? `"${Buffer.from(vector.buffer).toString('base64')}"` : vectorJson(vector)
    return `{"object":"embedding","index":${index},"embedding":${embedding}}`
  })
  return listAnswer(model, data, tokensOf(inputs), with_usage)
}

function answerResponse(call: SimCall): SimulatedAnswer {
  const { body, settings, random, with_usage } = call
  const { request, model } = readSimBody(body, settings)
  const { input, instructions } = request
  if (typeof input !== 'string' && !Array.isArray(input))
    throw invalid('input must be a string or an array', 'input')
  if (request.background === true) throw invalid('the simulator has no background mode', 'background')
  const items = typeof input === 'string' ? [{ content: input }] : input
  const prompt_tokens =
    contentTokens(instructions) +
    items.reduce(
      (sum: number, item: unknown) => sum + 4 + (isRecord(item) ? contentTokens(item.content) : 0),
      0,
    )
  const most = count(request.max_output_tokens, 'max_output_tokens')
  refuseOverlong(prompt_tokens, most, settings.context_window)
  const { text, tokens, cut } = generated(call, most)
  const id = random.sha256.slice(0, 24)
  const answer = {
    id: `resp_sim_${id}`,
    object: 'response',
    created_at: SIM_CREATED,
    status: cut ? 'incomplete' : 'completed',
    error: null,
    incomplete_details: cut ? { reason: 'max_output_tokens' } : null,
    instructions: instructions ?? null,
    max_output_tokens: most,
    model,
    output: [
      {
        type: 'message',
        id: `msg_sim_${id}`,
        status: cut ? 'incomplete' : 'completed',
        role: 'assistant',
        content: [{ type: 'output_text', text, annotations: [] }],
      },
    ],
    parallel_tool_calls: true,
    temperature: request.temperature ?? 1,
    tool_choice: 'auto',
    tools: [],
    top_p: 1,
    metadata: {},
    ...(with_usage
      ? {
          usage: {
            input_tokens: prompt_tokens,
            input_tokens_details: { cached_tokens: 0 },
            output_tokens: tokens,
            output_tokens_details: { reasoning_tokens: 0 },
            total_tokens: prompt_tokens + tokens,
          },
        }
      : {}),
  }
  return { text: JSON.stringify(answer), prompt_tokens, completion_tokens: tokens }
}

function answerMessage(call: SimCall): SimulatedAnswer {
  const request = readSimMessage(call.body, call.settings, call.random)
  const { model, tool, prompt_tokens } = request
  const { text, tokens, cut } = textOfAnswer(request, call)
  const id = call.random.sha256.slice(0, 24)
  const part =
    tool === null
      ? { type: 'text', text, citations: null }
      : // Arguments that were cut off are no JSON.
        { type: 'tool_use', id: `toolu_sim_${id}`, name: tool.name, input: cut ? {} : JSON.parse(text) }
  const usage = {
    input_tokens: prompt_tokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: 0,
    output_tokens: tokens,
  }
  const answer = {
    id: `msg_sim_${id}`,
    type: 'message',
    role: 'assistant',
    model,
    content: [part],
    stop_reason: cut ? 'max_tokens' : tool === null ? 'end_turn' : 'tool_use',
    stop_sequence: null,
    ...(call.with_usage ? { usage } : {}),
  }
  return { text: JSON.stringify(answer), prompt_tokens, completion_tokens: tokens }
}

function answerRerank({ body, settings, random, with_usage }: SimCall): SimulatedAnswer {
  const { request, model } = readSimBody(body, settings)
  const [query] = inputsOf(request.query, 'query')
  const documents = inputsOf(request.documents, 'documents')
  const wanted = count(request.top_n, 'top_n') ?? documents.length
  const results = documents
    .map((document, index) => ({
      index,
      document,
      relevance_score: scoreOf(model, textOf(query), textOf(document)),
    }))
    .sort((a, b) => b.relevance_score - a.relevance_score)
    .slice(0, wanted)
    .map(({ index, document, relevance_score }) => ({
      index,
      relevance_score,
      ...(request.return_documents === true ? { document: { text: textOf(document) } } : {}),
    }))
  const prompt_tokens = tokensOf([query]) * documents.length + tokensOf(documents)
  const text = JSON.stringify({
    id: `rerank-sim-${random.sha256.slice(0, 24)}`,
    model,
    results,
    ...(with_usage ? { usage: { prompt_tokens, total_tokens: prompt_tokens } } : {}),
  })
  return { text, prompt_tokens, completion_tokens: 0 }
}

function answerScore({ body, settings, with_usage }: SimCall): SimulatedAnswer {
  const { request, model } = readSimBody(body, settings)
  const first = inputsOf(request.text_1 ?? request.queries ?? request.data_1, 'text_1')
  const second = inputsOf(request.text_2 ?? request.documents ?? request.items ?? request.data_2, 'text_2')
  const pairs = Math.max(first.length, second.length)
  if (first.length !== pairs && first.length !== 1)
    throw invalid('text_1 must be one text, or one for each', 'text_1')
  if (second.length !== pairs) throw invalid('text_2 must have a text for each of text_1', 'text_2')
  let prompt_tokens = 0
  const data = second.map((document, index) => {
    const query = first.length === 1 ? first[0] : first[index]
    prompt_tokens += tokensOf([query, document])
    return `{"index":${index},"object":"score","score":${scoreOf(model, textOf(query), textOf(document))}}`
  })
  return listAnswer(model, data, prompt_tokens, with_usage)
}

function listAnswer(
  model: string,
  data: readonly string[],
  prompt_tokens: number,
  with_usage: boolean,
): SimulatedAnswer {
  const usage = with_usage
    ? `,"usage":{"prompt_tokens":${prompt_tokens},"total_tokens":${prompt_tokens}}`
    : ''
  const text = `{"object":"list","data":[${data.join(',')}],"model":${JSON.stringify(model)}${usage}}`
  return { text, prompt_tokens, completion_tokens: 0 }
}

/** The inputs of a request: one text or token list, or several. */
function inputsOf(value: unknown, param: string): unknown[] {
  const isTokens = Array.isArray(value) && value.every((one) => typeof one === 'number')
  const inputs: unknown[] = Array.isArray(value) && !isTokens ? value : [value]
  if (inputs.length === 0 || (isTokens && Array.isArray(value) && value.length === 0))
    throw invalid(`${param} must not be empty`, param)
  for (const input of inputs) {
    if (typeof input !== 'string' && !Array.isArray(input) && !isRecord(input))
      throw invalid(`${param} must be a text or a list of texts`, param)
  }
  return inputs
}

function textOf(input: unknown): string {
  if (typeof input === 'string') return input
  return isRecord(input) && typeof input.text === 'string' ? input.text : (JSON.stringify(input) ?? '')
}

function tokensOf(inputs: readonly unknown[]): number {
  return inputs.reduce<number>(
    (sum, input) =>
      sum + (Array.isArray(input) ? input.length : estimateTokens(Buffer.byteLength(textOf(input)))),
    0,
  )
}

// Vectors and scores of simulated models: they follow from the model and the text alone.

/** The digits that print a 32-bit float. */
const DIGITS = 7

/** The unit vector of a text, which depends on model and text alone. */
function vectorOf(model: string, text: string, dimensions: number): Float32Array<ArrayBuffer> {
  const random = randomOfHash(hash('sha256', `${model}\n${text}`, 'hex'))
  const vector = new Float32Array(dimensions)
  let squares = 0
  for (let i = 0; i < dimensions; i++) {
    const value = random.fraction() - random.fraction()
    vector[i] = value
    squares += value * value
  }
  const length = Math.sqrt(squares) || 1
  for (let i = 0; i < dimensions; i++) vector[i]! /= length
  return vector
}

function vectorJson(vector: Float32Array): string {
  return `[${Array.from(vector, (value) => Number(value.toPrecision(DIGITS))).join(',')}]`
}

/** The score of a document, 0 to 1: the share of words in common, with a small part from the document's hash. */
function scoreOf(model: string, query: string, document: string): number {
  const wanted = new Set(query.toLowerCase().split(/\W+/).filter(Boolean))
  const words = new Set(document.toLowerCase().split(/\W+/).filter(Boolean))
  const shared = [...wanted].filter((word) => words.has(word)).length
  const own = randomOfHash(hash('sha256', `${model}\n${query}\n${document}`, 'hex')).fraction()
  const score = (0.9 * shared) / Math.max(1, wanted.size) + 0.1 * own
  return Number(score.toPrecision(DIGITS))
}
