// Declares every key of the configuration: its type, its limits and its default.

import { readdirSync, readFileSync } from 'node:fs'
import { isIP } from 'node:net'
import { totalmem } from 'node:os'
import { type Static, Type } from 'typebox'
import { SCOPES } from '../domain/api-key.ts'
import { BUCKET_USES } from '../domain/bucket-url.ts'
import {
  certificateProblem,
  HEADER_NAME,
  keyProblem,
  keySetProblem,
  OWN_HEADER,
} from '../domain/credentials.ts'
import { ENDPOINT_PATHS, isBuiltIn } from '../domain/endpoint.ts'
import { LINE_NUMBER_MAX } from '../domain/ids.ts'
import { recordOf } from '../domain/json-record.ts'
import { onlyEndpoint, type UpstreamType } from '../domain/model.ts'
import { QUOTA_NAMES, QUOTAS_DEFAULT } from '../domain/plan.ts'
import { GRACE } from '../domain/retention.ts'
import { SIMULATED_FAULTS } from '../domain/simulated-server.ts'
import {
  anyText,
  BLOBS,
  BUCKET,
  boolean,
  completionWindow,
  DATABASE,
  duration,
  endpointPath,
  fraction,
  HOST,
  HOURS_WINDOW,
  integer,
  isWithoutKey,
  milliseconds,
  oneOf,
  orWord,
  pricePicos,
  size,
  text,
} from './scalars.ts'
import {
  byDefault,
  checked,
  either,
  listOf,
  mapOf,
  named,
  optional,
  orderedMapOf,
  type Shape,
  scalar,
  secret,
  section,
  variant,
} from './shape.ts'
import { present, unreadable } from './sources.ts'

// The form of addresses of model servers, batch APIs, proxies and origins.

