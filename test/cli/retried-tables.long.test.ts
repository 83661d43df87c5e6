// Rows without an answer, asked about again: --retry-failed of run, and --merge of results.
import assert from 'node:assert/strict'
import { appendFile, cp, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, afterEach, before, beforeEach, describe, test } from 'node:test'
import { offpeak, offpeakUntil } from '../fakes/offpeak.ts'
import { type Call, completion, send, type TestUpstream, testUpstream } from '../fakes/upstream.ts'
import { configFor, TestService } from '../service.ts'
import { Shell } from '../support/shell.ts'

const promptOf = ({ body }: Call): string => {
  const content: unknown = body.messages.at(-1)?.content
  return typeof content === 'string' ? content : JSON.stringify(content)
}

/** Repeats the prompt; a prompt with `bad` is refused. */
function strict(call: Call): void {
  if (promptOf(call).includes('bad')) send(call.response, 400, '{"error":{"message":"no such words"}}')
  else lenient(call)
}

function lenient(call: Call): void {
  send(call.response, 200, completion(`re: ${promptOf(call)}`))
}

const ROWS = ['id,text', '1,good', '2,bad one', '3,"a ""quote"", and more"', '4,bad two', '5,fine', ''].join(
  '\n',
)

describe('rows without an answer', { timeout: 120_000 }, () => {
  let upstream: TestUpstream
  let service: TestService
  let root: string
  let folder: string

  before(async () => {
    upstream = await testUpstream(strict)
    service = await TestService.start(configFor(upstream.base_url))
    root = await mkdtemp(join(tmpdir(), 'offpeak-retries-'))
  })
  after(async () => {
    await service[Symbol.asyncDispose]()
    await upstream.close()
    await rm(root, { recursive: true })
  })
  beforeEach(async () => {
    folder = await mkdtemp(join(root, 'case-'))
    await writeFile(at('t.csv'), ROWS)
  })
  afterEach(() => {
    upstream.reply = strict
  })

  const at = (name: string): string => join(folder, name)
  const text = (name: string): Promise<string> => readFile(at(name), 'utf8')
  const run = (...more: string[]) => offpeak(service, 'run', at('t.csv'), ...more)
  const first = (...more: string[]) => run('--model', 'm', '--prompt', '{{text}}', ...more)
  const retry = (...more: string[]) => run('--retry-failed', ...more)
  const json = async (ran: Promise<{ out: string }>): Promise<Record<string, unknown>> =>
    JSON.parse((await ran).out)
  /** The prompts that are sent meanwhile, in any order. */
  const sentBy = async (act: Promise<{ code: number; err: string }>, code: number): Promise<string[]> => {
    const begun = upstream.calls.length
    const ended = await act
    assert.equal(ended.code, code, ended.err)
    return upstream.calls.slice(begun).map(promptOf).sort()
  }

  test('are asked about again without the options of the run, and the others stay byte for byte', async () => {
    const { code, err } = await first('--metadata', 'team=a', '--param', 'max_tokens=9')
    assert.equal(code, 3, err)
    assert.match(err, /To ask again about these rows: the same command with --retry-failed\n$/)
    const before = (await text('t.out.csv')).split('\n')
    upstream.reply = (call) => (promptOf(call) === 'bad one' ? lenient(call) : strict(call))
    assert.deepEqual(await sentBy(retry(), 3), ['bad one', 'bad two'])
    assert.equal(upstream.calls.at(-1)?.body.max_tokens, 9)
    const between = (await text('t.out.csv')).split('\n')
    assert.deepEqual(between, before.with(2, '2,bad one,re: bad one,'))
    upstream.reply = lenient
    const last = await json(retry('--json'))
    assert.deepEqual(last.request_counts, { total: 1, completed: 1, failed: 0 })
    assert.deepEqual([last.rows, last.rows_failed], [5, 0])
    assert.deepEqual((await text('t.out.csv')).split('\n'), between.with(4, '4,bad two,re: bad two,'))
    const batch = await service.json<{ metadata: object; cost_usd: number }>(
      'GET',
      `/v1/batches/${last.batch_id}`,
    )
    const { batch_id } = JSON.parse(await text('t.out.csv.offpeak-run.json'))
    assert.deepEqual(batch.metadata, { team: 'a', retry_of: batch_id })
    assert.equal(batch.cost_usd, last.cost_usd)
    assert.deepEqual((await readdir(folder)).sort(), ['t.csv', 't.out.csv', 't.out.csv.offpeak-run.json'])

    const nothing = retry()
    assert.deepEqual(await sentBy(nothing, 0), [])
    assert.match((await nothing).err, /^Nothing was sent: every row has its answer\.$/m)
    const repeated = await first('--metadata', 'team=a', '--param', 'max_tokens=9')
    assert.equal(repeated.code, 4)
    assert.match(repeated.err, /--retry-failed asks again about rows without an answer/)
  })

  test('are not uploaded where the metadata of the run has no room to name it', async () => {
    const pairs = Array.from({ length: 16 }, (_, i) => ['--metadata', `k${i}=v`]).flat()
    assert.equal((await first(...pairs)).code, 3)
    const files = async (): Promise<number> =>
      (await service.json<{ data: unknown[] }>('GET', '/v1/files?purpose=batch&limit=100')).data.length
    const before = await files()
    const { code, err } = await retry()
    assert.equal(code, 4, err)
    const { batch_id } = JSON.parse(await text('t.out.csv.offpeak-run.json'))
    assert.match(err, new RegExp(`has no room for retry_of.* offpeak retry ${batch_id}`))
    assert.equal(await files(), before)
    assert.deepEqual((await readdir(folder)).sort(), ['t.csv', 't.out.csv', 't.out.csv.offpeak-run.json'])
  })

  test('include those that could not be sent, and those whose answer is not as the schema says', async () => {
    await writeFile(at('t.csv'), 'text,file\na,\nb,dot.png\nc,\n')
    await writeFile(
      at('schema.json'),
      '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}',
    )
    upstream.reply = (call) =>
      send(call.response, 200, completion(promptOf(call) === 'c' ? 'three' : '{"n":1}'))
    const asked = await first('--schema', at('schema.json'), '--image', 'file', '-o', at('out.csv'))
    assert.equal(asked.code, 3, asked.err)
    const [, a, b, c] = (await text('out.csv')).split('\n')
    assert.equal(a, 'a,,1,')
    assert.match(b ?? '', /^b,dot\.png,,not_sent: there is no image dot\.png/)
    assert.match(c ?? '', /^c,,,not_json/)
    const again = ['-o', at('out.csv')]
    upstream.reply = (call) => send(call.response, 200, completion('{"n":2}'))
    assert.deepEqual(await sentBy(retry(...again), 3), ['c'])
    await writeFile(at('dot.png'), Buffer.from('89504e47', 'hex'))
    assert.equal((await sentBy(retry(...again), 0)).length, 1)
    assert.equal(await text('out.csv'), 'text,file,n,error\na,,1,\nb,dot.png,2,\nc,,2,\n')
    const merged = await offpeak(service, 'results', at('t.csv'), '--merge', ...again)
    assert.equal(merged.code, 0, merged.err)
    assert.equal(await text('out.csv'), 'text,file,n,error\na,,1,\nb,dot.png,2,\nc,,2,\n')
  })

  test('are not those whose answer could not be checked: it would only be paid for again', async () => {
    const slow = {
      type: 'object',
      properties: { n: { type: 'string', pattern: '^(a+)+$' } },
      required: ['n'],
    }
    await writeFile(at('schema.json'), JSON.stringify(slow))
    upstream.reply = (call) =>
      send(
        call.response,
        200,
        completion(JSON.stringify({ n: `${'a'.repeat(promptOf(call) === 'fine' ? 40 : 3)}b` })),
      )
    const { code, err } = await first('--schema', at('schema.json'))
    assert.equal(code, 3, err)
    assert.match(await text('t.out.csv'), /\n5,fine,a+b,not_checked: /)
    upstream.reply = (call) => send(call.response, 200, completion('{"n":"aaa"}'))
    assert.equal((await sentBy(retry(), 3)).length, 4)
    assert.match(await text('t.out.csv'), /\n4,bad two,aaa,\n5,fine,a+b,not_checked: /)
  })

  test('may be asked another model, or with other parameters', async () => {
    await first('--param', 'max_tokens=9', '--param', 'seed=1')
    upstream.reply = lenient
    assert.equal((await sentBy(retry('--param', 'max_tokens=90'), 0)).length, 2)
    assert.partialDeepStrictEqual(upstream.calls.at(-1)?.body, { max_tokens: 90, seed: 1 })
    const limit = await retry('--limit', '2')
    assert.equal(limit.code, 1)
    assert.match(
      limit.err,
      /--limit is not as in the last run, whose answers stay in the table; leave it out/,
    )
  })

  test('of a run without any answer are all asked about again', async () => {
    upstream.reply = ({ response }) => send(response, 400, '{"error":{"message":"not today"}}')
    assert.equal((await first()).code, 3)
    upstream.reply = lenient
    assert.equal((await sentBy(retry(), 0)).length, 5)
  })

  test('are not mixed up when rows have been changed, added or removed', async () => {
    await first()
    const before = await text('t.out.csv')
    const changes: [content: string, said: RegExp][] = [
      [
        ROWS.replace('good', 'better').replace('bad two', 'worse'),
        /: rows 1, 4 changed\. Nothing was sent\./,
      ],
      [ROWS.replace('1,good\n', ''), /: rows 1, 2, 3, 4 changed, row 5 removed\. /],
      [`${ROWS}6,six\n7,seven\n`, /t\.csv has changed since the last run: rows 6 to 7 added\. /],
    ]
    for (const [content, said] of changes) {
      await writeFile(at('t.csv'), content)
      const ended = retry()
      assert.deepEqual(await sentBy(ended, 4), [])
      assert.match((await ended).err, said)
    }
    assert.equal(await text('t.out.csv'), before)
    assert.deepEqual((await readdir(folder)).sort(), ['t.csv', 't.out.csv', 't.out.csv.offpeak-run.json'])
    await writeFile(at('t.csv'), ROWS.replace('5,fine', 'five,fine'))
    upstream.reply = lenient
    assert.equal((await sentBy(retry(), 0)).length, 2)
    assert.match(await text('t.out.csv'), /\nfive,fine,re: fine,\n$/)
  })

  test('need a run before', async () => {
    for (const args of [
      ['run', at('t.csv'), '--retry-failed'],
      ['results', at('t.csv'), '--merge'],
    ]) {
      const { code, err } = await offpeak(service, ...args)
      assert.equal(code, 1)
      assert.match(
        err,
        /there is no run before with the output .*t\.out\.csv: .*Run the table first, or name its output/,
      )
    }
    const requests =
      '{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"a"}]}}'
    await writeFile(at('r.jsonl'), requests)
    await offpeak(service, 'run', at('r.jsonl'))
    const { code, err } = await offpeak(service, 'run', at('r.jsonl'), '--retry-failed')
    assert.equal(code, 1)
    assert.match(err, /was not over a table; .*: offpeak retry batch_/)
  })

  test('that were answered by another retry are not asked about again', async () => {
    await first()
    const { batch_id } = JSON.parse(await text('t.out.csv.offpeak-run.json'))
    upstream.reply = (call) => (promptOf(call) === 'bad two' ? lenient(call) : strict(call))
    assert.equal((await offpeak(service, 'retry', batch_id, '--wait')).code, 3)
    const rows = ['--rows', at('t.csv'), '-o', at('merged.csv')]
    const merged = await offpeak(service, 'results', batch_id, '--merge', ...rows)
    assert.equal(merged.code, 3, merged.err)
    assert.match(await text('merged.csv'), /\n2,bad one,,.*\n3,"a ""quote"".*\n4,bad two,re: bad two,\n/)
    upstream.reply = lenient
    assert.deepEqual(await sentBy(retry(), 0), ['bad one'])
    const whole = await offpeak(service, 'results', batch_id, '--merge', ...rows)
    assert.equal(whole.code, 0, whole.err)
    assert.equal(await text('merged.csv'), await text('t.out.csv'))
    const plain = await json(
      offpeak(service, 'results', batch_id, '--merge', '-o', at('plain.csv'), '--json'),
    )
    assert.deepEqual([plain.rows, plain.failed], [5, 0])
    assert.equal(Array.isArray(plain.retries) && plain.retries.length, 2)
    assert.match(await text('plain.csv'), /\nrow-2,re: bad one,,\d+,\d+,.*\n(.*\n)+row-4,re: bad two,,/)
  })

  test('are asked about once when the retry is interrupted, and its end leaves the run as it was', async () => {
    await first()
    const waiting: (() => void)[] = []
    const open = (): void => {
      for (const answer of waiting.splice(0)) answer()
    }
    const interrupted = async (): Promise<string> => {
      const controller = new AbortController()
      upstream.reply = (call) => {
        waiting.push(() => lenient(call))
        controller.abort()
      }
      const args = ['run', at('t.csv'), '--retry-failed']
      const { code, err } = await offpeakUntil(service, controller.signal, ...args)
      assert.equal(code, 130, err)
      const state: { batch_id: string } = JSON.parse(await text('t.out.csv.offpeak-run/retry.json'))
      return state.batch_id
    }
    const batch = await interrupted()
    upstream.reply = lenient
    open()
    const resumed = await retry()
    assert.match(
      resumed.err,
      new RegExp(`Resuming the interrupted run \\(${batch}\\)(.*\\n)+${batch} completed: `),
    )

    await writeFile(at('t.csv'), ROWS.replaceAll('bad', 'still bad'))
    upstream.reply = strict
    await first('--again')
    const other = await interrupted()
    await cp(at('t.out.csv'), at('copy.csv'))
    await cp(at('t.out.csv.offpeak-run.json'), at('copy.csv.offpeak-run.json'))
    const twice = await retry('-o', at('copy.csv'))
    assert.equal(twice.code, 4)
    assert.match(
      twice.err,
      new RegExp(`${other}, .* is (queued|in_progress); nothing was sent\\. .*batches cancel ${other}`),
    )
    open()
    const discarded = await run('--discard')
    assert.equal(discarded.code, 0, discarded.err)
    assert.match(discarded.err, new RegExp(other))
    upstream.reply = lenient
    await service.ended(other)
    const { code, err } = await retry()
    assert.equal(code, 0, err)
    assert.match(await text('t.out.csv'), /4,still bad two,re: still bad two,\n/)
  })
})

test('without a service, rows are asked about again and merged from the data folder', {
  timeout: 120_000,
}, async () => {
  await using upstream = await testUpstream(strict)
  await using shell = await Shell.make()
  await writeFile(shell.at('t.csv'), ROWS)
  const models = `models: [{id: m, upstreams: [{type: openai, base_url: "${upstream.base_url}"}]}]`
  await writeFile(shell.at('own.yaml'), `${models}\nlog: {level: warn}\n`)
  const own = ['--config', 'own.yaml', '--data', 'own']
  const run = (...more: string[]) => shell.offpeak(['run', shell.at('t.csv'), ...own, ...more])
  const first = await run('--model', 'm', '--prompt', '{{text}}')
  assert.equal(first.code, 3, first.err)
  const before = (await readFile(shell.at('t.out.csv'), 'utf8')).split('\n')
  upstream.reply = lenient
  const begun = upstream.calls.length
  const again = await run('--retry-failed')
  assert.equal(again.code, 0, again.err)
  assert.deepEqual(upstream.calls.slice(begun).map(promptOf).sort(), ['bad one', 'bad two'])
  const whole = await readFile(shell.at('t.out.csv'), 'utf8')
  assert.deepEqual(
    whole.split('\n'),
    before.with(2, '2,bad one,re: bad one,').with(4, '4,bad two,re: bad two,'),
  )
  await appendFile(shell.at('t.out.csv'), 'damaged')
  const merged = await shell.offpeak(['results', shell.at('t.csv'), '--merge', ...own])
  assert.equal(merged.code, 0, merged.err)
  assert.equal(await readFile(shell.at('t.out.csv'), 'utf8'), whole)
})
