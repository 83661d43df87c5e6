import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, describe, test } from 'node:test'
import { cert } from '../../test/fakes/certificate.ts'
import { ENDPOINT_PATHS } from '../domain/endpoint.ts'
import { QUOTAS_DEFAULT } from '../domain/plan.ts'
import { nearest } from '../domain/text.ts'
import type { Config } from './config.ts'
import { type ConfigFlags, loadConfig } from './load.ts'
import { ConfigError } from './sources.ts'

const NOW = 1_800_000_000_000
const folder = mkdtempSync(join(tmpdir(), 'offpeak-config-'))
const empty = mkdtempSync(join(tmpdir(), 'offpeak-no-config-'))
after(() => {
  rmSync(folder, { recursive: true })
  rmSync(empty, { recursive: true })
})

/** The configuration that `yaml` in ./offpeak.yaml gives. */
function load(yaml: string, env: NodeJS.ProcessEnv = {}, overrides: ConfigFlags = {}): Config {
  writeFileSync(join(folder, 'offpeak.yaml'), yaml)
  return loadConfig({ env, overrides, cwd: folder, now: NOW })
}

function problems(yaml: string, env: NodeJS.ProcessEnv = {}, overrides: ConfigFlags = {}): readonly string[] {
  try {
    load(yaml, env, overrides)
  } catch (error) {
    assert.ok(error instanceof ConfigError, String(error))
    return error.problems
  }
  return []
}

/** The path of a file with a secret that cannot be used, or with a certificate. */
function secretFile(name: keyof typeof SECRETS): string {
  const path = join(folder, name)
  writeFileSync(path, SECRETS[name])
  return path
}

const SECRETS = {
  'two keys': 'sk-one\nsk-two\n',
  JSON: '{"key": "sk-one"}',
  assignment: 'KEY=sk-one',
  nothing: '\n',
  certificate: cert,
  'key set': '{"keys": [{"kty": "EC"}]}',
  'private key set': '{"keys": [{"kty": "EC", "d": "x"}]}',
  'key set of HMAC': '{"keys": [{"kty": "oct", "k": "x"}]}',
}

const model = (keys: string): string => `models: [{id: m, upstreams: [{type: sim}], ${keys}}]`
const upstream = (keys: string): string => `models: [{id: m, upstreams: [{${keys}}]}]`
const endpoint = (keys: string): string => `endpoints: [{path: a, prompt: b, answer: c, ${keys}}]`
const KEYS_AT = 'jwks_url: "https://i.example/keys"'
const jwt = (keys: string): string => `auth: {jwt: {issuer: "https://i.example", ${keys}}}`
const proxy = (keys: string): string => `auth: {proxy: {header: X-Email, ${keys}}}`

const PLACE = { tier: 0, price: null, hours: [] }
const NO_CONNECTION_KEYS = {
  api_key_file: null,
  ca_file: null,
  client_cert_file: null,
  client_key_file: null,
  proxy: null,
  discover: null,
  connections: 'per-project',
}

describe('without a file', () => {
  test('the service runs on SQLite and a folder with the simulator alone', () => {
    const config = loadConfig({ env: {}, cwd: empty, now: NOW })
    assert.deepEqual(config, {
      region: 'local',
      listen: { host: '127.0.0.1', port: 8080, stop_delay_ms: 5000, keep_alive_ms: 75_000 },
      data_dir: join(empty, 'offpeak-data'),
      database: { kind: 'sqlite', path: join(empty, 'offpeak-data', 'offpeak.db') },
      blobs: { kind: 'disk', root: join(empty, 'offpeak-data', 'blobs') },
      buckets: [],
      rate_limit: { requests_per_minute: 6000, project_requests_per_minute: 24000 },
      create: { wait_for_file_ms: 10_000 },
      requests: { gather: { seconds: 60, lines: 10_000 } },
      auth: { proxy: null, jwt: null },
      endpoints: [],
      plans: new Map([
        [
          'payg',
          {
            name: 'payg',
            completion_windows: [{ text: '24h', ms: 86_400_000 }],
            file_retention_ms: 90 * 86_400_000,
            retention: null,
            live_price_share: null,
            quotas: QUOTAS_DEFAULT,
          },
        ],
        [
          'enterprise',
          {
            name: 'enterprise',
            completion_windows: [
              { text: '4h', ms: 14_400_000 },
              { text: '24h', ms: 86_400_000 },
            ],
            file_retention_ms: 395 * 86_400_000,
            retention: null,
            live_price_share: null,
            quotas: QUOTAS_DEFAULT,
          },
        ],
      ]),
      limits: { file_bytes_max: 10 * 2 ** 30, lines_max: 10_000_000, line_bytes_max: 8 * 2 ** 20 },
      models: [
        {
          model: {
            id: 'sim-1',
            context_window: 131_072,
            max_output_tokens: 4096,
            price: { input_picos: 100_000, output_picos: 400_000 },
            priced: true,
            supports: { structured_output: true, tools: true },
            endpoints: [...ENDPOINT_PATHS],
            created: NOW / 1000,
          },
          upstreams: [
            {
              type: 'sim',
              name: 'sim',
              concurrency_max: 1024,
              ...PLACE,
              latency_ms: { min: 20, max: 20 },
              faults: {},
              capacity: null,
              context_window: null,
            },
          ],
          spill: { when_down_ms: 60_000, when_at_risk: true },
          endpoints_configured: true,
        },
      ],
      worker: {
        concurrency_max: 2048,
        lease_ms: 10_000,
        drain_ms: 8000,
        memory_bytes: 64 * 2 ** 20,
        flush_interval_ms: 100,
        processes: 'auto',
      },
      engines: config.engines,
      metrics: { port: 'auto', installation: null },
      retry: {
        attempts_max: 5,
        backoff_min_ms: 500,
        backoff_max_ms: 30_000,
        outage_patience_ms: 600_000,
        throttled_attempts_max: 60,
        throttled_share: 0.5,
      },
      log: { level: 'info' },
      retention: { audit_ms: 730 * 86_400_000 },
      webhooks: { allow_private_networks: false },
      tracing: null,
      audit_log: null,
      master_key: undefined,
      encrypted_key: null,
    })
  })

  test('an empty file changes nothing', () => {
    assert.deepEqual(
      { ...load('# nothing\n'), data_dir: '', database: null, blobs: null },
      { ...loadConfig({ env: {}, cwd: empty, now: NOW }), data_dir: '', database: null, blobs: null },
    )
  })

  test('a file that was asked for has to be there', () => {
    for (const request of [{ file: 'gone.yaml', env: {} }, { env: { OFFPEAK_CONFIG: 'gone.yaml' } }]) {
      assert.throws(() => loadConfig({ ...request, cwd: empty }), /gone\.yaml: cannot be read/)
    }
  })
})

