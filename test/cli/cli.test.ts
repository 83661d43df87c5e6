// The command line as its users run it, against the real service with the simulator behind it. What a process
// is about (its start, its end, its environment) is tested with real processes; the rest calls the program.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { open, readFile, stat, writeFile } from 'node:fs/promises'
import { text } from 'node:stream/consumers'
import { after, before, describe, test } from 'node:test'
import { version } from '../../src/compose/version.ts'
import { testUpstream } from '../fakes/upstream.ts'
import { OFFPEAK } from '../support/offpeak-process.ts'
import { chatLine, Shell } from '../support/shell.ts'

describe('the command line', { timeout: 120_000 }, () => {
  let shell: Shell
  let service: Awaited<ReturnType<Shell['start']>>
  /** OFFPEAK_BASE_URL and OFFPEAK_API_KEY of `service`. */
  let access: Record<string, string>

  before(async () => {
    shell = await Shell.make()
    service = await shell.start('serve', '--config', 'quick.yaml', '--data', 'service', '--port', '0')
    access = await shell.access(service, 'service')
  })

  after(() => shell[Symbol.asyncDispose]())

  /** Against the running service; must end well. */
  async function ask(...args: string[]): Promise<string> {
    const { code, out, err } = await shell.offpeak(args, access)
    assert.equal(code, 0, err)
    return out.trim()
  }

  test('the ready line names the address, and the first keys are for their owner alone', async () => {
    assert.match(service.ready, /^offpeak listening on http:\/\/127\.0\.0\.1:\d+$/)
    for (const name of ['api-key', 'api-key-openai'])
      assert.equal((await stat(shell.at(`service/${name}`))).mode & 0o777, 0o600)
  })

  test('a command needs no reader of its messages, and says why its output cannot be written', async () => {
    const input = await shell.input('unread.jsonl', chatLine('a'))
    const unread = shell.launch(['run', input, '--json'], access)
    unread.stderr!.destroy()
    assert.equal(JSON.parse(await text(unread.stdout!)).status, 'completed')

    const full = await open('/dev/full', 'w')
    const child = spawn(process.execPath, [OFFPEAK, 'completion', 'bash'], {
      stdio: ['ignore', full.fd, 'pipe'],
    })
    assert.match(await text(child.stderr!), /^offpeak: the output cannot be written: ENOSPC/)
    await full.close()
  })

  test('API and worker may run apart', async () => {
    const shared = ['--config', 'quick.yaml', '--data', 'apart']
    const api = await shell.start('api', ...shared, '--port', '0')
    const worker = await shell.start('worker', ...shared)
    assert.equal(worker.ready, 'offpeak worker ready')
    const env = await shell.access(api, 'apart')
    const { code, err } = await shell.offpeak(['run', await shell.input('apart.jsonl', chatLine('a'))], env)
    assert.equal(code, 0, err)
    assert.equal((await worker.end('SIGTERM')).code, 0)
    assert.equal((await api.end('SIGTERM')).code, 0)
  })

  test('a file is run from start to finish by a service that lives no longer', async () => {
    const lines = Array.from({ length: 25 }, (_, i) => chatLine(`line-${i}`))
    const { code, out, err } = await shell.spawned([
      'run',
      await shell.input('whole.jsonl', ...lines),
      '--config',
      'quick.yaml',
      '--json',
    ])
    assert.equal(code, 0, err)
    const told: { request_counts: object; cost_usd: number } = JSON.parse(out)
    assert.deepEqual(told.request_counts, { total: 25, completed: 25, failed: 0 })
    const answers = (await readFile(shell.at('whole.out.jsonl'), 'utf8')).trim().split('\n')
    assert.equal(answers.length, 25)
    assert.equal(await readFile(shell.at('whole.errors.jsonl'), 'utf8'), '')
    let nanos = 0
    for (const answer of answers) {
      const { response }: { response: { body: { usage: { cost_usd: number } } } } = JSON.parse(answer)
      nanos += Math.round(response.body.usage.cost_usd * 1e9)
    }
    assert.equal(nanos, Math.round(told.cost_usd * 1e9))
  })

  test('lines that cannot run end up in the errors file, with exit code 3', async () => {
    const name = await shell.input('partly.jsonl', chatLine('good'), chatLine('bad', 'no-such-model'))
    const { code, err } = await shell.offpeak(
      ['run', name, '-o', shell.at('p.out'), '--errors', shell.at('p.err')],
      access,
    )
    assert.equal(code, 3, err)
    assert.match(await readFile(shell.at('p.out'), 'utf8'), /^\{.*"custom_id":"good"/)
    assert.match(await readFile(shell.at('p.err'), 'utf8'), /^\{.*"custom_id":"bad".*"model_not_found"/)
    assert.match(err, /1 line model_not_found: /)
  })

  test('a batch of a place in a bucket is one call, and names one input', async () => {
    const create = (...more: string[]) => shell.offpeak(['batches', 'create', ...more], access)
    for (const args of [[], ['file_1', '--input-url', 's3://data/x']])
      assert.match((await create(...args)).err, /name one input: the ID of a file, or --input-url/)
    const { code, err } = await create('--input-url', 's3://data/x', '--output-url', 's3://data/out/')
    assert.equal(code, 1)
    assert.match(err, /This project may write no bucket, not s3:\/\/data\/out\/ \(403 bucket_not_allowed,/)
  })

  test('a batch of a file has the endpoint of its lines', async () => {
    const embeddings = { url: '/v1/embeddings', body: { model: 'sim-1', input: 'x' } }
    const name = await shell.input('embeddings.jsonl', { ...chatLine('a'), ...embeddings })
    const file = (await shell.offpeak(['files', 'upload', name], access)).out.trim()
    const { out } = await shell.offpeak(['batches', 'create', file, '--json'], access)
    const batch = await shell.offpeak(['batches', 'get', JSON.parse(out).id, '--json'], access)
    assert.equal(JSON.parse(batch.out).endpoint, '/v1/embeddings')
  })

  test('a batch in which no line can run ends with exit code 1', async () => {
    const name = await shell.input('none.jsonl', {
      ...chatLine('bad'),
      body: { model: 'sim-1', messages: 1 },
    })
    const { code, err } = await shell.offpeak(['run', name], access)
    assert.equal(code, 1)
    assert.match(err, /failed: 0 lines answered, 1 failed/)
    assert.match(await readFile(shell.at('none.errors.jsonl'), 'utf8'), /invalid_request/)
  })

  test('the commands of the page about slow batches work, and status shows its servers', async () => {
    const name = await shell.input('slow.jsonl', chatLine('a'))
    const { code, out, err } = await shell.offpeak(['run', name, '--json'], access)
    assert.equal(code, 0, err)
    const { batch_id }: { batch_id: string } = JSON.parse(out)
    const page = await readFile(new URL('../../docs/slow-batches.md', import.meta.url), 'utf8')
    const commands = [...page.matchAll(/^offpeak (.+)$/gm)].map(([, words = '']) =>
      words.replace('batch_01k0…', batch_id).replace('so-far.jsonl', shell.at('so-far.jsonl')).split(' '),
    )
    assert.ok(commands.length >= 6)
    const said = new Map<string, string>()
    for (const command of commands) {
      const ended = await shell.offpeak(command, access)
      assert.equal(ended.code, 0, `${command.join(' ')}: ${ended.err}`)
      said.set(command.slice(0, 2).join(' '), ended.out)
    }
    assert.match(
      said.get('status') ?? '',
      /Unfinished batches: .*\n(.*\n)*MODEL +SERVER +IN FLIGHT .*\nsim-1 /,
    )
    assert.match(said.get('batches get') ?? '', /\nrequest_counts +1 of 1 line done \(100%\), 0 failed/)
  })

  test('a malformed file is refused, and every bad line is named', async () => {
    const name = await shell.input('twice.jsonl', chatLine('a'), chatLine('a'), chatLine('b'), chatLine('b'))
    const { code, err } = await shell.offpeak(['run', name], access)
    assert.equal(code, 1)
    assert.match(err, /offpeak: twice\.jsonl was refused: .*2.*\n {2}line 4: /)
  })

  test('files, batches and requests are there from a shell', async () => {
    const file_id = await ask(
      'files',
      'upload',
      await shell.input('shell.jsonl', chatLine('a'), chatLine('b', 'no-such-model')),
    )
    assert.match(file_id, /^file_\w{26}$/)
    assert.match(await ask('files', 'get', file_id), /^status +processed$/m)
    assert.equal(
      await ask('files', 'content', file_id),
      await readFile(shell.at('shell.jsonl'), 'utf8').then((all) => all.trim()),
    )

    const batch_id = await ask(
      'batches',
      'create',
      file_id,
      '--entity',
      'user:42',
      '--idempotency-key',
      'job-1',
    )
    assert.equal(
      await ask('batches', 'create', file_id, '--entity', 'user:42', '--idempotency-key', 'job-1'),
      batch_id,
    )
    const done: { status: string; metadata: object } = JSON.parse(
      await ask('batches', 'wait', batch_id, '--json'),
    )
    assert.equal(done.status, 'completed')
    assert.deepEqual(done.metadata, { entity: 'user:42' })
    assert.match(
      await ask('batches', 'list', '--status', 'completed'),
      new RegExp(`^${batch_id} +shell\\.jsonl +completed +100% +2 +1 `, 'm'),
    )

    await ask('batches', 'results', batch_id, '-o', shell.at('shell.out'), '--errors', shell.at('shell.err'))
    const answer: { response: { request_id: string } } = JSON.parse(
      await readFile(shell.at('shell.out'), 'utf8'),
    )
    const record = await ask('requests', 'get', answer.response.request_id, '--json')
    assert.match(record, /"custom_id":"a"/)
    const both =
      (await readFile(shell.at('shell.out'), 'utf8')) + (await readFile(shell.at('shell.err'), 'utf8'))
    const followed = await ask('batches', 'results', batch_id, '--follow')
    assert.deepEqual(followed.trim().split('\n'), both.trim().split('\n'))

    const { code, err } = await shell.offpeak(['batches', 'cancel', batch_id], access)
    assert.equal(code, 1)
    assert.match(err, /^offpeak: .* \(422 [^\n]*\n$/)

    await ask('files', 'delete', file_id)
    assert.doesNotMatch(await ask('files', 'list', '--purpose', 'batch'), new RegExp(file_id))
    assert.match(await ask('models', 'list'), /^sim-1 +- +\$0\.1 +\$0\.4 /m)
    assert.match(await ask('models', 'get', 'sim-1'), /^id +sim-1$/m)
  })

  test('retry sends the failed lines again, byte for byte, and merges the answers', async () => {
    // The simulator refuses what is over its window; a number beyond 2^53 shows whether a line was rewritten.
    const failing =
      '{"custom_id":"bad",  "method":"POST","url":"/v1/chat/completions","body":{"model":"later","seed":9007199254740993,"messages":[{"role":"user","content":"x"}]}}'
    await writeFile(shell.at('again.jsonl'), `${JSON.stringify(chatLine('good'))}\n${failing}\n`)
    const first = await shell.offpeak(['run', shell.at('again.jsonl'), '--json'], access)
    assert.equal(first.code, 3, first.err)
    const { batch_id }: { batch_id: string } = JSON.parse(first.out)

    const retried = await shell.offpeak(
      ['retry', batch_id, '--output-url', 'none', '--merge', shell.at('merged.jsonl'), '--json'],
      access,
    )
    assert.equal(retried.code, 3, retried.err)
    assert.match(retried.err, /1 failed line of batch_/)
    const made: { input_file_id: string; metadata: Record<string, string> } = JSON.parse(retried.out)
    assert.equal(made.metadata.retry_of, batch_id)
    assert.equal(await ask('files', 'content', made.input_file_id), failing)
    assert.match(await readFile(shell.at('merged.jsonl'), 'utf8'), /"custom_id":"good"/)

    const elsewhere = await shell.offpeak(['retry', batch_id, '--output-url', 's3://none/out/'], access)
    assert.match(elsewhere.err, /bucket_not_allowed/)
    const nothing = await shell.offpeak(['retry', batch_id, '--code', 'batch_expired'], access)
    assert.equal(nothing.code, 1)
    assert.match(nothing.err, /The batch has no failed line with batch_expired \(422 batch_not_retryable/)
  })

  test('a key does what its scopes say until it is revoked', async () => {
    const shared = ['--config', 'quick.yaml', '--data', 'service']
    const made = await shell.offpeak([
      'keys',
      'create',
      '--project',
      'ci',
      '--scopes',
      'files:read',
      '--json',
      ...shared,
    ])
    assert.equal(made.code, 0, made.err)
    const key: { id: string; key: string; project: string; scopes: string[] } = JSON.parse(made.out)
    assert.deepEqual([key.project, key.scopes], ['ci', ['files:read']])
    const env = { ...access, OFFPEAK_API_KEY: key.key }
    assert.deepEqual(await shell.offpeak(['files', 'list', '--json'], env), { code: 0, out: '[]\n', err: '' })
    assert.match((await shell.offpeak(['batches', 'list'], env)).err, /403 missing_scope/)

    assert.match(
      (await shell.offpeak(['keys', 'list', ...shared])).out,
      new RegExp(`^${key.id} +ci +payg `, 'm'),
    )
    assert.equal((await shell.offpeak(['keys', 'revoke', key.id, ...shared])).code, 0)
    assert.match((await shell.offpeak(['files', 'list'], env)).err, /401 invalid_api_key/)
    const capped = await shell.offpeak([
      ...['keys', 'create', '--project', 'ci', '--usd', '20', '--window', 'week', '--model', 'sim-1'],
      ...['--notify-at', '0.5', '--json', ...shared],
    ])
    assert.equal(capped.code, 0, capped.err)
    const { limit, ...holder }: typeof key & { limit: { id: string } } = JSON.parse(capped.out)
    assert.partialDeepStrictEqual(limit, {
      ...{ scope: 'key', key: holder.id, model: 'sim-1', metric: 'cost_usd', amount: 20, window: 'week' },
      ...{ notify_at: [0.5], action: 'block' },
    })
    const held = { ...access, OFFPEAK_API_KEY: holder.key }
    assert.match(
      (await shell.offpeak(['limits', 'list'], held)).out,
      new RegExp(`^${limit.id} +${holder.id} on `, 'm'),
    )
    assert.match((await shell.offpeak(['limits', 'delete', limit.id], held)).err, /403 missing_scope/)
    const create = (...cap: string[]) =>
      shell.offpeak(['keys', 'create', '--project', 'ci', ...cap, ...shared])
    const listed = (await shell.offpeak(['keys', 'list', ...shared])).out
    assert.match((await create('--usd', '5', '--model', 'nope')).err, /^offpeak: There is no such model/)
    assert.match((await create('--window', 'week')).err, /the limit needs a cap: one of --usd, --tokens and/)
    assert.equal((await shell.offpeak(['keys', 'list', ...shared])).out, listed)
    assert.match((await create('--requests', '9')).err, /^lim_\w+ caps it at 9 requests a month\.$/m)
    const fresh = await shell.offpeak(['keys', 'create', '--project', 'p', '--data', 'fresh'])
    assert.match(fresh.err, /^offpeak: no service was here; its database is new: .*fresh\/offpeak\.db /m)
    const twice = await shell.offpeak(['keys', 'revoke', key.id, ...shared])
    assert.equal(twice.code, 1)
    assert.match(twice.err, /^offpeak: the key .* does not exist or is already revoked/)
  })

  test('the simulator is a server of its own', async () => {
    const sim = await shell.start('sim', '--port', '0', '--latency-ms', '0..1', '--models', 'm1')
    assert.match(sim.ready, /^offpeak sim listening on http:\/\/127\.0\.0\.1:\d+$/)
    const url = sim.ready.replace('offpeak sim listening on ', '')
    const models: unknown = await (await fetch(`${url}/v1/models`)).json()
    assert.partialDeepStrictEqual(models, { data: [{ id: 'm1' }] })
    const lines = await shell.input('sim.jsonl', chatLine('a', 'm1'))
    const { code, err } = await shell.offpeak(['run', lines, '--upstream', `${url}/v1`, '--data', 'sim'])
    assert.equal(code, 0, err)
    assert.equal((await sim.end('SIGTERM')).code, 0)
  })

  test('a run asks the model that --model names, and names those that there are', async () => {
    const path = await shell.input('named.jsonl', chatLine('a', 'gpt-4o'), chatLine('b', 'gpt-4o'))
    const original = await readFile(path, 'utf8')
    const run = (...more: string[]) => shell.offpeak(['run', path, ...more], access)
    const estimate = await run('--estimate')
    assert.match(estimate.out, /^There is no model gpt-4o: .* Models here: sim-1;/m)
    assert.equal(estimate.code, 1)
    const unknown = await run()
    assert.equal(unknown.code, 1)
    assert.match(
      unknown.err,
      /^offpeak: there is no model "gpt-4o"; models here are sim-1; --model NAME runs the file with one of them$/m,
    )
    assert.doesNotMatch(unknown.err, /uploading/)
    const other = await shell.input('other.jsonl', chatLine('a'), chatLine('b', 'gpt-4o'))
    const partly = await shell.offpeak(['run', other], access)
    assert.match(partly.err, /^models here: sim-1; --model NAME runs the file with one of them$/m)

    const named = await run('--model', 'sim-1')
    assert.equal(named.code, 0, named.err)
    assert.match(named.err, /^model: {3}sim-1, in place of gpt-4o in 2 lines$/m)
    assert.equal((await readFile(shell.at('named.out.jsonl'), 'utf8')).match(/"model":"sim-1"/g)?.length, 2)
    assert.equal(await readFile(path, 'utf8'), original)
    assert.equal(existsSync(shell.at('named.out.jsonl.offpeak-run')), false)
    // The copy with the other model is the same each time: the run is known to be paid for.
    assert.equal((await run('--model', 'sim-1')).code, 4)
  })

  test('a run sends the key of --upstream-key-env to the server of --upstream', async () => {
    await using upstream = await testUpstream()
    upstream.models = { object: 'list', data: [{ id: 'real', object: 'model' }] }
    const sent: (string | undefined)[] = []
    upstream.server.on('request', ({ headers }) => sent.push(headers.authorization))
    const path = await shell.input('keyed.jsonl', chatLine('a', 'gpt-4o'))
    const key = ['--upstream-key-env', 'SERVER_KEY']
    const run = ['run', path, '--upstream', upstream.base_url, ...key, '--model', 'real', '--data', 'keyed']
    const { code, err } = await shell.offpeak(run, { SERVER_KEY: 'sk-test' })
    assert.equal(code, 0, err)
    assert.equal(upstream.calls[0]?.body.model, 'real')
    assert.ok(sent.length > 1 && sent.every((header) => header === 'Bearer sk-test'))
    assert.match((await shell.offpeak(run)).err, /the variable SERVER_KEY is not set/)
    assert.match((await shell.offpeak(['run', path, ...key])).err, /give both/)
  })

  test('a run reaches the server of --upstream through the proxy of the environment, for its list and its lines', async () => {
    // It answers as a proxy is asked: with whole addresses.
    await using proxy = await testUpstream()
    proxy.models = { object: 'list', data: [{ id: 'real', object: 'model' }] }
    const asked = new Set<string | undefined>()
    proxy.server.on('request', ({ url }) => asked.add(url))
    const path = await shell.input('proxied.jsonl', chatLine('a', 'real'))
    const run = ['run', path, '--upstream', 'http://models.test/v1', '--data', 'proxied']
    const { code, err } = await shell.offpeak(run, { HTTP_PROXY: proxy.url })
    assert.equal(code, 0, err)
    assert.deepEqual([...asked], ['http://models.test/v1/models', 'http://models.test/v1/chat/completions'])
  })

  test('a mistake is told in one line, with a way out', async () => {
    const mistakes: [string[], Record<string, string>, RegExp][] = [
      [['serv'], {}, /^offpeak: unknown command 'serv' \(Did you mean serve\?\); see "offpeak --help"/],
      [['run'], {}, /^offpeak: missing required argument 'input'; see /],
      [['run', 'x.jsonl', '--jsn'], {}, /^offpeak: unknown option '--jsn' \(Did you mean --json\?\); see /],
      [
        ['doctor', '--data', import.meta.filename],
        {},
        /^offpeak: part of this path is a file, .*\/offpeak\.db$/,
      ],
      [['run', '/no.jsonl'], access, /^offpeak: there is no such file or folder: \/no\.jsonl$/],
      [['run', '/tmp'], access, /^offpeak: \/tmp is not a regular file; give the path of a JSONL file, or/],
      [['files', 'upload', 'x.csv'], access, /^offpeak: x\.csv is a table, .* add --purpose table$/],
      [
        ['files', 'list'],
        { OFFPEAK_API_KEY: 'k' },
        /^offpeak: OFFPEAK_API_KEY is set but OFFPEAK_BASE_URL is not; /,
      ],
      [
        ['files', 'list'],
        { ...access, OFFPEAK_BASE_URL: 'http://127.0.0.1:9' },
        /^offpeak: http:\/\/127\.0\.0\.1:9 cannot be reached /,
      ],
      [
        ['batches', 'get', 'batch_x'],
        access,
        /^offpeak: There is no such batch \(404 batch_not_found, GET \/v1\/batches\/batch_x, request req_/,
      ],
      [
        ['serve', '--port', 'x', '--data', 'm'],
        {},
        /^offpeak: .*--port: expected a whole number from 0 to 65535, found "x"$/,
      ],
      [
        ['keys', 'create', '--project', 'p', '--scopes', 'all'],
        {},
        /^offpeak: option '--scopes <list>' argument 'all' is invalid\. The scopes are /,
      ],
      [
        ['sim', '--port', '0', '--rate-429', '0.6', '--rate-500', '0.6'],
        {},
        /^offpeak: the --rate options add up to 1\.2/,
      ],
    ]
    const ends = await Promise.all(mistakes.map(([args, env]) => shell.offpeak(args, env)))
    for (const [i, { code, out, err }] of ends.entries()) {
      assert.equal(code, 1, err)
      assert.equal(out, '')
      assert.match(err.replace(/\n$/, ''), mistakes[i]![2])
      assert.equal(err.split('\n').length, 2, err)
    }
  })

  test('help is on stdout and ends well, for every command', async () => {
    const { code, out } = await shell.spawned(['--help'])
    assert.equal(code, 0)
    assert.match(out, /Usage: offpeak/)
    assert.match((await shell.offpeak(['retry', '--help'])).out, /Examples:\n {2}\$ offpeak retry/)
    assert.equal((await shell.offpeak(['--version'])).out, `${version()}\n`)
  })

  test('the service ends on SIGTERM and SIGINT with exit code 0, and names its first keys once', async () => {
    const first = await service.end('SIGTERM')
    assert.equal(first.code, 0, first.err)
    assert.match(
      first.err,
      /its API key is in .*service\/api-key\n.*strict clients in .*service\/api-key-openai\n/,
    )
    const again = await shell.start('serve', '--config', 'quick.yaml', '--data', 'service', '--port', '0')
    const { code, err } = await again.end('SIGINT')
    assert.equal(code, 0, err)
    assert.doesNotMatch(err, /API key/)
  })
})
