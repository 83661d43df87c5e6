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

/** The endpoint of a model whose configuration names none. */
export const DEFAULT_ENDPOINT: BuiltInPath = '/v1/chat/completions'
export const EMBEDDINGS: BuiltInPath = '/v1/embeddings'

/**
 * The use of a field of the body. Fields that the table does not name are sent unread.
 * - `messages`: the messages of a chat, each with a role
 * - `items`: a text, or items that may be messages
 * - `texts`: a text, texts, token IDs, or lists of token IDs
 * - `documents`: a text, texts, or objects that hold a text or media
 * - `prompt`: any other part of the prompt
 * - `reference`: refers to context that the body does not hold
 * - `tools`, `format`: the tools and the response format of a chat, which become part of the prompt as well
 * - `limit`: the limit of output tokens, an integer; 0 and less mean no limit
 * - `choices`: the number of generated answers, a positive integer
 * - `count`: a positive integer; `number`: any number
 * - `encoding`: the encoding of numbers
 * - `background`: asks for a later answer, for which a batch cannot wait
 * - `stream`: asks for a stream or sets its options; a batch has no streams
 * - `foreign limit`, `foreign choices`: read by some servers as an output limit or a number of choices
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

/** The shape of the endpoint's answers. */
export interface AnswerShape {
  /** The member that holds the generated content, a list of objects. */
  list: string
  /** Whether the member `list` may hold any JSON but null, which is not examined. */
  isAny?: true
  /** The required member of each object in the list, and its kinds of JSON; null for any object. */
  entry: { key: string; alias?: string; kinds: readonly ('object' | 'array' | 'string' | 'number')[] } | null
  /** Whether some servers answer with the bare list. */
  mayBeBare?: true
  /** Values of `status` in a complete answer; null for an endpoint whose answers have no `status`. */
  statuses: readonly string[] | null
}

export interface Endpoint {
  path: EndpointPath
  fields: Readonly<Record<string, FieldRole>>
  /** Sets of fields of which a body must have one whole set. Errors name the first set, which has the prompt first. */
  required: readonly (readonly string[])[]
  /** The fields to use instead of a field that only some servers read. */
  portable: { limit: string; choices: string }
  /** Whether each of several texts gets choices of its own. */
  choicesPerText: boolean
  /** The limit of tokens that a chat template or a provider adds to each input. */
  templateTokensMax: number
  /** Whether equal requests may get different answers. */
  samples: boolean
  answer: AnswerShape
  usage: UsageNames
  /** The projected input tokens of each line; absent: estimated by the bytes of its prompt. */
  inputProjected?: number
  /** Whether the configuration no longer declares the endpoint: its lines fail. */
  isGone?: true
  /** Further headers of requests to this endpoint. */
  headers?: Readonly<Record<string, string>>
}

/** The names of token counts in the endpoint's `usage`. */
interface UsageNames {
  input: string
  /** The name of the output tokens; null for an endpoint that generates nothing. */
  output: string | null
  /** Whether `input` excludes the prompt tokens that were read from a cache or written to it. */
  isCacheApart?: true
  /** The counted unit, if it is not tokens: seconds, rounded up, or answers. */
  unit?: 'seconds' | 'requests'
}

const STREAM = { stream: 'stream', stream_options: 'stream' } as const
/** Fields beyond OpenAI's that llama.cpp, vLLM, TGI or Ollama read. */
const FOREIGN = {
  max_length: 'foreign limit',
  max_new_tokens: 'foreign limit',
  max_tokens_to_sample: 'foreign limit',
  n_cmpl: 'foreign choices',
  n_predict: 'foreign limit',
  num_predict: 'foreign limit',
  num_return_sequences: 'foreign choices',
} as const
/** Fields of chat endpoints that refer to content elsewhere; providers read more of them than they document. */
const REFERENCES = {
  previous_response_id: 'reference',
  conversation: 'reference',
  web_search_options: 'reference',
  container: 'reference',
  mcp_servers: 'reference',
} as const
/** A bound of a chat template's own tokens: some add a page of instructions to a line without any. */
const CHAT_TEMPLATE_TOKENS = 4_096
const ONE_ANSWER = 'one line for each answer'
const PORTABLE = { limit: '`max_tokens`', choices: '`n`' }
const TOKENS = { input: 'prompt_tokens', output: 'completion_tokens' }
/** Facts that chat endpoints share. */
const CHAT = {
  portable: PORTABLE,
  choicesPerText: false,
  templateTokensMax: CHAT_TEMPLATE_TOKENS,
  samples: true,
  usage: TOKENS,
}
/** Facts that endpoints share which generate nothing. */
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

// The endpoints of this process.

const TABLE = new Map<string, Endpoint>(ENDPOINT_PATHS.map((path) => [path, { path, ...BUILT_IN[path] }]))

export interface DeclaredEndpoint {
  path: EndpointPath
  /** The fields that become the prompt, all of them required. */
  prompt: readonly string[]
  /** The required member of an answer. */
  answer: string
  usage: { input: string | null; output: string | null }
  unit: 'tokens' | 'seconds' | 'requests'
  /** The field with the output limit of a line; null: none. */
  limit: string | null
  input_projected: number | null
}

const DEFAULT_INPUT = 'prompt_tokens'

/** Adds endpoints to the table. The composition root calls it before the table is read. */
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
      // The address of a recording does not show its length.
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

/** The endpoint of a path, also of lines that were queued under another configuration. */
export function endpointOf(path: EndpointPath): Endpoint {
  return TABLE.get(path) ?? { ...BUILT_IN[DEFAULT_ENDPOINT], path, fields: { model: 'model' }, isGone: true }
}

/** The path of an endpoint by its full or short name, `/v1/embeddings` or `embeddings`; null for an unknown name. */
export function endpointPathOf(text: string): EndpointPath | null {
  const name = text.replace(/^\/?(v1\/)?/, '')
  return TABLE.get(`/v1/${name}`)?.path ?? null
}

/**
 * The endpoint of a URL that clients use: its path, also without the version as for Azure, or any URL that ends with
 * the name of a pair endpoint, as for \`vllm run-batch\`.
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

/** Endpoint paths for messages: `"/v1/chat/completions", "/v1/completions" or …`. */
export function endpointsText(paths: readonly EndpointPath[] = endpointPaths()): string {
  const quoted = paths.map((path) => `"${path}"`)
  return `${quoted.slice(0, -1).join(', ')} or ${quoted.at(-1)}`
}
