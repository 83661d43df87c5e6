// Errors by code and message, and the timeline of a batch: written by its commits.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createKey } from '../../src/admin/create-key.ts'
import { echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

interface Errors {
  failed: number
  other: number
  groups: {
    code: string
    pattern: string | null
    message: string
    lines: number
    retryable: boolean
    advice: string
  }[]
}

interface Timeline {
  interval_s: number
  points: {
    at: number
    completed: number
    failed: number
    prompt_tokens: number
    completion_tokens: number
    cost_usd: number
  }[]
  states: { status: string; at: number }[]
}

const errorsOf = (service: TestService, id: string): Promise<Errors> =>
  service.json<Errors>('GET', `/v1/batches/${id}/errors`)

const sum = (numbers: number[]): number => numbers.reduce((a, b) => a + b, 0)

test('failed lines are counted by code and message, and what finished by time, to the last line', async () => {
  await using upstream = await testUpstream((call) => {
    const content = call.body.messages[0]!.content
    if (content.startsWith('bad'))
      send(call.response, 400, `{"error":{"message":"token ${call.index} is bad"}}`)
    else echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run(
    Array.from({ length: 1500 }, (_, i) => {
      if (i % 100 === 0) return line(`x${i}`, 'x', { model: 'unknown' })
      return line(`x${i}`, i % 10 === 0 ? `bad ${i}` : 'good')
    }),
  )
  assert.equal(batch.request_counts.failed, 150)
  const errors = await errorsOf(service, batch.id)
  assert.deepEqual([errors.failed, errors.other], [150, 0])
  assert.deepEqual(
    errors.groups.map(({ code, lines, retryable }) => [code, lines, retryable]),
    [
      ['upstream_rejected', 135, false],
      ['model_not_found', 15, false],
    ],
  )
  const [rejected] = errors.groups
  assert.match(rejected?.pattern ?? '', /token 0 is bad/)
  assert.match(rejected?.message ?? '', /token \d+ is bad/)
  assert.match(rejected?.advice ?? '', /^Fix the body of the line/)

  const timeline = await service.json<Timeline>('GET', `/v1/batches/${batch.id}/timeline`)
  const { points } = timeline
  assert.equal(sum(points.map(({ completed }) => completed)), batch.request_counts.completed)
  assert.equal(sum(points.map(({ failed }) => failed)), 150)
  assert.equal(sum(points.map((point) => point.prompt_tokens)), 13_500)
  assert.equal(sum(points.map((point) => point.completion_tokens)), 6_750)
  assert.equal(sum(points.map((point) => point.cost_usd)).toFixed(9), batch.cost_usd.toFixed(9))
  assert.deepEqual(
    timeline.states.map(({ status }) => status),
    ['validating', 'in_progress', 'completed'],
  )
})

test('a batch in which no line can run tells why', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run([line('a', 'a', { model: 'x' }), line('b', 'b', { model: 'x' })])
  assert.equal(batch.status, 'failed')
  const { groups, failed, other } = await errorsOf(service, batch.id)
  assert.deepEqual([failed, other], [2, 0])
  assert.deepEqual(
    groups.map(({ code, lines }) => [code, lines]),
    [['model_not_found', 2]],
  )
})

test('a cancelled batch counts the lines that were not sent', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(JSON.stringify(line('a')))
  await service.worker.stop()
  const { id } = await service.create(file.id)
  await service.json('POST', `/v1/batches/${id}/cancel`)
  await service.restartWorker()
  await service.ended(id)
  const { groups } = await errorsOf(service, id)
  assert.deepEqual(
    groups.map(({ code, lines, retryable }) => [code, lines, retryable]),
    [['batch_cancelled', 1, true]],
  )
})

test('lines that failed under an earlier version are other ones, and other projects see nothing', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const batch = await service.run([line('a', 'a', { model: 'x' }), line('b')])
  const { store } = service.stores
  service.tampered = true
  await store.write(async (tx) => {
    await tx.deleteFrom('batch_statistics').execute()
  })
  assert.deepEqual(await errorsOf(service, batch.id), {
    object: 'batch_errors',
    batch_id: batch.id,
    failed: 1,
    groups: [],
    other: 1,
  })
  const { points } = await service.json<Timeline>('GET', `/v1/batches/${batch.id}/timeline`)
  assert.deepEqual(points, [])

  const other = await createKey(store, store.clock, 'local', { project: 'other', plan: 'payg' })
  for (const path of ['errors', 'timeline']) {
    const ask = async (id: string): Promise<[number, string]> => {
      const headers = { authorization: `Bearer ${other.key}` }
      const response = await fetch(`${service.url}/v1/batches/${id}/${path}`, { headers })
      return [response.status, await response.text()]
    }
    const never = await ask('batch_00000000000000000000000000')
    assert.equal(never[0], 404)
    assert.deepEqual(await ask(batch.id), never)
  }
})
