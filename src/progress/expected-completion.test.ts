import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type TestServer, testServer } from '../../test/support/test-server.ts'
import { emptySums } from '../jsonl/projection.ts'
import { openSession, setWorkerReport } from '../store/workers.ts'
import type { UpstreamStatus } from '../wire/status.ts'

const UPSTREAM: UpstreamStatus = {
  model: 'sim-1',
  upstream: 'a',
  in_flight: 0,
  concurrency: 10,
  concurrency_max: 10,
  circuit: 'closed',
  lines_per_s: 0,
  latency_ms: null,
  errors_per_s: 0,
  last_error: null,
}

/** The estimate for a file of so many lines of the model sim-1: seconds from now, or null. */
async function secondsFor(server: TestServer, lines: number, more: object = {}): Promise<number | null> {
  const sums = {
    ...emptySums('sim-1', null),
    ...{ lines, input_tokens: lines, output_tokens_max_given: lines },
  }
  const input_file_id = await server.processedFile({ line_count: lines, groups: [sums] })
  const body = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h', ...more }
  const answer = await server.call('POST', '/v1/batches?dry_run=true', { body })
  assert.equal(answer.outcome, '200', answer.text)
  const { estimated_completion: at } = answer.json
  return at === null ? null : Number(at) - Math.floor(server.clock.now() / 1000)
}

test('a batch would be done when its servers have answered it and the lines of open batches', async () => {
  await using server = await testServer()
  const { store } = server.deps
  const now = server.clock.now()
  const worker_id = await store.write((tx) => openSession(tx, 1e9, now))
  const report = async (...upstreams: UpstreamStatus[]): Promise<void> =>
    await store.write((tx) =>
      setWorkerReport(tx, worker_id, { open_chunks: 0, stores_failing: false, upstreams }, now),
    )
  assert.equal(await secondsFor(server, 1_000), null, 'nothing is known of the speed')
  await report({ ...UPSTREAM, latency_ms: 500 })
  assert.equal(await secondsFor(server, 1_000), 50, '20 lines a second')
  await report(
    { ...UPSTREAM, latency_ms: 500 },
    { ...UPSTREAM, upstream: 'b' },
    { ...UPSTREAM, upstream: 'c', circuit: 'open' },
  )
  assert.equal(await secondsFor(server, 1_000), 25, 'two servers are up')
  const start_after = Math.floor(server.clock.now() / 1000) + 600
  assert.equal(await secondsFor(server, 1_000, { start_after }), 625)
})
