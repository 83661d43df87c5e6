// The answers of providers to a wrong key, a blocked or unpaid account, and the wrong protocol, in their own shapes.
import assert from 'node:assert/strict'
import test from 'node:test'
import { reasonForCaller, reasonForOperator } from '../failure-reason.ts'
import { classify } from './classify.ts'

const KEY = /check the API key of the upstream/
const ACCOUNT = /check the account behind the API key/
const QUOTA = /check quota and budget/
const PROTOCOL = /check whether base_url has to begin with https/

const openAi = (message: string, code: string | null = null, type = 'invalid_request_error') => ({
  error: { message, type, param: null, code },
})
const google = (code: number, message: string, status: string, reason?: string) => ({
  error: {
    ...{ code, message, status },
    ...(reason && {
      details: [{ '@type': 'type.googleapis.com/google.rpc.ErrorInfo', reason, domain: 'googleapis.com' }],
    }),
  },
})
const anthropic = (type: string, message: string) => ({
  type: 'error',
  error: { type, message },
  request_id: 'req_1',
})
const liteLlm = (message: string, code: string) => ({ error: { message, type: null, param: null, code } })
const groups = 'Received Model Group=m\nAvailable Model Group Fallbacks=None'

const PROVIDERS: [name: string, status: number, body: unknown, advice: RegExp][] = [
  ['OpenAI, a wrong key', 401, openAi('Incorrect API key provided: sk-ab**cd.', 'invalid_api_key'), KEY],
  [
    'OpenAI, an organization of another key',
    400,
    openAi('OpenAI-Organization header should match', 'mismatched_organization'),
    KEY,
  ],
  [
    'OpenAI, a budget as a 400',
    400,
    openAi('Billing hard limit has been reached', 'billing_hard_limit_reached'),
    QUOTA,
  ],
  ['OpenAI, the same in words alone', 400, openAi('Billing hard limit has been reached'), QUOTA],
  [
    'OpenAI, an empty account',
    429,
    openAi('You exceeded your current quota', 'insufficient_quota', 'insufficient_quota'),
    QUOTA,
  ],
  [
    'OpenAI, an empty account as a 403',
    403,
    openAi('You exceeded your current quota, please check your plan and billing details.'),
    QUOTA,
  ],
  [
    'OpenAI, a closed account',
    400,
    openAi('The OpenAI account has been deactivated.', 'account_deactivated'),
    ACCOUNT,
  ],
  [
    'OpenAI, an organization that is not verified',
    404,
    openAi('Your organization must be verified to use the model `o3`.', 'model_not_found'),
    ACCOUNT,
  ],
  [
    'Azure, a wrong key',
    401,
    {
      error: { code: '401', message: 'Access denied due to invalid subscription key or wrong API endpoint.' },
    },
    KEY,
  ],
  [
    'Azure, a wrong key as a 400',
    400,
    {
      error: { code: '400', message: 'Access denied due to invalid subscription key or wrong API endpoint.' },
    },
    KEY,
  ],
  [
    'Azure, keys switched off',
    403,
    { error: { code: 'AuthenticationTypeDisabled', message: 'Key based authentication is disabled' } },
    KEY,
  ],
  [
    'Azure, a used-up volume',
    403,
    { statusCode: 403, message: 'Out of call volume quota. Quota will be replenished in 02:10:00.' },
    QUOTA,
  ],
  [
    'xAI, a wrong key',
    400,
    {
      code: 'Client specified an invalid argument',
      error: 'Incorrect API key provided: sk***gA. You can obtain an API key from https://console.x.ai.',
    },
    KEY,
  ],
  [
    'xAI, no credits',
    403,
    {
      code: 'The caller does not have permission',
      error: "Your newly created teams doesn't have any credits yet.",
    },
    ACCOUNT,
  ],
  [
    'xAI, used credits',
    429,
    {
      code: 'Some resource has been exhausted',
      error:
        'Your team 1234-5678 has either used all available credits or reached its monthly spending limit.',
    },
    QUOTA,
  ],
  [
    'Gemini, a wrong key',
    400,
    [google(400, 'API key not valid. Please pass a valid API key.', 'INVALID_ARGUMENT', 'API_KEY_INVALID')],
    KEY,
  ],
  [
    'Gemini, a wrong key without details',
    400,
    [google(400, 'API key not valid. Please pass a valid API key.', 'INVALID_ARGUMENT')],
    KEY,
  ],
  [
    'Gemini, an expired key',
    400,
    google(400, 'API key expired. Please renew the API key.', 'INVALID_ARGUMENT'),
    KEY,
  ],
  ['Gemini, no key', 400, [google(400, 'Missing or invalid Authorization header.', 'INVALID_ARGUMENT')], KEY],
  [
    'Gemini, a region',
    400,
    [google(400, 'User location is not supported for the API use.', 'FAILED_PRECONDITION')],
    ACCOUNT,
  ],
  [
    'Gemini, billing',
    400,
    [
      google(
        400,
        'This API method requires billing to be enabled.',
        'FAILED_PRECONDITION',
        'BILLING_DISABLED',
      ),
    ],
    QUOTA,
  ],
  [
    'Gemini, its whole error as the message of another one',
    400,
    {
      error: {
        message: JSON.stringify(google(400, 'API key not valid.', 'INVALID_ARGUMENT', 'API_KEY_INVALID')),
        code: 400,
        status: 'Bad Request',
      },
    },
    KEY,
  ],
  [
    'DashScope, an unpaid account',
    400,
    {
      error: {
        code: 'Arrearage',
        param: null,
        message: 'Access denied, please make sure your account is in good standing.',
        type: 'Arrearage',
      },
    },
    QUOTA,
  ],
  [
    'DashScope, its own form',
    400,
    { code: 'Arrearage', message: 'Access denied, please make sure your account is in good standing.' },
    QUOTA,
  ],
  ['DashScope, a wrong key', 400, { code: 'InvalidApiKey', message: 'Invalid API-key provided.' }, KEY],
  [
    'DashScope, a used free tier',
    403,
    {
      error: {
        code: 'AllocationQuota.FreeTierOnly',
        message: 'The free tier of the model has been exhausted.',
      },
    },
    QUOTA,
  ],
  [
    'Fireworks, an unpaid account',
    412,
    {
      error: {
        message:
          'Account acme is suspended, possibly due to reaching the monthly spending limit or failure to pay past invoices.',
        param: null,
        code: 'PRECONDITION_FAILED',
        type: 'error',
      },
    },
    ACCOUNT,
  ],
  [
    'Fireworks, in words alone',
    400,
    { error: 'Account acme is suspended, possibly due to reaching the monthly spending limit' },
    ACCOUNT,
  ],
  [
    'Together, no credits',
    402,
    openAi(
      'Credit limit exceeded. Please navigate to https://api.together.xyz to add credit.',
      null,
      'credit_limit',
    ),
    QUOTA,
  ],
  [
    'Together, a wrong key as a 400',
    400,
    openAi(
      'Invalid API key provided. You can find your API key at https://api.together.xyz.',
      'invalid_api_key',
    ),
    KEY,
  ],
  [
    'Groq, a blocked organization',
    400,
    openAi('Organization has been restricted. Please reach out to support.', 'organization_restricted'),
    ACCOUNT,
  ],
  ['Groq, terms', 400, openAi('The model `x` requires terms acceptance.', 'model_terms_required'), ACCOUNT],
  ['Groq, a spend limit', 400, openAi('API access blocked', 'blocked_api_access'), ACCOUNT],
  ['Mistral, a wrong key', 401, { detail: 'Unauthorized' }, KEY],
  [
    'Mistral, an ended subscription',
    400,
    { message: 'Inactive subscription or usage limit reached', request_id: '1' },
    QUOTA,
  ],
  [
    'DeepSeek, no balance',
    402,
    openAi('Insufficient Balance', 'invalid_request_error', 'unknown_error'),
    QUOTA,
  ],
  [
    'DeepSeek, no balance as a 400',
    400,
    openAi('Insufficient Balance', 'invalid_request_error', 'unknown_error'),
    QUOTA,
  ],
  [
    'DeepSeek, a wrong key',
    400,
    openAi(
      'Authentication Fails, Your api key: ****1234 is invalid',
      'invalid_request_error',
      'authentication_error',
    ),
    KEY,
  ],
  [
    'OpenRouter, no credits',
    402,
    { error: { message: 'Insufficient credits. This account never purchased credits.', code: 402 } },
    QUOTA,
  ],
  [
    'OpenRouter, a limit of the key',
    403,
    { error: { message: 'Key limit exceeded (total limit).', code: 403 } },
    QUOTA,
  ],
  [
    'OpenRouter, a limit of the key as a 400',
    400,
    { error: { message: 'Key limit exceeded (monthly limit).', code: 400 } },
    QUOTA,
  ],
  [
    'OpenRouter, privacy settings',
    404,
    { error: { message: 'No endpoints found matching your data policy.', code: 404 } },
    ACCOUNT,
  ],
  ['OpenRouter, no key', 400, { error: { message: 'No auth credentials found', code: 400 } }, KEY],
  [
    'Anthropic, no credits',
    400,
    anthropic('invalid_request_error', 'Your credit balance is too low to access the Anthropic API.'),
    QUOTA,
  ],
  [
    'Anthropic, its own limit',
    400,
    anthropic('invalid_request_error', 'You have reached your specified API usage limits.'),
    QUOTA,
  ],
  [
    'Anthropic, a limit of a workspace',
    400,
    anthropic('invalid_request_error', 'You have reached your specified workspace API usage limits.'),
    QUOTA,
  ],
  [
    'Anthropic, a closed organization',
    400,
    anthropic('invalid_request_error', 'This organization has been disabled.'),
    ACCOUNT,
  ],
  ['Anthropic, a wrong key', 400, anthropic('authentication_error', 'invalid x-api-key'), KEY],
  [
    'Moonshot',
    429,
    openAi(
      'Your account org-1 <ak-2> is suspended due to insufficient balance',
      null,
      'exceeded_current_quota_error',
    ),
    QUOTA,
  ],
  ['Zhipu', 429, { error: { code: '1113', message: '余额不足或无可用资源包,请充值。' } }, QUOTA],
  [
    'SiliconFlow',
    400,
    { code: 30001, message: 'Sorry, your account balance is insufficient', data: null },
    QUOTA,
  ],
  [
    'VolcEngine',
    400,
    openAi(
      'The request failed because your account has an overdue balance.',
      'AccountOverdueError',
      'Forbidden',
    ),
    ACCOUNT,
  ],
  ['NVIDIA', 400, { status: 400, title: 'Bad Request', detail: 'Authorization failed' }, KEY],
  [
    'Hugging Face',
    400,
    { error: 'You have exceeded your monthly included credits for Inference Providers.' },
    QUOTA,
  ],
  ['Bedrock', 400, { Message: 'The security token included in the request is invalid.' }, KEY],
  ['Bedrock, its code', 400, { __type: 'UnrecognizedClientException', message: 'invalid' }, KEY],
  ['one-api', 400, openAi('用户额度不足', 'insufficient_user_quota', 'one_api_error'), QUOTA],
  [
    'LiteLLM, its own budget',
    400,
    {
      error: {
        message: 'Budget has been exceeded! Current cost: 2, Max budget: 1',
        type: 'budget_exceeded',
        param: null,
        code: '400',
      },
    },
    QUOTA,
  ],
  [
    'LiteLLM, its own key',
    400,
    {
      error: {
        message: 'Authentication Error, No api key passed in.',
        type: 'auth_error',
        param: 'None',
        code: '400',
      },
    },
    KEY,
  ],
  [
    'LiteLLM before xAI',
    400,
    liteLlm(`litellm.BadRequestError: XaiException - Incorrect API key provided: sk***. ${groups}`, '400'),
    KEY,
  ],
  [
    'LiteLLM before Fireworks',
    412,
    liteLlm(
      `litellm.APIError: APIError: Fireworks_aiException - {"error":{"message":"Account a is suspended","code":"PRECONDITION_FAILED"}}. ${groups}`,
      '412',
    ),
    ACCOUNT,
  ],
  [
    'LiteLLM before Groq, as Python writes it',
    400,
    liteLlm(
      `litellm.BadRequestError: GroqException - Error code: 400 - {'error': {'message': 'Organization has been restricted.', 'type': 'invalid_request_error', 'code': 'organization_restricted', 'param': None}}. ${groups}`,
      '400',
    ),
    ACCOUNT,
  ],
  [
    'FastAPI, an object as its detail',
    400,
    { detail: { error: { message: 'x', code: 'invalid_api_key' } } },
    KEY,
  ],
  [
    'a list of errors',
    400,
    { errors: [{ code: 10000, message: 'Authentication error' }], success: false },
    KEY,
  ],
  ['an error under a 200', 200, { error: { message: 'Insufficient Balance', code: null } }, QUOTA],
  [
    'nginx',
    400,
    '<html>\r\n<head><title>400 The plain HTTP request was sent to HTTPS port</title></head>\r\n<body>\r\n<center><h1>400 Bad Request</h1></center>\r\n<center>The plain HTTP request was sent to HTTPS port</center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n',
    PROTOCOL,
  ],
  [
    'Apache',
    400,
    "<html><head><title>400 Bad Request</title></head><body><h1>Bad Request</h1><p>Your browser sent a request that this server could not understand.<br />Reason: You're speaking plain HTTP to an SSL-enabled server port.</p></body></html>",
    PROTOCOL,
  ],
  ['Go, as Caddy and Traefik', 400, 'Client sent an HTTP request to an HTTPS server.\n', PROTOCOL],
  ['Tomcat', 400, 'Bad Request\nThis combination of host and port requires TLS.\n', PROTOCOL],
  [
    'nginx without a client certificate',
    400,
    '<html><head><title>400 No required SSL certificate was sent</title></head></html>',
    PROTOCOL,
  ],
  ['uvicorn', 400, 'Invalid HTTP request received.', PROTOCOL],
  ['a server of another address', 421, '', /check the protocol and the port/],
]

