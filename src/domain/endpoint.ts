// The table of the endpoints that a batch may have. Validation, projection, dispatch, the scan of answers, the
// simulator and the API read it; a new endpoint is a new row. At the start of a process the configuration adds rows to
// its table.

export const ENDPOINT_PATHS = [
  '/v1/chat/completions',
  '/v1/completions',
  '/v1/embeddings',
  '/v1/responses',
  '/v1/messages',
  '/v1/rerank',
  '/v1/score',
] as const

/** An endpoint that the simulator answers as well. */
export type BuiltInPath = (typeof ENDPOINT_PATHS)[number]
export type EndpointPath = `/v1/${string}`

/** The `endpoint` of a batch whose lines name endpoints of their own. */
export const MIXED = 'mixed'
export type BatchEndpoint = EndpointPath | typeof MIXED

/** The endpoint of every model whose configuration names none. */
export const DEFAULT_ENDPOINT: BuiltInPath = '/v1/chat/completions'
export const EMBEDDINGS: BuiltInPath = '/v1/embeddings'

/**
 * The use of a field of the body. Fields that the table does not name are sent unread.
 * - `messages`: the messages of a chat, each with a role
 * - `items`: a text, or items that may be messages
 * - `texts`: a text, texts, token IDs, or lists of token IDs
 * - `documents`: a text, texts, or objects that hold a text or media
 * - `prompt`: anything else that becomes part of the prompt
 * - `reference`: stands for context that the body does not hold
 * - `tools`, `format`: the tools and the response format of a chat, which become part of the prompt as well
 * - `limit`: the most output tokens, an integer; 0 and less stand for none
 * - `choices`: how many answers are generated, a positive integer
 * - `count`: a positive integer; `number`: any number
 * - `encoding`: how numbers are encoded
 * - `background`: asks for the answer later, which a batch cannot wait for
 * - `stream`: speaks of a stream, which a batch does not have
 * - `foreign limit`, `foreign choices`: what some servers read as an output limit or a number of choices
 */
export type FieldRole =
  | 'model'
  | 'messages'
  | 'items'
  | 'texts'
  | 'documents'
  | 'prompt'
  | 'reference'
  | 'tools'
  | 'format'
  | 'limit'
  | 'choices'
  | 'count'
  | 'number'
  | 'encoding'
  | 'background'
  | 'stream'
  | 'foreign limit'
  | 'foreign choices'

/** The shape of an answer of the endpoint. */
export interface AnswerShape {
  /** The member that holds what the model said, a list of objects. */
  list: string
  /** Whether that member may be any kind of JSON but null, and is not looked into. */
  isAny?: true
  /** The member that each object of the list has, and the kinds of JSON that it may be; null for any object. */
  entry: { key: string; alias?: string; kinds: readonly ('object' | 'array' | 'string' | 'number')[] } | null
  /** Whether some servers answer with that list alone. */
  mayBeBare?: true
  /** Values of the answer's `status` under which it is one; null where it has no such member. */
  statuses: readonly string[] | null
}

export interface Endpoint {
  path: EndpointPath
  fields: Readonly<Record<string, FieldRole>>
  /** A body has every field of one of these sets; the first set, which begins with the prompt, is what its error asks for. */
  required: readonly (readonly string[])[]
  /** The fields to write in place of one that only some servers read. */
  portable: { limit: string; choices: string }
  /** Whether each of several texts is answered with its own choices. */
  choicesPerText: boolean
  /** The most tokens that a chat template, or a provider, writes around each input. */
  templateTokensMax: number
  /** Whether the same request may be answered differently each time. */
  samples: boolean
  answer: AnswerShape
  usage: UsageNames
  /** Tokens that are projected for the input of each line; absent: an estimate by the bytes of its prompt. */
  inputProjected?: number
  /** Whether the configuration declared the endpoint before, and no longer does: its lines fail. */
  isGone?: true
  /** Headers that requests carry beside those of every endpoint. */
  headers?: Readonly<Record<string, string>>
}

/** The names of the token counts in `usage`. */
interface UsageNames {
  input: string
  /** Null where nothing is generated. */
  output: string | null
  /** `input` leaves out the tokens of the prompt that were read from a cache or written to it. */
  isCacheApart?: true
  /** The unit that is counted, where that is not tokens: seconds, of which a part counts as one; or each answer counts as one. */
  unit?: 'seconds' | 'requests'
}

