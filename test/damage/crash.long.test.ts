// Real processes, stopped and killed while they work. The model server counts the calls, so a line that is sent
// twice is detected.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { s3Server, TEST_BUCKET } from '../fakes/s3-server.ts'
import { line, type WireBatch, type WireFile, type WireLine } from '../service.ts'
import { parsedLines, uploadForm } from '../support/api.ts'
import { CrashTest } from '../support/crash-processes.ts'
import { childrenOf, killIfThere, until } from '../support/offpeak-process.ts'

const COUNT = 40
/** As much as the dispatcher sends at once before it knows the server. */
const FIRST = 12

const isEarly = (content: string): boolean => Number(content.slice(1)) < FIRST

/** Fewer lines are held than are answered, whatever order they are sent in: the first are finished for good. */
async function halfway(crash: CrashTest): Promise<string> {
  crash.blockUnless(isEarly)
  const { id } = await crash.batchOf(COUNT)
  await crash.committed(id, FIRST)
  await crash.holds(Math.min(COUNT - FIRST, 32))
  return id
}

/** Lines that were answered before the crash were sent once; those in flight once more, and no other twice. */
function checkSentAgain(crash: CrashTest, inFlight: readonly string[]): void {
  const lost = crash.lostLeases
  if (lost > 0) {
    for (const [content, count] of crash.counts()) assert.ok(count <= 2 + lost, `${content}: ${count} times`)
    return
  }
  assert.deepEqual(crash.sent(2).sort(), [...inFlight].sort())
  assert.equal(crash.sent(1).length, COUNT - inFlight.length)
}

const contentOf = ({ response }: WireLine): string => response?.body.choices[0]?.message.content ?? ''

const upstreamAnswers = (crash: CrashTest): number => crash.upstream.calls.length