describe('where a value comes from', () => {
  const port = (yaml: string, env: NodeJS.ProcessEnv, flags: ConfigFlags): number =>
    load(yaml, env, flags).listen.port

  test('a flag beats a variable, a variable beats the file, the file beats the default', () => {
    const yaml = 'listen: {port: 1001}'
    const env = { OFFPEAK_LISTEN_PORT: '1002' }
    assert.equal(port('', {}, {}), 8080)
    assert.equal(port(yaml, {}, {}), 1001)
    assert.equal(port(yaml, env, {}), 1002)
    assert.equal(port(yaml, env, { port: 1003 }), 1003)
    assert.equal(port(yaml, env, { port: '1004' }), 1004)
  })

  test('a file named by the flag beats one named by the variable, and both beat ./offpeak.yaml', () => {
    writeFileSync(join(folder, 'flag.yaml'), 'region: flag')
    writeFileSync(join(folder, 'variable.yaml'), 'region: variable')
    const env = { OFFPEAK_CONFIG: 'variable.yaml' }
    assert.equal(load('region: here').region, 'here')
    assert.equal(load('region: here', env).region, 'variable')
    assert.equal(loadConfig({ file: 'flag.yaml', env, cwd: folder }).region, 'flag')
  })

  test('an empty variable counts as not set', () => {
    assert.equal(load('region: here', { OFFPEAK_REGION: '', OFFPEAK_MASTER_KEY: '' }).region, 'here')
  })

  test('variables take text, numbers, sizes, durations, flags and choices', () => {
    const config = load('', {
      OFFPEAK_REGION: '7',
      OFFPEAK_LIMITS_LINES_MAX: '12',
      OFFPEAK_LIMITS_FILE_BYTES_MAX: '9MiB',
      OFFPEAK_WORKER_LEASE: '3s',
      OFFPEAK_WEBHOOKS_ALLOW_PRIVATE_NETWORKS: 'true',
      OFFPEAK_LOG_LEVEL: 'debug',
      OFFPEAK_RATE_LIMIT_REQUESTS_PER_MINUTE: 'off',
      OFFPEAK_DATABASE: 'postgres://me:pw@db/offpeak',
    })
    assert.equal(config.region, '7')
    assert.equal(config.limits.lines_max, 12)
    assert.equal(config.limits.file_bytes_max, 9 * 2 ** 20)
    assert.equal(config.worker.lease_ms, 3000)
    assert.equal(config.webhooks.allow_private_networks, true)
    assert.equal(config.log.level, 'debug')
    assert.equal(config.rate_limit.requests_per_minute, null)
    assert.deepEqual(config.database, { kind: 'postgres', url: 'postgres://me:pw@db/offpeak' })
  })

  test('a variable replaces a whole list or map, as YAML', () => {
    const config = load('models: [{id: file, upstreams: [{type: sim}]}]', {
      OFFPEAK_MODELS: '[{"id": "a", "upstreams": [{"type": "sim", "latency_ms": 3}]}]',
      OFFPEAK_PLANS: '{payg: {completion_windows: 2s}}',
    })
    assert.deepEqual(
      config.models.map(({ model }) => model.id),
      ['a'],
    )
    assert.deepEqual(config.plans.get('payg')?.completion_windows, [{ text: '2s', ms: 2000 }])
  })

  test('the flags of the command line reach their keys', () => {
    const config = load(
      '',
      {},
      { region: 'eu', host: '::1', data: 'd', database: 'sqlite:x.db', log_level: 'warn' },
    )
    assert.equal(config.region, 'eu')
    assert.equal(config.listen.host, '::1')
    assert.equal(config.data_dir, join(folder, 'd'))
    assert.deepEqual(config.database, { kind: 'sqlite', path: join(folder, 'x.db') })
    assert.deepEqual(config.blobs, { kind: 'disk', root: join(folder, 'd', 'blobs') })
    assert.equal(config.log.level, 'warn')
  })
})