const STREAM = { stream: 'stream', stream_options: 'stream' } as const
/** Fields that llama.cpp, vLLM, TGI and Ollama read besides those of OpenAI. */
const FOREIGN = {
  max_length: 'foreign limit',
  max_new_tokens: 'foreign limit',
  max_tokens_to_sample: 'foreign limit',
  n_cmpl: 'foreign choices',
  n_predict: 'foreign limit',
  num_predict: 'foreign limit',
  num_return_sequences: 'foreign choices',
} as const
/** Fields of any endpoint that chats; some providers read more of them than their documentation says. */
const REFERENCES = {
  previous_response_id: 'reference',
  conversation: 'reference',
  web_search_options: 'reference',
  container: 'reference',
  mcp_servers: 'reference',
} as const
/** Some templates begin with a page of instructions where the line has none. */
const CHAT_TEMPLATE_TOKENS = 4_096
const ONE_ANSWER = 'one line for each answer'
const PORTABLE = { limit: '`max_tokens`', choices: '`n`' }
const TOKENS = { input: 'prompt_tokens', output: 'completion_tokens' }
/** The facts that endpoints for chats share. */
const CHAT = {
  portable: PORTABLE,
  choicesPerText: false,
  templateTokensMax: CHAT_TEMPLATE_TOKENS,
  samples: true,
  usage: TOKENS,
}
/** The facts that endpoints share which generate nothing. */
const READ_ONLY = {
  portable: PORTABLE,
  choicesPerText: false,
  templateTokensMax: 256,
  samples: false,
  usage: { input: 'prompt_tokens', output: null },
}

const BUILT_IN: Readonly<Record<BuiltInPath, Omit<Endpoint, 'path'>>> = {
  '/v1/chat/completions': {
    fields: {
      model: 'model',
      messages: 'messages',
      max_tokens: 'limit',
      max_completion_tokens: 'limit',
      n: 'choices',
      temperature: 'number',
      seed: 'number',
      tools: 'tools',
      response_format: 'format',
      ...REFERENCES,
      ...STREAM,
      ...FOREIGN,
      best_of: 'foreign choices',
      max_output_tokens: 'foreign limit',
    },
    ...CHAT,
    required: [['messages']],
    answer: { list: 'choices', entry: { key: 'message', kinds: ['object'] }, statuses: null },
  },
  '/v1/completions': {
    fields: {
      model: 'model',
      prompt: 'texts',
      prompt_embeds: 'texts',
      suffix: 'prompt',
      max_tokens: 'limit',
      n: 'choices',
      best_of: 'choices',
      temperature: 'number',
      seed: 'number',
      ...STREAM,
      ...FOREIGN,
      max_completion_tokens: 'foreign limit',
      max_output_tokens: 'foreign limit',
    },
    required: [['prompt'], ['prompt_embeds']],
    portable: PORTABLE,
    choicesPerText: true,
    templateTokensMax: 16,
    samples: true,
    answer: { list: 'choices', entry: { key: 'text', kinds: ['string'] }, statuses: null },
    usage: TOKENS,
  },
  '/v1/embeddings': {
    fields: {
      model: 'model',
      input: 'texts',
      messages: 'messages',
      dimensions: 'count',
      encoding_format: 'encoding',
      ...STREAM,
    },
    required: [['input'], ['messages']],
    ...READ_ONLY,
    answer: { list: 'data', entry: { key: 'embedding', kinds: ['array', 'string'] }, statuses: null },
  },
  '/v1/responses': {
    fields: {
      model: 'model',
      input: 'items',
      instructions: 'prompt',
      prompt: 'reference',
      tools: 'prompt',
      text: 'prompt',
      max_output_tokens: 'limit',
      temperature: 'number',
      seed: 'number',
      background: 'background',
      ...REFERENCES,
      ...STREAM,
      ...FOREIGN,
      max_tokens: 'foreign limit',
      max_completion_tokens: 'foreign limit',
      n: 'foreign choices',
      best_of: 'foreign choices',
    },
    ...CHAT,
    required: [['input'], ['prompt'], ['previous_response_id'], ['conversation']],
    portable: { limit: '`max_output_tokens`', choices: ONE_ANSWER },
    answer: { list: 'output', entry: null, statuses: ['completed', 'incomplete'] },
    usage: { input: 'input_tokens', output: 'output_tokens' },
  },
  '/v1/messages': {
    fields: {
      model: 'model',
      messages: 'messages',
      max_tokens: 'limit',
      system: 'prompt',
      tools: 'prompt',
      output_config: 'prompt',
      temperature: 'number',
      ...REFERENCES,
      ...STREAM,
      ...FOREIGN,
      max_completion_tokens: 'foreign limit',
      max_output_tokens: 'foreign limit',
      n: 'foreign choices',
      best_of: 'foreign choices',
    },
    ...CHAT,
    required: [['messages', 'max_tokens']],
    portable: { limit: '`max_tokens`', choices: ONE_ANSWER },
    answer: { list: 'content', entry: null, statuses: null },
    usage: { input: 'input_tokens', output: 'output_tokens', isCacheApart: true },
    headers: { 'anthropic-version': '2023-06-01' },
  },
  '/v1/rerank': {
    fields: { model: 'model', query: 'documents', documents: 'documents', top_n: 'number', ...STREAM },
    required: [['query', 'documents']],
    ...READ_ONLY,
    answer: {
      list: 'results',
      entry: { key: 'relevance_score', alias: 'score', kinds: ['number'] },
      mayBeBare: true,
      statuses: null,
    },
  },
  '/v1/score': {
    fields: {
      model: 'model',
      text_1: 'documents',
      text_2: 'documents',
      data_1: 'documents',
      data_2: 'documents',
      queries: 'documents',
      documents: 'documents',
      items: 'documents',
      ...STREAM,
    },
    required: [
      ['text_1', 'text_2'],
      ['queries', 'documents'],
      ['queries', 'items'],
      ['data_1', 'data_2'],
    ],
    ...READ_ONLY,
    answer: { list: 'data', entry: { key: 'score', kinds: ['number'] }, statuses: null },
  },
}

