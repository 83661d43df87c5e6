// The logs of a real service at their most talkative: every line is JSON, and nothing secret is in them, however
// much goes wrong.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'
import { test } from 'node:test'
import { send, testUpstream } from '../fakes/upstream.ts'
import { line } from '../service.ts'
import { askApi, uploadForm } from '../support/api.ts'
import { cleanEnv, OFFPEAK } from '../support/offpeak-process.ts'

const CONTENT = 'the-patient-is-called-Mustermann'
const ANSWER = 'the-answer-is-confidential'
const UPSTREAM_KEY = 'sk-upstream-very-secret'
const MASTER_KEY = randomBytes(32).toString('base64')

test('no key and no content of a file shows up in the logs, also when things fail', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-logs-'))
  await using upstream = await testUpstream(({ index, response }) => {
    if (index === 0) send(response, 500, JSON.stringify({ error: { message: ANSWER } }))
    else if (index === 1) response.destroy()
    else send(response, 200, `{"not": "a completion, but ${ANSWER}"}`)
  })
  const config = join(folder, 'offpeak.yaml')
  await writeFile(
    config,
    `
models: [{id: m, upstreams: [{type: openai, base_url: "${upstream.base_url}", api_key_env: SECRET_KEY}]}]
retry: {attempts_max: 3, backoff_min: 1ms, backoff_max: 2ms, outage_patience: 0ms}
log: {level: trace}
`,
  )
  const child = spawn(
    process.execPath,
    [OFFPEAK, 'serve', '--config', config, '--data', join(folder, 'data'), '--port', '0'],
    { env: cleanEnv({ SECRET_KEY: UPSTREAM_KEY, OFFPEAK_MASTER_KEY: MASTER_KEY }) },
  )
  try {
    const logged = text(child.stderr)
    const [ready] = await Promise.race([
      once(createInterface({ input: child.stdout }), 'line'),
      logged.then((rows) => assert.fail(`the service did not start: ${rows}`)),
    ])
    const url = String(ready).replace('offpeak listening on ', '')
    const key = (await readFile(join(folder, 'data', 'api-key'), 'utf8')).trim()
    const call = async (method: string, path: string, body?: object, bearer = key) => {
      const response = await askApi({ url, key: bearer }, method, path, body)
      const answer: Record<string, string> = JSON.parse(await response.text())
      return answer
    }
    const upload = async (content: string) => {
      let file = await call('POST', '/v1/files', uploadForm(content))
      while (file.status === 'pending') file = await call('GET', `/v1/files/${file.id}`)
      return file
    }
    assert.equal((await upload(`{"custom_id": "${CONTENT}`)).status, 'error')
    const file = await upload(JSON.stringify(line('a', CONTENT)))
    const order = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    let batch = await call('POST', '/v1/batches', { ...order, metadata: { tags: CONTENT } })
    while (batch.status !== 'completed') batch = await call('GET', `/v1/batches/${batch.id}`)
    assert.equal(upstream.calls.length, 3)
    const hook = await call('POST', '/v1/webhooks', { url: 'https://example.com/hook' })
    assert.match(String(hook.secret), /^whsec_/)
    await call('GET', '/v1/models', undefined, `${key}x`)
    await call('GET', `/v1/batches?after=${key}`)
    await call('POST', '/v1/batches', { ...order, metadata: { [CONTENT]: 1 } })

    child.kill('SIGTERM')
    const rows = (await logged).trimEnd().split('\n')
    assert.ok(rows.length > 10)
    const records = rows
      .filter((row) => !row.startsWith('offpeak: created '))
      .map((row): { msg: string; time: number; level: number } => JSON.parse(row))
    assert.ok(records.every(({ msg, time, level }) => msg !== undefined && time > 0 && level > 0))
    assert.ok(records.some(({ msg }) => msg === 'batch ended'))
    const secrets = { key, CONTENT, ANSWER, UPSTREAM_KEY, MASTER_KEY, hook: String(hook.secret) }
    for (const [name, secret] of Object.entries(secrets))
      assert.equal(
        rows.find((row) => row.includes(secret)),
        undefined,
        `${name} is in the logs`,
      )
  } finally {
    if (child.exitCode === null) child.kill('SIGKILL')
    await rm(folder, { recursive: true, force: true })
  }
})
