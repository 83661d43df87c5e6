// Makes the simulator's chat completion for a request: always the same for the same bytes, and labelled as simulated.
// It is composed as text, because a load test spends most of its time here.

import type { SimSettings } from '../../domain/simulated-server.ts'
import { estimateTokens } from '../../domain/tokens.ts'
import { schemaInstance } from './schema-instance.ts'
import { randomOfHash, type SeededRandom } from './seeded-random.ts'
import { GenerationBudget, type SimRequest, SimulatedError } from './sim-request.ts'

const SIM_FINGERPRINT = 'offpeak-sim'

/** The fixed `created` of answers, so that the same request gets the same bytes: 2026-01-01T00:00:00Z. */
export const SIM_CREATED = 1_767_225_600

export interface SimulatedAnswer {
  text: string
  prompt_tokens: number
  completion_tokens: number
}

/** A request, and the other values on which its answer depends. */
export interface SimCall {
  body: Uint8Array
  settings: SimSettings
  random: SeededRandom
  with_usage: boolean
  /** Whether the answer violates its schema. */
  off_schema: boolean
}

interface Choice {
  /** The JSON of the choice's `message` or `text`, with the key. */
  content: string
  finish_reason: 'stop' | 'length' | 'tool_calls'
  tokens: number
}

/** Makes a chat completion. Throws a SimulatedError when no value fits the requested schema, or the budget is spent. */
export function simulatedAnswer(request: SimRequest, call: SimCall): SimulatedAnswer {
  const { model, prompt_tokens, n } = request
  const kind = { id: 'chatcmpl', object: 'chat.completion', model, prompt_tokens, fingerprint: true }
  return answerOfChoices(call, kind, n, (index, budget) => choiceOf(request, call, index, budget))
}

/** Makes an answer with `count` choices. */
export function answerOfChoices(
  { random, with_usage }: SimCall,
  kind: { id: string; object: string; model: string; prompt_tokens: number; fingerprint?: boolean },
  count: number,
  choice: (index: number, budget: GenerationBudget) => Choice,
): SimulatedAnswer {
  const { prompt_tokens } = kind
  const budget = new GenerationBudget()
  const choices: string[] = []
  let completion_tokens = 0
  for (let index = 0; index < count; index++) {
    const { content, finish_reason, tokens } = choice(index, budget)
    budget.text(content.length)
    completion_tokens += tokens
    choices.push(`{"index":${index},${content},"logprobs":null,"finish_reason":"${finish_reason}"}`)
  }
  const total_tokens = prompt_tokens + completion_tokens
  const usage = with_usage
    ? `,"usage":{"prompt_tokens":${prompt_tokens},"completion_tokens":${completion_tokens},"total_tokens":${total_tokens}}`
    : ''
  const text =
    `{"id":"${kind.id}-sim-${random.sha256.slice(0, 24)}","object":"${kind.object}","created":${SIM_CREATED},` +
    `"model":${JSON.stringify(kind.model)},"choices":[${choices.join(',')}]${usage}` +
    `${kind.fingerprint ? `,"system_fingerprint":"${SIM_FINGERPRINT}"` : ''}}`
  return { text, prompt_tokens, completion_tokens }
}

/** Generates text of as many tokens as the settings say, at most `most`; `cut`: whether the limit shortened it. */
export function generated(
  { settings: { output_tokens }, random }: SimCall,
  most: number | null,
): { text: string; tokens: number; cut: boolean } {
  const wanted = Math.min(random.between(output_tokens.min, output_tokens.max), TEXT_TOKENS_MAX)
  const tokens = Math.min(wanted, most ?? wanted)
  return { text: simulatedText(random, tokens), tokens, cut: tokens < wanted }
}

