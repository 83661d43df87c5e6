import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdtemp, readFile, rm, utimes, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'
import { after, afterEach, before, beforeEach, describe, test } from 'node:test'
import { stripVTControlCharacters } from 'node:util'
import { fastClock } from '../../../test/fakes/clock.ts'
import { apiError, type Reply, ScriptedApi } from '../../../test/fakes/scripted-api.ts'
import { type CapturedTerminal, capturedTerminal } from '../../../test/fakes/terminal.ts'
import { runProgram } from '../program.ts'
import type { Access, Launch } from '../shell.ts'
import { orderFor } from './run.ts'
import { runStatePath } from './run-batch.ts'

/** A Launch that fails: the tests use a remote service, and start none. */
const nothing: Launch = {
  loadConfig: () => assert.fail('the configuration was read'),
  serve: () => assert.fail('a service was started'),
  reload: () => assert.fail('a service was reloaded'),
  shownConfig: () => assert.fail('the configuration was shown'),
  keys: () => assert.fail('keys were opened'),
  sim: () => assert.fail('a simulator was started'),
  doctor: () => assert.fail('stores were opened'),
  adminCommands: () => assert.fail('stores were opened'),
}

const INPUT = ['a', 'b', 'c'].map((id) => `{"custom_id":"${id}","body":{"n": 9007199254740993}}\n`).join('')

const TO_COLUMN_1 = '\u001b[1G'

