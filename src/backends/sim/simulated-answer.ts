// The chat completion that the simulator gives to a request: always the same for the same bytes, and saying
// of itself that no model ran. It is put together as text, for a load test spends most of its time here.
import { estimateTokens } from '../../domain/tokens.ts'
import { GenerationBudget } from './generation-budget.ts'
import { schemaInstance } from './schema-instance.ts'
import type { SeededRandom } from './seeded-random.ts'
import type { SimSettings } from './sim-options.ts'
import { type SimRequest, SimulatedError } from './sim-request.ts'
import { simulatedText, TEXT_TOKENS_MAX } from './simulated-text.ts'

const SIM_FINGERPRINT = 'offpeak-sim'

/** A fixed moment, so that the same request gets the same bytes: 2026-01-01T00:00:00Z. */
export const SIM_CREATED = 1_767_225_600

export interface SimulatedAnswer {
  /** The JSON of the chat completion. */
  text: string
  prompt_tokens: number
  completion_tokens: number
}

interface Choice {
  /** The JSON of `message`. */
  message: string
  finish_reason: 'stop' | 'length' | 'tool_calls'
  tokens: number
}

/** Throws a SimulatedError when no value fits the schema that was asked for, or the answer would take too much. */
export function simulatedAnswer(
  request: SimRequest,
  settings: SimSettings,
  random: SeededRandom,
  with_usage: boolean,
): SimulatedAnswer {
  const budget = new GenerationBudget()
  const choices: string[] = []
  let completion_tokens = 0
  for (let index = 0; index < request.n; index++) {
    const { message, finish_reason, tokens } = choiceOf(request, settings, random, index, budget)
    budget.text(message.length)
    completion_tokens += tokens
    choices.push(`{"index":${index},"message":${message},"logprobs":null,"finish_reason":"${finish_reason}"}`)
  }
  const { prompt_tokens } = request
  const usage = with_usage
    ? `,"usage":{"prompt_tokens":${prompt_tokens},"completion_tokens":${completion_tokens},"total_tokens":${prompt_tokens + completion_tokens}}`
    : ''
  const text =
    `{"id":"chatcmpl-sim-${random.sha256.slice(0, 24)}","object":"chat.completion","created":${SIM_CREATED},` +
    `"model":${JSON.stringify(request.model)},"choices":[${choices.join(',')}]${usage},` +
    `"system_fingerprint":"${SIM_FINGERPRINT}"}`
  return { text, prompt_tokens, completion_tokens }
}

function choiceOf(
  request: SimRequest,
  settings: SimSettings,
  random: SeededRandom,
  index: number,
  budget: GenerationBudget,
): Choice {
  const most = request.output_tokens_max ?? Number.POSITIVE_INFINITY
  if (request.tool !== null) return toolChoice(request.tool, random, index, most, budget)
  if (request.format.kind === 'schema') {
    const value = schemaInstance(request.format.schema, random, budget)
    if (value === undefined) throw unsatisfiable('response_format')
    return jsonChoice(value, most)
  }
  if (request.format.kind === 'json') {
    return jsonChoice({ simulated: true, answer: simulatedText(random, 12) }, most)
  }
  const { min, max } = settings.output_tokens
  const wanted = Math.min(random.between(min, max), TEXT_TOKENS_MAX)
  const tokens = Math.min(wanted, most)
  const message = `{"role":"assistant","content":"${simulatedText(random, tokens)}"}`
  return { message, finish_reason: tokens < wanted ? 'length' : 'stop', tokens }
}

function toolChoice(
  { name, parameters }: { name: string; parameters: unknown },
  random: SeededRandom,
  index: number,
  most: number,
  budget: GenerationBudget,
): Choice {
  const value = schemaInstance(parameters, random, budget)
  if (value === undefined) throw unsatisfiable('tools')
  const { text, tokens, cut } = cutTo(JSON.stringify(value), most)
  const call = {
    id: `call_sim_${random.sha256.slice(0, 20)}_${index}`,
    type: 'function',
    function: { name, arguments: text },
  }
  return {
    message: JSON.stringify({ role: 'assistant', content: null, tool_calls: [call] }),
    finish_reason: cut ? 'length' : 'tool_calls',
    tokens,
  }
}

function jsonChoice(value: unknown, most: number): Choice {
  const { text, tokens, cut } = cutTo(JSON.stringify(value), most)
  return {
    message: JSON.stringify({ role: 'assistant', content: text }),
    finish_reason: cut ? 'length' : 'stop',
    tokens,
  }
}

/** Cut off in the middle, as a server does that ran out of tokens. */
function cutTo(json: string, most: number): { text: string; tokens: number; cut: boolean } {
  const tokens = estimateTokens(Buffer.byteLength(json))
  if (tokens <= most) return { text: json, tokens, cut: false }
  return { text: json.slice(0, Math.floor((json.length * most) / tokens)), tokens: most, cut: true }
}

function unsatisfiable(param: string): SimulatedError {
  const message = `the simulator found no value that fits the JSON Schema in ${param}`
  return new SimulatedError(400, 'invalid_request_error', message, param, 'invalid_value')
}
