import assert from 'node:assert/strict'
import test from 'node:test'
import { gzipSync } from 'node:zlib'
import fc from 'fast-check'
import type { BackendResult } from '../backend.ts'
import { reasonForCaller, reasonForOperator } from '../failure-reason.ts'
import { classify as classifyAnswer, type HttpAnswer, type Secrets } from './classify.ts'
import { MESSAGE_LENGTH_MAX, PARAM_LENGTH_MAX } from './upstream-error.ts'

/** A row: title, status, body (an object is sent as JSON), and the expected kind, with the code where there is one. */
type Row = [title: string, status: number, body: unknown, expected: string, param?: string]

const completion = {
  id: 'chatcmpl-1',
  object: 'chat.completion',
  choices: [{ index: 0, message: { role: 'assistant', content: 'hi' }, finish_reason: 'stop' }],
  usage: { prompt_tokens: 5, completion_tokens: 1, total_tokens: 6 },
}
const choice = completion.choices[0]

function classify(answer: HttpAnswer, secrets?: Secrets): BackendResult {
  return classifyAnswer(answer, '/v1/chat/completions', secrets)
}

function verdict(status: number, body: unknown): BackendResult {
  return classify({ status, body: Buffer.from(typeof body === 'string' ? body : JSON.stringify(body)) })
}

function summary(result: BackendResult): string {
  return 'code' in result ? `${result.kind} ${result.code}` : result.kind
}

function rows(group: string, table: Row[]): void {
  for (const [title, status, body, expected, param] of table) {
    test(`${group}: ${title}`, () => {
      const result = verdict(status, body)
      assert.equal(summary(result), expected, JSON.stringify(result))
      if (param !== undefined) assert.equal(result.kind === 'refused' ? result.param : undefined, param)
    })
  }
}

const openAi = (
  message: string,
  code: string | null,
  type = 'invalid_request_error',
  param: string | null = null,
) => ({
  error: { message, type, param, code },
})

rows('a 200', [
  ['with a chat completion is answered', 200, completion, 'answered'],
  [
    'cut short by a content filter is answered',
    200,
    { ...completion, choices: [{ ...choice, finish_reason: 'content_filter' }] },
    'answered',
  ],
  [
    'with tool calls and no content is answered',
    200,
    { choices: [{ message: { content: null, tool_calls: [] }, finish_reason: 'tool_calls' }] },
    'answered',
  ],
  ['without usage is answered', 200, { choices: completion.choices }, 'answered'],
  [
    'with empty choices is no answer',
    200,
    { ...completion, choices: [] },
    'failed upstream_invalid_response',
  ],
  [
    'without choices is no answer',
    200,
    { id: 'x', object: 'chat.completion' },
    'failed upstream_invalid_response',
  ],
  [
    'with a choice without a message is no answer',
    200,
    { choices: [{ index: 0, text: 'a completion of old' }] },
    'failed upstream_invalid_response',
  ],
  [
    'with choices that are no list is no answer',
    200,
    { choices: { 0: choice } },
    'failed upstream_invalid_response',
  ],
  ['with an empty body is no answer', 200, '', 'failed upstream_invalid_response'],
  ['with a page is no answer', 200, '<html><body>Sign in</body></html>', 'failed upstream_invalid_response'],
  [
    'with half a body is no answer',
    200,
    JSON.stringify(completion).slice(0, 50),
    'failed upstream_invalid_response',
  ],
  ['with null is no answer', 200, 'null', 'failed upstream_invalid_response'],
  ['with a list is no answer', 200, [completion], 'failed upstream_invalid_response'],
  [
    'nested deeper than any answer is none',
    200,
    `{"choices":[{"message":${'{"a":'.repeat(200)}1${'}'.repeat(200)}}]}`,
    'failed upstream_invalid_response',
  ],
  [
    'whose generation was aborted is no answer',
    200,
    { choices: [{ ...choice, finish_reason: 'abort' }] },
    'failed upstream_invalid_response',
  ],
  [
    'with an error of no kind is no answer',
    200,
    { error: { message: 'oops' } },
    'failed upstream_invalid_response',
  ],
  ['with an error in words is no answer', 200, { error: 'oops' }, 'failed upstream_invalid_response'],
  [
    'with an error that carries a 502 is a 502',
    200,
    { error: { message: 'provider down', code: 502 } },
    'failed upstream_unavailable',
  ],
  [
    'with an error that carries a 429 is a 429',
    200,
    { error: { message: 'slow down', code: '429' } },
    'throttled',
  ],
  [
    'with an error that is a rate limit throttles',
    200,
    openAi('slow down', 'rate_limit_exceeded'),
    'throttled',
  ],
  [
    'with an error that is an overflow is refused',
    200,
    openAi('long', 'context_length_exceeded'),
    'refused context_length_exceeded',
    'messages',
  ],
])

test('what came in place of a completion is told', () => {
  const cases: [body: string | Buffer, reason: string][] = [
    ['', '200 with an empty body'],
    ['data: {"choices":[]}\n\ndata: [DONE]\n\n', '200 with a stream of events, which was not asked for'],
    ['<html>', '200 with a body that is not JSON'],
  ]
  for (const [body, reason] of cases) {
    const result = classify({ status: 200, body: Buffer.from(body) })
    assert.equal(result.kind === 'failed' && result.reason, reason)
  }
})

