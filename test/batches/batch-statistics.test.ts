// Errors by code and message, and the timeline of a batch: written by its commits.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createKey } from '../../src/admin/create-key.ts'
import type { BatchObject } from '../../src/wire/batch.ts'
import type { EventObject } from '../../src/wire/event.ts'
import type { List } from '../../src/wire/shape.ts'
import type { UsageHours, UsageObject } from '../../src/wire/usage.ts'
import { echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

interface Errors {
  failed: number
  not_run: number
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
    not_run: number
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
    Array.from({ length: 1_100 }, (_, i) => {
      if (i % 100 === 0) return line(`x${i}`, 'x', { model: 'unknown' })
      return line(`x${i}`, i % 10 === 0 ? `bad ${i}` : 'good')
    }),
  )
  assert.equal(batch.request_counts.failed, 110)
  const errors = await errorsOf(service, batch.id)
  assert.deepEqual([errors.failed, errors.other], [110, 0])
  assert.deepEqual(
    errors.groups.map(({ code, lines, retryable }) => [code, lines, retryable]),
    [
      ['upstream_rejected', 99, false],
      ['model_not_found', 11, false],
    ],
  )
  const [rejected] = errors.groups
  assert.match(rejected?.pattern ?? '', /token 0 is bad/)
  assert.match(rejected?.message ?? '', /token \d+ is bad/)
  assert.match(rejected?.advice ?? '', /^Fix the body of the line/)

  const timeline = await service.json<Timeline>('GET', `/v1/batches/${batch.id}/timeline`)
  const { points } = timeline
  assert.equal(sum(points.map(({ completed }) => completed)), batch.request_counts.completed)
  assert.equal(sum(points.map(({ failed }) => failed)), 110)
  assert.equal(sum(points.map((point) => point.prompt_tokens)), 9_900)
  assert.equal(sum(points.map((point) => point.completion_tokens)), 4_950)
  assert.equal(sum(points.map((point) => point.cost_usd)).toFixed(9), batch.cost_usd.toFixed(9))
  assert.deepEqual(
    timeline.states.map(({ status }) => status),
    ['validating', 'in_progress', 'completed'],
  )

  const { hours, end } = await service.json<UsageHours>('GET', '/v1/usage/hours?hours=2')
  assert.deepEqual(
    hours.map(({ at }) => Math.floor(end / 3600) - at / 3600),
    [1, 0],
  )
  const { completed, failed, not_run } = await service
    .json<UsageObject>('GET', '/v1/usage/entities')
    .then(({ succeeded: completed, ...usage }) => ({ completed, ...usage }))
  for (const [name, total] of Object.entries({ completed, failed, not_run, prompt_tokens: 9_900 }))
    assert.equal(sum(hours.map((hour) => Number(Reflect.get(hour, name)))), total, name)
  assert.equal(sum(hours.map(({ cost_usd }) => cost_usd)).toFixed(9), batch.cost_usd.toFixed(9))
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

test('lines that were never sent are told apart from those that failed, wherever lines are counted', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const file = await service.upload(JSON.stringify(line('a')))
  await service.worker.stop()
  const { id } = await service.create(file.id)
  await service.json('POST', `/v1/batches/${id}/cancel`)
  await service.restartWorker()
  await service.ended(id)
  const errors = await errorsOf(service, id)
  assert.deepEqual(
    errors.groups.map(({ code, lines, retryable }) => [code, lines, retryable]),
    [['batch_cancelled', 1, true]],
  )
  const { points } = await service.json<Timeline>('GET', `/v1/batches/${id}/timeline`)
  const { hours } = await service.json<UsageHours>('GET', '/v1/usage/hours?hours=1')
  const usage = await service.json<UsageObject>('GET', '/v1/usage/entities')
  const { data: events } = await service.json<List<EventObject>>('GET', '/v1/events')
  const { request_counts, not_run } = await service.json<BatchObject>('GET', `/v1/batches/${id}`)
  assert.deepEqual([request_counts, not_run], [{ total: 1, completed: 0, failed: 1 }, 1])
  assert.deepEqual(
    [errors, ...points, ...hours, usage].map(({ failed, not_run }) => [failed, not_run]),
    [
      [1, 1],
      [1, 1],
      [1, 1],
      [1, 1],
    ],
  )
  assert.equal(events[0]?.data.not_run, 1)
  const csv = await (await service.request('GET', '/v1/usage/entities?format=csv')).text()
  assert.match(csv, /^lines,succeeded,failed,not_run,.*\r?\n1,0,1,1,/)
})

test('failed lines without a group are other ones, and other projects see nothing', async () => {
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
    not_run: 0,
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
