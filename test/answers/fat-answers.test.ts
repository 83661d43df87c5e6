// Answers of a few hundred kilobytes: whoever asks for one line is given that line, and its chunk stays where it is.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { lineRequestId } from '../../src/domain/ids.ts'
import { completion, send, testUpstream } from '../fakes/upstream.ts'
import { configFor, line, TestService } from '../service.ts'
import { until } from '../support/offpeak-process.ts'

const COUNT = 40
const ANSWER_BYTES = 300_000
const INPUT = Array.from({ length: COUNT }, (_, i) => JSON.stringify(line(`l${i}`))).join('\n')

/** Bytes that nothing makes smaller. */
const noise = (bytes: number): string => randomBytes((bytes * 3) / 4).toString('base64')

/** Counts the stored bytes that are read. */
function countReads({ stores: { blobs } }: TestService): { bytes: number } {
  const read = { bytes: 0 }
  const whole = blobs.read.bind(blobs)
  blobs.read = async function* (key, range) {
    for await (const piece of whole(key, range)) {
      read.bytes += piece.length
      yield piece
    }
  }
  return read
}

interface Record {
  line: number
  custom_id: string
  response: { body: { choices: { message: { content: string } }[] } } | null
}

async function record(service: TestService, batch_id: string, of: number): Promise<Record | null> {
  const response = await fetch(`${service.url}/v1/requests/${lineRequestId(batch_id, of)}`, {
    headers: { authorization: `Bearer ${service.key}` },
  })
  return response.ok ? ((await response.json()) as Record) : null
}

test('the record of one line is read without the lines around it, sealed or still in a journal', async () => {
  const answers: string[] = []
  const last = Promise.withResolvers<void>()
  await using upstream = await testUpstream(async ({ body, response }) => {
    const content = String(body.messages.at(-1)?.content)
    if (content === 'l39') await last.promise
    const answer = noise(ANSWER_BYTES)
    answers.push(answer)
    send(response, 200, completion(answer))
  })
  await using service = await TestService.start(configFor(upstream.base_url))
  const { id } = await service.create((await service.upload(INPUT)).id)
  const read = countReads(service)
  for (const state of ['leased', 'sealed']) {
    if (state === 'sealed') {
      last.resolve()
      await service.ended(id)
    } else {
      await until(async () => (await service.get(id)).request_counts.completed === COUNT - 1)
    }
    read.bytes = 0
    const found = await record(service, id, 17)
    assert.ok(found?.response)
    assert.deepEqual([found.line, found.custom_id], [17, 'l16'])
    assert.ok(answers.includes(found.response.body.choices[0]!.message.content))
    assert.ok(read.bytes < 8 * ANSWER_BYTES, `${read.bytes} bytes were read while the chunk was ${state}`)
  }
  assert.equal(await record(service, id, COUNT + 1), null)
})
