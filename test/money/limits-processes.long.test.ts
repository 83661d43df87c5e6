// Caps among real processes: forty clients submit at once, four workers run what is let in, one of them is
// killed, and at no moment is more spent than the cap allows.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { test } from 'node:test'
import { completion, send } from '../fakes/upstream.ts'
import { line, type WireBatch, type WireFile } from '../service.ts'
import { uploadForm } from '../support/api.ts'
import { CrashTest } from '../support/crash-processes.ts'
import { until } from '../support/offpeak-process.ts'

const CLIENTS = 40
const LINES = 25
/** The worst case of a line, and what it uses: much of what is reserved is released. */
const LINE_TOKENS = 13
const USED_TOKENS = 5
const USAGE = { prompt_tokens: 3, completion_tokens: 2, total_tokens: USED_TOKENS }

interface Usage {
  succeeded: number
  total_tokens: number
}

test('no cap is passed by forty clients and four workers, one of which is killed', async () => {
  await using service = await CrashTest.begin()
  service.upstream.reply = ({ response }) => send(response, 200, completion('ok', USAGE))
  await service.start('api')
  const fileId = await upload(service)
  const admitted = 24
  const limit = await service.json<{ id: string }>('POST', '/v1/limits', {
    scope: 'project',
    metric: 'tokens',
    window: 'month',
    amount: admitted * LINES * LINE_TOKENS + 1,
  })
  const answers = await Promise.allSettled(Array.from({ length: CLIENTS }, () => submit(service, fileId)))
  const batches = answers.flatMap((answer) => (answer.status === 'fulfilled' ? [answer.value] : []))
  assert.equal(batches.length, admitted)
  for (const answer of answers)
    if (answer.status === 'rejected') assert.match(String(answer.reason), /429 .*usage_limit_exceeded/)

  // Less than was let in, so that the workers have to share what is left.
  const allowed = 299
  // The worst case of the last line just fits, that of another does not.
  const cap = (allowed - 1) * USED_TOKENS + LINE_TOKENS + USED_TOKENS - 1
  await service.json('POST', `/v1/limits/${limit.id}`, { amount: cap })
  const [serviceProcess] = await Promise.all([1, 2, 3, 4].map(() => service.start('worker')))
  assert.ok(serviceProcess)
  const spent = async (): Promise<Usage> => await service.json('GET', '/v1/usage/entities')
  await until(async () => (await spent()).succeeded >= 50)
  await serviceProcess.end('SIGKILL')
  let open = batches
  while (open.length > 0) {
    const { total_tokens } = await spent()
    assert.ok(total_tokens <= cap, `${total_tokens} tokens were spent of ${cap}`)
    const now = await Promise.all(open.map(({ id }) => service.batch(id)))
    open = now.filter(({ status }) => status !== 'completed')
  }
  assert.deepEqual(await spent(), {
    ...(await spent()),
    succeeded: allowed,
    total_tokens: allowed * USED_TOKENS,
  })
  assert.equal(await exitOf(service, ['doctor', 'books']), 0)
})

async function upload(service: CrashTest): Promise<string> {
  const lines = Array.from({ length: LINES }, (_, i) => line(`l${i}`, 'x', { max_tokens: 5 }))
  const validator = await service.start('worker')
  const { id } = await service.json<WireFile>('POST', '/v1/files', uploadForm(lines))
  await until(async () => (await service.json<WireFile>('GET', `/v1/files/${id}`)).status === 'processed')
  await validator.end('SIGTERM')
  return id
}

async function submit(service: CrashTest, input_file_id: string): Promise<WireBatch> {
  return await service.json('POST', '/v1/batches', {
    input_file_id,
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
  })
}

async function exitOf(service: CrashTest, command: readonly string[]): Promise<unknown> {
  const child = service.launch([...command, '--data', 'data', '--config', 'offpeak.yaml'])
  const [code] = await once(child, 'exit')
  return code
}