rows('too long for', [
  [
    'OpenAI',
    400,
    openAi(
      "This model's maximum context length is 128000 tokens. However, your messages resulted in 150000 tokens. Please reduce the length of the messages.",
      'context_length_exceeded',
      'invalid_request_error',
      'messages',
    ),
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'OpenAI, in other words',
    400,
    openAi('Your input exceeds the context window of this model.', null),
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'vLLM before 0.10, bare',
    400,
    {
      object: 'error',
      message:
        "This model's maximum context length is 131072 tokens. However, you requested 156632 tokens (152536 in the messages, 4096 in the completion). Please reduce the length of the messages or completion.",
      type: 'BadRequestError',
      param: null,
      code: 400,
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'vLLM, max_tokens too large',
    400,
    {
      error: {
        message:
          "'max_tokens' or 'max_completion_tokens' is too large: 1000. This model's maximum context length is 1024 tokens and your request has 510 input tokens (1000 > 1024 - 510).",
        type: 'BadRequestError',
        param: null,
        code: 400,
      },
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'vLLM 0.20',
    400,
    {
      error: {
        message:
          "This model's maximum context length is 128000 tokens. However, you requested 65535 output tokens and your prompt contains at least 62466 input tokens, for a total of at least 128001 tokens. (parameter=input_tokens, value=62466)",
        type: 'BadRequestError',
        param: 'input_tokens',
        code: 400,
      },
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'vLLM 0.32, max_tokens',
    400,
    {
      error: {
        message:
          'max_tokens=8888 cannot be greater than max_model_len=max_total_tokens=3072. Please request fewer output tokens.',
        type: 'BadRequestError',
        param: 'max_tokens',
        code: 400,
      },
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'vLLM 0.32, the input',
    400,
    {
      error: {
        message:
          "You passed 3001 input tokens and requested 100 output tokens. However, the model's context length is only 3072 tokens, resulting in a maximum input length of 2972 tokens. Please reduce the length of the input prompt.",
        type: 'BadRequestError',
        param: 'input_tokens',
        code: 400,
      },
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'the engine of vLLM',
    400,
    {
      error: {
        message:
          'The decoder prompt (length 21535) is longer than the maximum model length of 16384. Make sure that `max_model_len` is no smaller than the number of text tokens.',
        type: 'BadRequestError',
        param: null,
        code: 400,
      },
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'the engine of vLLM, as a 500',
    500,
    {
      object: 'error',
      message: 'The decoder prompt (length 21535) is longer than the maximum model length of 16384.',
      type: 'InternalServerError',
      code: 500,
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'SGLang, the input',
    400,
    {
      object: 'error',
      message: "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
      type: 'BadRequestError',
      param: null,
      code: 400,
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'SGLang, the total',
    400,
    {
      object: 'error',
      message:
        "Requested token count exceeds the model's maximum context length of 64000 tokens. You requested a total of 71897 tokens: 7897 tokens from the input messages and 64000 tokens for the completion.",
      type: 'BadRequest',
      param: null,
      code: 400,
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'SGLang behind FastAPI',
    400,
    { detail: "The input (9000 tokens) is longer than the model's context length (4096 tokens)." },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'llama.cpp',
    400,
    {
      error: {
        code: 400,
        message: 'request (14429 tokens) exceeds the available context size (8192 tokens), try increasing it',
        type: 'exceed_context_size_error',
        n_prompt_tokens: 14429,
        n_ctx: 8192,
      },
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'llama.cpp, as a 500',
    500,
    {
      error: {
        code: 500,
        message:
          'the request exceeds the available context size. try increasing the context size or enable context shift',
        type: 'exceed_context_size_error',
        n_prompt_tokens: 1407,
        n_ctx: 256,
      },
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'llama.cpp of 2025',
    400,
    {
      error: {
        code: 400,
        message: 'input is larger than the max context size. skipping',
        type: 'server_error',
      },
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'Ollama',
    400,
    {
      error: {
        message: 'the input length exceeds the context length',
        type: 'invalid_request_error',
        param: null,
        code: null,
      },
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'Ollama, bare',
    400,
    { error: 'the input length exceeds the context length' },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'TGI',
    422,
    {
      error:
        '`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 100 `max_new_tokens`',
      error_type: 'validation',
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'Bedrock',
    400,
    { message: 'Input is too long for requested model.' },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'Cohere',
    400,
    { message: 'too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000.' },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'xAI',
    400,
    {
      code: 'Client specified an invalid argument',
      error: "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'TensorRT-LLM',
    400,
    {
      error:
        'Encountered an error in forward function: Prompt length (5000) exceeds maximum input length (4096).',
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'LM Studio',
    400,
    {
      error:
        'Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough.',
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'Anthropic',
    400,
    {
      type: 'error',
      error: { type: 'invalid_request_error', message: 'prompt is too long: 213462 tokens > 200000 maximum' },
    },
    'refused context_length_exceeded',
    'messages',
  ],
])

rows('an unknown model of', [
  [
    'OpenAI',
    404,
    openAi('The model `gpt-9` does not exist or you do not have access to it.', 'model_not_found'),
    'refused model_not_found',
    'model',
  ],
  [
    'vLLM',
    404,
    {
      error: {
        message: 'The model `Qwen1.5-14B` does not exist.',
        type: 'NotFoundError',
        param: 'model',
        code: 404,
      },
    },
    'refused model_not_found',
    'model',
  ],
  [
    'vLLM, bare',
    404,
    {
      object: 'error',
      message: 'The model `/data/Qwen1.5-72B` does not exist.',
      type: 'NotFoundError',
      param: null,
      code: 404,
    },
    'refused model_not_found',
    'model',
  ],
  [
    'Ollama',
    404,
    {
      error: {
        message: 'model "llama9" not found, try pulling it first',
        type: 'api_error',
        param: null,
        code: null,
      },
    },
    'refused model_not_found',
    'model',
  ],
  [
    'Ollama, newer',
    404,
    { error: { message: "model 'llama9' not found", type: 'not_found_error', param: null, code: null } },
    'refused model_not_found',
    'model',
  ],
  [
    'the router of llama.cpp',
    400,
    { error: { code: 400, message: 'model not found', type: 'invalid_request_error' } },
    'refused model_not_found',
    'model',
  ],
  [
    'the router of llama.cpp, with its name',
    404,
    { error: { code: 404, message: "model 'x' not found", type: 'not_found_error' } },
    'refused model_not_found',
    'model',
  ],
  [
    'LiteLLM',
    400,
    {
      error: {
        message: 'Invalid model name passed in model=x. Call `/v1/models` to view available models.',
        type: 'None',
        param: 'None',
        code: '400',
      },
    },
    'refused model_not_found',
    'model',
  ],
  ['DeepSeek', 400, openAi('Model Not Exist', 'invalid_request_error'), 'refused model_not_found', 'model'],
])

/** An error of a server behind LiteLLM's proxy, as the proxy passes it on. */
const liteLlm = (message: string, code: string, type: string | null = null) => ({
  error: { message, type, param: null, code },
})
const groups = 'Received Model Group=m\nAvailable Model Group Fallbacks=None'
/** An error of the runtime below LocalAI, as LocalAI passes it on. */
const localAi = (message: string, code = 500) => ({ error: { code, message, type: '' } })

rows("through LiteLLM's proxy", [
  [
    'a prompt too long for vLLM',
    400,
    liteLlm(
      `litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: Hosted_vllmException - This model's maximum context length is 16384 tokens. However, your request has 19427 input tokens.. ${groups}`,
      '400',
    ),
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'a prompt too long for Anthropic',
    400,
    liteLlm(
      `litellm.BadRequestError: AnthropicException - b'{"type":"error","error":{"type":"invalid_request_error","message":"input length and \`max_tokens\` exceed context limit: 179413 + 32768 > 200000, decrease input length or \`max_tokens\` and try again"}}'. ${groups}`,
      '400',
    ),
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'a prompt too long for Gemini',
    400,
    liteLlm(
      'litellm.BadRequestError: GeminiException - The input token count (2800010) exceeds the maximum number of tokens allowed (1048575).',
      '400',
    ),
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'a model that the proxy does not list',
    400,
    liteLlm(
      "{'error': '/chat/completions: Invalid model name passed in model=gpt-9. Call `/v1/models` to view available models for your key.'}",
      '400',
      'None',
    ),
    'refused model_not_found',
    'model',
  ],
  [
    'a model that the proxy does not list, in older words',
    400,
    liteLlm("400: {'error': 'Invalid model name passed in model=Lite-GPT-12'}", '400', 'None'),
    'refused model_not_found',
    'model',
  ],
  [
    'a model without a deployment',
    400,
    liteLlm(
      `litellm.BadRequestError: You passed in model=m. There are no healthy deployments for this model. ${groups}`,
      '400',
    ),
    'refused model_not_found',
    'model',
  ],
  [
    'deployments that are all cooling down, which is no missing model',
    429,
    liteLlm('No deployments available for selected model, Try again in 60 seconds.', '429', 'None'),
    'throttled',
  ],
  [
    'a model that vLLM does not know',
    404,
    liteLlm(
      `litellm.NotFoundError: Hosted_vllmException - The model \`x\` does not exist.. ${groups}`,
      '404',
    ),
    'refused model_not_found',
    'model',
  ],
  [
    'a model that Ollama does not know, as a 500',
    500,
    liteLlm(
      `litellm.APIConnectionError: OllamaException - {"error":"model 'x' not found"}. ${groups}`,
      '500',
    ),
    'refused model_not_found',
    'model',
  ],
  [
    'an image that Ollama cannot read, as a 500',
    500,
    liteLlm(
      'litellm.APIConnectionError: Ollama_chatException - {"error":"this model is missing data required for image input"}',
      '500',
    ),
    'refused upstream_rejected',
  ],
  [
    'filtered content',
    400,
    liteLlm(
      'litellm.ContentPolicyViolationError: litellm.BadRequestError: AzureException - Your request was rejected.',
      '400',
    ),
    'refused content_filter',
  ],
  [
    'a guardrail of the proxy',
    400,
    {
      error: {
        message: "{'error': 'Violated OpenAI moderation policy'}",
        type: 'None',
        param: 'None',
        code: '400',
      },
    },
    'refused content_filter',
  ],
  [
    'a server that is down',
    500,
    liteLlm('litellm.InternalServerError: OpenAIException - Connection error.', '500'),
    'failed upstream_unavailable',
  ],
  [
    'a budget of its own that is used up',
    429,
    liteLlm(
      'No deployments available - crossed budget: Exceeded budget for deployment model_name: m: 13.0 >= 10.0',
      '429',
      'internal_server_error',
    ),
    'failed upstream_unavailable',
  ],
  [
    "a key's budget that is used up",
    429,
    liteLlm('Budget has been exceeded! Current cost: 2.1, Max budget: 2.0', '429', 'budget_exceeded'),
    'failed upstream_unavailable',
  ],
  [
    'an image for a text model, as a 500',
    500,
    liteLlm(
      'litellm.InternalServerError: InternalServerError: OpenAIException - image input is not supported - hint: if this is unexpected, you may need to provide the mmproj',
      '500',
    ),
    'refused upstream_rejected',
  ],
  [
    "Azure's filter",
    400,
    liteLlm(
      "litellm.BadRequestError: OpenAIException - The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
      '400',
    ),
    'refused content_filter',
  ],
  [
    'a timeout',
    408,
    liteLlm('litellm.Timeout: APITimeoutError - Request timed out.', '408'),
    'failed upstream_timeout',
  ],
])

test('an answer of a proxy for a server that it cannot reach is told apart', () => {
  const isOfGateway = (status: number, body: unknown): boolean => {
    const result = verdict(status, body)
    return 'isOfGateway' in result && result.isOfGateway === true
  }
  for (const status of [502, 503, 504, 522]) assert.ok(isOfGateway(status, '<h1>Bad Gateway</h1>'))
  const gone = 'litellm.InternalServerError: InternalServerError: OpenAIException - Connection error.'
  assert.ok(isOfGateway(500, liteLlm(gone, '500')))
  assert.ok(isOfGateway(429, liteLlm('No deployments available', '429', 'all_deployments_in_cooldown')))
  assert.ok(!isOfGateway(500, liteLlm('CUDA out of memory', '500')))
  assert.ok(!isOfGateway(429, liteLlm('slow down', '429')))
  assert.ok(!isOfGateway(529, {}))
})

rows('TGI', [
  [
    'finds the total too long',
    422,
    {
      error:
        'Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 100 `max_new_tokens`',
      error_type: 'validation',
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'finds the input too long',
    422,
    {
      error: 'Input validation error: `inputs` must have less than 4096 tokens. Given: 4545',
      error_type: 'validation',
    },
    'refused context_length_exceeded',
    'messages',
  ],
  [
    'cannot apply its template',
    422,
    {
      error: 'Template error: invalid operation: Conversation roles must alternate',
      error_type: 'template_error',
    },
    'refused upstream_rejected',
  ],
  ['is full', 429, { error: 'Model is overloaded', error_type: 'overloaded' }, 'throttled'],
  [
    'fails while it generates, which is not the fault of the request',
    424,
    {
      error: 'Request failed during generation: Server error: CUDA out of memory.',
      error_type: 'generation',
    },
    'failed upstream_unavailable',
  ],
  [
    'gives a wrong status to a fault of the request',
    500,
    { error: 'Input validation error: `temperature` must be strictly positive', error_type: 'validation' },
    'refused upstream_rejected',
  ],
])

rows('LocalAI', [
  [
    'finds the prompt too long',
    500,
    localAi(
      'rpc error: code = Internal desc = request (20652 tokens) exceeds the available context size (8192 tokens), try increasing it',
    ),
    'refused context_length_exceeded',
    'messages',
  ],
  ['does not know the model', 404, localAi("model 'x' not found", 404), 'refused model_not_found', 'model'],
  [
    'cannot load a model, which may pass',
    500,
    localAi('could not load model: rpc error: code = Unavailable desc = error reading from server: EOF'),
    'failed upstream_unavailable',
  ],
  [
    'names a fault of the request',
    500,
    localAi('rpc error: code = InvalidArgument desc = image input is not supported'),
    'refused upstream_rejected',
  ],
  [
    'loses its runtime',
    500,
    localAi('rpc error: code = Unavailable desc = error reading from server: EOF'),
    'failed upstream_unavailable',
  ],
])

rows('an image that a text model cannot read, by', [
  [
    'llama.cpp, as a 500',
    500,
    {
      error: {
        code: 500,
        message:
          'image input is not supported - hint: if this is unexpected, you may need to provide the mmproj',
        type: 'server_error',
      },
    },
    'refused upstream_rejected',
  ],
  [
    'Ollama, as a 500',
    500,
    {
      error: {
        message: 'this model is missing data required for image input',
        type: 'api_error',
        param: null,
        code: null,
      },
    },
    'refused upstream_rejected',
  ],
  ['Ollama', 400, { error: 'this model does not support image input' }, 'refused upstream_rejected'],
  [
    'vLLM',
    400,
    { error: { message: 'qwen3-8b is not a multimodal model', type: 'BadRequestError', code: 400 } },
    'refused upstream_rejected',
  ],
  [
    'vLLM, as a 500',
    500,
    {
      error: {
        message: 'At most 0 image(s) may be provided in one prompt.',
        type: 'InternalServerError',
        code: 500,
      },
    },
    'refused upstream_rejected',
  ],
])

rows('a schema that a server cannot follow, by', [
  [
    'llama.cpp, as a 500',
    500,
    {
      error: {
        code: 500,
        message: 'JSON schema conversion failed:\nUnrecognized schema: {"type":"money"}',
        type: 'server_error',
      },
    },
    'refused upstream_rejected',
  ],
  [
    'llama.cpp, its grammar',
    500,
    {
      error: {
        code: 500,
        message: 'Failed to initialize samplers: failed to parse grammar',
        type: 'server_error',
      },
    },
    'refused upstream_rejected',
  ],
  [
    'llama-cpp-python, as a 500',
    500,
    {
      error: {
        message: 'Pattern must start with "^" and end with "$"',
        type: 'internal_server_error',
        param: null,
        code: null,
      },
    },
    'refused upstream_rejected',
  ],
  [
    'a server that says whose fault it is in its type alone',
    500,
    openAi('strange things are asked for', null, 'BadRequestError'),
    'refused upstream_rejected',
  ],
])

rows('what only looks like a fault of the request:', [
  ['the page of a proxy', 500, '<h1>500</h1> image input is not supported', 'failed upstream_unavailable'],
  [
    'a cache that is full of other requests',
    500,
    { error: { code: 500, message: 'Context size has been exceeded.', type: 'server_error' } },
    'failed upstream_unavailable',
  ],
  [
    'a model that is not available for a while',
    500,
    { error: { message: 'model x is not available right now' } },
    'failed upstream_unavailable',
  ],
  [
    'a 503',
    503,
    { error: { message: 'image input is not supported', type: 'invalid_request_error' } },
    'throttled',
  ],
])

test("what is refused with a 500 quotes the server's own words", () => {
  const result = verdict(500, {
    error: { code: 500, message: 'image input is not supported', type: 'server_error' },
  })
  assert.equal(
    result.kind === 'refused' && result.message,
    'The model server refused the request with status 500: "image input is not supported".',
  )
})

const SHAPES: [name: string, body: unknown][] = [
  ['a list, as Gemini', [{ error: { code: 400, message: 'too hot', status: 'INVALID_ARGUMENT' } }]],
  ['an object as the detail', { detail: { message: 'too hot', code: 'x' } }],
  ['an error within the detail', { detail: { error: { msg: 'too hot' } } }],
  ['a list of errors', { errors: [{ message: 'too hot' }] }],
  ['a list of texts', { errors: ['too hot'] }],
  ['a capital letter', { Message: 'too hot' }],
  ['msg', { code: 1, msg: 'too hot' }],
  ['a title', { type: 'about:blank', title: 'too hot', status: 400 }],
  ['a title and a detail', { title: 'Bad Request', detail: 'too hot', status: 400 }],
  [
    'the whole error of a provider behind the server',
    { error: { message: '{"error":{"message":"too hot"}}', code: 400 } },
  ],
  [
    'what OpenRouter passes on',
    {
      error: {
        message: 'Provider returned error',
        code: 400,
        metadata: { raw: '{"error":{"message":"too hot"}}' },
      },
    },
  ],
]
for (const [name, body] of SHAPES)
  test(`the words of an error are read in the form of ${name}`, () => {
    const result = verdict(400, body)
    assert.ok(result.kind === 'refused')
    assert.equal(result.message, 'The model server refused the request with status 400: "too hot".')
  })

const atResponses = (body: object): string =>
  summary(classifyAnswer({ status: 404, body: Buffer.from(JSON.stringify(body)) }, '/v1/responses'))

test('a 404 that names a parameter or an object of the request is about the request, whatever the endpoint', () => {
  for (const body of [
    {
      error: {
        message: "Response with id 'resp_1' not found.",
        type: 'invalid_request_error',
        param: 'response_id',
        code: 404,
      },
    },
    openAi("Previous response with id 'resp_1' not found.", null),
    openAi('not here', null, 'invalid_request_error', 'previous_response_id'),
    openAi('No such File object: file-1', null),
    openAi("Conversation with id 'conv_1' not found.", null),
    openAi('The prompt pmpt_1 was not found', null),
  ]) {
    assert.equal(atResponses(body), 'refused upstream_rejected', JSON.stringify(body))
    assert.equal(summary(verdict(404, body)), 'refused upstream_rejected', JSON.stringify(body))
  }
  for (const body of [{ detail: 'Not Found' }, openAi('Invalid URL (POST /v1/responses)', null)])
    assert.equal(atResponses(body), 'refused endpoint_not_supported', JSON.stringify(body))
})

rows('filtered content', [
  [
    'by Azure',
    400,
    {
      error: {
        message:
          "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
        type: null,
        param: 'prompt',
        code: 'content_filter',
        status: 400,
        innererror: { code: 'ResponsibleAIPolicyViolation' },
      },
    },
    'refused content_filter',
  ],
  [
    'by Azure through LiteLLM',
    400,
    {
      error: {
        message: 'litellm.ContentPolicyViolationError: AzureException - filtered',
        type: null,
        param: null,
        code: '400',
      },
    },
    'refused content_filter',
  ],
  [
    'by OpenAI',
    400,
    openAi('Your request was rejected as a result of our safety system.', 'content_policy_violation'),
    'refused content_filter',
  ],
  [
    'by a moderating proxy',
    403,
    { error: { message: 'x requires moderation. Your input was flagged for "violence".', code: 403 } },
    'refused content_filter',
  ],
  ...[400, 403].map(
    (status): Row => [
      `by xAI as ${status}`,
      status,
      {
        code: 'The caller does not have permission to execute the specified operation',
        error: 'Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO',
      },
      'refused content_filter',
    ],
  ),
  ['by DeepSeek', 400, openAi('Content Exists Risk', 'invalid_request_error'), 'refused content_filter'],
  [
    'by DashScope',
    400,
    openAi('Input data may contain inappropriate content.', 'data_inspection_failed'),
    'refused content_filter',
  ],
  [
    'by Volcengine',
    400,
    openAi('The request failed because', 'InputTextSensitiveContentDetected', 'BadRequest'),
    'refused content_filter',
  ],
  [
    'by Moonshot',
    400,
    openAi('The request was rejected because it was considered high risk', null, 'content_filter'),
    'refused content_filter',
  ],
])

const SAFE = { hate: { filtered: false, severity: 'safe' } }
const HATE = { hate: { filtered: true, severity: 'high' } }
const FILTERED = { index: 0, finish_reason: 'content_filter' }
const ofChoices = (...choices: object[]) => ({ ...completion, choices })

rows('content that was withheld under a 200', [
  [
    'a prompt, by Azure',
    200,
    { ...ofChoices(), prompt_filter_results: [{ prompt_index: 0, content_filter_results: HATE }] },
    'refused content_filter',
  ],
  [
    'and nothing is wrong with the prompt',
    200,
    { ...ofChoices(), prompt_filter_results: [{ prompt_index: 0, content_filter_results: SAFE }] },
    'failed upstream_invalid_response',
  ],
  ['a choice without a message', 200, ofChoices(FILTERED), 'refused content_filter'],
  ['a message of null', 200, ofChoices({ ...FILTERED, message: null }), 'refused content_filter'],
  ['an empty message', 200, ofChoices({ ...FILTERED, message: {} }), 'refused content_filter'],
  [
    'by what filters found',
    200,
    ofChoices({ index: 0, message: null, finish_reason: null, content_filter_results: HATE }),
    'refused content_filter',
  ],
  [
    'as Gemini says it',
    200,
    ofChoices({ index: 0, finish_reason: 'content_filter: PROHIBITED_CONTENT' }),
    'refused content_filter',
  ],
  ['as Zhipu says it', 200, ofChoices({ index: 0, finish_reason: 'sensitive' }), 'refused content_filter'],
  ['no choices', 200, { promptFeedback: { blockReason: 'SAFETY' } }, 'refused content_filter'],
  ['one of two choices', 200, ofChoices(choice!, { ...FILTERED, index: 1 }), 'answered'],
  [
    'a message that is missing',
    200,
    ofChoices({ index: 0, finish_reason: 'stop' }),
    'failed upstream_invalid_response',
  ],
  [
    'a message that is missing beside a filtered one',
    200,
    ofChoices(FILTERED, { index: 1, finish_reason: 'stop' }),
    'failed upstream_invalid_response',
  ],
])

test('a response that failed is refused if its error is about its content, and is tried again for other errors', () => {
  const failedFor = (error: object | null, more = {}) =>
    summary(
      classifyAnswer(
        { status: 200, body: Buffer.from(JSON.stringify({ status: 'failed', output: [], error, ...more })) },
        '/v1/responses',
      ),
    )
  const flagged = 'Invalid prompt: your prompt was flagged as potentially violating our usage policy.'
  const cases: [object | null, object, string][] = [
    [{ code: 'content_filter', message: 'x' }, {}, 'refused content_filter'],
    [{ code: 'invalid_prompt', message: flagged }, {}, 'refused content_filter'],
    [{ code: 'image_content_policy_violation', message: 'x' }, {}, 'refused content_filter'],
    [{ code: null, message: 'filtered by the content management policy' }, {}, 'refused content_filter'],
    [null, { incomplete_details: { reason: 'content_filter' }, output: null }, 'refused content_filter'],
    [{ code: 'image_too_large', message: 'too large' }, {}, 'refused upstream_rejected'],
    [{ code: 'server_error', message: 'The server had an error.' }, {}, 'failed upstream_invalid_response'],
    [{ code: 'rate_limit_exceeded', message: 'slower' }, {}, 'throttled'],
  ]
  for (const [error, more, expected] of cases)
    assert.equal(failedFor(error, more), expected, JSON.stringify([error, more]))
  const message = { content: null, stop_reason: 'refusal' }
  const body = Buffer.from(JSON.stringify(message))
  assert.equal(summary(classifyAnswer({ status: 200, body }, '/v1/messages')), 'refused content_filter')
  const text = { choices: [{ index: 0, text: null, finish_reason: 'content_filter' }] }
  const texts = Buffer.from(JSON.stringify(text))
  const verdict = classifyAnswer({ status: 200, body: texts }, '/v1/completions')
  assert.equal(summary(verdict), 'refused content_filter')
})

rows('a rejected request', [
  [
    'of a parameter',
    400,
    openAi("Unrecognized request argument supplied: 'foo'", null),
    'refused upstream_rejected',
  ],
  [
    'that names the parameter',
    400,
    openAi('must be at most 2', 'invalid_value', 'invalid_request_error', 'temperature'),
    'refused upstream_rejected',
    'temperature',
  ],
  [
    'of more output than a model can give, which is not an overflow',
    400,
    openAi(
      'max_tokens is too large: 100000. This model supports at most 16384 completion tokens.',
      'invalid_value',
      'invalid_request_error',
      'max_tokens',
    ),
    'refused upstream_rejected',
    'max_tokens',
  ],
  [
    'by FastAPI',
    422,
    { detail: [{ loc: ['body', 'messages'], msg: 'Field required', type: 'missing' }] },
    'refused upstream_rejected',
    'messages',
  ],
  [
    'by vLLM 0.32, which names the classes that it tried',
    400,
    {
      error: {
        message:
          "2 validation errors:\n  {'type': 'string_type', 'loc': 'body.messages.0.ChatCompletionUserMessageParam.content', 'msg': 'Input should be a valid string', 'input': '5'}",
        type: 'Bad Request',
        param: 'body.messages.0.ChatCompletionUserMessageParam.content',
        code: 400,
      },
    },
    'refused upstream_rejected',
    'messages[0].content',
  ],
  [
    'of a tool that was not found, which is no model',
    400,
    openAi('The tool `model_x` was not found', null),
    'refused upstream_rejected',
  ],
  [
    'by a proxy that finds the body too large',
    413,
    '<html><head><title>413 Request Entity Too Large</title></head></html>',
    'refused upstream_rejected',
  ],
  [
    'of what no minute has room for',
    429,
    openAi(
      'Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 45000.',
      'rate_limit_exceeded',
      'tokens',
    ),
    'refused upstream_rejected',
  ],
  ['without a word', 400, '', 'refused upstream_rejected'],
])

rows('throttled', [
  ['by a 429', 429, openAi('Rate limit reached', 'rate_limit_exceeded', 'requests'), 'throttled'],
  ['by a 429 that is only a page', 429, '<h1>429 Too Many Requests</h1>', 'throttled'],
  [
    'by a quota per minute that is worded like an empty account',
    429,
    {
      error: {
        message: 'You exceeded your current quota, please check your plan and billing details.',
        code: 429,
        status: 'RESOURCE_EXHAUSTED',
      },
    },
    'throttled',
  ],
  [
    'by a 503',
    503,
    { error: { code: 503, message: 'Loading model', type: 'unavailable_error' } },
    'throttled',
  ],
  [
    'by a 529',
    529,
    { type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } },
    'throttled',
  ],
])

rows('a failure on our side', [
  [
    'an empty account',
    429,
    openAi('You exceeded your current quota.', 'insufficient_quota', 'insufficient_quota'),
    'failed upstream_unavailable',
  ],
  [
    'a wrong key',
    401,
    openAi('Incorrect API key provided: sk-abc', 'invalid_api_key'),
    'failed upstream_unavailable',
  ],
  [
    'a forbidden country',
    403,
    openAi('Country not supported', 'unsupported_country'),
    'failed upstream_unavailable',
  ],
  ['an unpaid bill', 402, { error: { message: 'Insufficient Balance' } }, 'failed upstream_unavailable'],
  ['a wrong path, by FastAPI', 404, { detail: 'Not Found' }, 'failed upstream_unavailable'],
  [
    'a wrong path, by vLLM',
    404,
    { error: { message: 'Not Found', type: 'Not Found', param: null, code: 404 } },
    'failed upstream_unavailable',
  ],
  ['a wrong path, by Go', 404, '404 page not found', 'failed upstream_unavailable'],
  [
    'a wrong deployment at Azure',
    404,
    {
      error: { code: 'DeploymentNotFound', message: 'The API deployment for this resource does not exist.' },
    },
    'failed upstream_unavailable',
  ],
  ['a wrong method', 405, { detail: 'Method Not Allowed' }, 'failed upstream_unavailable'],
  ['a redirect', 307, '', 'failed upstream_unavailable'],
])

rows('a failure of the server', [
  [
    'a 500',
    500,
    { error: { message: 'EngineCore encountered an issue.', type: 'InternalServerError', code: 500 } },
    'failed upstream_unavailable',
  ],
  ['a 502 page', 502, '<html><h1>502 Bad Gateway</h1></html>', 'failed upstream_unavailable'],
  ['a 504', 504, '', 'failed upstream_timeout'],
  ['a 408', 408, '', 'failed upstream_timeout'],
  ['a 409', 409, '', 'failed upstream_unavailable'],
  ['a 520 of a proxy', 520, '', 'failed upstream_unavailable'],
])

test('an answer keeps its bytes', () => {
  const body = Buffer.from(
    '{ "seed": 12345678901234567890, "choices": [{"message": {"content": null}}],\t"usage": null, "a": "ü" }',
  )
  const result = classify({ status: 200, body })
  assert.ok(result.kind === 'answered')
  assert.deepEqual(result.body, body)
  assert.equal(result.answer.usage, null)
})

test('a byte order mark before an answer or an error is no part of it', () => {
  const marked = (body: object): Buffer => Buffer.from(`\ufeff${JSON.stringify(body)}`)
  const result = classify({ status: 200, body: marked(completion) })
  assert.ok(result.kind === 'answered')
  assert.equal(result.body.toString(), JSON.stringify(completion))
  const error = classify({ status: 500, body: marked(openAi('long', 'context_length_exceeded')) })
  assert.equal(error.kind === 'refused' && error.code, 'context_length_exceeded')
})

test('bytes of an answer that are no UTF-8 become the sign for what cannot be read', () => {
  const body = Buffer.from('{"choices":[{"message":{"content":"?"}}]}')
  body[body.indexOf('?')] = 0xff
  const result = classify({ status: 200, body })
  assert.ok(result.kind === 'answered')
  assert.equal(result.body.toString(), '{"choices":[{"message":{"content":"\ufffd"}}]}')
})

test('what the server asks us to wait is passed on, whether throttled or failed', () => {
  for (const status of [429, 503, 500]) {
    const result = classify({ status, body: Buffer.alloc(0), retry_after_ms: 1500 })
    assert.equal('retry_after_ms' in result ? result.retry_after_ms : undefined, 1500)
  }
})

test('the words of a server are quoted, cut to one line, and end with a full stop', () => {
  const result = verdict(400, openAi(`bad:\n${'x'.repeat(100_000)}`, null))
  assert.ok(result.kind === 'refused')
  const [, words = ''] =
    /^The model server refused the request with status 400: "(.*)"\.$/.exec(result.message) ?? []
  assert.equal(words.length, MESSAGE_LENGTH_MAX)
  assert.ok(words.startsWith('bad: xxx') && words.endsWith('…'))
})

test('a compressed answer says so, and tells operators what to do, whether or not it names its encoding', () => {
  const body = gzipSync(JSON.stringify(completion))
  for (const status of [200, 400, 502]) {
    for (const content_encoding of [undefined, 'GZIP', 'br']) {
      const result = classify({ status, body, content_encoding })
      assert.match(JSON.stringify(result), /compressed its answer \((gzip|br)\)/)
      if (status === 200)
        assert.match(String(result.kind === 'failed' && result.operatorReason), /switch compression off/)
    }
  }
  const plain = Buffer.from(JSON.stringify(completion))
  assert.equal(classify({ status: 200, body: plain, content_encoding: 'identity' }).kind, 'answered')
})

test('advice about the configuration is for operators, and callers read a status without it', () => {
  const cases: [status: number, body: unknown, advice: RegExp, reason: string][] = [
    [302, '', /check base_url/, 'the server answered with a redirect (302)'],
    [401, openAi('bad key', null), /check the API key/, 'the server does not admit this service (401)'],
    [
      403,
      openAi('billing is off', null),
      /^403: check the API key.*: billing is off$/,
      'the server does not admit this service (403)',
    ],
    [404, '', /check base_url/, 'the server does not offer /v1/chat/completions (404)'],
    [
      429,
      openAi('You exceeded your current quota, see your billing page.', 'insufficient_quota'),
      /^429: check quota and budget.* see your billing page\.$/,
      'the server has no quota left for this service (429)',
    ],
  ]
  for (const [status, body, advice, reason] of cases) {
    const result = verdict(status, body)
    assert.ok(result.kind === 'failed', JSON.stringify(result))
    assert.equal(result.reason, reason)
    assert.match(reasonForOperator(result), advice)
    assert.equal(reasonForCaller(result), reason)
  }
})

test('a page is told without its tags', () => {
  const result = verdict(
    502,
    '<html><head><style>b{}</style></head><body><b>502</b> Bad\nGateway</body></html>',
  )
  assert.equal(result.kind === 'failed' ? reasonForCaller(result) : '', '502: 502 Bad Gateway')
})

test('a refused key is not quoted, whatever the server says of it', () => {
  const result = verdict(401, openAi('Incorrect API key provided: sk-secret', 'invalid_api_key'))
  assert.ok(!JSON.stringify(result).includes('sk-secret'))
})

test('however deep a server nests what it says, it is judged', () => {
  const deep = (count: number): string => '['.repeat(count) + ']'.repeat(count)
  for (const nest of [deep(50_000), `${'{"a":'.repeat(50_000)}1${'}'.repeat(50_000)}`]) {
    const bodies = [
      nest,
      `{"detail":[{"loc":["body",${nest}],"msg":"too odd"}]}`,
      `{"detail":[{"loc":${nest},"msg":${nest}}]}`,
      `{"error":{"message":${nest},"code":${nest},"param":${nest},"innererror":${nest}}}`,
      `{"error":${nest},"message":${nest},"detail":${nest}}`,
      `{"choices":${nest}}`,
      `{"choices":[{"message":${nest}}],"usage":${nest}}`,
    ]
    for (const body of bodies) {
      assert.equal(summary(verdict(422, body)), 'refused upstream_rejected')
      assert.equal(summary(verdict(200, body)), 'failed upstream_invalid_response')
      assert.equal(summary(verdict(500, body)), 'failed upstream_unavailable')
    }
  }
  for (const long of ['['.repeat(16_000_000), `${deep(500_000)},`.repeat(12), `{"a":${deep(8_000_000)}}`]) {
    // Quadratic time would be hours: the test would time out.
    assert.equal(summary(verdict(422, long)), 'refused upstream_rejected')
    assert.equal(summary(verdict(200, long)), 'failed upstream_invalid_response')
  }
  const said = verdict(422, `{"detail":[{"loc":["body",${deep(900)},3],"msg":"too odd"}]}`)
  assert.equal(
    said.kind === 'refused' && said.message,
    'The model server refused the request with status 422: "body.3: too odd".',
  )
})

test('whatever a server sends, it is judged, and what is told of it is short', () => {
  const key = fc.oneof(
    fc.constantFrom(
      'error',
      'message',
      'detail',
      'code',
      'type',
      'param',
      'loc',
      'msg',
      'innererror',
      'status',
    ),
    fc.constantFrom('choices', 'usage', 'finish_reason', 'content', 'prompt_tokens', '__proto__', 'toString'),
  )
  const { value } = fc.letrec((tie) => ({
    value: fc.oneof(
      { depthSize: 'medium' },
      fc.jsonValue(),
      fc.constantFrom('\ud800', 'x'.repeat(5000), '<'.repeat(3000), -1, 1e308),
      fc.dictionary(key, tie('value')),
      fc.array(tie('value')),
    ),
  }))
  const body = fc.oneof(
    value.map((said) => Buffer.from(JSON.stringify(said) ?? '')),
    fc.uint8Array({ maxLength: 200 }).map((bytes) => Buffer.from(bytes)),
    fc
      .string({ unit: fc.constantFrom('<', '>', '/', '!', '--', 'style', 'a', ' ') })
      .map((page) => Buffer.from(page)),
  )
  fc.assert(
    fc.property(fc.integer({ min: 200, max: 599 }), body, fc.boolean(), (status, bytes, suspect) => {
      const redact = (text: string): string => text.replaceAll('x', 'y')
      const secrets = { redact, redactKeys: redact, mayBeIn: () => suspect }
      const result = classify({ status, body: bytes }, secrets)
      if (result.kind === 'answered') return
      const said = result.kind === 'refused' ? result.message : result.reason
      assert.ok(said !== '' && said.length < 2 * MESSAGE_LENGTH_MAX && said.isWellFormed(), said)
      if (result.kind === 'refused') assert.ok((result.param ?? '').length <= PARAM_LENGTH_MAX)
    }),
    { numRuns: 500 },
  )
})

test('the parameter that a server blames is bounded, and control characters stay out of what is told', () => {
  const result = verdict(400, {
    error: { message: 'bad\u0000\u009b\u202etext', param: `a\u0007${'b'.repeat(100_000)}` },
  })
  assert.ok(result.kind === 'refused')
  assert.equal(result.message, 'The model server refused the request with status 400: "bad text".')
  assert.equal(result.param?.length, PARAM_LENGTH_MAX)
  assert.match(result.param ?? '', /^a b+…$/)
})

test('the name of an encoding is struck of secrets before it is told', () => {
  const redact = (text: string): string => text.replaceAll('sk-secret', '[redacted]')
  const secrets = { redact, redactKeys: redact, mayBeIn: () => false }
  for (const status of [200, 400]) {
    const result = classify(
      { status, body: Buffer.from('{}'), content_encoding: `${'x'.repeat(35)}SK-SECRET` },
      secrets,
    )
    const said = result.kind === 'refused' ? result.message : 'reason' in result ? result.reason : ''
    assert.match(said, /x\[reda/)
    assert.doesNotMatch(said, /sk-s/i)
  }
})

test('errors of Anthropic and answers of its API that broke off are told apart', () => {
  const of = (status: number, body: object): string =>
    summary(classifyAnswer({ status, body: Buffer.from(JSON.stringify(body)) }, '/v1/messages'))
  const error = (type: string, message: string) => ({
    type: 'error',
    error: { type, message },
    request_id: 'r',
  })
  const filtered = 'Output blocked by content filtering policy'
  assert.equal(of(404, error('not_found_error', 'model: claude-1')), 'refused model_not_found')
  assert.equal(of(400, error('invalid_request_error', filtered)), 'refused content_filter')
  assert.equal(of(529, error('overloaded_error', 'Overloaded')), 'throttled')
  const noFunds = [
    'Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits.',
    'You have reached your specified API usage limits. You will regain access on 2025-07-01 at 00:00 UTC.',
  ]
  for (const words of noFunds)
    assert.equal(of(400, error('invalid_request_error', words)), 'failed upstream_unavailable', words)
  assert.equal(of(200, error('overloaded_error', 'Overloaded')), 'throttled')
  const message = { type: 'message', content: [{ type: 'text', text: 'a' }] }
  assert.equal(of(200, { ...message, stop_reason: 'refusal' }), 'answered')
  assert.equal(of(200, { ...message, stop_reason: 'error' }), 'failed upstream_invalid_response')
})
