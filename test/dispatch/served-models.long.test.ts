// What a server says of its models counts where the configuration is silent.
import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { serve } from '../../src/compose/serve.ts'
import { loadConfig } from '../../src/config/load.ts'
import { type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { line, type WireBatch, type WireLine } from '../service.ts'
import { callApi, parsedLines, uploadForm } from '../support/api.ts'

const LISTED = {
  object: 'list',
  data: [
    { id: 'base', object: 'model', owned_by: 'vllm', root: 'base', parent: null, max_model_len: 100 },
    { id: 'sql-lora', object: 'model', owned_by: 'vllm', root: '/loras/sql', parent: 'base' },
  ],
}

async function withService(
  folder: string,
  upstream: TestUpstream,
  use: (call: <T>(path: string, body?: FormData | object) => Promise<T>) => Promise<void>,
): Promise<void> {
  const models = [{ id: 'm', upstreams: [{ type: 'openai', base_url: upstream.base_url, model: 'base' }] }]
  const env = { OFFPEAK_MODELS: JSON.stringify(models), OFFPEAK_RATE_LIMIT_REQUESTS_PER_MINUTE: 'off' }
  const overrides = { data: folder, port: '0', log_level: 'silent' }
  const running = await serve(loadConfig({ env, overrides, cwd: folder }), { role: 'all' })
  try {
    const key = (await readFile(join(folder, 'api-key'), 'utf8')).trim()
    await use(async (path, body) => {
      const text = await callApi({ url: String(running.url), key }, body ? 'POST' : 'GET', path, body)
      return path.endsWith('/content') ? text : JSON.parse(text)
    })
  } finally {
    await running.stop()
  }
}

test('windows and adapters come from the server, and are known when it is down at the next start', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-served-'))
  const upstream = await testUpstream()
  upstream.models = LISTED
  try {
    await withService(folder, upstream, async (call) => {
      let models: { id: string; context_window: number }[] = []
      // A server that says nothing within the first second, as on a busy machine, is asked again.
      while (models.length < 2) models = (await call<{ data: typeof models }>('/v1/models')).data
      assert.deepEqual(models.map(({ id, context_window }) => [id, context_window]).toSorted(), [
        ['m', 100],
        ['sql-lora', 100],
      ])
      const lines = [
        line('short'),
        line('long', 'a long story '.repeat(1000)),
        line('adapter', 'which table?', { model: 'sql-lora' }),
        line('unknown', 'who?', { model: 'other-lora' }),
      ]
      const { id: input_file_id } = await call<{ id: string }>('/v1/files', uploadForm(lines))
      const order = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' }
      let batch = await call<WireBatch>('/v1/batches', order)
      while (batch.status !== 'completed') batch = await call<WireBatch>(`/v1/batches/${batch.id}`)
      assert.deepEqual(upstream.calls.map(({ body }) => body.model).toSorted(), ['base', 'sql-lora'])
      const errors = await call<string>(`/v1/files/${batch.error_file_id}/content`)
      const failed = parsedLines<WireLine>(errors)
      assert.deepEqual(
        failed.map(({ custom_id, error }) => [custom_id, error?.code]),
        [
          ['long', 'context_length_exceeded'],
          ['unknown', 'model_not_found'],
        ],
      )
    })
    await upstream.close()
    await withService(folder, upstream, async (call) => {
      const model = await call<{ context_window: number }>('/v1/models/sql-lora')
      assert.equal(model.context_window, 100)
    })
  } finally {
    await upstream.close()
    await rm(folder, { recursive: true, force: true })
  }
})
