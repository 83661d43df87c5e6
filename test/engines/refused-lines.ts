// Bodies that vLLM 0.32 refuses, each with what the caller of its line is to read. Where no `code` is given, the server
// refused it and its words are quoted.

interface RefusedLine {
  /** Beside a body that is fine. */
  body: object
  code?: 'invalid_request' | 'context_length_exceeded'
  param?: string
  words: RegExp
}

const tools = [{ type: 'function', function: { name: 'f', parameters: { type: 'object' } } }]
const schema = (schema: object): object => ({
  response_format: { type: 'json_schema', json_schema: { name: 'x', schema } },
})

export const refusedLines: Readonly<Record<string, RefusedLine>> = {
  'temperature below 0': { body: { temperature: -1 }, param: 'temperature', words: /non-negative, got -1/ },
  'temperature too high': { body: { temperature: 1e9 }, param: 'temperature', words: /must be in \[0, 2\]/ },
  'temperature as text': {
    body: { temperature: 'warm' },
    code: 'invalid_request',
    param: 'temperature',
    words: /must be a number/,
  },
  'top_p of 0': { body: { top_p: 0 }, param: 'top_p', words: /must be in \(0, 1\]/ },
  'top_k below 0': { body: { top_k: -5 }, words: /top_k must be 0 .* got -5/ },
  'min_p above 1': { body: { min_p: 2 }, words: /min_p must be in \[0, 1\]/ },
  'n of 0': { body: { n: 0 }, code: 'invalid_request', param: 'n', words: /positive integer/ },
  'n of 2 without chance': { body: { n: 2 }, words: /n must be 1 when using greedy/ },
  'max_tokens of 0': { body: { max_tokens: 0 }, param: 'max_tokens', words: /at least 1, got 0/ },
  'max_tokens as text': {
    body: { max_tokens: 'many' },
    code: 'invalid_request',
    param: 'max_tokens',
    words: /must be an integer/,
  },
  'max_tokens beyond the window': {
    body: { max_tokens: 100_000 },
    code: 'context_length_exceeded',
    param: 'messages',
    words: /max_tokens=100000 cannot be greater/,
  },
  'a prompt beyond the window': {
    body: { messages: [{ role: 'user', content: 'two words '.repeat(3000) }] },
    code: 'context_length_exceeded',
    param: 'messages',
    words: /maximum context length is 2048/,
  },
  'presence_penalty too high': { body: { presence_penalty: 5 }, words: /presence_penalty must be in/ },
  'frequency_penalty too low': { body: { frequency_penalty: -5 }, words: /frequency_penalty must be in/ },
  'repetition_penalty of 0': { body: { repetition_penalty: 0 }, words: /greater than zero/ },
  'too many logprobs': {
    body: { logprobs: true, top_logprobs: 99 },
    param: 'logprobs',
    words: /greater than max allowed: 20/,
  },
  'top_logprobs alone': { body: { top_logprobs: 2 }, param: 'top_logprobs', words: /`logprobs` must be set/ },
  'stop as a number': { body: { stop: 5 }, param: 'stop', words: /valid string/ },
  'an empty stop': { body: { stop: '' }, words: /cannot contain an empty string/ },
  'logit_bias outside of the vocabulary': {
    body: { logit_bias: { 999999: 5 } },
    param: 'logit_bias',
    words: /out-of-vocab/,
  },
  'logit_bias of a word': {
    body: { logit_bias: { hello: 5 } },
    param: 'logit_bias',
    words: /integer token IDs/,
  },
  'a schema of no known type': { body: schema({ type: 'strange' }), words: /Invalid type: strange/ },
  'no schema': {
    body: { response_format: { type: 'json_schema' } },
    param: 'response_format',
    words: /must be provided/,
  },
  'an unknown format': {
    body: { response_format: { type: 'xml' } },
    param: 'response_format.type',
    words: /'text', 'json_object' or 'json_schema'/,
  },
  'a broken grammar': {
    body: { structured_outputs: { grammar: 'root ::= (' } },
    words: /Expected '\)' at line 1, 'root ::= \('/,
  },
  'a broken pattern': { body: { structured_outputs: { regex: '(' } }, words: /unclosed group/ },
  'two constraints': {
    body: { structured_outputs: { regex: 'a', choice: ['a'] } },
    words: /only use one kind/,
  },
  'an image for a model of text': {
    body: {
      messages: [
        {
          role: 'user',
          content: [{ type: 'image_url', image_url: { url: 'data:image/png;base64,iVBORw0KGgo=' } }],
        },
      ],
    },
    words: /not a multimodal model/,
  },
  'content of no known type': {
    body: { messages: [{ role: 'user', content: [{ type: 'hologram' }] }] },
    words: /validation errors/,
  },
  'content as a number': {
    body: { messages: [{ role: 'user', content: 5 }] },
    param: 'messages[0].content',
    words: /valid string/,
  },
  'a message without a role': {
    body: { messages: [{ content: 'x' }] },
    code: 'invalid_request',
    param: 'messages[0].role',
    words: /must be a string/,
  },
  'no messages': {
    body: { messages: [] },
    code: 'invalid_request',
    param: 'messages',
    words: /at least one/,
  },
  'tools without a parser': { body: { tools, tool_choice: 'auto' }, words: /--enable-auto-tool-choice/ },
  'a tool that is not offered': {
    body: { tools, tool_choice: { type: 'function', function: { name: 'g' } } },
    param: 'tool_choice',
    words: /does not match any/,
  },
  'a tool where there is none': {
    body: { tool_choice: 'required' },
    param: 'tool_choice',
    words: /`tools` must be set/,
  },
  'a seed beyond 64 bits': { body: { seed: 2 ** 70 }, param: 'seed', words: /valid integer|maximum size/ },
  'a priority as text': { body: { priority: 'high' }, param: 'priority', words: /valid integer/ },
  'a template of its own': { body: { chat_template: '{{ x }}' }, words: /untrusted chat template/ },
  'stop_token_ids as text': {
    body: { stop_token_ids: ['x'] },
    param: 'stop_token_ids[0]',
    words: /valid integer/,
  },
  'min_tokens above max_tokens': { body: { min_tokens: 100 }, words: /less than or equal to max_tokens/ },
  'prompt_logprobs below -1': {
    body: { prompt_logprobs: -5 },
    param: 'prompt_logprobs',
    words: /positive value or -1/,
  },
  'allowed_token_ids outside of the vocabulary': {
    body: { allowed_token_ids: [9_999_999] },
    param: 'allowed_token_ids',
    words: /out-of-vocab/,
  },
  'an empty cache_salt': { body: { cache_salt: '' }, param: 'cache_salt', words: /non-empty string/ },
}
