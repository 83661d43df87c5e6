// A changed configuration is taken up by a running service, with lines in flight; a bad one changes nothing.
import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { echo, testUpstream } from '../fakes/upstream.ts'
import { line } from '../service.ts'
import { askApi, callApi, uploadForm } from '../support/api.ts'
import { cleanEnv } from '../support/offpeak-process.ts'

const MAIN = new URL('../../src/main.ts', import.meta.url).pathname

test('reload moves a batch to another upstream and price without losing a line in flight', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-reload-'))
  const held: (() => void)[] = []
  await using first = await testUpstream((call) => {
    if (held.length < 2) held.push(() => echo(call))
    else echo(call)
  })
  await using second = await testUpstream()
  const config = (upstream: string, price: number): string => `
models:
  - id: m
    price: {input_per_mtok: ${price}, output_per_mtok: 0}
    upstreams: [{type: openai, base_url: "${upstream}", concurrency_max: 2}]
worker: {flush_interval: 20ms, processes: 1}
log: {level: silent}
`
  const file = join(folder, 'offpeak.yaml')
  await writeFile(file, config(first.base_url, 1))
  const env = cleanEnv({ AWS_ACCESS_KEY_ID: 'id', AWS_SECRET_ACCESS_KEY: 'secret' })
  const service = spawn(process.execPath, [MAIN, 'serve', '--port', '0'], {
    cwd: folder,
    env,
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const offpeak = (...args: string[]) =>
    promisify(execFile)(process.execPath, [MAIN, ...args], { cwd: folder, env })
  try {
    const url = await new Promise<string>((resolve) => {
      let text = ''
      service.stdout.on('data', (bytes) => {
        text += bytes
        const found = /listening on (\S+)/.exec(text)
        if (found) resolve(found[1]!)
      })
    })
    const at = { url, key: (await readFile(join(folder, 'offpeak-data', 'api-key'), 'utf8')).trim() }
    const call = async <T>(path: string, body?: object): Promise<T> =>
      JSON.parse(await callApi(at, body ? 'POST' : 'GET', path, body)) as T
    const refused = async (): Promise<string> => {
      const order = { input_url: 's3://data/x', endpoint: '/v1/chat/completions', completion_window: '24h' }
      const answer = await askApi(at, 'POST', '/v1/batches', order)
      return ((await answer.json()) as { error: { message: string } }).error.message
    }
    assert.match(await refused(), /may read no bucket/)
    const form = uploadForm(Array.from({ length: 40 }, (_, i) => line(`l${i}`)))
    const { id: input_file_id } = await call<{ id: string }>('/v1/files', form)
    const order = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    const { id } = await call<{ id: string }>('/v1/batches', order)
    await first.arrived(2)

    await writeFile(file, `${config(second.base_url, 2)}\nregin: eu\n`)
    await assert.rejects(offpeak('reload'), { code: 1, stderr: /unknown key; did you mean region/ })
    await writeFile(
      file,
      `${config(second.base_url, 2)}\nlimits: {lines_max: 7}\nbuckets: [{url: s3://data/in, projects: default}]\n`,
    )
    const done = await offpeak('reload')
    assert.match(done.stdout, /has taken up the configuration/)
    assert.match(done.stderr, /needs a restart for changes of limits/)
    const model = await call<{ pricing: { input_per_mtok: number } }>('/v1/models/m')
    assert.equal(model.pricing.input_per_mtok, 2)
    assert.match(await refused(), /may read s3:\/\/data\/in\//)
    await second.arrived(38)
    for (const release of held) release()
    for (;;) {
      const batch = await call<{ status: string; request_counts: object }>(`/v1/batches/${id}`)
      if (batch.status !== 'completed') continue
      assert.deepEqual(batch.request_counts, { total: 40, completed: 40, failed: 0 })
      break
    }
    assert.deepEqual([first.calls.length, second.calls.length], [2, 38])
    const shown = await offpeak('config', 'show')
    assert.match(shown.stdout, /when_down_ms: 60000/)
  } finally {
    service.kill('SIGTERM')
    await once(service, 'exit')
    await rm(folder, { recursive: true, force: true })
  }
})