const classified = (status: number, body: unknown) =>
  classify(
    { status, body: Buffer.from(typeof body === 'string' ? body : JSON.stringify(body)) },
    '/v1/chat/completions',
  )

for (const [name, status, body, advice] of PROVIDERS)
  test(`no line is at fault where the server refuses this service: ${name}`, () => {
    const result = classified(status, body)
    assert.ok(result.kind === 'failed' && result.refusesService, JSON.stringify(result))
    assert.match(reasonForOperator(result), advice)
    assert.match(reasonForCaller(result), /^the server (does not|has no)/)
  })

const STEALTHY = [
  'Incorrect API key provided: sk-1',
  'Your credit balance is too low',
  'Organization has been restricted',
  'Billing hard limit has been reached',
  'The plain HTTP request was sent to HTTPS port',
  'insufficient_quota',
  '{"error":{"code":"insufficient_quota","message":"Insufficient Balance"}}',
]

test('a message that quotes the request says nothing of the server, whatever it quotes', () => {
  for (const text of STEALTHY) {
    const bodies: unknown[] = [
      openAi(`Invalid value: '${text}'. Supported values are: 'system' and 'user'.`, 'invalid_value'),
      openAi(`'${text}' is not one of ['user', 'system'] - 'messages.0.role'`),
      openAi(`"${text}" is not a valid role`),
      openAi(`Unknown role: ${text}`),
      openAi(`{'role': '${text}'} is not valid under any of the given schemas`),
      { error: { message: text, type: 'invalid_request_error', param: 'messages[0].role', code: null } },
      {
        detail: [
          {
            type: 'value_error',
            loc: ['body', 'messages', 0, 'role'],
            msg: 'Input should be a role',
            input: text,
          },
        ],
      },
      {
        detail: [
          { type: 'value_error', loc: ['body'], msg: 'Value error', input: { error: { code: text } } },
        ],
      },
      liteLlm(`litellm.BadRequestError: OpenAIException - Invalid value: '${text}'. ${groups}`, '400'),
      {
        error: { message: `ValueError: ${text} is no role`, type: 'BadRequestError', param: null, code: 400 },
      },
      `unknown role ${text}`,
    ]
    for (const body of bodies)
      assert.equal(classified(400, body).kind, 'refused', `${text}: ${JSON.stringify(body)}`)
  }
})

test('a rate limit is no access error', () => {
  for (const body of [
    openAi('You have been rate limited. Your rate limit is 60 queries per minute.', null, 'credit_limit'),
    openAi('Rate limit reached for requests', 'rate_limit_exceeded', 'requests'),
    [
      google(
        429,
        'You exceeded your current quota, please check your plan and billing details.',
        'RESOURCE_EXHAUSTED',
      ),
    ],
    {
      object: 'error',
      message: 'Service tier capacity exceeded for this model.',
      type: 'invalid_request_error',
      code: '3505',
    },
  ])
    assert.equal(classified(429, body).kind, 'throttled', JSON.stringify(body))
})
