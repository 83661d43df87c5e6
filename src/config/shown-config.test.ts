import assert from 'node:assert/strict'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { stringify } from 'yaml'
import { HIDDEN } from '../domain/text.ts'
import type { Config } from './config.ts'
import { type ConfigRequest, keysOf, loadConfig } from './load.ts'
import { CONFIG_FILE } from './schema.ts'
import { isSecretKey, shownConfig } from './shown-config.ts'
import { ConfigError } from './sources.ts'

async function load(yaml: string, request: Partial<ConfigRequest> = {}): Promise<Config> {
  const folder = mkdtempSync(join(tmpdir(), 'offpeak-shown-'))
  const file = join(folder, 'offpeak.yaml')
  writeFileSync(file, yaml)
  try {
    return loadConfig({ file, env: {}, overrides: {}, ...request })
  } finally {
    await rm(folder, { recursive: true })
  }
}

/** A configuration with a secret in every possible place, also in wrong ones. */
const HOSTILE = `
database: postgres://user:SECRET/1@db/offpeak?password=SECRET2&sslmode=require&options=-c%20SECRET3
blobs: s3://bucket/prefix?endpoint=http://SECRET4:SECRET5@127.0.0.1:9000
buckets: [{url: s3://bucket/in, projects: [p]}]
models:
  - id: m
    price: {input_per_mtok: 0.10, output_per_mtok: 0.40}
    upstreams:
      - type: openai
        base_url: "http://127.0.0.1:8000/v1?api-version=3&code=SECRET6"
        api_key_env: UP
        headers: {X-Team: SECRET7}
        proxy: http://SECRET8:SECRET9@proxy:3128
        live: {metrics: "http://127.0.0.1:8000/metrics?token=SECRET10"}
      - type: openai-batch
        base_url: https://batches.example/v1
        webhook_secret: whsec_SECRETSECRETSECRETSECRETSECRET11
      - type: openai
        engine:
          command: [serve, "{port}", --api-key, SECRET12, --hf-token=SECRET13, --model, "https://SECRET14@hub/m"]
          env: {ANY: SECRET15}
          files: {"a.yaml": "key: SECRET16"}
`
const ENV = {
  UP: 'SECRET17',
  AWS_ACCESS_KEY_ID: 'SECRET18',
  AWS_SECRET_ACCESS_KEY: 'SECRET19',
  AWS_SESSION_TOKEN: 'SECRET20',
  OFFPEAK_MASTER_KEY: Buffer.alloc(32, 7).toString('base64'),
}

test('the configuration is shown without any of its secrets, to operators as on a terminal', async () => {
  const config = await load(HOSTILE.replace('SECRET/1', 'SECRET1'), { env: ENV })
  const shown = shownConfig(config)
  for (const text of [JSON.stringify(shown), stringify(shown)]) {
    assert.doesNotMatch(text, /SECRET/)
    assert.ok(!text.includes(ENV.OFFPEAK_MASTER_KEY))
    for (const seen of [
      'postgres://user:(hidden)@db/offpeak?password=(hidden)&sslmode=require&options=(hidden)',
      'http://(hidden)@127.0.0.1:9000',
      'http://127.0.0.1:8000/v1?api-version=3&code=(hidden)',
      'http://(hidden)@proxy:3128',
      'bucket',
      '--hf-token=(hidden)',
      'payg',
      'X-Team',
      '24h',
    ])
      assert.ok(text.includes(seen), `${seen} in ${text}`)
  }
  assert.equal(shown.master_key, HIDDEN)
})

test('a text that no key declares is hidden, so that what is added is not forgotten', async () => {
  const config = await load('{}')
  const more = { ...config, added: 'SECRET', models: [{ ...config.models[0]!, added: ['SECRET'] }] }
  assert.doesNotMatch(JSON.stringify(shownConfig(more)), /SECRET/)
})

test('of a master key elsewhere, its place is shown and its token is not', async () => {
  const key =
    'master_key: {encrypted: key, by: vault_transit, key_id: offpeak, address: "https://vault:8200"}'
  const env = { VAULT_TOKEN: 's.SECRET', OFFPEAK_MASTER_KEY: 'SECRET' }
  const { encrypted_key } = shownConfig(await load(key, { env }))
  assert.doesNotMatch(JSON.stringify(encrypted_key), /SECRET/)
  assert.match(JSON.stringify(encrypted_key), /"address":"https:\/\/vault:8200"/)
})

test('keys that sound like secrets are declared to be secret', () => {
  const names = [...keysOf(CONFIG_FILE).keys()].flatMap((path) => path.replaceAll('[]', '').split('.'))
  const sounds = names.filter((name) =>
    /key|secret|token|password|credential|headers|^env$|^files$/i.test(name),
  )
  // Keys that name a place, or count tokens or keys, are no secrets.
  const secrets = new Set(sounds.filter((name) => !/_(file|env|id)$|tokens(_max)?$|^keys$/.test(name)))
  assert.deepEqual([...secrets].sort(), ['env', 'files', 'headers', 'master_key', 'webhook_secret'])
  for (const name of secrets) assert.ok(isSecretKey(name), name)
})

test('what is said of a wrong value does not tell it where it is a secret', async () => {
  const wrong = [
    'database: postgres://user:SECRET/1@db:x/offpeak?password=SECRET2',
    'database: postgress://user:SECRET@db/offpeak',
    'blobs: s3://SECRET:SECRET@bucket',
    'models: [{id: m, upstreams: [{type: openai, base_url: "https://SECRET@host/v1"}]}]',
    'models: [{id: m, upstreams: [{type: openai, base_url: "http://h/v1", api_key_env: sk-SECRET}]}]',
    'models: [{id: m, upstreams: [{type: openai, base_url: "http://h/v1", api_key_env: sk_SECRET}]}]',
    'models: [{id: m, upstreams: [{type: openai, base_url: "http://h/v1", proxy: "http://SECRET:SECRET@p:1/x"}]}]',
    'models: [{id: m, upstreams: [{type: openai, base_url: "http://h/v1", headers: {X: "SECRET\\u00fc"}}]}]',
    'models: [{id: m, upstreams: [{type: openai-batch, base_url: "http://h/v1", webhook_secret: SECRET}]}]',
    'models: [{id: m, upstreams: [{type: openai, engine: {command: [a, "{port}"], env: {A: "SECRET\\nSECRET"}}}]}]',
    'database: user:SECRET@db/offpeak',
    'database: postgres:/user:SECRET@db/offpeak',
    'models: [{id: m, upstreams: [{type: openai, base_url: "h/v1?key=SECRET"}]}]',
    'database: "a" SECRET',
    'database: *SECRET',
    'database: {SECRET',
    'database: @SECRET',
  ]
  for (const yaml of wrong)
    await assert.rejects(load(yaml), (error) => {
      assert.ok(error instanceof ConfigError, `${yaml}: ${error}`)
      assert.doesNotMatch(error.message, /SECRET/, yaml)
      return true
    })
})