describe('what is understood', () => {
  test('a rate limit of 0 or off is none', () => {
    for (const off of ['0', 'off', '"off"', 'false']) {
      const none = { requests_per_minute: null, project_requests_per_minute: null }
      assert.deepEqual(load(`rate_limit: {requests_per_minute: ${off}}`).rate_limit, none, off)
      const ofProject = load(`rate_limit: {project_requests_per_minute: ${off}}`).rate_limit
      assert.deepEqual(ofProject, { ...none, requests_per_minute: 6000 }, off)
    }
    const own = load('rate_limit: {requests_per_minute: 10, project_requests_per_minute: 15}').rate_limit
    assert.deepEqual(own, { requests_per_minute: 10, project_requests_per_minute: 15 })
  })

  test('a plan may be changed or added, and the built-in ones stay', () => {
    const { plans } = load('plans: {payg: {file_retention: 1h}, quick: {completion_windows: [2s, 1m]}}')
    assert.deepEqual([...plans.keys()], ['payg', 'enterprise', 'quick'])
    assert.equal(plans.get('payg')?.file_retention_ms, 3_600_000)
    assert.deepEqual(plans.get('payg')?.completion_windows, [{ text: '24h', ms: 86_400_000 }])
    assert.equal(plans.get('quick')?.completion_windows[0]?.ms, 2000)
    assert.equal(plans.get('quick')?.file_retention_ms, 90 * 86_400_000)
    const notKept = load('plans: {payg: {retention: {results: 0h, grace: 4h}}}').plans.get('payg')
    assert.deepEqual(notKept?.retention, { results_ms: 0, grace_ms: 14_400_000 })
    assert.equal(notKept?.file_retention_ms, 14_400_000, 'an upload waits for its batch no longer')
  })

  test('a model without a price is free and says so', () => {
    const [free] = load(model('context_window: 10')).models
    assert.deepEqual(free?.model.price, { input_picos: 0, output_picos: 0 })
    assert.equal(free?.model.priced, false)
    const [priced] = load(model('price: {input_per_mtok: 0.15, output_per_mtok: 1e-6}')).models
    assert.deepEqual(priced?.model.price, { input_picos: 150_000, output_picos: 1 })
    assert.equal(priced?.model.priced, true)
  })

  test('an upstream of type openai has its key looked up and its address trimmed', () => {
    const keys =
      'type: openai, base_url: "http://h:8000/v1/", api_key_env: THE_KEY, timeout: 1m, headers: {X-Team: "7"}'
    const [found] = load(upstream(keys), { THE_KEY: 'sk-1\n' }).models
    assert.deepEqual(found?.upstreams, [
      {
        type: 'openai',
        name: 'h:8000/v1',
        concurrency_max: 1024,
        ...PLACE,
        base_url: 'http://h:8000/v1',
        engine: null,
        live: null,
        priority: null,
        fairness_header: null,
        service_tier: null,
        ...NO_CONNECTION_KEYS,
        api_key: 'sk-1',
        model: 'm',
        timeout_ms: 60_000,
        headers: { 'X-Team': '7' },
      },
    ])
  })

  test('a proxy that signs persons in has its headers in lower case, and its groups in their order', () => {
    const { auth } = load(
      `${proxy('from: 10.0.0.0/24, groups_header: X-Groups, groups: {z: {project: a, scopes: operator}, 7: {project: c}, "*": {project: b}}')}`,
    )
    assert.deepEqual(auth.proxy, {
      header: 'x-email',
      from: ['10.0.0.0/24'],
      groups_header: 'x-groups',
      groups: new Map([
        ['z', { project: 'a', scopes: ['operator'] }],
        ['7', { project: 'c', scopes: null }],
        ['*', { project: 'b', scopes: null }],
      ]),
      sign_out: null,
    })
    assert.deepEqual([...(auth.proxy?.groups.keys() ?? [])], ['z', '7', '*'])
  })

  test('a managed server has no address, and shares the machine as the section engines says', () => {
    const config = load(
      `${upstream('type: openai, engine: {command: [serve, "{port}"], gpus: 2, memory: 8GiB, env: {A: b}, pass_env: [HF_TOKEN], files: {"k.yaml": "a: {api_key}"}}')}
engines: {gpus: 3, memory: 16GiB, min_run: 1s}`,
      { CUDA_VISIBLE_DEVICES: '4,5,7,8' },
    )
    assert.deepEqual(config.engines, { gpus: ['4', '5', '7'], memory_bytes: 2 ** 34, run_ms_min: 1000 })
    const [server] = config.models[0]?.upstreams ?? []
    assert.ok(server?.type === 'openai')
    assert.equal(server.name, 'serve')
    assert.deepEqual(server.engine, {
      command: ['serve', '{port}'],
      ready: '/health',
      env: { A: 'b' },
      pass_env: ['HF_TOKEN'],
      files: { 'k.yaml': 'a: {api_key}' },
      gpus: 2,
      memory_bytes: 2 ** 33,
      start_timeout_ms: 600_000,
      idle_timeout_ms: 600_000,
    })
  })

  test('an upstream of type sim takes latencies and faults', () => {
    const [found] = load(
      upstream(
        'type: sim, latency_ms: [5, 9.5], faults: {429: 0.25, hang: 0.5}, capacity: 3, context_window: 64',
      ),
    ).models
    assert.deepEqual(found?.upstreams, [
      {
        type: 'sim',
        name: 'sim',
        concurrency_max: 1024,
        ...PLACE,
        latency_ms: { min: 5, max: 9.5 },
        faults: { 429: 0.25, hang: 0.5 },
        capacity: 3,
        context_window: 64,
      },
    ])
  })

  test('upstreams alike get names apart', () => {
    const [found] = load(
      'models: [{id: m, upstreams: [{type: sim}, {type: sim}, {type: sim, name: x}]}]',
    ).models
    assert.deepEqual(
      found?.upstreams.map(({ name }) => name),
      ['sim', 'sim#2', 'x'],
    )
  })

  test('buckets of batches have the credentials of their variables, by default those of AWS', () => {
    const aws = { AWS_ACCESS_KEY_ID: 'id', AWS_SECRET_ACCESS_KEY: 'secret', AWS_SESSION_TOKEN: 'token' }
    const env = { ...aws, OWN_ID: 'own', OWN_SECRET: 'own secret' }
    const own =
      '{url: s3://b/in/, projects: [p, q], access: read, access_key_id_env: OWN_ID, secret_access_key_env: OWN_SECRET}'
    const { buckets } = load(`buckets: [{url: s3://b, projects: p}, ${own}]`, env)
    assert.deepEqual(
      buckets.map((one) => [one.prefix, one.projects, one.access, one.access_key_id, one.session_token]),
      [
        ['', ['p'], ['read', 'write'], 'id', 'token'],
        ['in', ['p', 'q'], ['read'], 'own', null],
      ],
    )
    assert.deepEqual(load('', {}).buckets, [])
  })

  test('a bucket is read from its URL, its credentials from the variables of AWS', () => {
    const env = { AWS_ACCESS_KEY_ID: 'id', AWS_SECRET_ACCESS_KEY: 'secret', AWS_REGION: 'eu-west-1' }
    const s3 = { kind: 's3', access_key_id: 'id', secret_access_key: 'secret', session_token: null }
    assert.deepEqual(load('blobs: s3://b/some/prefix/?endpoint=http://127.0.0.1:9000/', env).blobs, {
      ...s3,
      bucket: 'b',
      prefix: 'some/prefix',
      endpoint: 'http://127.0.0.1:9000',
      region: 'eu-west-1',
      path_style: true,
    })
    assert.deepEqual(load('blobs: s3://b?region=us-west-2', env).blobs, {
      ...s3,
      bucket: 'b',
      prefix: '',
      endpoint: null,
      region: 'us-west-2',
      path_style: false,
    })
  })

  test('a journal in a bucket, which is paid for, is written less often than one on disk', () => {
    const env = { AWS_ACCESS_KEY_ID: 'id', AWS_SECRET_ACCESS_KEY: 'secret', AWS_REGION: 'eu-west-1' }
    assert.equal(load('blobs: s3://b', env).worker.flush_interval_ms, 250)
    assert.equal(load('blobs: disk:b').worker.flush_interval_ms, 100)
    const chosen = '\nworker: {flush_interval: 1s}'
    assert.equal(load(`blobs: s3://b${chosen}`, env).worker.flush_interval_ms, 1000)
    assert.equal(load(`blobs: disk:b${chosen}`).worker.flush_interval_ms, 1000)
  })

  test('the master key is taken as it is given', () => {
    assert.equal(load('', { OFFPEAK_MASTER_KEY: 'abc' }).master_key, 'abc')
  })
})

