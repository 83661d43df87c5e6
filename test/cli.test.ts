// The command line as its users run it, against the real service with the simulator behind it. What a process
// is about (its start, its end, its environment) is tested with real processes; the rest calls the program.
import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { after, before, describe, test } from 'node:test'
import { runProgram } from '../src/cli/program.ts'
import { adminCommands } from '../src/compose/admin-commands.ts'
import { askToReload } from '../src/compose/control-socket.ts'
import { doctor } from '../src/compose/doctor.ts'
import { keys } from '../src/compose/keys.ts'
import { serve } from '../src/compose/serve.ts'
import { sim } from '../src/compose/sim.ts'
import { loadConfig } from '../src/config/load.ts'
import { shownConfig } from '../src/config/shown-config.ts'
import { systemClock } from '../src/domain/clock.ts'
import { capturedTerminal } from './fakes/terminal.ts'
import { testUpstream } from './fakes/upstream.ts'
import { cleanEnv, OFFPEAK } from './support/offpeak-process.ts'

interface Ended {
  code: number | null
  out: string
  err: string
}

interface Started {
  child: ChildProcess
  /** The first line on stdout. */
  ready: string
  /** Sends the signal and waits for the end. */
  end(signal: NodeJS.Signals): Promise<Ended>
}

describe('the command line', { timeout: 120_000 }, () => {
  let folder: string
  let service: Started
  /** OFFPEAK_BASE_URL and OFFPEAK_API_KEY of `service`. */
  let access: Record<string, string>
  const running = new Set<ChildProcess>()

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'offpeak-cli-'))
    await writeFile(
      at('quick.yaml'),
      'models: [{id: sim-1, price: {input_per_mtok: 0.1, output_per_mtok: 0.4}, upstreams: [{type: sim}]}]\n' +
        'log: {level: warn}\n',
    )
    await writeFile(
      at('slow.yaml'),
      'models: [{id: sim-1, upstreams: [{type: sim, latency_ms: 600000}]}]\nworker: {drain: 10ms}\n' +
        'log: {level: warn}\n',
    )
    service = await start('serve', '--config', 'quick.yaml', '--data', 'service', '--port', '0')
    access = {
      OFFPEAK_BASE_URL: service.ready.replace('offpeak listening on ', ''),
      OFFPEAK_API_KEY: (await readFile(at('service/api-key'), 'utf8')).trim(),
    }
  })

  after(async () => {
    for (const child of running) child.kill('SIGKILL')
    await rm(folder, { recursive: true, force: true })
  })

  function at(name: string): string {
    return join(folder, name)
  }

  function launch(args: readonly string[], env: Record<string, string>): ChildProcess {
    const child = spawn(process.execPath, [OFFPEAK, ...args], { cwd: folder, env: { ...cleanEnv(), ...env } })
    running.add(child)
    child.once('exit', () => running.delete(child))
    return child
  }

  async function ended(child: ChildProcess): Promise<Ended> {
    assert.ok(child.stdout !== null && child.stderr !== null)
    const [out, err, [code]] = await Promise.all([
      text(child.stdout),
      text(child.stderr),
      once(child, 'close'),
    ])
    return { code: typeof code === 'number' ? code : null, out, err }
  }

  /** In a process of its own. */
  async function spawned(args: readonly string[], env: Record<string, string> = {}): Promise<Ended> {
    return await ended(launch(args, env))
  }

  /** In this process, with everything that a process of its own would start. */
  async function offpeak(args: readonly string[], env: Record<string, string> = {}): Promise<Ended> {
    const terminal = capturedTerminal()
    const code = await runProgram(args, {
      launch: {
        loadConfig: ({ config, ...overrides }) => loadConfig({ file: config, env, cwd: folder, overrides }),
        serve: (config, options) => serve(config, options, (name) => env[name]),
        reload: (config) => askToReload(config.data_dir),
        shownConfig: async (config) => shownConfig(config),
        keys,
        sim,
        doctor,
        adminCommands: async () => adminCommands((name) => env[name]),
      },
      access: { baseUrl: env.OFFPEAK_BASE_URL, apiKey: env.OFFPEAK_API_KEY },
      terminal,
      clock: systemClock,
      interruption: () => new AbortController().signal,
      version: '1.2.3',
      withStack: false,
    })
    return { code, out: terminal.out(), err: terminal.err() }
  }

  /** Against the running service; must end well. */
  async function ask(...args: string[]): Promise<string> {
    const { code, out, err } = await offpeak(args, access)
    assert.equal(code, 0, err)
    return out.trim()
  }

  async function start(...args: string[]): Promise<Started> {
    const child = launch(args, {})
    const end = ended(child)
    const ready = await new Promise<string>((resolve, reject) => {
      let said = ''
      child.stdout?.on('data', (block: Buffer) => {
        said += block.toString()
        const line = said.indexOf('\n')
        if (line !== -1) resolve(said.slice(0, line))
      })
      end.then(({ err }) => reject(new Error(`it ended before it was ready: ${err}`)), reject)
    })
    return {
      child,
      ready,
      async end(signal) {
        child.kill(signal)
        return await end
      },
    }
  }

  async function input(name: string, ...lines: object[]): Promise<string> {
    const path = at(name)
    await writeFile(path, lines.map((line) => `${JSON.stringify(line)}\n`).join(''))
    return path
  }

  function line(custom_id: string, model = 'sim-1'): object {
    const body = { model, messages: [{ role: 'user', content: custom_id }] }
    return { custom_id, method: 'POST', url: '/v1/chat/completions', body }
  }

  test('the ready line names the address, and the first keys are for their owner alone', async () => {
    assert.match(service.ready, /^offpeak listening on http:\/\/127\.0\.0\.1:\d+$/)
    for (const name of ['api-key', 'api-key-openai'])
      assert.equal((await stat(at(`service/${name}`))).mode & 0o777, 0o600)
  })

  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    test(`the service ends on ${signal} with exit code 0`, async () => {
      const args = ['serve', '--config', 'quick.yaml', '--data', 'ending', '--port', '0']
      const { code, err } = await (await start(...args)).end(signal)
      assert.equal(code, 0, err)
      if (signal === 'SIGTERM')
        assert.match(
          err,
          /its API key is in .*ending\/api-key\n.*strict clients in .*ending\/api-key-openai\n/,
        )
      else assert.doesNotMatch(err, /API key/)
    })
  }

  test('API and worker may run apart', async () => {
    const shared = ['--config', 'quick.yaml', '--data', 'apart']
    const api = await start('api', ...shared, '--port', '0')
    const worker = await start('worker', ...shared)
    assert.equal(worker.ready, 'offpeak worker ready')
    const env = {
      OFFPEAK_BASE_URL: api.ready.replace('offpeak listening on ', ''),
      OFFPEAK_API_KEY: (await readFile(at('apart/api-key'), 'utf8')).trim(),
    }
    const { code, err } = await spawned(['run', await input('apart.jsonl', line('a'))], env)
    assert.equal(code, 0, err)
    assert.equal((await worker.end('SIGTERM')).code, 0)
    assert.equal((await api.end('SIGTERM')).code, 0)
  })

  test('a file is run from start to finish by a service that lives no longer', async () => {
    const lines = Array.from({ length: 25 }, (_, i) => line(`line-${i}`))
    const { code, out, err } = await spawned([
      'run',
      await input('whole.jsonl', ...lines),
      '--config',
      'quick.yaml',
      '--json',
    ])
    assert.equal(code, 0, err)
    const told: { request_counts: object; cost_usd: number } = JSON.parse(out)
    assert.deepEqual(told.request_counts, { total: 25, completed: 25, failed: 0 })
    const answers = (await readFile(at('whole.out.jsonl'), 'utf8')).trim().split('\n')
    assert.equal(answers.length, 25)
    assert.equal(await readFile(at('whole.errors.jsonl'), 'utf8'), '')
    let nanos = 0
    for (const answer of answers) {
      const { response }: { response: { body: { usage: { cost_usd: number } } } } = JSON.parse(answer)
      nanos += Math.round(response.body.usage.cost_usd * 1e9)
    }
    assert.equal(nanos, Math.round(told.cost_usd * 1e9))
  })

  test('lines that cannot run end up in the errors file, with exit code 3', async () => {
    const name = await input('partly.jsonl', line('good'), line('bad', 'no-such-model'))
    const { code, err } = await offpeak(['run', name, '-o', at('p.out'), '--errors', at('p.err')], access)
    assert.equal(code, 3, err)
    assert.match(await readFile(at('p.out'), 'utf8'), /^\{.*"custom_id":"good"/)
    assert.match(await readFile(at('p.err'), 'utf8'), /^\{.*"custom_id":"bad".*"model_not_found"/)
    assert.match(err, /1 line model_not_found: /)
  })

  test('a batch in which no line can run ends with exit code 1', async () => {
    const name = await input('none.jsonl', line('bad', 'no-such-model'))
    const { code, err } = await offpeak(['run', name], access)
    assert.equal(code, 1)
    assert.match(err, /failed: 0 lines answered, 1 failed/)
    assert.match(await readFile(at('none.errors.jsonl'), 'utf8'), /model_not_found/)
  })

  test('a malformed file is refused, and every bad line is named', async () => {
    const name = await input('twice.jsonl', line('a'), line('a'), line('b'), line('b'))
    const { code, err } = await offpeak(['run', name], access)
    assert.equal(code, 1)
    assert.match(err, /offpeak: twice\.jsonl was refused: .*2.*\n {2}line 4: /)
  })

  /** A run on a data folder whose model does not answer, once its batch is in progress. */
  async function stuckRun(name: string, data: string, ...flags: string[]) {
    const child = launch(['run', name, '--config', 'slow.yaml', '--data', data, ...flags], {})
    const end = ended(child)
    await new Promise<void>((resolve, reject) => {
      let said = ''
      child.stderr?.on('data', (block: Buffer) => {
        said += block.toString()
        if (said.includes('in_progress')) resolve()
      })
      end.then(({ err }) => reject(new Error(`it ended before its batch was in progress: ${err}`)), reject)
    })
    const state: { batch_id: string } = JSON.parse(
      await readFile(name.replace('.jsonl', '.out.jsonl.offpeak-run.json'), 'utf8'),
    )
    const interrupt = async (signal: NodeJS.Signals): Promise<Ended> => {
      child.kill(signal)
      return await end
    }
    return { pid: child.pid, batch_id: state.batch_id, interrupt }
  }

  test('interrupted by Ctrl-C and run again, an embedded run goes on with the same batch', async () => {
    const name = await input('long.jsonl', line('a'), line('b'))
    const { batch_id, interrupt } = await stuckRun(name, 'long')
    const { code, err } = await interrupt('SIGINT')
    assert.equal(code, 130, err)
    assert.match(err, /Run the same command again to resume/)
    const again = await offpeak(['run', name, '--config', 'quick.yaml', '--data', 'long'])
    assert.equal(again.code, 0, again.err)
    assert.match(again.err, new RegExp(`interrupted run \\(${batch_id}\\)[^]*${batch_id} completed: 2 `))
    assert.doesNotMatch(again.err, /Unfinished batches/)
  })

  test('what an interrupted run left costs nothing when its input is changed, and needs no service to be ended', async () => {
    const name = await input('fixed.jsonl', line('a'), line('b'))
    const { batch_id, interrupt } = await stuckRun(name, 'fixed')
    await interrupt('SIGINT')
    await input('fixed.jsonl', line('c'))
    const own = ['--config', 'quick.yaml', '--data', 'fixed']
    const changed = await offpeak(['run', name, ...own, '--json'])
    assert.equal(changed.code, 0, changed.err)
    assert.match(
      changed.err,
      new RegExp(`Unfinished batches[^\\n]*\\n  ${batch_id}  in_progress, 0 of 2 lines done, window until `),
    )
    assert.match(changed.err, /To end one: offpeak batches cancel ID --config quick\.yaml --data fixed\n/)

    const ask = async (...args: string[]): Promise<string> => {
      const { code, out, err } = await offpeak([...args, ...own])
      assert.equal(code, 0, err)
      return out
    }
    const left: object = JSON.parse(await ask('batches', 'get', batch_id, '--json'))
    assert.partialDeepStrictEqual(left, {
      status: 'in_progress',
      request_counts: { completed: 0, failed: 0 },
    })
    const ended: object = JSON.parse(await ask('batches', 'cancel', batch_id, '--json'))
    const counts = { total: 2, completed: 0, failed: 2 }
    assert.partialDeepStrictEqual(ended, { status: 'cancelled', request_counts: counts, cost_usd: 0 })
    const unanswered = await offpeak(['results', batch_id, '-o', at('fixed.csv'), ...own])
    assert.equal(unanswered.code, 3, unanswered.err)
    assert.match(await readFile(at('fixed.csv'), 'utf8'), /batch_cancelled/)
    await ask('retry', batch_id, '--merge', at('fixed.merged'))
    assert.match(await readFile(at('fixed.merged'), 'utf8'), /"custom_id":"b"/)
  })

  test('of two equal runs at once, one says who is running; after kill -9 the batch is resumed or discarded', async () => {
    const name = await input('twin.jsonl', line('a'), line('b'))
    const own = ['--config', 'quick.yaml', '--data', 'twin']
    const { pid, batch_id, interrupt } = await stuckRun(name, 'twin')
    const twin = await spawned(['run', name, ...own])
    assert.equal(twin.code, 4)
    assert.match(
      twin.err,
      new RegExp(
        `^offpeak: another run with the output \\S+ is running: process ${pid}, ${batch_id}\\. Nothing was sent\\.`,
      ),
    )
    await interrupt('SIGKILL')
    const { batch_id: again, interrupt: end } = await stuckRun(name, 'twin')
    assert.equal(again, batch_id)
    await end('SIGINT')
    const discarded = await offpeak(['run', name, ...own, '--discard'])
    assert.equal(discarded.code, 0, discarded.err)
    assert.match(discarded.err, new RegExp(`${batch_id} cancelled: 0 of 2 lines answered, \\$0`))
    const anew = await offpeak(['run', name, ...own])
    assert.equal(anew.code, 0, anew.err)
    assert.doesNotMatch(anew.err, new RegExp(batch_id))
    const repeated = await offpeak(['run', name, ...own])
    assert.equal(repeated.code, 4)
    assert.match(
      repeated.err,
      /--again runs it again, .*: offpeak batches results batch_\w+ --config quick\.yaml --data twin\n/,
    )
  })

  test('a run answers no batch of a service that used its data folder before, and `batches wait` does', async () => {
    const before = await start('serve', '--config', 'slow.yaml', '--data', 'shared', '--port', '0')
    const env = {
      OFFPEAK_BASE_URL: before.ready.replace('offpeak listening on ', ''),
      OFFPEAK_API_KEY: (await readFile(at('shared/api-key'), 'utf8')).trim(),
    }
    const upload = await offpeak(['files', 'upload', await input('theirs.jsonl', line('x'))], env)
    const theirs = (await offpeak(['batches', 'create', upload.out.trim()], env)).out.trim()
    const own = ['--config', 'quick.yaml', '--data', 'shared']
    const busy = await offpeak(['batches', 'cancel', theirs, ...own])
    assert.equal(busy.code, 1)
    assert.match(busy.err, /\noffpeak: another process of Offpeak uses \S+shared: .* Set OFFPEAK_BASE_URL /)
    assert.equal((await before.end('SIGTERM')).code, 0)

    const { code, err } = await offpeak(['run', await input('ours.jsonl', line('y')), ...own])
    assert.equal(code, 0, err)
    assert.match(err, new RegExp(`^  ${theirs}  (queued|in_progress), 0 of 1 line done, window until `, 'm'))
    const waited = await offpeak(['batches', 'wait', theirs, ...own, '--json'])
    assert.partialDeepStrictEqual(JSON.parse(waited.out), { status: 'completed' })
  })

  test('files, batches and requests are there from a shell', async () => {
    const file_id = await ask(
      'files',
      'upload',
      await input('shell.jsonl', line('a'), line('b', 'no-such-model')),
    )
    assert.match(file_id, /^file_\w{26}$/)
    assert.match(await ask('files', 'get', file_id), /^status +processed$/m)
    assert.equal(
      await ask('files', 'content', file_id),
      await readFile(at('shell.jsonl'), 'utf8').then((all) => all.trim()),
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
      new RegExp(`^${batch_id} +completed +100% +2 +1 `, 'm'),
    )

    await ask('batches', 'results', batch_id, '-o', at('shell.out'), '--errors', at('shell.err'))
    const answer: { response: { request_id: string } } = JSON.parse(await readFile(at('shell.out'), 'utf8'))
    const record = await ask('requests', 'get', answer.response.request_id, '--json')
    assert.match(record, /"custom_id":"a"/)
    const both = (await readFile(at('shell.out'), 'utf8')) + (await readFile(at('shell.err'), 'utf8'))
    const followed = await ask('batches', 'results', batch_id, '--follow')
    assert.deepEqual(followed.trim().split('\n'), both.trim().split('\n'))

    const { code, err } = await offpeak(['batches', 'cancel', batch_id], access)
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
    await writeFile(at('again.jsonl'), `${JSON.stringify(line('good'))}\n${failing}\n`)
    const first = await offpeak(['run', at('again.jsonl'), '--json'], access)
    assert.equal(first.code, 3, first.err)
    const { batch_id }: { batch_id: string } = JSON.parse(first.out)

    const retried = await offpeak(['retry', batch_id, '--merge', at('merged.jsonl'), '--json'], access)
    assert.equal(retried.code, 3, retried.err)
    assert.match(retried.err, /1 failed line of batch_/)
    const made: { input_file_id: string; metadata: Record<string, string> } = JSON.parse(retried.out)
    assert.equal(made.metadata.retry_of, batch_id)
    assert.equal(await ask('files', 'content', made.input_file_id), failing)
    assert.match(await readFile(at('merged.jsonl'), 'utf8'), /"custom_id":"good"/)

    const nothing = await offpeak(['retry', batch_id, '--code', 'batch_expired'], access)
    assert.equal(nothing.code, 1)
    assert.match(nothing.err, /The batch has no failed line with batch_expired \(422 batch_not_retryable/)
  })

  test('a key does what its scopes say until it is revoked', async () => {
    const shared = ['--config', 'quick.yaml', '--data', 'service']
    const made = await offpeak([
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
    assert.deepEqual(await offpeak(['files', 'list', '--json'], env), { code: 0, out: '[]\n', err: '' })
    assert.match((await offpeak(['batches', 'list'], env)).err, /403 missing_scope/)

    assert.match((await offpeak(['keys', 'list', ...shared])).out, new RegExp(`^${key.id} +ci +payg `, 'm'))
    assert.equal((await offpeak(['keys', 'revoke', key.id, ...shared])).code, 0)
    assert.match((await offpeak(['files', 'list'], env)).err, /401 invalid_api_key/)
    const twice = await offpeak(['keys', 'revoke', key.id, ...shared])
    assert.equal(twice.code, 1)
    assert.match(twice.err, /^offpeak: the key .* does not exist or is already revoked/)
  })

  test('the simulator is a server of its own', async () => {
    const sim = await start('sim', '--port', '0', '--latency-ms', '0..1', '--models', 'm1')
    assert.match(sim.ready, /^offpeak sim listening on http:\/\/127\.0\.0\.1:\d+$/)
    const url = sim.ready.replace('offpeak sim listening on ', '')
    const models: unknown = await (await fetch(`${url}/v1/models`)).json()
    assert.partialDeepStrictEqual(models, { data: [{ id: 'm1' }] })
    const lines = await input('sim.jsonl', line('a', 'm1'))
    const { code, err } = await offpeak(['run', lines, '--upstream', `${url}/v1`, '--data', 'sim'])
    assert.equal(code, 0, err)
    assert.equal((await sim.end('SIGTERM')).code, 0)
  })

  test('a run asks the model that --model names, and names those that there are', async () => {
    const path = await input('named.jsonl', line('a', 'gpt-4o'), line('b', 'gpt-4o'))
    const original = await readFile(path, 'utf8')
    const run = (...more: string[]) => offpeak(['run', path, ...more], access)
    const estimate = await run('--estimate')
    assert.match(estimate.out, /^There is no model gpt-4o: .* Models here: sim-1;/m)
    const unknown = await run()
    assert.equal(unknown.code, 1)
    assert.match(unknown.err, /^models here: sim-1; --model NAME runs the file with one of them$/m)

    const named = await run('--model', 'sim-1')
    assert.equal(named.code, 0, named.err)
    assert.match(named.err, /^model: {3}sim-1, in place of gpt-4o in 2 lines$/m)
    assert.equal((await readFile(at('named.out.jsonl'), 'utf8')).match(/"model":"sim-1"/g)?.length, 2)
    assert.equal(await readFile(path, 'utf8'), original)
    assert.equal(existsSync(at('named.out.jsonl.offpeak-run')), false)
    // The copy with the other model is the same each time: the run is known to be paid for.
    assert.equal((await run('--model', 'sim-1')).code, 4)
  })

  test('a run sends the key of --upstream-key-env to the server of --upstream', async () => {
    await using upstream = await testUpstream()
    upstream.models = { object: 'list', data: [{ id: 'real', object: 'model' }] }
    const sent: (string | undefined)[] = []
    upstream.server.on('request', ({ headers }) => sent.push(headers.authorization))
    const path = await input('keyed.jsonl', line('a', 'gpt-4o'))
    const key = ['--upstream-key-env', 'SERVER_KEY']
    const run = ['run', path, '--upstream', upstream.base_url, ...key, '--model', 'real', '--data', 'keyed']
    const { code, err } = await offpeak(run, { SERVER_KEY: 'sk-test' })
    assert.equal(code, 0, err)
    assert.equal(upstream.calls[0]?.body.model, 'real')
    assert.ok(sent.length > 1 && sent.every((header) => header === 'Bearer sk-test'))
    assert.match((await offpeak(run)).err, /the variable SERVER_KEY is not set/)
    assert.match((await offpeak(['run', path, ...key])).err, /give both/)
  })

  test('a mistake is told in one line, with a way out', async () => {
    const mistakes: [string[], Record<string, string>, RegExp][] = [
      [['serv'], {}, /^offpeak: unknown command 'serv' \(Did you mean serve\?\); see "offpeak --help"/],
      [['run'], {}, /^offpeak: missing required argument 'input'; see /],
      [['run', 'x.jsonl', '--jsn'], {}, /^offpeak: unknown option '--jsn' \(Did you mean --json\?\); see /],
      [['run', '/no.jsonl'], access, /^offpeak: there is no such file or folder: \/no\.jsonl$/],
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
    const ends = await Promise.all(mistakes.map(([args, env]) => offpeak(args, env)))
    for (const [i, { code, out, err }] of ends.entries()) {
      assert.equal(code, 1, err)
      assert.equal(out, '')
      assert.match(err.replace(/\n$/, ''), mistakes[i]![2])
      assert.equal(err.split('\n').length, 2, err)
    }
  })

  test('help is on stdout and ends well, for every command', async () => {
    const { code, out } = await spawned(['--help'])
    assert.equal(code, 0)
    assert.match(out, /Usage: offpeak/)
    assert.match((await offpeak(['retry', '--help'])).out, /Examples:\n {2}\$ offpeak retry/)
    assert.match((await offpeak(['--version'])).out, /^1\.2\.3\n$/)
  })
})
