// Names and messages that act on a terminal, in everything that a caller and a model server can choose: no command
// writes them as they are, on a screen or into a pipe, and JSON still says what they were.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { runOffpeak } from '../fakes/offpeak.ts'
import { echo, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

/** Clears the screen, colours it by C1, turns the writing, rings, hides. */
const HOSTILE = '\u001b[2J\u009b31m\u202eX\u0007\u200b'
const RAW = /(?!\n)[\p{Cc}\p{Cf}\u2028\u2029]/u

async function offpeak(service: TestService, columns: number | undefined, ...args: string[]) {
  return await runOffpeak(args, { columns, access: { baseUrl: service.url, apiKey: service.key } })
}

test('no command writes what a tenant or a model server said in a way that acts on the terminal', async () => {
  await using upstream = await testUpstream((call) => {
    if (call.body.messages[0]?.content === 'bad')
      send(call.response, 400, JSON.stringify({ error: { message: `no ${HOSTILE}` } }))
    else echo(call)
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const entity = `user:${HOSTILE}`
  const lines = [line('good', HOSTILE), line('bad', 'bad'), line(`id ${HOSTILE}`, 'bad')]
  const file = await service.upload(
    lines.map((one) => JSON.stringify({ ...one, metadata: { entity } })).join('\n'),
    `in${HOSTILE}.jsonl`,
  )
  const { id } = await service.create(file.id, { metadata: { [`key${HOSTILE}`]: HOSTILE } })
  const batch = await service.ended(id)
  assert.deepEqual(batch.request_counts, { total: 3, completed: 1, failed: 2 })
  const refused = await service.upload(`{"custom_id": "${HOSTILE}`, 'refused.jsonl')
  await service.json('POST', '/v1/limits', {
    ...{ scope: 'entity', entity, metric: 'tokens', amount: 10, window: 'month' },
    description: HOSTILE,
  })
  const wire = await service.lines(batch.error_file_id)
  const commands = [
    ['batches', 'get', id],
    ['batches', 'list'],
    ['batches', 'results', id, '--follow'],
    ['batches', 'get', `batch_${HOSTILE}`],
    ['files', 'get', file.id],
    ['files', 'list'],
    ['files', 'get', refused.id],
    ['files', 'content', batch.output_file_id ?? ''],
    ['files', 'content', batch.error_file_id ?? ''],
    ['limits', 'list'],
    ['usage', '--group-by', 'entity'],
    ['usage', '--group-by', 'entity', '--csv'],
    ['requests', 'get', wire[1]?.id ?? ''],
    ['events', 'list'],
    [`nothing ${HOSTILE}`],
  ]
  for (const args of commands)
    for (const columns of [undefined, 200]) {
      const { out, err } = await offpeak(service, columns, ...args)
      const isData = args.includes('content') || args.includes('--csv') || args.includes('--follow')
      // A program that reads a pipe gets its data byte for byte.
      const seen = columns === undefined && isData ? err : out + err
      assert.ok(isData || seen.length > 0, args.join(' '))
      assert.doesNotMatch(stripped(seen), RAW, `${args.join(' ')} in ${columns} columns`)
    }
  for (const args of [
    ['batches', 'get', id],
    ['limits', 'list'],
  ]) {
    const { out } = await offpeak(service, undefined, ...args, '--json')
    assert.doesNotMatch(out, RAW)
    const kept = JSON.stringify(JSON.parse(out))
    assert.ok(kept.includes(JSON.stringify(HOSTILE.slice(-6)).slice(1, -1)), args.join(' '))
  }
  const content = await offpeak(service, undefined, 'files', 'content', batch.error_file_id ?? '')
  assert.equal(content.out, await service.content(batch.error_file_id))
})

/** Without our own colours. */
function stripped(text: string): string {
  return [1, 2, 22, 31, 32, 33, 36, 39].reduce((rest, code) => rest.replaceAll(`\u001b[${code}m`, ''), text)
}