// The table of this process.

const TABLE = new Map<string, Endpoint>(ENDPOINT_PATHS.map((path) => [path, { path, ...BUILT_IN[path] }]))

/** An endpoint that the configuration adds. */
export interface DeclaredEndpoint {
  path: EndpointPath
  /** The fields that become the prompt; a body has all of them. */
  prompt: readonly string[]
  /** The member that an answer has. */
  answer: string
  usage: { input: string | null; output: string | null }
  unit: 'tokens' | 'seconds' | 'requests'
  /** The field with the most output that a line may have; null: none. */
  limit: string | null
  input_projected: number | null
}

const DEFAULT_INPUT = 'prompt_tokens'

/** Adds these endpoints to the table. The composition root calls it before the table is read. */
export function declareEndpoints(declared: readonly DeclaredEndpoint[]): void {
  for (const path of endpointPaths()) if (!isBuiltIn(path)) TABLE.delete(path)
  for (const { path, prompt, answer, usage, unit, limit, input_projected } of declared) {
    const inputProjected = unit === 'requests' ? 1 : input_projected
    const roles = prompt.map((name) => [name, 'prompt'] as const)
    TABLE.set(path, {
      path,
      fields: {
        ...STREAM,
        ...Object.fromEntries(roles),
        ...(limit !== null && { [limit]: 'limit' as const }),
        model: 'model',
      },
      required: [prompt],
      portable: { ...PORTABLE, limit: `\`${limit ?? 'max_tokens'}\`` },
      choicesPerText: false,
      // An address of a recording says nothing of its length.
      templateTokensMax: Number.POSITIVE_INFINITY,
      samples: usage.output !== null,
      answer: { list: answer, isAny: true, entry: null, statuses: null },
      usage: {
        input: usage.input ?? (unit === 'tokens' ? DEFAULT_INPUT : unit),
        output: usage.output,
        ...(unit !== 'tokens' && { unit }),
      },
      ...(inputProjected !== null && { inputProjected }),
    })
  }
}

/** Lines that were queued under another configuration may have an endpoint that is gone. */
export function endpointOf(path: EndpointPath): Endpoint {
  return TABLE.get(path) ?? { ...BUILT_IN[DEFAULT_ENDPOINT], path, fields: { model: 'model' }, isGone: true }
}

/** `/v1/embeddings` as it is, or without its beginning; null for anything that is not in the table. */
export function endpointPathOf(text: string): EndpointPath | null {
  const name = text.replace(/^\/?(v1\/)?/, '')
  return TABLE.get(`/v1/${name}`)?.path ?? null
}

/**
 * The endpoint that callers name so: by its path, without the version as Azure has it, or as \`vllm run-batch\` takes
 * those of pairs, at any address that ends with their name.
 */
export function endpointNamed(url: string): EndpointPath | null {
  if (!url.startsWith('/')) return null
  const pairs = isEndpointPath(url) ? null : /\/(score|rerank)$/.exec(url)
  return endpointPathOf(url) ?? (pairs && endpointPathOf(pairs[1] ?? ''))
}

/** Whether `text` has the form of an endpoint's path. */
export function isEndpointPath(text: string): text is EndpointPath {
  return /^\/v1(\/[\w.-]+)+$/.test(text)
}

export function isBuiltIn(path: EndpointPath): path is BuiltInPath {
  return Object.hasOwn(BUILT_IN, path)
}

export function endpointPaths(): EndpointPath[] {
  return [...TABLE.values()].map(({ path }) => path)
}

/** `"/v1/chat/completions", "/v1/completions" or …`, for messages. */
export function endpointsText(paths: readonly EndpointPath[] = endpointPaths()): string {
  const quoted = paths.map((path) => `"${path}"`)
  return `${quoted.slice(0, -1).join(', ')} or ${quoted.at(-1)}`
}
