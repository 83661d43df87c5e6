// The API says why nothing moves.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testUpstream } from '../fakes/upstream.ts'
import { line, TestService } from '../service.ts'

const ASK_MS = 50

/** The message of the waiting reason, once it has this code. */
async function messageOf(service: TestService, id: string, code: string): Promise<string> {
  for (;;) {
    const { waiting_reason } = await service.get(id)
    const reason = waiting_reason as { code: string; message: string } | null
    if (reason?.code === code) return reason.message
    await new Promise((resolve) => setTimeout(resolve, ASK_MS))
  }
}

test('a server that is gone, and then no worker: each is told', async () => {
  const upstream = await testUpstream()
  await upstream.close()
  await using service = await TestService.start(`
models:
  - {id: m, upstreams: [{type: openai, base_url: "${upstream.base_url}"}]}`)
  const file = await service.upload(JSON.stringify(line('a')))
  const { id } = await service.create(file.id)
  assert.match(await messageOf(service, id, 'model_unavailable'), /ECONNREFUSED/)
  await service.worker.stop()
  await messageOf(service, id, 'no_worker')
})
