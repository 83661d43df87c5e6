// Within five seconds the API says why nothing moves.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testUpstream } from './fakes/upstream.ts'
import { line, TestService } from './service.ts'

const ASK_MS = 50

async function reasonOf(
  service: TestService,
  id: string,
  code: string,
): Promise<{ message: string; ms: number }> {
  const begun = performance.now()
  for (;;) {
    const { waiting_reason } = await service.get(id)
    const reason = waiting_reason as { code: string; message: string } | null
    if (reason?.code === code) return { message: reason.message, ms: performance.now() - begun }
    assert.ok(performance.now() - begun < 6_000, `not ${code} but ${JSON.stringify(reason)}`)
    await new Promise((resolve) => setTimeout(resolve, ASK_MS))
  }
}

test('a server that is gone, and then no worker: each is told within five seconds', async () => {
  const upstream = await testUpstream()
  await upstream.close()
  await using service = await TestService.start(`
models:
  - {id: m, upstreams: [{type: openai, base_url: "${upstream.base_url}"}]}`)
  const file = await service.upload(JSON.stringify(line('a')))
  const { id } = await service.create(file.id)
  const gone = await reasonOf(service, id, 'model_unavailable')
  assert.match(gone.message, /ECONNREFUSED/)
  await service.worker.stop()
  const nobody = await reasonOf(service, id, 'no_worker')
  assert.ok(gone.ms < 5_000 && nobody.ms < 5_000, `${gone.ms} ms, ${nobody.ms} ms`)
})
