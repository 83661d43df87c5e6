// Runs on a data folder, without a service: interrupted, changed, repeated, two at once, and after a service.
import assert from 'node:assert/strict'
import { readFile, writeFile } from 'node:fs/promises'
import { after, before, describe, test } from 'node:test'
import { Failure } from '../../src/cli/terminal/failure.ts'
import { serve } from '../../src/compose/serve.ts'
import { loadConfig } from '../../src/config/load.ts'
import { launchOnly } from '../fakes/offpeak.ts'
import { capturedTerminal } from '../fakes/terminal.ts'
import { until } from '../support/offpeak-process.ts'
import { chatLine, type Ended, ended, Shell } from '../support/shell.ts'

describe('embedded runs', { timeout: 120_000 }, () => {
  let shell: Shell

  before(async () => {
    shell = await Shell.make()
  })

  after(() => shell[Symbol.asyncDispose]())

  const stateOf = async (name: string): Promise<{ batch_id: string }> =>
    JSON.parse(await readFile(name.replace('.jsonl', '.out.jsonl.offpeak-run.json'), 'utf8'))

  /** A run on a data folder whose model does not answer, interrupted once its batch is in progress. */
  async function interruptedRun(name: string, data: string): Promise<Ended & { batch_id: string }> {
    const terminal = capturedTerminal()
    const interruption = new AbortController()
    const running = shell.offpeak(
      ['run', name, '--config', 'slow.yaml', '--data', data],
      {},
      { terminal, interruption: () => interruption.signal },
    )
    await Promise.race([running, until(() => terminal.err().includes('in_progress'))])
    interruption.abort()
    const { code } = await running
    return { code, out: terminal.out(), err: terminal.err(), ...(await stateOf(name)) }
  }

  /** Such a run in a process of its own, which goes on. */
  async function stuckRun(name: string, data: string) {
    const child = shell.launch(['run', name, '--config', 'slow.yaml', '--data', data], {})
    const end = ended(child)
    await new Promise<void>((resolve, reject) => {
      let said = ''
      child.stderr?.on('data', (block: Buffer) => {
        said += block.toString()
        if (said.includes('in_progress')) resolve()
      })
      end.then(({ err }) => reject(new Error(`it ended before its batch was in progress: ${err}`)), reject)
    })
    const kill = async (): Promise<void> => {
      child.kill('SIGKILL')
      await end
    }
    return { pid: child.pid, batch_id: (await stateOf(name)).batch_id, kill }
  }

  test('interrupted by Ctrl-C and run again, an embedded run goes on with the same batch', async () => {
    const name = await shell.input('long.jsonl', chatLine('a'), chatLine('b'))
    const { batch_id, code, err } = await interruptedRun(name, 'long')
    assert.equal(code, 130, err)
    assert.match(err, /Run the same command again to resume/)
    const again = await shell.offpeak(['run', name, '--config', 'quick.yaml', '--data', 'long'])
    assert.equal(again.code, 0, again.err)
    assert.match(again.err, new RegExp(`interrupted run \\(${batch_id}\\)[^]*${batch_id} completed: 2 `))
    assert.doesNotMatch(again.err, /Unfinished batches/)
  })

  test('a run whose worker cannot be kept running ends with the reason', async () => {
    const name = await shell.input('crashing.jsonl', chatLine('a'))
    const terminal = capturedTerminal()
    const failed = Promise.withResolvers<void>()
    const launch = launchOnly({
      loadConfig: () =>
        loadConfig({ file: shell.at('slow.yaml'), env: {}, overrides: { data: shell.at('crashing') } }),
      serve: async (config, options) => ({ ...(await serve(config, options)), stopped: failed.promise }),
    })
    const running = shell.offpeak(['run', name], {}, { terminal, launch })
    await until(() => terminal.err().includes('in_progress'))
    failed.reject(new Failure('the worker process exited for the 4th time'))
    assert.equal((await running).code, 1)
    assert.match(terminal.err(), /\noffpeak: the worker process exited for the 4th time\n$/)
  })

  test('what an interrupted run left costs nothing when its input is changed, and needs no service to be ended', async () => {
    const name = await shell.input('fixed.jsonl', chatLine('a'), chatLine('b'))
    const { batch_id } = await interruptedRun(name, 'fixed')
    await shell.input('fixed.jsonl', chatLine('c'))
    const own = ['--config', 'quick.yaml', '--data', 'fixed']
    const changed = await shell.offpeak(['run', name, ...own, '--json'])
    assert.equal(changed.code, 0, changed.err)
    assert.match(
      changed.err,
      new RegExp(`Unfinished batches[^\\n]*\\n  ${batch_id}  in_progress, 0 of 2 lines done, window until `),
    )
    assert.match(changed.err, /To end one: offpeak batches cancel ID --config quick\.yaml --data fixed\n/)

    const ask = async (...args: string[]): Promise<string> => {
      const { code, out, err } = await shell.offpeak([...args, ...own])
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
    const unanswered = await shell.offpeak(['results', batch_id, '-o', shell.at('fixed.csv'), ...own])
    assert.equal(unanswered.code, 3, unanswered.err)
    assert.match(await readFile(shell.at('fixed.csv'), 'utf8'), /batch_cancelled/)
    await ask('retry', batch_id, '--merge', shell.at('fixed.merged'))
    assert.match(await readFile(shell.at('fixed.merged'), 'utf8'), /"custom_id":"b"/)
  })

  test('of two equal runs at once, one says who is running; after kill -9 the batch is resumed or discarded', async () => {
    const name = await shell.input('twin.jsonl', chatLine('a'), chatLine('b'))
    const own = ['--config', 'quick.yaml', '--data', 'twin']
    const { pid, batch_id, kill } = await stuckRun(name, 'twin')
    const twin = await shell.offpeak(['run', name, ...own])
    assert.equal(twin.code, 4)
    assert.match(
      twin.err,
      new RegExp(
        `^offpeak: another run with the output \\S+ is running: process ${pid}, ${batch_id}\\. Nothing was sent\\.`,
      ),
    )
    await kill()
    assert.equal((await interruptedRun(name, 'twin')).batch_id, batch_id)
    const discarded = await shell.offpeak(['run', name, ...own, '--discard'])
    assert.equal(discarded.code, 0, discarded.err)
    assert.match(discarded.err, new RegExp(`${batch_id} cancelled: 0 of 2 lines answered, \\$0`))
    const anew = await shell.offpeak(['run', name, ...own])
    assert.equal(anew.code, 0, anew.err)
    assert.doesNotMatch(anew.err, new RegExp(batch_id))
    const repeated = await shell.offpeak(['run', name, ...own])
    assert.equal(repeated.code, 4)
    assert.match(
      repeated.err,
      /--again runs it again, .*: offpeak batches results batch_\w+ --config quick\.yaml --data twin\n/,
    )
  })

  test('a run answers no batch of a service that used its data folder before, and `batches wait` does', async () => {
    const before = await shell.start('serve', '--config', 'slow.yaml', '--data', 'shared', '--port', '0')
    const env = await shell.access(before, 'shared')
    const upload = await shell.offpeak(
      ['files', 'upload', await shell.input('theirs.jsonl', chatLine('x'))],
      env,
    )
    const theirs = (await shell.offpeak(['batches', 'create', upload.out.trim()], env)).out.trim()
    const own = ['--config', 'quick.yaml', '--data', 'shared']
    const busy = await shell.offpeak(['batches', 'cancel', theirs, ...own])
    assert.equal(busy.code, 1)
    assert.match(busy.err, /\noffpeak: another process of Offpeak uses \S+shared: .* Set OFFPEAK_BASE_URL /)
    assert.equal((await before.end('SIGTERM')).code, 0)

    const { code, err } = await shell.offpeak(['run', await shell.input('ours.jsonl', chatLine('y')), ...own])
    assert.equal(code, 0, err)
    assert.match(err, new RegExp(`^  ${theirs}  (queued|in_progress), 0 of 1 line done, window until `, 'm'))
    const waited = await shell.offpeak(['batches', 'wait', theirs, ...own, '--json'])
    assert.partialDeepStrictEqual(JSON.parse(waited.out), { status: 'completed' })
  })

  test('a run with other models plans no batch that a service left unplanned, and `batches wait` does', async () => {
    await writeFile(
      shell.at('other.yaml'),
      'models: [{id: other, upstreams: [{type: sim}]}]\ncreate: {wait_for_file: 1ms}\nlog: {level: warn}\n',
    )
    const before = await shell.start('api', '--config', 'other.yaml', '--data', 'unplanned', '--port', '0')
    const { OFFPEAK_BASE_URL, OFFPEAK_API_KEY } = await shell.access(before, 'unplanned')
    const made = await fetch(`${OFFPEAK_BASE_URL}/v1/batches`, {
      method: 'POST',
      headers: { authorization: `Bearer ${OFFPEAK_API_KEY}`, 'content-type': 'application/json' },
      body: JSON.stringify({
        endpoint: '/v1/chat/completions',
        completion_window: '24h',
        requests: [chatLine('x', 'other')],
      }),
    })
    const { id: theirs } = Object(await made.json())
    assert.equal((await before.end('SIGTERM')).code, 0)

    const own = ['--config', 'quick.yaml', '--data', 'unplanned']
    const { code, err } = await shell.offpeak(['run', await shell.input('own.jsonl', chatLine('y')), ...own])
    assert.equal(code, 0, err)
    assert.match(err, new RegExp(`^  ${theirs}  validating, `, 'm'))
    const left = await shell.offpeak(['batches', 'get', theirs, ...own, '--json'])
    assert.partialDeepStrictEqual(JSON.parse(left.out), { status: 'validating' })
    const wait = ['batches', 'wait', theirs, '--config', 'other.yaml', '--data', 'unplanned', '--json']
    const waited = await shell.offpeak(wait)
    assert.partialDeepStrictEqual(JSON.parse(waited.out), { status: 'completed' })
  })
})