const ADDRESS = /^https?:\/\/[^\s?#@]+(\?[^\s#]*)?$/
export const BASE_URL_EXPECTED = 'an http:// or https:// address up to /v1, without credentials'

/** Normalizes a base URL: no slashes at the end of its path; undefined when it is none. */
export function parseBaseUrl(found: string): string | undefined {
  if (!ADDRESS.test(found) || !URL.canParse(found)) return undefined
  const [path = '', ...query] = found.split('?')
  const trimmed = path.replace(/\/+$/, '')
  const isOfEndpoint = ENDPOINT_PATHS.some((one) => trimmed.endsWith(one.slice('/v1'.length)))
  return isOfEndpoint ? undefined : [trimmed, ...query].join('?')
}

const BASE_URL = text(ADDRESS, BASE_URL_EXPECTED, parseBaseUrl)

/** Whether the host of a URL is this machine. */
export function isLoopback(hostname: string): boolean {
  return hostname === 'localhost' || hostname === '[::1]' || /^127\./.test(hostname)
}

/** Whether a text is an http or https URL whose user and password can be decoded. */
export function isProxyAddress(found: string): boolean {
  try {
    const { protocol, username, password } = new URL(found)
    return /^https?:$/.test(protocol) && decodeURIComponent(username + password) !== null
  } catch {
    return false
  }
}

const PROXY = orWord(
  text(
    /^https?:\/\/[^\s/?#]+\/?$/,
    'the address of a proxy such as http://proxy.internal:3128, or off',
    (found) => (isProxyAddress(found) ? found : undefined),
  ),
  { off: 'off', false: 'off' } as const,
  'the address of a proxy such as http://proxy.internal:3128, or off',
)

/** An origin, without a slash at its end. */
const ORIGIN = text(
  /^https?:\/\/[^\s/?#@]+\/?$/,
  'an address without path and query, such as https://bucket.example',
  (found) => (URL.canParse(found) ? new URL(found).origin : undefined),
)

// The GPUs and the memory of this machine, which engines can use.

const GPU_DEVICE = /^nvidia\d+$/

/** The names of GPUs, as in CUDA_VISIBLE_DEVICES; `auto`: the visible ones, else the devices of the system. */
function availableGpus(count: number | 'auto', visible: string | undefined): string[] {
  const named = visible
    ?.split(',')
    .map((name) => name.trim())
    .filter((name) => name !== '' && name !== '-1')
  const found = named ?? gpuDevices()
  if (count === 'auto') return found
  return Array.from({ length: count }, (_, i) => found[i] ?? String(i))
}

function gpuDevices(): string[] {
  try {
    const names = readdirSync('/dev').filter((name) => GPU_DEVICE.test(name))
    return names.map((name) => name.replace('nvidia', '')).sort((a, b) => Number(a) - Number(b))
  } catch {
    return []
  }
}

// The keys of servers that are started on demand, and of the machine that they share.

const FILE = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$/
const VARIABLE = /^[A-Za-z_][A-Za-z0-9_]*$/

const ENGINE = checked(
  section({
    command: listOf(anyText, 'a list such as [llama-server, -m, model.gguf, --port, "{port}"]'),
    ready: byDefault('/health', text(/^\/\S*$/, 'a path such as /health')),
    start_timeout: named('start_timeout_ms', byDefault('10m', duration(1000))),
    idle_timeout: named('idle_timeout_ms', byDefault('10m', duration(0))),
    env: mapOf(secret(text(/^[^\n\r]*$/, 'the value of a variable')), (name) =>
      VARIABLE.test(name) ? null : 'is no name of a variable',
    ),
    pass_env: optional(listOf(text(VARIABLE, 'the name of a variable'), 'a list such as [HF_TOKEN]')),
    files: mapOf(secret(text(/^[\s\S]*$/, 'the text of a file')), (name) =>
      FILE.test(name) ? null : 'is no name of a file; expected letters, digits, dots, dashes and underscores',
    ),
    gpus: byDefault(0, integer(0, 1024)),
    memory: named('memory_bytes', byDefault('0B', size(0))),
  }),
  ({ command, env, files }, problem) => {
    const words = [...command, ...Object.values(env), ...Object.values(files)]
    const places = ['{port}', '{socket}'].filter((place) => words.some((word) => word.includes(place)))
    if (places.length === 0)
      problem(
        ['command'],
        'needs {socket}, the Unix socket that the server is to listen on, or {port}, a port of 127.0.0.1',
      )
    if (places.length > 1)
      problem(['command'], 'has {socket} and {port}: the server is to listen on one of them')
  },
)

const ENGINES = section({
  gpus: byDefault('auto', orWord(integer(0, 1024), { auto: 'auto' } as const, 'a whole number, or auto')),
  memory: byDefault('auto', orWord(size(0), { auto: 'auto' } as const, 'a size such as 64GiB, or auto')),
  min_run: named('run_ms_min', byDefault('2m', duration(0))),
})

/** The GPUs and memory for engines; `auto` is all of this machine. */
export function machineOf({ gpus, memory, run_ms_min }: Static<typeof ENGINES>, env: NodeJS.ProcessEnv) {
  const memory_bytes = memory === 'auto' ? totalmem() : memory
  return { gpus: availableGpus(gpus, env.CUDA_VISIBLE_DEVICES), memory_bytes, run_ms_min }
}

// The keys of a server that answers other requests than lines, and lets those go first.

const METRICS_URL = /^https?:\/\/[^\s@]+$/
const METRICS =
  'the address of its metrics such as http://10.0.0.5:8000/metrics, auto, off, or promql and url of a Prometheus'

const LIVE = section({
  metrics: byDefault(
    'auto',
    either(
      orWord(text(METRICS_URL, METRICS), { auto: 'auto', off: 'off' } as const, METRICS),
      section({
        promql: text(
          /^(?:[a-zA-Z_:][\w:]*)?\{[^\n\r]*\}$/,
          'a selector of series in braces such as {namespace="llm", model_name="qwen3-8b"}',
        ),
        url: text(METRICS_URL, 'the address of a Prometheus such as http://prometheus.monitoring:9090'),
      }),
    ),
  ),
  timeout: named('timeout_ms', byDefault('5s', duration(1))),
  stale_after: named('stale_after_ms', byDefault('60s', duration(1_000))),
  waiting_max: byDefault(0, integer(0)),
  cache_max: byDefault(0.85, fraction),
  priority: optional(integer(-(2 ** 31), 2 ** 31 - 1)),
})

/** The name of an installation, without underscores, which end the region in an API key. */
const INSTALLATION = text(/^[\w.-]{1,128}$/, 'up to 128 letters, digits, dots, dashes and underscores')

const REGION = text(
  /^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$/,
  'up to 32 lower-case letters, digits and dashes, such as eu-central',
)
const OFF = { off: null, false: null }
const COUNT = orWord(integer(0), OFF, 'a whole number, 0 or more, or off')
const BYTES = orWord(size(0), OFF, 'a size such as 8MiB or 10GiB, at least 0B, or off')
const METRICS_PORT = orWord(
  integer(0, 65_535),
  { auto: 'auto', off: 'off', false: 'off' } as const,
  'a port from 0 to 65535, auto or off',
)

// The proxy that signs persons in.

/** Declares the name of a header, converted to lower case. */
function headerName(example: string): Shape<string> {
  return text(/^[A-Za-z0-9-]{1,100}$/, `the name of a header such as ${example}`, (found) =>
    found.toLowerCase(),
  )
}

/** An address or a network of proxies, but not all addresses. */
const NETWORK = scalar(
  Type.String({ pattern: '^[0-9A-Fa-f.:]+(/[0-9]+)?$' }),
  'an address such as 10.0.0.7, or a network such as 10.0.0.0/24 or fd00::/8, but not all addresses',
  ['string'],
  (found) => {
    const [address = '', bits, ...more] = found.split('/')
    const most = isIP(address) === 6 ? 128 : 32
    const isWhole = bits === undefined || (/^\d+$/.test(bits) && Number(bits) >= 1 && Number(bits) <= most)
    return isIP(address) > 0 && isWhole && more.length === 0 ? found : undefined
  },
)

const GROUP = section({
  project: text(/^\S(.{0,198}\S)?$/, 'the name of a project, up to 200 characters'),
  scopes: optional(listOf(oneOf(SCOPES), 'a list of scopes such as [batches:read, usage:read]')),
})

const SIGN_IN_PROXY = checked(
  section({
    header: headerName('X-Auth-Request-Email'),
    from: listOf(NETWORK, 'a list of addresses and networks such as [127.0.0.1, 10.0.0.0/24]'),
    groups_header: optional(headerName('X-Auth-Request-Groups')),
    groups: orderedMapOf(GROUP, (name) =>
      /^[^,\s][^,]*$/.test(name) ? null : 'is no name of a group: it has a comma or begins with a space',
    ),
    sign_out: optional(
      text(/^(\/([^\s/\\]\S*)?|https?:\/\/\S+)$/, 'a path such as /oauth2/sign_out, or an address'),
    ),
  }),
  ({ header, groups_header, groups }, problem) => {
    const names = [...groups.keys()]
    if (names.length === 0)
      problem(['groups'], 'is missing; expected a project for each group, or for "*", which is everybody')
    if (groups_header === null && names.some((name) => name !== '*'))
      problem(['groups_header'], 'is missing; without it there is only the group "*", which is everybody')
    if (['authorization', 'cookie', 'host', 'x-forwarded-for', groups_header].includes(header))
      problem(['header'], 'is used for something else')
  },
)

const READABLE_FILE = checked(anyText, (path, problem) => {
  const why = unreadable(path)
  if (why !== null) problem([], `the file ${path} cannot be read (${why})`)
})

// The issuer whose tokens are accepted beside API keys.

const CLAIM = text(
  /^\S{1,200}$/,
  'the name of a claim such as project, or of a member such as kubernetes.io.namespace',
)

const JWT = checked(
  section({
    issuer: text(/^\S{1,1000}$/, 'the `iss` of its tokens, such as https://login.example.com'),
    audience: listOf(text(/^\S{1,1000}$/, 'the `aud` of its tokens such as offpeak'), 'a list of audiences'),
    jwks_url: optional(
      text(
        /^https?:\/\/[^\s#@]+$/,
        'an https:// address without credentials, or one on this machine',
        (found) => {
          if (!URL.canParse(found)) return undefined
          const { protocol, hostname } = new URL(found)
          return protocol === 'https:' || isLoopback(hostname) ? found : undefined
        },
      ),
    ),
    jwks_file: optional(
      checked(READABLE_FILE, (path, problem) => {
        const why = unreadable(path) === null ? keySetProblem(readFileSync(path, 'utf8')) : null
        if (why !== null) problem([], `the file ${path} ${why}`)
      }),
    ),
    project: CLAIM,
    scopes: optional(CLAIM),
    entity: optional(CLAIM),
  }),
  ({ jwks_url, jwks_file }, problem) => {
    if ((jwks_url === null) === (jwks_file === null))
      problem(
        ['jwks_url'],
        jwks_url === null
          ? 'is missing; expected the address of the keys of the issuer, or jwks_file'
          : 'excludes jwks_file: keep one of them',
      )
  },
)

/** The required keys of each key service, beside `encrypted`. */
const KEY_SERVICES = {
  aws_kms: ['key_id'],
  vault_transit: ['address', 'key_id'],
  command: ['decrypt'],
} as const

const WORDS = 'a list such as [age, --decrypt, -i, /etc/offpeak/identity]'

const MASTER_KEY = checked(
  section({
    encrypted: optional(anyText),
    by: optional(oneOf(['aws_kms', 'vault_transit', 'command'] as const)),
    key_id: optional(text(/^\S+$/, 'the ID, ARN, alias or name of a key')),
    region: optional(text(/^[a-z0-9-]+$/, 'a region such as eu-central-1')),
    address: optional(ORIGIN),
    mount: byDefault('transit', text(/^[\w./-]+$/, 'the path of the engine, such as transit')),
    namespace: optional(anyText),
    token_env: byDefault('VAULT_TOKEN', text(VARIABLE, 'the name of a variable')),
    token_file: optional(READABLE_FILE),
    decrypt: optional(listOf(anyText, WORDS)),
    encrypt: optional(listOf(anyText, WORDS)),
  }),
  (own, problem, env) => {
    if (own.by === null && own.encrypted === null) return
    for (const name of ['encrypted', 'by', ...(own.by === null ? [] : KEY_SERVICES[own.by])] as const)
      if (own[name] === null) problem([name], `is missing${own.by === null ? '' : `; ${own.by} needs it`}`)
    const lacksToken = own.token_file === null && present(env[own.token_env]) === undefined
    if (own.by === 'vault_transit' && lacksToken)
      problem(['token_env'], `the variable ${own.token_env} is not set; export it, or name a token_file`)
  },
)

const QUOTAS = section(
  recordOf(QUOTA_NAMES, (name) =>
    byDefault(QUOTAS_DEFAULT[name] ?? 'off', name === 'stored_bytes' ? BYTES : COUNT),
  ),
)

const PLAN = section({
  completion_windows: optional(
    checked(listOf(completionWindow, 'a list such as [4h, 24h]'), (windows, problem) => {
      const repeated = windows.find((one, i) => windows.findIndex(({ ms }) => ms === one.ms) < i)
      if (repeated !== undefined) problem([], `lists ${repeated.text} twice`)
    }),
  ),
  file_retention: named('file_retention_ms', optional(duration(1000))),
  retention: optional(
    section({
      results: named('results_ms', duration(0)),
      grace: named('grace_ms', byDefault(GRACE, duration(0))),
    }),
  ),
  live_price_share: optional(fraction),
  quotas: QUOTAS,
})

/** The plans that exist without being configured. */
export const BUILT_IN_PLANS = {
  payg: { windows: ['24h'], file_retention: '90d' },
  enterprise: { windows: ['4h', '24h'], file_retention: '395d' },
}

const PLANS = checked(
  mapOf(PLAN, (name) =>
    /^[a-z0-9][a-z0-9_-]{0,63}$/.test(name)
      ? null
      : 'the name of a plan is made of lower-case letters, digits, dashes and underscores',
  ),
  (plans, problem) => {
    for (const [name, plan] of Object.entries(plans))
      if (plan.completion_windows === null && !Object.hasOwn(BUILT_IN_PLANS, name))
        problem([name, 'completion_windows'], 'is missing; expected a list such as [4h, 24h]')
  },
)

/** The problem of a header's name that is invalid, or that the service sets itself. */
function headerProblem(name: string): string | null {
  if (!HEADER_NAME.test(name)) return 'is no name of a header'
  return OWN_HEADER.test(name) ? 'is a header that the service sets itself' : null
}

/** Names of variables that messages may quote: other texts may be keys, written in place of a name. */
const USUAL_NAME = /^[A-Z][A-Z0-9_]*$/

/** Declares the name of a variable, with a check of its value. */
function secretVariable(problemOf: (value: string) => string | null): Shape<string> {
  return checked(
    // Secret only while it is read: a valid name is no secret.
    secret(text(/^[A-Za-z_][A-Za-z0-9_]*$/, 'the name of an environment variable, not the key itself')),
    (name, problem, env) => {
      const variable = USUAL_NAME.test(name) ? `the variable ${name}` : 'the variable that it names'
      const value = present(env[name])
      if (value === undefined)
        problem([], `${variable} is not set; export it, or remove the key if the server asks for none`)
      const why = value === undefined ? null : problemOf(value)
      if (why !== null) problem([], `${variable} ${why}`)
    },
  )
}

const API_KEY_ENV = secretVariable(keyProblem)

const HEADERS = mapOf(
  secret(text(/^[\t\x20-\x7e]*$/, 'the value of a header, printable ASCII')),
  headerProblem,
)

/** The name of the header for fairness, converted to lower case. */
const FAIRNESS_HEADER = text(
  /^[Xx]-[A-Za-z0-9_-]{1,100}$/,
  'the name of a header that begins with x-, such as x-llm-d-inference-fairness-id',
  (found) => found.toLowerCase(),
)

const API_KEY_FILE = checked(READABLE_FILE, (path, problem) => {
  const why = unreadable(path) === null ? keyProblem(readFileSync(path, 'utf8').trim()) : null
  if (why !== null) problem([], `the file ${path} ${why}`)
})

const FAULTS = checked(
  section(recordOf(SIMULATED_FAULTS, () => byDefault(0, fraction))),
  (faults, problem) => {
    const sum = Object.values(faults).reduce((total, share) => total + share, 0)
    if (sum > 1 + 1e-9) problem([], `expected fractions that add up to 1 at most, found ${sum}`)
  },
)

const LATENCY = checked(listOf(milliseconds, 'one number, or two as [least, most]'), (latency, problem) => {
  const [min = 0, max = min] = latency
  if (latency.length > 2 || min > max) problem([], 'expected one number, or two as [least, most]')
})

function type<T extends string>(name: T): Shape<T> {
  return Object.assign(oneOf([name]), { const: name })
}

/** The rates of a price that may be omitted: those of cached input. */
const CACHE_RATES = {
  cached_input_per_mtok: optional(pricePicos),
  cache_write_per_mtok: optional(pricePicos),
  cache_write_1h_per_mtok: optional(pricePicos),
}

/** The rates of an upstream's price; omitted rates are those of the model's price. */
const OWN_RATES = {
  input_per_mtok: optional(pricePicos),
  output_per_mtok: optional(pricePicos),
  ...CACHE_RATES,
}

const PRICE_STEP = section({ prompt_tokens: integer(1), ...OWN_RATES })

const SERVICE_TIER = /^[a-z][a-z0-9_-]{0,63}$/

const PRICE = checked(
  section({
    input_per_mtok: pricePicos,
    output_per_mtok: pricePicos,
    ...CACHE_RATES,
    service_tiers: orderedMapOf(section(OWN_RATES), (name) =>
      SERVICE_TIER.test(name) ? null : 'is no name of a service tier such as flex',
    ),
    above: optional(
      listOf(PRICE_STEP, 'a list of steps such as {prompt_tokens: 200000, input_per_mtok: 2.50}'),
    ),
  }),
  ({ input_per_mtok, cached_input_per_mtok, above }, problem) => {
    if (cached_input_per_mtok !== null && cached_input_per_mtok > input_per_mtok)
      problem(
        ['cached_input_per_mtok'],
        'is more than input_per_mtok; is it the price of cache_write_per_mtok?',
      )
    for (const [i, { prompt_tokens }] of (above ?? []).entries())
      if (prompt_tokens <= (above?.[i - 1]?.prompt_tokens ?? 0))
        problem(['above', i, 'prompt_tokens'], 'is not more than that of the step before')
  },
)

/** The keys that upstreams of every type have. */
const PLACE = {
  concurrency_max: byDefault(1024, integer(1)),
  tier: byDefault(0, integer(0, 100)),
  price: optional(PRICE),
  hours: optional(
    listOf(HOURS_WINDOW, 'a list of windows such as {days: mon-fri, from: "20:00", to: "07:00"}'),
  ),
}

const SIM = section({
  type: type('sim'),
  name: byDefault('sim', anyText),
  ...PLACE,
  latency_ms: byDefault(0, LATENCY),
  faults: FAULTS,
  capacity: optional(integer(1)),
  context_window: optional(integer(1)),
})

/** The keys of every upstream that is reached by HTTP. */
const CONNECTION = {
  api_key_env: optional(API_KEY_ENV),
  api_key_file: optional(API_KEY_FILE),
  ca_file: optional(READABLE_FILE),
  client_cert_file: optional(READABLE_FILE),
  client_key_file: optional(READABLE_FILE),
  proxy: optional(PROXY),
}

const OPENAI_KEYS = section({
  type: type('openai'),
  name: optional(anyText),
  ...PLACE,
  base_url: optional(BASE_URL),
  engine: optional(ENGINE),
  ...CONNECTION,
  discover: optional(oneOf(['dns'] as const)),
  connections: byDefault('per-project', oneOf(['per-project', 'shared'] as const)),
  priority: optional(oneOf(['deadline', 'deadline-higher-first'] as const)),
  fairness_header: optional(FAIRNESS_HEADER),
  service_tier: optional(text(SERVICE_TIER, 'the name of a service tier such as flex')),
  model: optional(anyText),
  timeout: named('timeout_ms', byDefault('10m', duration(1))),
  live: optional(LIVE),
  headers: HEADERS,
})

type Credentials = Record<Exclude<keyof typeof CONNECTION, 'proxy'>, string | null>

function credentialProblems(
  { api_key_env, api_key_file, ca_file, client_cert_file, client_key_file }: Credentials,
  problem: (path: string[], text: string) => void,
): void {
  if (api_key_env !== null && api_key_file !== null)
    problem(['api_key_file'], 'excludes api_key_env: keep one of them')
  if ((client_cert_file === null) !== (client_key_file === null)) {
    problem(
      [client_cert_file === null ? 'client_key_file' : 'client_cert_file'],
      'needs the other: a client certificate has client_cert_file and client_key_file',
    )
    return
  }
  const contentOf = (path: string | null) => (path === null ? undefined : readFileSync(path))
  const [ca, cert, key] = [ca_file, client_cert_file, client_key_file].map(contentOf)
  const why = certificateProblem({ ca, cert, key })
  if (why !== null) problem([], why)
}

const OPENAI = checked(OPENAI_KEYS, (found, problem) => {
  const { base_url, engine } = found
  if (base_url === null && engine === null) problem(['base_url'], `is missing; expected ${BASE_URL_EXPECTED}`)
  credentialProblems(found, problem)
  if (Object.keys(found.headers).some((name) => name.toLowerCase() === found.fairness_header))
    problem(['fairness_header'], 'is in headers as well: keep one of them')
  if (found.priority !== null && (found.live?.priority ?? null) !== null)
    problem(['priority'], 'excludes live.priority: keep one of them')
  if (
    found.discover !== null &&
    base_url !== null &&
    isIP(new URL(base_url).hostname.replace(/^\[|\]$/g, '')) > 0
  )
    problem(['discover'], 'needs a base_url with a name: this one has an address already')
  if (found.discover !== null && found.proxy !== null && found.proxy !== 'off')
    problem(['discover'], 'excludes proxy: the proxy would resolve the name itself')
  if (engine === null) return
  if (base_url !== null) problem(['base_url'], 'excludes engine: the worker picks the address of the server')
  for (const key of ['api_key_env', 'api_key_file'] as const)
    if (found[key] !== null) problem([key], 'excludes engine: the worker makes a key for each start')
  for (const key of ['ca_file', 'client_cert_file', 'proxy', 'discover'] as const)
    if (found[key] !== null) problem([key], 'excludes engine: its server is on this machine')
  if (found.live !== null)
    problem(['live'], 'excludes engine: only the worker has the key of the server, which answers nobody else')
})

const WEBHOOK_SECRET = /^(whsec_)?(?:[A-Za-z0-9+/]{4}){4,}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/
const WEBHOOK_SECRET_EXPECTED = 'the secret of a webhook as Standard Webhooks write it: whsec_ and base64'

/** The keys of every batch API. */
const BATCH_API = {
  name: optional(anyText),
  ...PLACE,
  concurrency_max: byDefault(4, integer(1)),
  base_url: BASE_URL,
  ...CONNECTION,
  model: optional(anyText),
  timeout: named('timeout_ms', byDefault('60s', duration(100))),
  headers: HEADERS,
  keep_files: byDefault(false, boolean),
  lines_max: optional(integer(1)),
  tokens_max: optional(integer(1)),
  results_from: optional(listOf(ORIGIN, 'a list such as [https://bucket.example]')),
}

const ANTHROPIC_BATCH = checked(section({ type: type('anthropic-batch'), ...BATCH_API }), credentialProblems)

const OPENAI_BATCH = checked(
  section({
    type: type('openai-batch'),
    ...BATCH_API,
    completion_window: byDefault('24h', text(/^[0-9]+[smhd]$/, 'a completion window such as 24h')),
    file_purpose: optional(anyText),
    line_metadata: byDefault(false, boolean),
    webhook_secret: optional(secret(text(WEBHOOK_SECRET, WEBHOOK_SECRET_EXPECTED))),
    webhook_secret_env: optional(
      secretVariable((value) =>
        WEBHOOK_SECRET.test(value) ? null : `does not hold ${WEBHOOK_SECRET_EXPECTED}`,
      ),
    ),
  }),
  (found, problem) => {
    credentialProblems(found, problem)
    if (found.webhook_secret !== null && found.webhook_secret_env !== null)
      problem(['webhook_secret'], 'excludes webhook_secret_env: keep one of them')
  },
)

/** The shapes of upstreams by type. */
const UPSTREAMS = {
  sim: SIM,
  openai: OPENAI,
  'openai-batch': OPENAI_BATCH,
  'anthropic-batch': ANTHROPIC_BATCH,
} satisfies Record<UpstreamType, unknown>

const UPSTREAM = variant<(typeof UPSTREAMS)[UpstreamType]>(Object.values(UPSTREAMS))

const MODEL = checked(
  section({
    id: text(/^[\x21-\x7e]{1,200}$/, 'a name of up to 200 printable characters without spaces'),
    context_window: optional(integer(1)),
    max_output_tokens: optional(integer(1)),
    price: optional(PRICE),
    spill: section({
      when_down: named(
        'when_down_ms',
        byDefault('60s', orWord(duration(0), OFF, 'a duration such as 60s, or off')),
      ),
      when_at_risk: byDefault(true, boolean),
    }),
    supports: section({ structured_output: byDefault(true, boolean), tools: byDefault(true, boolean) }),
    endpoints: optional(
      checked(listOf(endpointPath, 'a list such as [/v1/embeddings]'), (paths, problem) => {
        const repeated = paths.find((path, i) => paths.indexOf(path) < i)
        if (repeated !== undefined) problem([], `lists ${repeated} twice`)
      }),
    ),
    upstreams: listOf(UPSTREAM, 'at least one server to answer it'),
  }),
  ({ context_window, max_output_tokens, endpoints, upstreams }, problem) => {
    const only = onlyEndpoint(upstreams)
    const other = only && endpoints?.find((path) => path !== only.path)
    if (other !== undefined)
      problem(
        ['endpoints'],
        `has ${other}, and an upstream of type ${only?.type} answers ${only?.path} alone`,
      )
    if (context_window !== null && max_output_tokens !== null && max_output_tokens > context_window)
      problem(['max_output_tokens'], `is more than the context_window of ${context_window}`)
  },
)

const VARIABLE_NAME = text(VARIABLE, 'the name of an environment variable')

const BUCKETS = listOf(
  checked(
    section({
      url: BUCKET,
      projects: listOf(anyText, 'a list of names or IDs of projects such as [default]'),
      access: byDefault([...BUCKET_USES], listOf(oneOf(BUCKET_USES), 'a list such as [read, write]')),
      access_key_id_env: byDefault('AWS_ACCESS_KEY_ID', VARIABLE_NAME),
      secret_access_key_env: byDefault('AWS_SECRET_ACCESS_KEY', VARIABLE_NAME),
      session_token_env: optional(VARIABLE_NAME),
    }),
    (found, problem, env) => {
      const { access_key_id_env: id, secret_access_key_env: secret } = found
      const isUsual = id === 'AWS_ACCESS_KEY_ID' && secret === 'AWS_SECRET_ACCESS_KEY'
      if (isUsual && found.session_token_env === null && isWithoutKey(env)) return
      for (const key of ['access_key_id_env', 'secret_access_key_env', 'session_token_env'] as const) {
        const name = found[key]
        const value = name === null ? undefined : present(env[name])
        // A key may have been written in place of a variable's name: messages do not quote it.
        const variable = USUAL_NAME.test(name ?? '') ? `the variable ${name}` : 'the variable that it names'
        // The secret signs requests and is in no header.
        const why = value === undefined || key === 'secret_access_key_env' ? null : keyProblem(value)
        if (why !== null) problem([key], `${variable} ${why}`)
        if (name !== null && value === undefined)
          problem([key], `${variable} is not set; the bucket ${found.url.bucket} needs it`)
      }
    },
  ),
  'a list of buckets',
)

export const MODELS = checked(listOf(MODEL, 'a list of models'), (models, problem) => {
  for (const [i, { id }] of models.entries()) {
    const first = models.findIndex((other) => other.id === id)
    if (first < i) problem([i, 'id'], `${id} is already models[${first}]`)
  }
})

// Endpoints beside those that are built in.

/** The name of a field, in lower case, since scanners of bodies look for few keys. */
const FIELD = text(/^[a-z][a-z0-9_]{0,63}$/, 'the name of a field in lower case, such as input')
const PROMPT_FIELDS_MAX = 16
const USAGE_COUNT = text(
  /^usage\.[a-z][a-z0-9_]{0,63}$/,
  'usage. and the name of a count in the usage of the answer, such as usage.prompt_tokens',
  (found) => (/\.(total_tokens|cost_usd)$/.test(found) ? undefined : found.slice('usage.'.length)),
)

const DECLARED_ENDPOINT = checked(
  section({
    path: endpointPath,
    prompt: listOf(FIELD, 'a list of fields such as [input]'),
    answer: FIELD,
    usage: section({ input: optional(USAGE_COUNT), output: optional(USAGE_COUNT) }),
    unit: byDefault('tokens', oneOf(['tokens', 'seconds', 'requests'] as const)),
    projection: section({ input: optional(integer(1, 100_000_000)), output_limit: optional(FIELD) }),
  }),
  ({ path, prompt, usage, unit, projection }, problem) => {
    if (isBuiltIn(path)) problem(['path'], `${path} is built in`)
    if (prompt.length > PROMPT_FIELDS_MAX) problem(['prompt'], `has more than ${PROMPT_FIELDS_MAX} fields`)
    if (['model', 'stream', 'stream_options'].some((name) => prompt.includes(name)))
      problem(['prompt'], 'names model or stream, which are read for something else')
    if (usage.output === null && projection.output_limit !== null)
      problem(['projection', 'output_limit'], 'needs usage.output: without it nothing is generated')
    if (unit !== 'tokens' && usage.output !== null)
      problem(['usage', 'output'], `excludes unit: ${unit}, which counts input alone`)
    if (unit === 'seconds' && (usage.input === null || projection.input === null))
      problem(
        [usage.input === null ? 'usage' : 'projection', 'input'],
        'is missing; no estimate says how many seconds a line has',
      )
    if (unit === 'requests' && (usage.input !== null || projection.input !== null))
      problem(
        [usage.input !== null ? 'usage' : 'projection', 'input'],
        'excludes unit: requests, by which each answer counts as one',
      )
  },
)

const DECLARED_ENDPOINTS = checked(listOf(DECLARED_ENDPOINT, 'a list of endpoints'), (endpoints, problem) => {
  for (const [i, { path }] of endpoints.entries())
    if (endpoints.findIndex((other) => other.path === path) < i)
      problem([i, 'path'], `${path} is declared before`)
})

const KEYS = section({
  region: byDefault('local', REGION),
  listen: section({
    host: byDefault('127.0.0.1', HOST),
    /** The TCP port of the API; 0 lets the system pick one. */
    port: byDefault(8080, integer(0, 65_535)),
    /** The time for which a stopping API still answers, while not ready, so that load balancers stop using it. */
    stop_delay: named('stop_delay_ms', byDefault('5s', duration(0))),
    /** The time for which an idle connection is kept: longer than in a load balancer before the API. */
    keep_alive: named('keep_alive_ms', byDefault('75s', duration(1))),
  }),
  data_dir: byDefault('./offpeak-data', anyText),
  database: byDefault('sqlite', DATABASE),
  blobs: byDefault('disk', BLOBS),
  buckets: optional(BUCKETS),
  rate_limit: section({
    requests_per_minute: byDefault(
      6000,
      orWord(integer(1), { 0: null, ...OFF }, 'a whole number, or 0 or off for no rate limit'),
    ),
    project_requests_per_minute: byDefault(
      'auto',
      orWord(
        integer(1),
        { 0: null, ...OFF, auto: 'auto' } as const,
        'a whole number, auto, or 0 or off for no rate limit',
      ),
    ),
  }),
  plans: PLANS,
  auth: section({ proxy: optional(SIGN_IN_PROXY), jwt: optional(JWT) }),
  endpoints: optional(DECLARED_ENDPOINTS),
  limits: section({
    file_bytes_max: byDefault('10GiB', size(1)),
    lines_max: byDefault(10_000_000, integer(1, LINE_NUMBER_MAX)),
    line_bytes_max: byDefault('8MiB', size(1)),
  }),
  create: section({
    /** The time for which a call that creates a batch waits for the validation of its file. */
    wait_for_file: named('wait_for_file_ms', byDefault('10s', duration(0))),
  }),
  requests: section({
    /** The limits of gathering single requests: the time for which a batch accepts them, and their number. */
    gather: section({
      seconds: byDefault(60, integer(1, 3600)),
      lines: byDefault(10_000, integer(1, 100_000)),
    }),
  }),
  models: optional(MODELS),
  engines: ENGINES,
  worker: section({
    /** The number of processes that `serve` starts; `auto`: by the number of cores. */
    processes: byDefault(
      'auto',
      orWord(integer(1, 64), { auto: 'auto' } as const, 'a whole number from 1 to 64, or auto'),
    ),
    /** The most lines in flight at each upstream, from one `serve` or one `worker`. */
    concurrency_max: byDefault(2048, integer(1)),
    /** The time without a heartbeat after which a worker's leases expire. */
    lease: named('lease_ms', byDefault('10s', duration(100))),
    /** The time for lines in flight to finish during a graceful shutdown. */
    drain: named('drain_ms', byDefault('8s', duration(0))),
    /** The size of finished lines in memory until their chunk is sealed; further lines are written to journals. */
    memory: named('memory_bytes', byDefault('64MiB', size(1))),
    /** The longest time that a finished line waits for its commit. */
    flush_interval: named(
      'flush_interval_ms',
      byDefault('auto', orWord(duration(1), { auto: 'auto' } as const, 'a duration such as 250ms, or auto')),
    ),
  }),
  metrics: section({
    port: byDefault('auto', METRICS_PORT),
    /** The label `installation` of every metric's series; by default created with the database. */
    installation: optional(INSTALLATION),
  }),
  retry: section({
    /** The most attempts that fail through the line's own fault, the first included. */
    attempts_max: byDefault(5, integer(1, 1000)),
    backoff_min: named('backoff_min_ms', byDefault('500ms', duration(1))),
    backoff_max: named('backoff_max_ms', byDefault('30s', duration(1))),
    /** The time for which an upstream may be unavailable before its lines fail: a restart costs no line. */
    outage_patience: named('outage_patience_ms', byDefault('10m', duration(0))),
    /** The limit of throttled attempts of a line; each counts as four while the upstream accepts other lines. */
    throttled_attempts_max: byDefault(60, integer(1, 1_000_000)),
    /** The share of the completion window for which a line may wait because it was throttled. */
    throttled_share: byDefault(0.5, fraction),
  }),
  log: section({
    level: byDefault('info', oneOf(['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'])),
  }),
  master_key: named('encrypted_key', secret(MASTER_KEY)),
  retention: section({ audit: named('audit_ms', byDefault('730d', duration(1))) }),
  webhooks: section({ allow_private_networks: byDefault(false, boolean) }),
})

/** The whole file, with a check that the endpoints of models are built in or declared. */
export const CONFIG_FILE = checked(KEYS, ({ models, endpoints }, problem) => {
  const known = [...ENDPOINT_PATHS, ...(endpoints ?? []).map(({ path }) => path)]
  for (const [i, model] of (models ?? []).entries())
    for (const [j, path] of (model.endpoints ?? []).entries())
      if (!known.includes(path))
        problem(['models', i, 'endpoints', j], `expected an endpoint: ${known.join(', ')}; found ${path}`)
})

export type ConfigFile = Static<typeof CONFIG_FILE>
export type ModelShape = NonNullable<ConfigFile['models']>[number]
