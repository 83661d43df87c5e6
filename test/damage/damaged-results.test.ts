// Results that rot after they were sealed: nothing can bring them back, so whoever downloads them must notice, by
// the call itself and not by counting lines.

import assert from 'node:assert/strict'
import { buffer } from 'node:stream/consumers'
import { test } from 'node:test'
import { echo, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'

/** More lines than a chunk has: what comes before the damage arrives. */
const COUNT = 1_200

const BROKEN_OFF = /terminated|500 .*(internal_error|content_damaged)/
const WAYS: [string, (bytes: Buffer) => Buffer | null][] = [
  [
    'of which one bit is wrong',
    (bytes) => Buffer.from(bytes.map((byte, i) => (i === bytes.length >> 1 ? byte ^ 1 : byte))),
  ],
  ['that lacks its last byte', (bytes) => bytes.subarray(0, -1)],
  ['that is gone', () => null],
]

test('a download never ends as if it were whole when a blob of it is damaged', async (context) => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  service.tampered = true
  const { blobs, store } = service.stores
  const batch = await service.run(Array.from({ length: COUNT }, (_, i) => line(`l${i}`)))
  const chunks = await store.read.selectFrom('chunks').select('output_blob').orderBy('idx').execute()
  assert.ok(chunks.length > 1)
  const url = `${service.url}/v1/files/${batch.output_file_id}/content`
  const download = async (range?: string): Promise<string> => {
    const headers = { authorization: `Bearer ${service.key}`, ...(range ? { range } : {}) }
    const response = await fetch(url, { headers })
    const text = await response.text()
    if (!response.ok) throw new Error(`${response.status} ${text}`)
    return text
  }
  const whole = await download()
  assert.equal(whole.split('\n').length - 1, COUNT)
  for (const { output_blob } of chunks) {
    assert.ok(output_blob)
    const sound = await buffer(blobs.read(output_blob))
    for (const [how, spoil] of WAYS)
      await context.test(
        `one ${how}, chunk ${chunks.findIndex((chunk) => chunk.output_blob === output_blob)}`,
        async () => {
          const spoilt = spoil(sound)
          if (spoilt) await blobs.put(output_blob, [spoilt])
          else await blobs.delete(output_blob)
          await assert.rejects(download(), BROKEN_OFF)
          // What is not touched by the damage may be had.
          const rest = await download('bytes=1-').catch(() => null)
          assert.ok(rest === null || rest === whole.slice(1))
        },
      )
    await blobs.put(output_blob, [sound])
    assert.equal(await download(), whole)
  }
  const { length } = whole
  await store.write((tx) => tx.deleteFrom('chunks').where('idx', '=', 1).execute())
  await assert.rejects(download(), BROKEN_OFF)
  await assert.rejects(download(`bytes=${length - 10}-`), BROKEN_OFF)
})

test('calls that read a damaged blob name it, and tell clients not to retry', async () => {
  await using upstream = await testUpstream(echo)
  await using service = await TestService.start(configFor(upstream.base_url))
  service.tampered = true
  const { blobs, store } = service.stores
  const batch = await service.run([line('sound'), line('unknown', '', { model: 'no-such-model' })])
  const chunk = await store.read.selectFrom('chunks').selectAll().executeTakeFirstOrThrow()
  const lines = `/v1/batches/${batch.id}/lines`
  const expectDamaged = async (key: string | null, method: string, path: string): Promise<void> => {
    const answer = await service.request(method, path, method === 'POST' ? {} : undefined)
    const { error } = JSON.parse(await answer.text())
    assert.deepEqual([answer.status, error.code], [500, 'content_damaged'], path)
    assert.ok(error.message.includes(key), error.message)
    assert.equal(answer.headers.get('x-should-retry'), 'false')
  }
  const { audit_blob, output_blob } = chunk
  assert.ok(audit_blob && output_blob)
  const input = `files/${batch.input_file_id}/upload`
  await blobs.delete(input)
  await expectDamaged(input, 'POST', `/v1/batches/${batch.id}/retry`)
  await blobs.delete(output_blob)
  await expectDamaged(output_blob, 'GET', `/v1/batches/${batch.id}/results`)
  await expectDamaged(output_blob, 'GET', `/v1/files/${batch.output_file_id}/content`)
  await blobs.put(audit_blob, [Buffer.alloc(100)])
  for (const path of [lines, `${lines}/1`, '/v1/lines']) await expectDamaged(audit_blob, 'GET', path)
  await expectDamaged(audit_blob, 'POST', `/v1/batches/${batch.id}/retry`)
})
