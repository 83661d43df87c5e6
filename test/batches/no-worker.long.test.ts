// Real processes: an API on its own says that no worker runs, also after a SIGKILL of the last one.
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { line } from '../service.ts'
import { uploadForm } from '../support/api.ts'
import { CrashTest } from '../support/crash-processes.ts'
import { until } from '../support/offpeak-process.ts'

const ASK_MS = 50

interface Waiting {
  id: string
  status: string
  waiting_reason: { code: string } | null
}

async function assertSaysNoWorker(service: CrashTest, path: string): Promise<void> {
  for (;;) {
    const { waiting_reason } = await service.json<Waiting>('GET', path)
    if (waiting_reason?.code === 'no_worker') return
    await wait(ASK_MS)
  }
}

test('an API without a worker says so, before the first one and after a SIGKILL', async () => {
  await using service = await CrashTest.begin()
  // A lease of the usual length, which has not run out when the API is asked.
  const { base_url } = service.upstream
  await writeFile(
    join(service.folder, 'offpeak.yaml'),
    `models: [{id: m, upstreams: [{type: openai, base_url: "${base_url}"}]}]\nmetrics: {port: 0}\n`,
  )
  service.blockUnless(() => false)
  await service.start('api')
  const file = await service.json<Waiting>('POST', '/v1/files', uploadForm([line('a')]))
  await assertSaysNoWorker(service, `/v1/files/${file.id}`)

  const worker = await service.start('worker')
  await until(async () => (await service.json<Waiting>('GET', `/v1/files/${file.id}`)).status === 'processed')
  const order = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
  const running = await service.json<Waiting>('POST', '/v1/batches', order)
  await until(() => service.held.length > 0)
  await worker.end('SIGKILL')
  await assertSaysNoWorker(service, `/v1/batches/${running.id}`)
  const fresh = await service.json<Waiting>('POST', '/v1/batches', order)
  await assertSaysNoWorker(service, `/v1/batches/${fresh.id}`)
})