describe('offpeak run against a service', () => {
  let folder: string
  let api: ScriptedApi
  let input: string
  let terminal: CapturedTerminal
  let controller: AbortController
  const clock = fastClock()

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'offpeak-run-'))
  })
  after(() => rm(folder, { recursive: true }))
  beforeEach(async () => {
    api = new ScriptedApi()
    await api.start()
    input = join(await mkdtemp(join(folder, 'case-')), 'input.jsonl')
    await writeFile(input, INPUT)
    terminal = capturedTerminal()
    controller = new AbortController()
  })
  afterEach(() => api.stop())

  const offpeak = (...args: string[]): Promise<number> =>
    program({ baseUrl: `${api.url}/v1/`, apiKey: api.key }, args)

  /** Runs a command without a remote service. */
  const embedded = (...args: string[]): Promise<number> =>
    program({ baseUrl: undefined, apiKey: undefined }, args)

  async function program(access: Access, args: string[]): Promise<number> {
    return await runProgram(args, {
      launch: nothing,
      access,
      terminal,
      clock,
      interruption: () => controller.signal,
      version: '0.0.0',
      withStack: false,
    })
  }

  const output = (): string => input.replace('.jsonl', '.out.jsonl')
  const errors = (): string => input.replace('.jsonl', '.errors.jsonl')
  const ids = async (path: string): Promise<string[]> =>
    [...(await readFile(path, 'utf8')).matchAll(/"custom_id":"(\w+)"/g)].map((match) => match[1]!)

  test('answers are written beside the input and the exit code is 0', async () => {
    api.script = { statuses: ['validating', 'queued', 'in_progress', 'completed'] }
    assert.equal(await offpeak('run', input), 0)
    assert.deepEqual(await ids(output()), ['a', 'b', 'c'])
    assert.equal(await readFile(errors(), 'utf8'), '')
    assert.match(terminal.err(), /batch_1 completed: 3 lines answered, 0 failed, \$0\.00300, /)
    assert.equal(terminal.out(), '')
  })

  test('the file arrives byte for byte', async () => {
    await offpeak('run', input)
    assert.equal(api.files.get('file_1')?.content.toString(), INPUT)
    assert.equal(api.files.get('file_1')?.object.filename, 'input.jsonl')
  })

  test('each change of status is a plain line where there is no terminal', async () => {
    api.script = { statuses: ['validating', 'queued', 'in_progress', 'in_progress', 'completed'] }
    await offpeak('run', input)
    const told = terminal.err().split('\n')
    const of = (status: string): number => told.filter((line) => line.startsWith(`${status} `)).length
    assert.deepEqual(['validating', 'queued', 'in_progress', 'completed'].map(of), [1, 1, 1, 1])
    assert.equal(stripVTControlCharacters(terminal.err()), terminal.err())
    assert.doesNotMatch(terminal.err(), /[█░]/)
  })

  test('on a terminal one line is redrawn and never wider than the screen', async () => {
    terminal = capturedTerminal(60)
    api.script = { statuses: ['in_progress', 'completed'] }
    await offpeak('run', input)
    const drawn = terminal
      .err()
      .split(TO_COLUMN_1)
      .map((part) => stripVTControlCharacters(part).split('\n')[0] ?? '')
      .filter((line) => /^(uploading|in_progress|completed)/.test(line))
    assert.match(drawn.at(-1) ?? '', /^completed .*100%/)
    for (const line of drawn) assert.ok(line.length < 60, line)
  })

  test('failed lines are counted by code, with advice, and the exit code is 3', async () => {
    api.script = { fails: { b: 'batch_expired', c: 'context_length_exceeded' } }
    assert.equal(await offpeak('run', input), 3)
    assert.deepEqual(await ids(output()), ['a'])
    assert.deepEqual(await ids(errors()), ['b', 'c'])
    assert.match(terminal.err(), /1 line batch_expired: batch_expired! Resubmit/)
  })

  test('a batch in which no line can run ends with exit code 1 and the errors in their file', async () => {
    api.script = { statuses: ['failed'], fails: { a: 'x', b: 'x', c: 'x' } }
    assert.equal(await offpeak('run', input), 1)
    assert.deepEqual(await ids(errors()), ['a', 'b', 'c'])
  })

  test('the errors of an invalid file are shown by line, and no batch is created', async () => {
    api.script = {
      refuse: [
        { line: 2, code: 'invalid_json', message: 'no JSON' },
        { line: 3, code: 'duplicate_custom_id', message: '"a" again' },
      ],
    }
    assert.equal(await offpeak('run', input), 1)
    assert.match(terminal.err(), /input\.jsonl was refused: line 2: no JSON\n {2}line 3: "a" again\n/)
    assert.equal(api.calls('POST', /batches/).length, 0)
    assert.equal(existsSync(runStatePath(output())), false)
  })

  test('a summary for scripts goes to stdout', async () => {
    api.script = { fails: { b: 'batch_expired' } }
    assert.equal(await offpeak('run', input, '--json'), 3)
    const told: unknown = JSON.parse(terminal.out())
    assert.partialDeepStrictEqual(told, {
      batch_id: 'batch_1',
      status: 'completed',
      request_counts: { total: 3, completed: 2, failed: 1 },
      failures: [{ code: 'batch_expired', count: 1 }],
      output: output(),
    })
  })

  test('window, metadata, entity, name, dedupe, reask and order reach the batch', async () => {
    await offpeak(
      ...[
        'run',
        input,
        '--window',
        '4h',
        '--metadata',
        'tags=a=b',
        '--entity',
        'user:42',
        '--name',
        'nightly',
        ...['--reask', '2:repair'],
        ...['--order', 'file'],
        '--dedupe',
      ],
    )
    const batch = api.batches.get('batch_1')?.object
    assert.equal(batch?.completion_window, '4h')
    assert.deepEqual(batch?.metadata, { tags: 'a=b', name: 'nightly', entity: 'user:42' })
    assert.equal(batch?.dedupe, true)
    assert.equal(batch?.order, 'file')
    assert.deepEqual(batch?.reask, { max: 2, mode: 'repair' })
  })

  test('429, 503 and broken connections are retried, not before Retry-After', async () => {
    api.script = {
      fault({ method, path }, nth) {
        if (method === 'POST' && path === '/v1/files' && nth === 1) {
          return apiError(503, 'service_unavailable', 'Try later.', { 'retry-after': '7' })
        }
        if (method === 'POST' && path === '/v1/batches' && nth === 1) return 'reset'
        if (path === '/v1/batches/batch_1' && nth === 1)
          return apiError(429, 'rate_limit_exceeded', 'Slower.')
        return undefined
      },
    }
    const waited = clock.waits.length
    assert.equal(await offpeak('run', input), 0)
    assert.ok(clock.waits.slice(waited).includes(7000))
    assert.equal(api.files.get('file_1')?.content.toString(), INPUT)
    const keys = api.calls('POST', /^\/v1\/batches$/).map((seen) => seen.headers['idempotency-key'])
    assert.equal(keys.length, 2)
    assert.equal(keys[0], keys[1])
  })

  test('a used-up spending limit is not retried, and the upload is kept for later', async () => {
    api.script = {
      fault: ({ method, path }) =>
        method === 'POST' && path === '/v1/batches'
          ? apiError(429, 'usage_limit_exceeded', 'The budget is spent.', { 'retry-after': '9999' })
          : undefined,
    }
    assert.equal(await offpeak('run', input), 1)
    assert.match(
      terminal.err(),
      /The budget is spent \(429 usage_limit_exceeded, POST \/v1\/batches, request req_test\)\./,
    )
    assert.equal(api.calls('POST', /^\/v1\/batches$/).length, 1)
    api.script = {}
    assert.equal(await offpeak('run', input), 0)
    assert.equal(api.calls('POST', /^\/v1\/files$/).length, 1)
  })

  test('a download whose connection breaks is resumed where it ended', async () => {
    const whole = Buffer.from('{"custom_id":"a"}\n'.repeat(1000))
    api.script = {
      fault({ path, headers }): Reply | undefined {
        if (!/content$/.test(path)) return undefined
        if (headers.range !== undefined) {
          const from = Number(headers.range.slice(6, -1))
          return {
            status: 206,
            headers: { 'content-range': `bytes ${from}-${whole.length - 1}/${whole.length}` },
            body: whole.subarray(from),
          }
        }
        // Sends part of the announced bytes: the connection ends too early.
        return {
          status: 200,
          headers: { 'content-length': String(whole.length), connection: 'close' },
          body: whole.subarray(0, 9000),
        }
      },
    }
    assert.equal(await offpeak('run', input), 0)
    assert.deepEqual(await readFile(output()), whole)
    assert.equal(existsSync(`${output()}.part`), false)
  })

  test('a report that is interrupted while it arrives ends like every command', async () => {
    api.script = {
      fault({ path }): Reply | undefined {
        if (!path.startsWith('/v1/usage')) return undefined
        setTimeout(() => controller.abort(), 200)
        return { status: 200, headers: { 'content-length': '1000' }, body: Buffer.from('entity,lines\r\n') }
      },
    }
    assert.equal(await offpeak('usage', '--csv'), 130)
    assert.match(terminal.err(), /interrupted/)
  })

  test('a report whose connection breaks says that it is not complete', async () => {
    const headers = { 'content-length': '1000', connection: 'close' }
    api.script = {
      fault: ({ path }) =>
        path.startsWith('/v1/usage')
          ? { status: 200, headers, body: Buffer.from('entity,lines\r\n') }
          : undefined,
    }
    assert.equal(await offpeak('usage', '--csv'), 1)
    assert.match(
      terminal.err(),
      /^offpeak: the connection broke \(.+, GET \/v1\/usage\/entities\?.+\), so .+ not complete; run the command again$/m,
    )
  })

  test('an interrupted run is resumed with the same batch', async () => {
    api.script = {
      statuses: ['queued', 'in_progress'],
      fault({ path }, nth) {
        if (path === '/v1/batches/batch_1' && nth === 2) controller.abort()
        return undefined
      },
    }
    assert.equal(await offpeak('run', input), 130)
    assert.match(
      terminal.err(),
      /the batch continues at http:\/\/127\.0\.0\.1:\d+\. Run the same command again/,
    )
    assert.equal(existsSync(output()), false)
    controller = new AbortController()
    api.script = {}
    assert.equal(await offpeak('run', input), 0)
    assert.match(terminal.err(), /Resuming the interrupted run \(batch_1\)/)
    assert.equal(api.batches.size, 1)
    assert.equal(api.calls('POST', /files/).length, 1)
  })

  test('a run interrupted before the answer to the create call creates no second batch', async () => {
    api.script = {
      fault({ method, path }) {
        if (method === 'POST' && path === '/v1/batches') {
          // The batch is made, but its answer is lost.
          setImmediate(() => controller.abort())
        }
        return undefined
      },
    }
    await offpeak('run', input)
    controller = new AbortController()
    api.script = {}
    assert.equal(await offpeak('run', input), 0)
    assert.equal(api.batches.size, 1)
  })

  test('other content or other options make another batch', async () => {
    const interrupt = {
      fault: ({ path }: { path: string }) => void (path === '/v1/batches/batch_1' && controller.abort()),
    }
    api.script = interrupt
    assert.equal(await offpeak('run', input), 130)
    controller = new AbortController()
    api.script = {}
    await writeFile(input, `${INPUT}{"custom_id":"d"}\n`)
    assert.equal(await offpeak('run', input), 0)
    assert.match(terminal.err(), /batch_1 continues at .* To end it: offpeak batches cancel batch_1\n/)
    assert.equal(api.batches.size, 2)
    assert.deepEqual(await ids(output()), ['a', 'b', 'c', 'd'])
  })

  test('when the batch of an interrupted run no longer exists, a new run starts', async () => {
    api.script = { fault: ({ path }) => void (path === '/v1/batches/batch_1' && controller.abort()) }
    assert.equal(await offpeak('run', input), 130)
    controller = new AbortController()
    api.script = {}
    api.batches.clear()
    assert.equal(await offpeak('run', input), 0)
    assert.match(terminal.err(), /no longer exists\. Starting a new run/)
  })

  test('a finished run is repeated with --again alone; without it, nothing is sent', async () => {
    await offpeak('run', input)
    const sent = api.calls('POST', /./).length
    assert.equal(await offpeak('run', input), 4)
    assert.match(
      terminal.err(),
      /offpeak: this run has finished before \(batch_1, .*:\d\d\); nothing was sent\. --again .* batches results batch_1\n/,
    )
    assert.equal(api.calls('POST', /./).length, sent)
    assert.equal(await offpeak('run', input, '--again'), 0)
    assert.equal(api.batches.size, 2)
    assert.equal(await offpeak('run', input), 4, 'the second is recorded as well')
    await writeFile(input, `${INPUT}{"custom_id":"d"}\n`)
    assert.equal(await offpeak('run', input), 0)
    assert.deepEqual(await ids(output()), ['a', 'b', 'c', 'd'])
  })

  test('on a terminal, the question whether to repeat a finished run is answered there', async () => {
    await offpeak('run', input)
    for (const [answer, code] of [
      ['n', 4],
      ['y', 0],
    ] as const) {
      terminal = capturedTerminal(200)
      const stdin = Object.assign(new PassThrough(), { isTTY: true })
      Object.assign(terminal, { stdin })
      stdin.end(`${answer}\n`)
      assert.equal(await offpeak('run', input), code)
      assert.match(terminal.err(), /batch_1, .* Run it again, at its cost\? \[y\/N\] /)
    }
    assert.equal(api.batches.size, 2)
  })

  test('a run that had no answer is repeated without a question', async () => {
    api.script = { fails: { a: 'x', b: 'x', c: 'x' } }
    assert.equal(await offpeak('run', input), 3)
    api.script = {}
    assert.equal(await offpeak('run', input), 0)
    assert.equal(api.batches.size, 2)
  })

  test('--discard cancels what an interrupted run has left, and runs nothing', async () => {
    const statuses = ['in_progress', 'in_progress', 'cancelling', 'cancelled'] as const
    api.script = { statuses, fault: ({ path }) => void (/batch_/.test(path) && controller.abort()) }
    assert.equal(await offpeak('run', input), 130)
    controller = new AbortController()
    api.script = { statuses }
    assert.equal(await offpeak('run', input, '--discard'), 0)
    assert.equal(api.calls('POST', /batch_1\/cancel$/).length, 1)
    assert.match(terminal.err(), /batch_1 cancelled: 0 of 3 lines answered, \$0/)
    assert.equal(existsSync(runStatePath(output())), false)
    assert.equal(await offpeak('run', input, '--discard'), 0)
    assert.match(terminal.err(), /No interrupted run with the output .* has left anything/)
    assert.equal(api.batches.size, 1)
  })

  test('--discard deletes an upload whose batch is not known', async () => {
    api.script = { fault: ({ path }) => (path === '/v1/batches' ? apiError(400, 'x', 'No.') : undefined) }
    assert.equal(await offpeak('run', input), 1)
    assert.equal(await offpeak('run', input, '--discard'), 0)
    assert.equal(api.calls('DELETE', /files\/file_1$/).length, 1)
    assert.equal(existsSync(runStatePath(output())), false)
  })

  test('a wrong key is refused before the file is sent', async () => {
    api.script = { fault: () => apiError(401, 'invalid_api_key', 'No valid API key was given.') }
    assert.equal(await offpeak('run', input), 1)
    assert.match(
      terminal.err(),
      /^offpeak: No valid API key was given \(401 invalid_api_key, GET \/v1\/(quotas|models)/,
    )
    assert.equal(api.calls('POST', /files/).length, 0)
  })

  test('nothing is sent where the answers cannot be written, or would replace something', async () => {
    const folder = join(input, '..')
    for (const [flags, message] of [
      [['-o', input], /would replace the input; name another file/],
      [['--errors', join(folder, '.', 'input.jsonl')], /would replace the input; name another file/],
      [['-o', join(folder, 'a'), '--errors', `${folder}/./a`], /a would replace the answers; name another/],
      [['-o', folder], /is not a regular file; name a file/],
      [['--errors', '/dev/null'], /the output \/dev\/null is not a regular file; name a file/],
      [['--errors', join(folder, 'none', 'e')], /there is no such file or folder: .*none\n$/],
    ] as const) {
      assert.equal(await offpeak('run', input, ...flags), 1)
      assert.match(terminal.err(), message)
      assert.equal(api.files.size, 0)
    }
    assert.equal(await readFile(input, 'utf8'), INPUT)
  })

  test('a file that no run wrote, or that was changed since, is replaced with --force alone', async () => {
    await writeFile(output(), 'by hand')
    assert.equal(await offpeak('run', input), 4)
    assert.match(terminal.err(), /input\.out\.jsonl is there already, and no run wrote it; nothing was sent/)
    assert.equal(await readFile(output(), 'utf8'), 'by hand')
    assert.equal(await offpeak('run', input, '--force'), 0)
    assert.equal(await offpeak('run', input, '--again'), 0, 'that was written by a run')
    await utimes(output(), new Date(), new Date(Date.now() + 60_000))
    assert.equal(await offpeak('run', input, '--again'), 4)
    assert.match(terminal.err(), /input\.out\.jsonl is there already, and was changed since a run wrote it;/)
    assert.equal(api.batches.size, 2)
  })

  test('a window that the plan lacks, and a start after its end, are refused before the file is sent', async () => {
    for (const [flags, message] of [
      [
        ['--window', '7m'],
        /--window 7m is not a completion window of the plan "payg", which offers 4h, 24h; .* plans\.payg\.completion_windows/,
      ],
      [['--not-before', '+30h'], /--not-before .* is after the end of the completion window \(24h\)/],
      [['--not-before', '2026-02-30'], /Expected a time such as/],
      [
        ['-o', join(folder, 'x.parquet')],
        /x\.parquet has lines of JSON, which its name does not say; .* offpeak results BATCH -o/,
      ],
      [
        ['--errors', join(folder, 'x.jsonl.gz')],
        /x\.jsonl\.gz has lines of JSON, which its name does not say/,
      ],
    ] as const) {
      assert.equal(await offpeak('run', input, ...flags), 1)
      assert.match(terminal.err(), message)
      assert.equal(api.files.size, 0)
    }
  })

  test('a run that is resumed starts when it first said, and one in the past is said to', async () => {
    api.script = { fault: ({ path }) => void (path === '/v1/batches/batch_1' && controller.abort()) }
    const inHours = (hours: number): string => new Date(clock.now() + hours * 3_600_000).toISOString()
    const started = (): unknown => JSON.parse(String(api.calls('POST', /batches$/).at(-1)?.body)).start_after
    assert.equal(await offpeak('run', input, '--not-before', inHours(2)), 130)
    const first = started()
    assert.ok(Number(first) * 1000 > clock.now())
    controller = new AbortController()
    api.script = {}
    assert.equal(await offpeak('run', input, '--not-before', inHours(3)), 0)
    assert.equal(api.batches.size, 1)
    assert.equal(await offpeak('run', input, '--again', '--not-before', inHours(-2)), 0)
    assert.match(terminal.err(), /--not-before 2023-.* has passed: lines are sent at once/)
  })

  test('an entity without a type is questioned where limits by type exist', async () => {
    const limit = { id: 'lim_1', scope: 'entity_type', entity_type: 'user' }
    api.script = {
      fault: ({ path }) =>
        path === '/v1/limits'
          ? { status: 200, body: { data: [limit], has_more: false, next_cursor: null } }
          : undefined,
    }
    await writeFile(
      input,
      '{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{},"metadata":{"entity":"42"}}\n',
    )
    assert.equal(await offpeak('run', input), 0)
    assert.equal(await offpeak('run', input, '--again', '--entity', 'user:1'), 0)
    assert.equal(
      terminal.err().match(/The entity "42" has no type, so that no limit on each user counts it/g)?.length,
      2,
    )
    terminal = capturedTerminal()
    await writeFile(input, INPUT)
    assert.equal(await offpeak('run', input, '--entity', 'user:1'), 0)
    assert.doesNotMatch(terminal.err(), /no type/)
  })

  test('an error about a missing file names it', async () => {
    assert.equal(await offpeak('run', join(folder, 'missing.jsonl')), 1)
    assert.match(terminal.err(), /^offpeak: there is no such file or folder: .*missing\.jsonl\n$/)
  })

  test('no service is started for a missing file', async () => {
    assert.equal(await embedded('run', join(folder, 'missing.jsonl')), 1)
    assert.match(terminal.err(), /^offpeak: there is no such file or folder: .*missing\.jsonl\n$/)
  })
})

test('failed lines go beside the answers', () => {
  const order = (flags: { output?: string; errors?: string }) =>
    orderFor('in/x.jsonl', { window: '24h', ...flags }, 'here')
  assert.equal(order({}).errors, 'in/x.errors.jsonl')
  assert.equal(order({ output: 'out/y.jsonl' }).errors, 'out/y.errors.jsonl')
  assert.equal(order({ output: 'out/y.jsonl', errors: 'e' }).errors, 'e')
})