describe('what is refused', () => {
  /** Invalid configurations, each with its one reported problem, without the place in the file. */
  const table: [string, string][] = [
    ['regin: x', 'regin: unknown key; did you mean region?'],
    ['colour: x', 'colour: unknown key; the keys are region, listen, data_dir'],
    ['listen: {prot: 1}', 'listen.prot: unknown key; did you mean port?'],
    ['listen: 8080', 'listen: expected a map of keys, found 8080'],
    ['listen: {port: 65536}', 'listen.port: expected a whole number from 0 to 65535, found 65536'],
    ['listen: {port: 80.5}', 'listen.port: expected a whole number from 0 to 65535, found 80.5'],
    ['listen: {port: [1]}', 'listen.port: expected a whole number from 0 to 65535, found a list'],
    [
      'region: 12',
      'region: expected up to 32 lower-case letters, digits and dashes, such as eu-central, found 12',
    ],
    ['region: EU_1', 'region: expected up to 32 lower-case letters'],
    [
      'rate_limit: {requests_per_minute: -1}',
      'rate_limit.requests_per_minute: expected a whole number, or 0 or off',
    ],
    [
      'rate_limit: {project_requests_per_minute: few}',
      'rate_limit.project_requests_per_minute: expected a whole number, auto, or 0 or off',
    ],
    ['limits: {lines_max: 0}', 'limits.lines_max: expected a whole number from 1 to 34359738367, found 0'],
    ['limits: {line_bytes_max: 8 Megs}', 'limits.line_bytes_max: expected a size such as 8MiB or 10GiB'],
    ['limits: {line_bytes_max: 1GiB, file_bytes_max: 1MiB}', 'limits.line_bytes_max: 1GiB is more than'],
    ['database: mysql://root:pw@h/db', 'found "mysql://(hidden)@h/db"'],
    ...['p#w', 'p@w', 'p%w', 'p/w', '12/w', 'p?w', '12?w', '12#w'].map((password): [string, string] => [
      `database: "postgres://me:${password}@db/x"`,
      'is not a URL that can be read',
    ]),
    ['database: "sqlite:"', 'database: expected sqlite, sqlite:PATH or postgres://user@host/database'],
    ['database: "sqlite://x"', 'database: expected sqlite, sqlite:PATH or postgres://user@host/database'],
    ['blobs: gs://b', 'blobs: expected disk, disk:PATH or s3://bucket/prefix'],
    ['blobs: s3://b?endpont=http://h', 'blobs: expected disk, disk:PATH or s3://bucket/prefix'],
    ['blobs: s3://b?endpoint=h', 'blobs: expected disk, disk:PATH or s3://bucket/prefix'],
    [
      'plans: {payg: {completion_windows: [0s]}}',
      'plans.payg.completion_windows[0]: expected a duration of whole',
    ],
    [
      'plans: {payg: {completion_windows: [250ms]}}',
      'plans.payg.completion_windows[0]: expected a duration of whole',
    ],
    ['plans: {payg: {completion_windows: []}}', 'plans.payg.completion_windows: expected at least one item'],
    ['plans: {payg: {completion_windows: [24h, 1d]}}', 'plans.payg.completion_windows: lists 1d twice'],
    ['plans: {new: {file_retention: 1d}}', 'plans.new.completion_windows: is missing'],
    ['plans: {payg: {retention: {grace: 1h}}}', 'plans.payg.retention.results: is missing'],
    ['plans: {payg: {retention: {results: never}}}', 'plans.payg.retention.results: expected a duration'],
    ['master_key: {encrypted: key}', 'master_key.by: is missing'],
    ['master_key: {by: command, decrypt: x}', 'master_key.encrypted: is missing; command needs it'],
    ['master_key: {encrypted: key, by: command}', 'master_key.decrypt: is missing; command needs it'],
    ['master_key: {encrypted: key, by: aws_kms}', 'master_key.key_id: is missing; aws_kms needs it'],
    [
      'master_key: {encrypted: key, by: gcp_kms}',
      'master_key.by: expected one of aws_kms, vault_transit, command',
    ],
    [
      'master_key: {encrypted: key, by: vault_transit, key_id: offpeak, address: "https://vault:8200"}',
      'master_key.token_env: the variable VAULT_TOKEN is not set',
    ],
    [
      'master_key: {encrypted: key, by: vault_transit, key_id: offpeak, address: vault}',
      'master_key.address: expected an address without path and query',
    ],
    ['plans: {payg: {retention: 0h}}', 'plans.payg.retention: expected a map of keys'],
    ['plans: {payg: {file_retention: 90}}', 'plans.payg.file_retention: expected a duration such as 250ms'],
    [
      'plans: {payg: {file_retension: 9d}}',
      'plans.payg.file_retension: unknown key; did you mean file_retention?',
    ],
    ['plans: {"a b": {completion_windows: [1h]}}', 'plans.a b: the name of a plan is made of'],
    [
      'retention: {audit: 100d}',
      'retention.audit: 100d is shorter than plans.enterprise.file_retention, 395d',
    ],
    ['retry: {backoff_min: 1m}', 'retry.backoff_min: 1m is longer than retry.backoff_max, 30s'],
    ['retry: {attempts_max: 0}', 'retry.attempts_max: expected a whole number from 1 to 1000, found 0'],
    [
      'retry: {throttled_attempts_max: 0}',
      'retry.throttled_attempts_max: expected a whole number from 1 to 1000000, found 0',
    ],
    ['retry: {throttled_share: 2}', 'retry.throttled_share: expected a number from 0 to 1, found 2'],
    ['worker: {lease: 150ms}', 'worker.lease: 150ms is less than twice worker.flush_interval, 100ms'],
    [
      'worker: {lease: 10}',
      'worker.lease: expected a duration such as 250ms, 5s, 10m, 24h or 90d, at least 100ms',
    ],
    ['log: {level: verbose}', 'log.level: expected one of fatal, error, warn, info, debug, trace, silent'],
    [
      'webhooks: {allow_private_networks: 1}',
      'webhooks.allow_private_networks: expected true or false, found 1',
    ],
    ['models: {}', 'models: expected a list, found a map of keys'],
    ['models: []', 'models: expected at least one item'],
    ['models: [sim-1]', 'models[0]: expected a map of keys, found "sim-1"'],
    ['models: [{upstreams: [{type: sim}]}]', 'models[0].id: is missing; expected a name'],
    ['models: [{id: a b, upstreams: [{type: sim}]}]', 'models[0].id: expected a name of up to 200 printable'],
    ['models: [{id: a}]', 'models[0].upstreams: is missing; expected at least one server'],
    ['models: [{id: a, upstreams: []}]', 'models[0].upstreams: expected at least one item'],
    [
      'models: [{id: a, upstreams: [{type: sim}]}, {id: a, upstreams: [{type: sim}]}]',
      'models[1].id: a is already models[0]',
    ],
    [
      model('price: {input_per_mtok: -1, output_per_mtok: 1}'),
      'models[0].price.input_per_mtok: expected USD per',
    ],
    [
      model('price: {input_per_mtok: 0.0000001, output_per_mtok: 1}'),
      'with at most six decimals, found 1e-7',
    ],
    [
      model('price: {input_per_mtok: 1, output_per_mtok: 1, service_tiers: {Flex: {}}}'),
      'models[0].price.service_tiers.Flex: is no name of a service tier such as flex',
    ],
    [model('price: {input_per_mtok: 1}'), 'models[0].price.output_per_mtok: is missing'],
    [
      model('price: {input_per_mtok: 1, output_per_mtok: 1, cached_input_per_mtok: 2}'),
      'models[0].price.cached_input_per_mtok: is more than input_per_mtok',
    ],
    [
      model('price: {input_per_mtok: 1, output_per_mtok: 1, cache_write_per_mtok: -1}'),
      'models[0].price.cache_write_per_mtok: expected USD per',
    ],
    [
      model('price: {input_per_mtok: 1, output_per_mtok: 1, above: [{input_per_mtok: 2}]}'),
      'models[0].price.above[0].prompt_tokens: is missing',
    ],
    [
      model(
        'price: {input_per_mtok: 1, output_per_mtok: 1, above: [{prompt_tokens: 9}, {prompt_tokens: 9}]}',
      ),
      'models[0].price.above[1].prompt_tokens: is not more than that of the step before',
    ],
    [
      model(
        'price: {input_per_mtok: 1, output_per_mtok: 1, above: [{prompt_tokens: 9, output_per_mtoken: 9}]}',
      ),
      'models[0].price.above[0].output_per_mtoken: ',
    ],
    [model('spill: {when_down: 5}'), 'models[0].spill.when_down: expected a duration such as 60s, or off'],
    [
      upstream('type: openai, engine: {command: [serve]}'),
      'models[0].upstreams[0].engine.command: needs {socket}, the Unix socket',
    ],
    [
      upstream('type: openai, engine: {command: [serve, "{port}"], files: {a: "{socket}"}}'),
      'models[0].upstreams[0].engine.command: has {socket} and {port}',
    ],
    [
      upstream('type: openai, engine: {command: [serve, "{port}"], files: {"../a": b}}'),
      'models[0].upstreams[0].engine.files.../a: is no name of a file',
    ],
    [
      upstream('type: openai, live: {}, engine: {command: [serve, "{port}"]}'),
      'models[0].upstreams[0].live: excludes engine: only the worker has the key of the server',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", live: {metrics: {promql: \'{namespace="llm"}\'}}'),
      'models[0].upstreams[0].live.metrics.url: is missing; expected the address of a Prometheus',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", live: {metrics: prometheus}'),
      'models[0].upstreams[0].live.metrics: expected the address of its metrics such as',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", live: {metrics: [auto]}'),
      'models[0].upstreams[0].live.metrics: expected the address of its metrics such as',
    ],
    [
      upstream(
        'type: openai, base_url: "http://h/v1", live: {metrics: {url: "http://p:9090", promql: "sum(up)"}}',
      ),
      'models[0].upstreams[0].live.metrics.promql: expected a selector of series in braces such as {namespace="llm", model_name="qwen3-8b"}',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", live: {stale_after: 10ms}'),
      'models[0].upstreams[0].live.stale_after: expected a duration',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", priority: soon'),
      'models[0].upstreams[0].priority: expected one of deadline, deadline-higher-first, found "soon"',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", priority: deadline, live: {priority: 1}'),
      'models[0].upstreams[0].priority: excludes live.priority: keep one of them',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", fairness_header: Authorization'),
      'models[0].upstreams[0].fairness_header: expected the name of a header that begins with x-',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", fairness_header: X-Team, headers: {x-team: a}'),
      'models[0].upstreams[0].fairness_header: is in headers as well: keep one of them',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", service_tier: "fl ex"'),
      'models[0].upstreams[0].service_tier: expected the name of a service tier such as flex',
    ],
    [
      'endpoints: [{path: /v1/embeddings, prompt: input, answer: data}]',
      'endpoints[0].path: /v1/embeddings is built in',
    ],
    [
      'endpoints: [{path: "/v1/a b", prompt: b, answer: c}]',
      'endpoints[0].path: expected the path of an endpoint such as /v1/embeddings',
    ],
    [`endpoints: [{path: a, answer: b}]`, 'endpoints[0].prompt: is missing; expected a list of fields'],
    ['endpoints: [{path: a, prompt: model, answer: c}]', 'endpoints[0].prompt: names model or stream'],
    [
      endpoint('usage: {input: prompt_tokens}'),
      'endpoints[0].usage.input: expected usage. and the name of a count in the usage of the answer',
    ],
    [endpoint('unit: minutes'), 'endpoints[0].unit: expected one of tokens, seconds, requests'],
    [endpoint('unit: seconds'), 'endpoints[0].usage.input: is missing; no estimate says how many seconds'],
    [
      endpoint('unit: requests, usage: {input: usage.a}'),
      'endpoints[0].usage.input: excludes unit: requests, by which each answer counts as one',
    ],
    [
      endpoint('projection: {output_limit: max}'),
      'endpoints[0].projection.output_limit: needs usage.output: without it nothing is generated',
    ],
    [
      'endpoints: [{path: a, prompt: b, answer: c}, {path: /v1/a, prompt: b, answer: c}]',
      'endpoints[1].path: /v1/a is declared before',
    ],
    [model('endpoints: [classify]'), 'models[0].endpoints[0]: expected an endpoint: /v1/chat/completions'],
    ['auth: {proxy: {header: X-Email}}', 'auth.proxy.from: is missing; expected a list of addresses'],
    [proxy('from: 0.0.0.0/0'), 'auth.proxy.from: expected an address such as 10.0.0.7, or a network'],
    [proxy('from: [10.0.0.1, 10.0.0.0/33]'), 'auth.proxy.from[1]: expected an address such as 10.0.0.7'],
    [proxy('from: proxy.internal'), 'but not all addresses, found "proxy.internal"'],
    [proxy('from: "::1"'), 'auth.proxy.groups: is missing; expected a project for each group'],
    [
      proxy('from: "::1", groups: {a: {project: p}}'),
      'auth.proxy.groups_header: is missing; without it there is only the group "*"',
    ],
    [proxy('from: "::1", groups: {"*": {}}'), 'auth.proxy.groups.*.project: is missing'],
    [
      proxy('from: "::1", groups: {"*": {project: p, scopes: [batches]}}'),
      'auth.proxy.groups.*.scopes[0]: expected one of batches:write',
    ],
    [
      proxy('from: "::1", groups: {"*": {project: p}}, sign_out: //evil.example'),
      'auth.proxy.sign_out: expected a path such as /oauth2/sign_out',
    ],
    [
      proxy('from: "::1", groups: {"*": {project: p}}').replace('X-Email', 'Authorization'),
      'auth.proxy.header: is used for something else',
    ],
    [jwt('audience: a, project: p'), 'auth.jwt.jwks_url: is missing; expected the address of the keys'],
    [jwt(`audience: a, ${KEYS_AT}`), 'auth.jwt.project: is missing; expected the name of a claim'],
    [jwt(`project: p, ${KEYS_AT}`), 'auth.jwt.audience: is missing; expected a list of audiences'],
    [
      jwt('audience: a, project: p, jwks_url: "http://i.example/k"'),
      'auth.jwt.jwks_url: expected an https:// address',
    ],
    [
      jwt('audience: a, project: p, jwks_url: "https://u:p@i.example"'),
      'auth.jwt.jwks_url: expected an https:// address',
    ],
    [
      jwt('audience: a, project: p, jwks_file: /nowhere'),
      'auth.jwt.jwks_file: the file /nowhere cannot be read',
    ],
    [
      jwt(`audience: a, project: p, jwks_file: "${secretFile('JSON')}"`),
      'JSON holds no JSON Web Key Set: {"keys": [...]}',
    ],
    [
      jwt(`audience: a, project: p, jwks_file: "${secretFile('private key set')}"`),
      'private key set holds a private key; expected the public keys alone',
    ],
    [
      jwt(`audience: a, project: p, jwks_file: "${secretFile('key set of HMAC')}"`),
      'key set of HMAC holds no public key of type RSA, EC or OKP',
    ],
    [
      jwt(`audience: a, project: p, ${KEYS_AT}, jwks_file: "${secretFile('key set')}"`),
      'auth.jwt.jwks_url: excludes jwks_file: keep one of them',
    ],
    [upstream('type: sim, tier: -1'), 'models[0].upstreams[0].tier: expected a whole number from 0 to 100'],
    [upstream('type: sim, hours: [{days: mon-fry}]'), 'hours[0].days: expected days such as mon-fri'],
    [upstream('type: sim, hours: [{from: "25:00"}]'), 'hours[0].from: expected a time such as "20:00"'],
    [upstream('type: sim, hours: [{from: "24:00"}]'), 'hours[0].from: expected a time before "24:00"'],
    [upstream('type: sim, hours: [{timezone: Europe/Berln}]'), 'Europe/Berln is no time zone'],
    [upstream('type: sim, hours: [{concurrency: 1}]'), 'unknown key; did you mean concurrency_max'],
    [
      upstream('type: openai, base_url: "http://h/v1", ca_file: /none.pem'),
      'ca_file: the file /none.pem cannot be read (ENOENT)',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", client_cert_file: /dev/null'),
      'client_cert_file: needs the other',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", proxy: "proxy:3128"'),
      'proxy: expected the address of a proxy such as',
    ],
    [
      upstream('type: openai, base_url: "http://10.0.0.1:8000/v1", discover: dns'),
      'discover: needs a base_url with a name',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", discover: dns, proxy: "http://p:3128"'),
      'discover: excludes proxy',
    ],
    [upstream('type: openai, base_url: "http://h/v1", discover: srv'), 'discover: expected one of dns'],
    [model('context_window: 10, max_output_tokens: 11'), 'is more than the context_window of 10'],
    [model('supports: {tools: maybe}'), 'models[0].supports.tools: expected true or false, found "maybe"'],
    [
      upstream('type: vllm, base_url: x'),
      'models[0].upstreams[0].type: expected one of sim, openai, openai-batch, anthropic-batch, found "vllm"',
    ],
    [
      upstream('type: anthropic-batch, base_url: "http://h/v1", completion_window: 24h'),
      'models[0].upstreams[0].completion_window: unknown key',
    ],
    [
      'models: [{id: m, endpoints: [/v1/messages, /v1/responses], upstreams: [{type: anthropic-batch, base_url: "http://h/v1"}]}]',
      'models[0].endpoints: has /v1/responses, and an upstream of type anthropic-batch answers /v1/messages alone',
    ],
    [upstream('latency_ms: 5'), 'models[0].upstreams[0].type: is missing'],
    [upstream('type: sim, base_url: x'), 'models[0].upstreams[0].base_url: unknown key'],
    [upstream('type: sim, latency_ms: [9, 5]'), 'latency_ms: expected one number, or two as [least, most]'],
    [
      upstream('type: sim, latency_ms: [1, 2, 3]'),
      'latency_ms: expected one number, or two as [least, most]',
    ],
    [
      upstream('type: sim, faults: {"429": 0.6, hang: 0.6}'),
      'faults: expected fractions that add up to 1 at most',
    ],
    [upstream('type: sim, faults: {429: 2}'), 'faults.429: expected a number from 0 to 1, found 2'],
    [upstream('type: sim, faults: {404: 1}'), 'faults.404: unknown key'],
    [upstream('type: openai'), 'models[0].upstreams[0].base_url: is missing'],
    [
      upstream('type: openai, base_url: localhost:8000'),
      'base_url: expected an http:// or https:// address up to /v1',
    ],
    [upstream('type: openai, base_url: "http://u:pw@h/v1"'), 'found "http://(hidden)@h/v1"'],
    [upstream('type: openai, base_url: "http://h/v1/chat/completions"'), 'base_url: expected an http://'],
    [
      upstream('type: openai-batch, base_url: "http://h/v1", results_from: https://b/x'),
      'results_from: expected an address without path and query, such as https://bucket.example',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", headers: {"a b": c}'),
      'headers.a b: is no name of a header',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", headers: {Connection: close}'),
      'headers.Connection: is a header that the service sets itself',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", headers: {a: 7}'),
      'expected the value of a header, printable ASCII (text goes in quotes)',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", api_key_env: NOT_SET'),
      'the variable NOT_SET is not set',
    ],
    [
      upstream('type: openai, base_url: "http://h/v1", proxy: "http://me:%ZZ@proxy:3128"'),
      'proxy: expected the address of a proxy such as',
    ],
    ...(['two keys', 'JSON', 'assignment', 'nothing'] as const).map((name): [string, string] => [
      upstream(`type: openai, base_url: "http://h/v1", api_key_file: "${secretFile(name)}"`),
      `api_key_file: the file ${secretFile(name)} `,
    ]),
    [
      upstream(`type: openai-batch, base_url: "http://h/v1", api_key_file: "${secretFile('two keys')}"`),
      'more than one line',
    ],
    [
      upstream(`type: openai, base_url: "http://h/v1", ca_file: "${secretFile('JSON')}"`),
      'models[0].upstreams[0]: ca_file holds no certificate in PEM',
    ],
    [
      upstream(
        `type: openai, base_url: "http://h/v1", client_cert_file: "${secretFile('certificate')}", client_key_file: "${secretFile('JSON')}"`,
      ),
      'client_key_file holds no private key in PEM',
    ],
  ]

  for (const [yaml, expected] of table) {
    test(yaml, () => {
      const found = problems(yaml)
      assert.equal(found.length, 1, found.join('\n'))
      assert.ok(found[0]?.includes(expected), `${found[0]}\ndoes not say\n${expected}`)
    })
  }

  test('a misspelt key is reported with its line and the name that was meant', () => {
    const yaml = 'models:\n  - id: m\n    upstreams:\n      - type: openai\n        base_ulr: http://h/v1\n'
    assert.deepEqual(problems(yaml), [
      'offpeak.yaml:5:9: models[0].upstreams[0].base_ulr: unknown key; did you mean base_url?',
    ])
  })

  test('everything that is wrong is reported at once', () => {
    const found = problems(
      'listen: {port: no}\nregin: x',
      { OFFPEAK_LOG_LEVEL: 'loud', OFFPEAK_DATADIR: 'd' },
      { host: ' ' },
    )
    assert.deepEqual(
      found.map((problem) => problem.split(' ')[0]),
      ['--host:', 'offpeak.yaml:1:10:', 'OFFPEAK_LOG_LEVEL:', 'offpeak.yaml:2:1:', 'OFFPEAK_DATADIR:'],
    )
  })

  test('a key given twice is refused at its second place', () => {
    assert.deepEqual(problems('region: a\nregion: b'), [
      'offpeak.yaml:2:1: not valid YAML: Map keys must be unique',
    ])
  })

  test('broken YAML is refused where it breaks', () => {
    assert.match(problems('region: a\nlisten: {port: 1')[0] ?? '', /^offpeak\.yaml:2:\d+: not valid YAML: /)
    assert.match(problems('a: &a [*b]')[0] ?? '', /not valid YAML/)
    assert.match(problems('- a')[0] ?? '', /expected a map of keys, found a list/)
    assert.match(problems('a: 1\n---\nb: 2')[0] ?? '', /not valid YAML/)
  })

  test('an unknown variable is refused, and one that the tests use is not', () => {
    for (const name of ['FOO', 'TOKEN', 'HOME', 'URL', 'KEY'])
      assert.match(
        problems('', { [`OFFPEAK_${name}`]: 'x' })[0] ?? '',
        /: unknown variable; docs\/configuration\.md/,
      )
    assert.deepEqual(problems('', { OFFPEAK_LISTEN_PROT: '1' }), [
      'OFFPEAK_LISTEN_PROT: unknown variable; did you mean OFFPEAK_LISTEN_PORT?',
    ])
    assert.deepEqual(
      problems('', { OFFPEAK_TEST_POSTGRES: 'x', OFFPEAK_API_KEY: 'x', OFFPEAK_BASE_URL: 'x' }),
      [],
    )
  })

  test('variables that Kubernetes sets for a Service are ignored, also where they have the name of a setting', () => {
    const links = (prefix: string, host: string) => ({
      [`${prefix}_SERVICE_HOST`]: host,
      [`${prefix}_SERVICE_PORT`]: '80',
      [`${prefix}_SERVICE_PORT_HTTP`]: '80',
      [`${prefix}_PORT`]: `tcp://${host}:80`,
      [`${prefix}_PORT_80_TCP`]: `tcp://${host}:80`,
      [`${prefix}_PORT_80_TCP_PROTO`]: 'tcp',
      [`${prefix}_PORT_80_TCP_PORT`]: '80',
      [`${prefix}_PORT_80_TCP_ADDR`]: host,
    })
    for (const host of ['10.96.0.7', 'fd00::7'])
      for (const prefix of ['OFFPEAK', 'OFFPEAK_METRICS', 'OFFPEAK_LISTEN', 'OFFPEAK_DATABASE'])
        assert.deepEqual(problems('', links(prefix, host)), [], prefix)
    assert.equal(load('listen: {port: 9}', links('OFFPEAK_LISTEN', '10.96.0.7')).listen.port, 9)
    const wrong = { OFFPEAK_LISTN_PORT: '80', OFFPEAK_SERVICE_HOST: 'db', OFFPEAK_METRICS_PORT: 'http://h:1' }
    assert.equal(problems('', wrong).length, 3)
  })

  test('a default of the image is weaker than everything that an operator writes', () => {
    const env = { OFFPEAK_DEFAULT_LISTEN_HOST: '::', OFFPEAK_DEFAULT_DATA_DIR: '/data' }
    assert.deepEqual(
      [load('', env), load('listen: {host: "[::1]"}\ndata_dir: /file', env)].map(({ listen, data_dir }) => [
        listen.host,
        data_dir,
      ]),
      [
        ['::', '/data'],
        ['::1', '/file'],
      ],
    )
    assert.equal(load('', { ...env, OFFPEAK_LISTEN_HOST: '0.0.0.0' }).listen.host, '0.0.0.0')
    assert.equal(load('', env, { host: '127.0.0.1' }).listen.host, '127.0.0.1')
    assert.deepEqual(problems('', { OFFPEAK_DEFAULT_LISTEN_PORT: 'http' }), [
      'OFFPEAK_DEFAULT_LISTEN_PORT: expected a whole number from 0 to 65535, found "http"',
    ])
    assert.match(problems('', { OFFPEAK_DEFAULT_DATADIR: '/' })[0] ?? '', /^OFFPEAK_DEFAULT_DATADIR: unknown/)
  })

  test('a bad variable is named, and so is the key in one that holds YAML', () => {
    assert.deepEqual(problems('', { OFFPEAK_LISTEN_PORT: 'http' }), [
      'OFFPEAK_LISTEN_PORT: expected a whole number from 0 to 65535, found "http"',
    ])
    assert.deepEqual(problems('', { OFFPEAK_MODELS: '[{id: a, upstreams: [{type: sim, capcity: 1}]}]' }), [
      'OFFPEAK_MODELS: models[0].upstreams[0].capcity: unknown key; did you mean capacity?',
    ])
    assert.match(problems('', { OFFPEAK_MODELS: '[' })[0] ?? '', /^OFFPEAK_MODELS: not valid YAML/)
  })

  test('buckets of batches name prefixes, projects and variables that are there', () => {
    assert.deepEqual(
      problems('buckets: [{url: "s3://b/a b", projects: []}, {url: s3://b, projects: p, access: all}]'),
      [
        'offpeak.yaml:1:12: buckets[0].url: expected s3://bucket/prefix?endpoint=URL&region=NAME&path_style=true, found "s3://b/a b"',
        'offpeak.yaml:1:31: buckets[0].projects: expected at least one item',
        'offpeak.yaml:1:73: buckets[1].access: expected one of read, write, found "all"',
      ],
    )
    const own =
      'buckets: [{url: s3://b, projects: p, access_key_id_env: OWN_ID, secret_access_key_env: hunter2}]'
    assert.deepEqual(problems(own), [
      'offpeak.yaml:1:38: buckets[0].access_key_id_env: the variable OWN_ID is not set; the bucket b needs it',
      'offpeak.yaml:1:65: buckets[0].secret_access_key_env: the variable that it names is not set; the bucket b needs it',
    ])
  })

  test('a bucket with half a key names the other variable, and one without a key has the identity of its process', () => {
    const buckets = 'buckets: [{url: s3://b, projects: p}]'
    assert.deepEqual(problems('blobs: s3://b', { AWS_SECRET_ACCESS_KEY: 's' }), [
      'offpeak.yaml:1:1: blobs: the bucket b needs the variable AWS_ACCESS_KEY_ID',
    ])
    assert.match(problems(buckets, { AWS_ACCESS_KEY_ID: 'i' }).join('|'), /AWS_SECRET_ACCESS_KEY is not set/)
    const { blobs } = load('blobs: s3://b', { AWS_SESSION_TOKEN: 'old' })
    assert.equal(blobs.kind === 's3' && blobs.access_key_id, null)
    assert.deepEqual(
      load(buckets).buckets.map(({ access_key_id }) => access_key_id),
      [null],
    )
  })

  test('a secret in a variable that no header can carry is refused with the name of its variable', () => {
    const server = upstream('type: openai, base_url: "http://h/v1", api_key_env: THE_KEY')
    for (const value of ['sk-a\nsk-b', '{"key": "sk-a"}', 'KEY=sk-a', 'sk-ä'])
      assert.match(problems(server, { THE_KEY: value }).join('|'), /^[^|]*the variable THE_KEY holds[^|]*$/)
    assert.match(
      problems('blobs: s3://b', { AWS_ACCESS_KEY_ID: 'a b', AWS_SECRET_ACCESS_KEY: 's' }).join('|'),
      /^[^|]*the variable AWS_ACCESS_KEY_ID holds[^|]*$/,
    )
    load(server, { THE_KEY: ' sk-a==\n' })
  })

  test('no message shows a secret', () => {
    const secret = 'hunter2'
    const found = problems(upstream(`type: openai, base_url: "http://me:${secret}@h/v1"`), {
      OFFPEAK_DATABASE: `mysql://me:${secret}@h/db`,
      OFFPEAK_MASTER_KEY: secret,
      AWS_SECRET_ACCESS_KEY: secret,
    })
    assert.equal(found.length, 2)
    assert.ok(!found.join('\n').includes(secret))
  })
})

const KEYS = ['base_url', 'api_key_env', 'model', 'concurrency_max', 'timeout', 'headers', 'id']

test('a slip of the fingers is put right', () => {
  const slips = [
    ['base_ulr', 'base_url'],
    ['baseurl', 'base_url'],
    ['BASE-URL', 'base_url'],
    ['timout', 'timeout'],
    ['max_concurrency', null],
    ['concurrency', 'concurrency_max'],
    ['header', 'headers'],
  ] as const
  for (const [slip, meant] of slips) assert.equal(nearest(slip, KEYS), meant, slip)
})

test('nothing is suggested for what resembles nothing', () => {
  for (const wrong of ['colour', 'x', 'temperature', '', 'rate', 'node'])
    assert.equal(nearest(wrong, KEYS), null, wrong)
})

test('of two that are close, the closer one is suggested', () => {
  assert.equal(nearest('lines_mx', ['line_max', 'lines_max']), 'lines_max')
})