describe('real crashes', { concurrency: 3, timeout: 180_000, skip: !existsSync('/proc/self/stat') }, () => {
  test('SIGTERM: lines in flight finish or are requeued, and the next start continues', async () => {
    // No worker is killed, so no lease has to expire soon.
    await using crash = await CrashTest.begin('', '1s', '10s')
    const first = await crash.start('serve')
    const id = await halfway(crash)
    // Some lines in flight are answered while the service stops, the others never.
    const held = crash.held.splice(0)
    const finishing = held.slice(0, 10)
    const unanswered = held.slice(10).map((call) => call.body.messages[0]!.content)
    const exit = first.end('SIGTERM')
    crash.held.push(...finishing)
    crash.answerAll()
    assert.equal(await exit, 0, first.log)
    await crash.start('serve')
    const batch = await crash.completed(id)
    await crash.checkResults(batch, COUNT)
    checkSentAgain(crash, unanswered)
  })

  test('SIGKILL of everything: the next start completes the batch, and only lines in flight are sent again', async () => {
    await using crash = await CrashTest.begin()
    const first = await crash.start('serve')
    const id = await halfway(crash)
    const inFlight = crash.held.map((call) => call.body.messages[0]!.content)
    await first.endGroup('SIGKILL')
    crash.answerAll()
    await crash.start('serve')
    const batch = await crash.completed(id)
    await crash.checkResults(batch, COUNT)
    checkSentAgain(crash, inFlight)
  })

  test('SIGKILL while an input is fetched: the next start goes on with the part that is missing', async () => {
    await using s3 = await s3Server()
    const url = `s3://${TEST_BUCKET}/a`
    await using crash = await CrashTest.begin(
      `buckets: [{url: "${url}?endpoint=${s3.endpoint}", projects: [default]}]`,
    )
    const lines = Array.from({ length: COUNT }, (_, i) => JSON.stringify(line(`l${i}`)))
    // Each of a mebibyte, which is blanks for the most part.
    const content = lines.map((text) => `${text.slice(0, -1).padEnd(1024 * 1024 - 2)}}\n`).join('')
    s3.objects.set('a/in', { bytes: Buffer.from(content), modified: 0 })
    const third = `bytes=33554432-${content.length - 1}`
    const reached = Promise.withResolvers<void>()
    const released = Promise.withResolvers<null>()
    s3.fault = ({ headers }) => {
      if (headers.range !== third) return null
      reached.resolve()
      return released.promise
    }
    const env = { AWS_ACCESS_KEY_ID: 'id', AWS_SECRET_ACCESS_KEY: 'secret' }
    const first = await crash.start('serve', env)
    const order = { endpoint: '/v1/chat/completions', completion_window: '24h' }
    const urls = { input_url: `${url}/in`, output_url: `${url}/out/` }
    const { id } = await crash.json<WireBatch>('POST', '/v1/batches', { ...order, ...urls })
    await reached.promise
    await first.endGroup('SIGKILL')
    released.resolve(null)
    await crash.start('serve', env)
    const batch = await crash.completed(id)
    await crash.checkResults(batch, COUNT)
    const times = (range: string) => s3.requests.filter(({ headers }) => headers.range === range).length
    assert.deepEqual([times('bytes=0-16777215'), times('bytes=16777216-33554431')], [1, 1])
    // More often where the machine is so slow that the fetch is given up and begun again.
    assert.ok(times(third) >= 2)
    await until(async () => (await crash.batch(id)).output_url_status === 'delivered')
    assert.equal(s3.objects.get(`a/out/${id}/output.jsonl`)?.bytes.toString().split('\n').length, COUNT + 1)
  })

  test('SIGKILL of two workers: identical requests whose answer was recorded are not sent again', async () => {
    await using crash = await CrashTest.begin('', '1s', '5s')
    const processes = [await crash.start('serve'), await crash.start('worker')]
    const [requests, copies, answered] = [400, 15, 395]
    crash.blockUnless((content) => Number(content.slice(1)) < answered)
    const lines = Array.from({ length: requests * copies }, (_, i) =>
      line(`l${i}`, `p${i % requests}`, { temperature: 0 }),
    )
    const file = await crash.json<WireFile>('POST', '/v1/files', uploadForm(lines))
    const order = { endpoint: '/v1/chat/completions', completion_window: '24h', dedupe: true }
    const { id } = await crash.json<{ id: string }>('POST', '/v1/batches', {
      input_file_id: file.id,
      ...order,
    })
    await crash.committed(id, 200)
    // Of all lines with a request, a worker looks for the answer of the first one.
    const isFirst = ({ custom_id }: WireLine): boolean => Number(custom_id.slice(1)) < requests
    const recorded = (await crash.results(id)).filter(isFirst).map(contentOf)
    await Promise.all(processes.map((one) => one.endGroup('SIGKILL')))
    crash.answerAll()
    await Promise.all([crash.start('serve'), crash.start('worker')])
    const batch = await crash.completed(id)
    const counts = crash.counts()
    assert.equal(counts.size, requests)
    const sentMax = 2 + crash.lostLeases
    if (crash.lostLeases === 0) for (const content of recorded) assert.equal(counts.get(content), 1, content)
    for (const [content, count] of counts) assert.ok(count <= sentMax, `${content} was sent ${count} times`)
    const results = await crash.results(id)
    assert.equal(results.length, lines.length)
    assert.deepEqual(
      results.map(contentOf),
      lines.map((_, i) => `p${i % requests}`),
    )
    const paid = results.filter(({ response }) => (response?.body.usage.cost_usd ?? 0) > 0)
    assert.equal(Math.round(batch.cost_usd * 1e9), paid.length * 3000)
    assert.ok(paid.length >= requests && paid.length <= upstreamAnswers(crash))
  })

  test('SIGKILL of everything: an upload in parts goes on with the parts that had arrived', async () => {
    await using crash = await CrashTest.begin()
    const first = await crash.start('serve')
    const content = Buffer.from(`${JSON.stringify(line('a'))}\n${JSON.stringify(line('b'))}\n`)
    const half = content.length >> 1
    const order = { filename: 'in.jsonl', purpose: 'batch', mime_type: 'application/jsonl' }
    const { id } = await crash.json<{ id: string }>('POST', '/v1/uploads', {
      ...order,
      bytes: content.length,
    })
    const send = async (start: number, end: number): Promise<string> => {
      const form = new FormData()
      form.set('data', new Blob([content.subarray(start, end)]), 'part')
      return (await crash.json<{ id: string }>('POST', `/v1/uploads/${id}/parts`, form)).id
    }
    const arrived = await send(0, half)
    await first.endGroup('SIGKILL')
    await crash.start('serve')
    const { data } = await crash.json<{ data: { id: string }[] }>('GET', `/v1/uploads/${id}/parts`)
    assert.deepEqual(
      data.map((part) => part.id),
      [arrived],
    )
    const part_ids = [arrived, await send(half, content.length)]
    const md5 = createHash('md5').update(content).digest('hex')
    const { file } = await crash.json<{ file: WireFile }>('POST', `/v1/uploads/${id}/complete`, {
      ...{ part_ids, md5 },
    })
    await until(
      async () => (await crash.json<WireFile>('GET', `/v1/files/${file.id}`)).status === 'processed',
    )
  })

  test('SIGKILL of the API with its worker left alone: the worker finishes its lines, and nothing is sent twice', async () => {
    await using crash = await CrashTest.begin()
    const first = await crash.start('serve')
    const id = await halfway(crash)
    await first.end('SIGKILL')
    crash.answerAll()
    await crash.start('serve')
    const batch = await crash.completed(id)
    await crash.checkResults(batch, COUNT)
    checkSentAgain(crash, [])
  })

  test('SIGKILL of the worker: another takes its place while the API goes on', async () => {
    await using crash = await CrashTest.begin()
    const service = await crash.start('serve')
    const id = await halfway(crash)
    const inFlight = crash.held.map((call) => call.body.messages[0]!.content)
    const [worker] = childrenOf(service.child)
    assert.ok(worker)
    process.kill(worker, 'SIGKILL')
    crash.answerAll()
    const batch = await crash.completed(id)
    await crash.checkResults(batch, COUNT)
    checkSentAgain(crash, inFlight)
    assert.equal(await service.end('SIGTERM'), 0)
  })

  test('a worker that crashes repeatedly ends the service', async () => {
    await using crash = await CrashTest.begin()
    const service = await crash.start('serve')
    const exit = once(service.child, 'exit')
    let last = 0
    await until(() => {
      const [worker] = childrenOf(service.child)
      if (worker !== undefined && worker !== last) killIfThere(worker)
      last = worker ?? last
      return service.child.exitCode !== null
    })
    const [code] = await exit
    assert.equal(code, 1)
    assert.match(
      service.log,
      /the worker process exited with SIGKILL (during its start|for the 4th time within a minute)/,
    )
  })

  test('SIGKILL of an API alone: its workers continue without it', async () => {
    await using crash = await CrashTest.begin()
    const api = await crash.start('api')
    const worker = await crash.start('worker')
    const id = await halfway(crash)
    await api.end('SIGKILL')
    crash.answerAll()
    await crash.upstream.arrived(COUNT)
    await crash.start('api')
    const batch = await crash.completed(id)
    await crash.checkResults(batch, COUNT)
    checkSentAgain(crash, [])
    assert.equal(await worker.end('SIGTERM'), 0)
  })

  test('SIGKILL of one of two workers: the other requeues and finishes its chunks', async () => {
    await using crash = await CrashTest.begin()
    await crash.start('api')
    const first = await crash.start('worker')
    const id = await halfway(crash)
    const inFlight = crash.held.map((call) => call.body.messages[0]!.content)
    await crash.start('worker')
    await first.end('SIGKILL')
    crash.answerAll()
    const batch = await crash.completed(id)
    await crash.checkResults(batch, COUNT)
    checkSentAgain(crash, inFlight)
  })

  for (const signal of ['SIGINT', 'SIGKILL'] as const) {
    test(`run, ended by ${signal} and run again, goes on with the same batch`, async () => {
      await using crash = await CrashTest.begin()
      crash.blockUnless(isEarly)
      const input = Array.from({ length: COUNT }, (_, i) => `${JSON.stringify(line(`l${i}`))}\n`)
      await writeFile(join(crash.folder, 'in.jsonl'), input.join(''))
      const args = ['run', 'in.jsonl', '--data', 'data', '--config', 'offpeak.yaml', '--json']
      const first = crash.launch(args)
      await crash.holds(Math.min(COUNT - FIRST, 32))
      const state = join(crash.folder, 'in.out.jsonl.offpeak-run.json')
      await until(() => existsSync(state))
      const exit = once(first, 'exit')
      process.kill(-(first.pid ?? 0), signal)
      const [code] = await exit
      assert.equal(code, signal === 'SIGINT' ? 130 : null)
      const { batch_id } = JSON.parse(await readFile(state, 'utf8'))
      crash.answerAll()
      const second = crash.launch(args)
      let said = ''
      second.stdout?.on('data', (piece: Buffer) => {
        said += piece.toString()
      })
      assert.deepEqual(await once(second, 'close'), [0, null])
      assert.equal(JSON.parse(said).batch_id, batch_id)
      const output = parsedLines<WireLine>(await readFile(join(crash.folder, 'in.out.jsonl'), 'utf8'))
      assert.deepEqual(
        output.map(({ custom_id }) => custom_id),
        Array.from({ length: COUNT }, (_, i) => `l${i}`),
      )
      assert.equal(crash.counts().size, COUNT)
      const lost = crash.lostLeases
      // A kill may come before the first lines are committed: then they were not committed, and are sent again.
      if (signal === 'SIGINT' && lost === 0) assert.ok(crash.sent(1).length >= FIRST - 2)
      assert.ok([...crash.counts().values()].every((count) => count <= 2 + lost))
    })
  }
})