function choiceOf(request: SimRequest, call: SimCall, index: number, budget: GenerationBudget): Choice {
  const { tool, format } = request
  const { text, tokens, cut } = textOfAnswer(request, call, budget)
  if (tool === null && format.kind === 'text') {
    const content = `"message":{"role":"assistant","content":"${text}"}`
    return { content, finish_reason: cut ? 'length' : 'stop', tokens }
  }
  const made = tool
    ? {
        content: null,
        tool_calls: [
          {
            id: `call_sim_${call.random.sha256.slice(0, 20)}_${index}`,
            type: 'function',
            function: { name: tool.name, arguments: text },
          },
        ],
      }
    : { content: text }
  return {
    content: `"message":${JSON.stringify({ role: 'assistant', ...made })}`,
    finish_reason: cut ? 'length' : tool ? 'tool_calls' : 'stop',
    tokens,
  }
}

/** Generates the text of an answer, or the JSON of a tool's arguments. */
export function textOfAnswer(
  { tool, format, output_tokens_max }: SimRequest,
  call: SimCall,
  budget = new GenerationBudget(),
): { text: string; tokens: number; cut: boolean } {
  const { random } = call
  if (tool === null && format.kind === 'text') return generated(call, output_tokens_max)
  const value =
    tool === null && format.kind === 'json'
      ? { simulated: true, answer: simulatedText(random, 12) }
      : tool === null && call.off_schema
        ? { off_schema: true }
        : schemaInstance(tool ? tool.parameters : format.kind === 'schema' && format.schema, random, budget)
  if (value === undefined) throw unsatisfiable(tool ? 'tools' : 'response_format')
  return cutTo(JSON.stringify(value), output_tokens_max ?? Number.POSITIVE_INFINITY)
}

/** Cuts JSON to a number of tokens, as a server does that ran out of tokens. */
function cutTo(json: string, most: number): { text: string; tokens: number; cut: boolean } {
  const tokens = estimateTokens(Buffer.byteLength(json))
  if (tokens <= most) return { text: json, tokens, cut: false }
  return { text: json.slice(0, Math.floor((json.length * most) / tokens)), tokens: most, cut: true }
}

function unsatisfiable(param: string): SimulatedError {
  const message = `the simulator found no value that fits the JSON Schema in ${param}`
  return new SimulatedError(400, 'invalid_request_error', message, param, 'invalid_value')
}

// Text for simulated answers: it says first that no model ran, then runs on in words, one word counting as
// one token. A long stretch is made once, and an answer is a slice of it: a load test asks for tens of
// thousands a second.

const WORDS = (
  'stone river lamp quiet amber field seven copper window harbor violet thread morning gravel orbit cedar ' +
  'paper signal winter meadow lantern north silver garden engine marble distant pocket summer bridge velvet ' +
  'anchor forest mirror cloud pepper island candle hollow rocket ladder maple button thunder canvas shadow'
).split(' ')
const STRETCH = 8192

const stretch = makeStretch()

/** Generates `tokens` words (from 1 to STRETCH) of plain ASCII that needs no escaping in JSON. */
function simulatedText(random: SeededRandom, tokens: number): string {
  const lead = `Simulated answer ${random.sha256.slice(0, 12)}: no model ran.`
  const leadWords = 6
  if (tokens <= leadWords) return lead.split(' ').slice(0, tokens).join(' ')
  const words = Math.min(tokens - leadWords, STRETCH)
  const from = random.between(0, STRETCH - 1)
  return `${lead} ${stretch.text.slice(stretch.starts[from], stretch.starts[from + words]! - 1)}`
}

/** The most tokens of a simulated text. */
const TEXT_TOKENS_MAX = STRETCH

function makeStretch(): { text: string; starts: number[] } {
  const random = randomOfHash('0ff9ea40')
  const starts: number[] = []
  let text = ''
  // Twice the length, so that a slice that begins in its first part is never short.
  for (let i = 0; i < STRETCH * 2; i++) {
    starts.push(text.length)
    text += `${WORDS[random.next() % WORDS.length]} `
  }
  starts.push(text.length)
  return { text, starts }
}
