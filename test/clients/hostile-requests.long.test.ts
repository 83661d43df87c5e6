import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'
import { besiege } from '../support/hostile-requests.ts'

const REQUESTS = 2_000

test('hostile requests are answered in the envelope, none with a 500, and the service goes on', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  const input = [line('a'), line('b', 'b', { model: 'none' })]
  const batch = await service.run(input)
  const ids = [batch.id, batch.input_file_id, String(batch.output_file_id), String(batch.error_file_id)]
  const report = await besiege({ url: service.url, key: service.key, ids, count: REQUESTS, seed: 1 })
  assert.deepEqual(report.complaints, [])
  assert.equal(report.sent, REQUESTS)
  assert.ok(report.unanswered < REQUESTS / 20, `${report.unanswered} without an answer`)
  for (const status of ['200', '400', '401', '404', '405', '413', '415'])
    assert.ok((report.by_status[status] ?? 0) > 0, `no ${status}`)
  assert.equal((await service.run(input)).status, 'completed')
})
