// Projections learn from what servers report, and what cannot fit into a context window is refused before it is sent.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { PromptLearner } from '../../src/ledger/prompt-learner.ts'
import type { BatchEstimate } from '../../src/wire/batch.ts'
import { completion, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'
import { queuedBatch } from '../support/queued-batch.ts'

const TEXT = 'word '.repeat(200)

function lines(count: number): object[] {
  return Array.from({ length: count }, (_, i) => line(`l${i}`, TEXT, { max_tokens: 5 }))
}

function promptBytes(): number {
  return JSON.stringify([{ role: 'user', content: TEXT }]).length
}

test('projections follow the tokens that servers report, and an estimate tells by how much', async () => {
  // Two bytes per token where the default is four: projections become higher.
  const prompt_tokens = Math.ceil(promptBytes() / 2)
  const usage = { prompt_tokens, completion_tokens: 5, total_tokens: prompt_tokens + 5 }
  await using upstream = await testUpstream(({ response }) => send(response, 200, completion('ok', usage)))
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(
    lines(50)
      .map((one) => JSON.stringify(one))
      .join('\n'),
  )
  const estimate = async (): Promise<BatchEstimate> =>
    await service.json('POST', '/v1/batches?dry_run=true', {
      input_file_id: file.id,
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
    })
  const before = await estimate()
  assert.equal(before.groups[0]?.bytes_per_token, 4)
  assert.equal(before.input_tokens, 50 * Math.ceil(promptBytes() / 4))
  const batch = await service.create(file.id)
  await service.ended(batch.id)
  // What a worker has learned is shared when it stops, and every few seconds before.
  await service.worker.stop()
  const after = await estimate()
  const { bytes_per_token, cost_usd } = after.groups[0]!
  // 2 bytes per token, less the margin of a tenth, to two decimals.
  assert.equal(bytes_per_token, 1.82)
  assert.ok(after.input_tokens >= 50 * prompt_tokens && after.input_tokens < 50 * prompt_tokens * 1.2)
  assert.ok(cost_usd > before.cost_usd)
  await service.restartWorker()
})

test('a line that cannot fit its window ends unsent, one that may fit is sent', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(
    configFor(upstream.base_url).replace('    price:', '    context_window: 1000\n    price:'),
  )
  const batch = await service.run([
    line('whole-window', 'x', { max_tokens: 1000 }),
    line('too-long', 'international '.repeat(1300)),
    line('may-fit', 'international '.repeat(900)),
    line('fits', 'x', { max_tokens: 999 }),
  ])
  const failed = await service.lines(batch.error_file_id)
  assert.deepEqual(
    failed.map(({ custom_id, error }) => [custom_id, error?.code, error?.param]),
    [
      ['whole-window', 'context_length_exceeded', 'messages'],
      ['too-long', 'context_length_exceeded', 'messages'],
    ],
  )
  assert.equal(upstream.calls.length, 2)
})

test('sums that could not be stored are shared the next time', async () => {
  await using world = await queuedBatch({ chunks: 1, lines: 2 })
  const { store, models } = world
  let fails = true
  const learner = new PromptLearner(
    {
      ...store,
      writeAsyncCommit: async (change) => {
        if (fails) throw new Error('no connection')
        return await store.writeAsyncCommit(change)
      },
    },
    models,
  )
  const [run] = await world.open()
  const [first, second] = run!.lines
  learner.ended(first!, 10)
  const failed = learner.share()
  learner.ended(second!, 10)
  await assert.rejects(failed)
  fails = false
  await learner.share()
  await learner.share()
  const { bytes, tokens } = models.get('m')!.seen!
  assert.deepEqual([bytes, tokens], [first!.prompt_bytes! + second!.prompt_bytes!, 20])
})
