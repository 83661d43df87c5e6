// A batch of many chunks, before the simulator in a process of its own.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { test } from 'node:test'
import { configFor, TestService } from '../service.ts'
import { cleanEnv, OFFPEAK } from '../support/offpeak-process.ts'

const COUNT = 20_000

test('twenty thousand lines come back once each, in order, and cost what the batch costs', async () => {
  const sim = spawn(process.execPath, [OFFPEAK, 'sim', '--port', '0', '--latency-ms', '0'], {
    env: cleanEnv(),
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  try {
    const [ready]: string[] = await once(createInterface({ input: sim.stdout }), 'line')
    await using service = await TestService.start(configFor(`${String(ready).replace(/^.* on /, '')}/v1`))
    const input = Array.from({ length: COUNT }, (_, i) =>
      JSON.stringify({
        custom_id: `l${i}`,
        method: 'POST',
        url: '/v1/chat/completions',
        body: { model: 'm', messages: [{ role: 'user', content: `line ${i}` }], max_tokens: 4 },
      }),
    )
    const batch = await service.run(input.join('\n'))
    assert.equal(batch.status, 'completed')
    assert.deepEqual(batch.request_counts, { total: COUNT, completed: COUNT, failed: 0 })
    let at = 0
    let nanos = 0
    for (const line of await service.lines(batch.output_file_id)) {
      assert.equal(line.custom_id, `l${at++}`)
      nanos += Math.round((line.response?.body.usage.cost_usd ?? 0) * 1e9)
    }
    assert.equal(at, COUNT)
    assert.equal(Math.round(batch.cost_usd * 1e9), nanos)
  } finally {
    sim.kill()
  }
})
