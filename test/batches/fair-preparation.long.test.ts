// Validating files and planning batches is shared out like the lines themselves: projects take turns, and what is small
// never waits behind what is large.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createKey } from '../../src/admin/create-key.ts'
import { systemClock } from '../../src/domain/clock.ts'
import { testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

const LINES = 12_000
const BATCHES = 8

test('three lines are validated, planned and run while eight plans read a large file each', async () => {
  await using upstream = await testUpstream()
  await using service = await TestService.start(configFor(upstream.base_url))
  // No line can run, so each plan reads them all.
  const lines = Array.from({ length: LINES }, (_, i) =>
    JSON.stringify(line(`l${i}`, 'x'.repeat(100), { model: 'none' })),
  )
  const file = await service.upload(lines.join('\n'))
  const giants: string[] = []
  for (let i = 0; i < BATCHES; i++) giants.push((await service.create(file.id)).id)
  const owner = service.key
  const { key } = await createKey(service.stores.store, systemClock, service.config.region, {
    project: 'small',
    plan: service.config.plans.keys().next().value!,
  })
  service.key = key
  const small = await service.upload(['a', 'b', 'c'].map((id) => JSON.stringify(line(id))).join('\n'))
  const ended = await service.ended((await service.create(small.id)).id)
  assert.equal(ended.request_counts.completed, 3)
  service.key = owner
  const statuses = await Promise.all(giants.map(async (id) => (await service.get(id)).status))
  const left = statuses.filter((status) => status === 'validating').length
  assert.ok(left >= BATCHES / 2, `${left} of ${BATCHES} plans were still to be made`)
  for (const id of giants) await service.request('POST', `/v1/batches/${id}/cancel`)
  for (const id of giants) {
    const { status, request_counts } = await service.ended(id)
    assert.match(status, /^(cancelled|failed)$/)
    assert.equal(request_counts.failed, LINES)
  }
})
