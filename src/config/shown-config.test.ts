import assert from 'node:assert/strict'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { loadConfig } from './load.ts'
import { HIDDEN, shownConfig } from './shown-config.ts'

test('the configuration is shown without any of its secrets', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'offpeak-shown-'))
  const file = join(folder, 'offpeak.yaml')
  writeFileSync(
    file,
    `data_dir: ${folder}
database: postgres://user:SECRET1@db/offpeak?password=SECRET2
blobs: s3://bucket/prefix?endpoint=http://127.0.0.1:9000
models:
  - id: m
    price: {input_per_mtok: 0.10, output_per_mtok: 0.40}
    upstreams:
      - {type: openai, base_url: "http://127.0.0.1:8000/v1", api_key_env: UP, headers: {X-Team: SECRET3}}
`,
  )
  const env = {
    UP: 'SECRET4',
    AWS_ACCESS_KEY_ID: 'SECRET5',
    AWS_SECRET_ACCESS_KEY: 'SECRET6',
    AWS_SESSION_TOKEN: 'SECRET7',
    OFFPEAK_MASTER_KEY: Buffer.alloc(32, 7).toString('base64'),
  }
  const shown = shownConfig(loadConfig({ file, env, overrides: {} }))
  await rm(folder, { recursive: true })
  const text = JSON.stringify(shown)
  assert.ok(!text.includes('SECRET'), text)
  assert.ok(!text.includes(env.OFFPEAK_MASTER_KEY))
  assert.equal(shown.master_key, HIDDEN)
  for (const seen of [
    'postgres://user:hidden@db/offpeak',
    '"bucket":"bucket"',
    'http://127.0.0.1:8000/v1',
    '"payg"',
  ])
    assert.ok(text.includes(seen), `${seen} in ${text}`)
})
