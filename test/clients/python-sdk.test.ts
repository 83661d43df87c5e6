// What OpenAI's Python SDK sends, as recorded from it call by call (fixtures/python-sdk.json), sent again: the
// purpose before the file, a JSON content type with nothing behind it, `after` cursors, binary downloads.
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { request } from 'node:http'
import { buffer } from 'node:stream/consumers'
import { test } from 'node:test'
import { gunzipSync } from 'node:zlib'
import { TestService } from '../service.ts'

interface Recorded {
  method: string
  /** `{name}` stands for the ID of an object that an earlier call made. */
  path: string
  headers: Record<string, string>
  body: string
  status: number
  /** The name of what the call makes. */
  makes?: string
}

const { calls }: { calls: Recorded[] } = JSON.parse(
  await readFile(new URL('../fixtures/python-sdk.json', import.meta.url), 'utf8'),
)

test('every call that the Python SDK was seen to make is answered as it was then', async () => {
  await using service = await TestService.start('models: [{id: sim-1, upstreams: [{type: sim}]}]')
  const ids = new Map<string, string>()
  const answers: { call: Recorded; json: Record<string, unknown> }[] = []
  for (const call of calls) {
    if (call.path.includes('{output}')) {
      const first = await service.ended(idOf(ids, 'batch_0'))
      ids.set('output', String(first.output_file_id))
      // The cancel that comes next is to find a batch that waits.
      await service.worker.stop()
    }
    const answer = await send(service, call, (text) =>
      text.replace(/\{(\w+)\}/g, (_, name) => idOf(ids, name)),
    )
    assert.equal(answer.status, call.status, `${call.method} ${call.path}: ${answer.text}`)
    const json = call.path.endsWith('/content') ? {} : JSON.parse(answer.text)
    if (call.makes !== undefined) ids.set(call.makes, String(json.id))
    if (call.path === '/v1/files' && call.method === 'POST')
      await service.eventually(async () => {
        const { status } = await service.json<{ status: string }>('GET', `/v1/files/${json.id}`)
        return status === 'processed' ? true : undefined
      })
    if (call.path.endsWith('/content')) assert.equal(answer.text.trimEnd().split('\n').length, 3)
    answers.push({ call, json })
  }
  const pages = answers.filter(({ call }) => call.path.startsWith('/v1/batches?'))
  assert.deepEqual(
    pages.map(({ json }) => [json.first_id, json.has_more]),
    [
      [ids.get('batch_2'), true],
      [ids.get('batch_1'), true],
      [ids.get('batch_0'), false],
    ],
  )
  const cancels = answers.filter(({ call }) => call.path.endsWith('/cancel'))
  assert.equal(cancels.at(-1)?.json.status, 'cancelling')
})

function idOf(ids: ReadonlyMap<string, string>, name: string): string {
  const id = ids.get(name)
  assert.ok(id, `no call before made ${name}`)
  return id
}

/** Byte for byte, with another key, host and IDs. */
async function send(
  service: TestService,
  { method, path, headers, body }: Recorded,
  filled: (text: string) => string,
): Promise<{ status: number | undefined; text: string }> {
  const bytes = Buffer.from(filled(body), 'latin1')
  const length = bytes.length > 0 ? { 'content-length': String(bytes.length) } : {}
  return await new Promise((resolve, reject) => {
    const call = request(
      new URL(filled(path), service.url),
      { method, headers: { ...headers, ...length, authorization: `Bearer ${service.key}` } },
      (answer) => {
        buffer(answer).then((whole) => {
          const plain = answer.headers['content-encoding'] === 'gzip' ? gunzipSync(whole) : whole
          resolve({ status: answer.statusCode, text: plain.toString() })
        }, reject)
      },
    )
    call.on('error', reject)
    call.end(bytes)
  })
}
