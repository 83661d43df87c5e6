// What only an operator can change is told to the log; callers read that the server cannot be used.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Log } from '../src/domain/log.ts'
import { send, testUpstream } from './fakes/upstream.ts'
import { configFor, line, TestService } from './service.ts'

function collectingLog(): Log & { warnings: string[] } {
  const warnings: string[] = []
  return {
    warnings,
    info() {},
    warn: (fields, text) => warnings.push(JSON.stringify({ ...fields, text })),
    error() {},
  }
}

async function failedLine(base_url: string, log: Log): Promise<string> {
  await using service = await TestService.start(configFor(base_url), { log })
  const batch = await service.run([line('a')])
  const [failed] = await service.lines(batch.error_file_id)
  const record = await service.json('GET', `/v1/requests/${failed!.id}`)
  return JSON.stringify([failed, record])
}

test('a wrong base_url is advice for the log, not for callers', async () => {
  await using upstream = await testUpstream(({ response }) => send(response, 404, 'nothing here'))
  const log = collectingLog()
  const told = await failedLine(upstream.base_url, log)
  assert.match(told, /the server does not offer \/v1\/chat\/completions \(404\)/)
  assert.doesNotMatch(told, /base_url/)
  const advice = log.warnings.filter((warning) =>
    warning.includes('a model server failed to answer a request'),
  )
  assert.equal(advice.length, 1, log.warnings.join('\n'))
  assert.match(advice[0]!, /check base_url: 404: nothing here/)
})

test('the address of a server that is gone is for the log, not for callers', async () => {
  const upstream = await testUpstream()
  await upstream.close()
  const log = collectingLog()
  const told = await failedLine(upstream.base_url, log)
  const address = new URL(upstream.base_url).host
  assert.match(told, /no connection to the server \(ECONNREFUSED\)/)
  assert.ok(log.warnings.some((warning) => warning.includes(address)))
  assert.ok(!told.replace(/"upstream":"[^"]*"/g, '').includes(address), told)
})
