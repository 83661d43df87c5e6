// One question, and its answer.
import assert from 'node:assert/strict'
import { readFile, writeFile } from 'node:fs/promises'
import { after, before, describe, test } from 'node:test'
import { Shell } from '../support/shell.ts'

describe('offpeak ask', { timeout: 120_000 }, () => {
  let shell: Shell
  let access: Record<string, string>

  before(async () => {
    shell = await Shell.make()
    const service = await shell.start('serve', '--config', 'quick.yaml', '--data', 'service', '--port', '0')
    access = await shell.access(service, 'service')
  })

  after(() => shell[Symbol.asyncDispose]())

  test('the answer to a question goes to standard output', async () => {
    const { code, out, err } = await shell.offpeak(['ask', '--model', 'sim-1', 'What is a batch?'], access)
    assert.equal(code, 0, err)
    assert.match(out, /\w.*\n$/)
    assert.equal(err, '')
    const told = await shell.offpeak(['ask', '--model', 'sim-1', '--json', 'What is a batch?'], access)
    const line: { custom_id: string; response: { body: { choices: { message: { content: string } }[] } } } =
      JSON.parse(told.out)
    assert.equal(line.custom_id, 'question')
    assert.ok(line.response.body.choices[0]?.message.content)
  })

  test('the question may come from standard input', async () => {
    const child = shell.launch(['ask', '--model', 'sim-1'], access)
    let out = ''
    child.stdout?.on('data', (block: Buffer) => (out += block.toString()))
    child.stdin?.end('What is a batch?\n')
    const [code] = await new Promise<unknown[]>((resolve) => child.once('close', (...args) => resolve(args)))
    assert.equal(code, 0)
    assert.match(out, /\w.*\n$/)
  })

  test('what cannot be asked is an error that says so', async () => {
    for (const [args, words] of [
      [['--model', 'nope', 'x'], /there is no model "nope"; models here are sim-1/],
      [['x'], /--model/],
      [['--model', 'sim-1'], /there is no question/],
      [
        ['--model', 'sim-1', '--window', '7h', 'x'],
        /--window 7h is not a completion window of the plan "payg"/,
      ],
    ] as const) {
      const { code, out, err } = await shell.offpeak(['ask', ...args], access)
      assert.deepEqual([code, out], [1, ''], err)
      assert.match(err, words)
    }
  })

  test('commands that name no window, and Anthropic’s door, take the longest that the plan has', async () => {
    const quick = await readFile(shell.at('quick.yaml'), 'utf8')
    await writeFile(shell.at('hours.yaml'), `${quick}plans: {payg: {completion_windows: [1h, 2h]}}\n`)
    const place = ['--config', 'hours.yaml', '--data', 'hours', '--port', '0']
    const service = await shell.start('serve', ...place)
    const hours = await shell.access(service, 'hours')
    const { OFFPEAK_BASE_URL: url, OFFPEAK_API_KEY: key } = hours
    const line = { custom_id: 'a', body: { model: 'sim-1', messages: [{ role: 'user', content: 'hi' }] } }
    await writeFile(
      shell.at('hours.jsonl'),
      JSON.stringify({ ...line, method: 'POST', url: '/v1/chat/completions' }),
    )
    for (const args of [
      ['ask', '--model', 'sim-1', 'hi'],
      ['run', shell.at('hours.jsonl'), '--estimate'],
      ['run', shell.at('hours.jsonl')],
    ]) {
      const { code, err } = await shell.offpeak(args, hours)
      assert.equal(code, 0, `${args.join(' ')}: ${err}`)
    }
    const listed = JSON.parse((await shell.offpeak(['batches', 'list', '--json'], hours)).out)
    const windows = (listed as { completion_window: string }[]).map((batch) => batch.completion_window)
    assert.deepEqual(windows, ['2h', '2h'])
    const call = (path: string, body: object) =>
      fetch(`${url}${path}`, {
        method: 'POST',
        headers: { 'x-api-key': String(key), 'content-type': 'application/json' },
        body: JSON.stringify(body),
      })
    const params = { ...line.body, max_tokens: 5 }
    const door = await call('/v1/messages/batches', { requests: [{ custom_id: 'a', params }] })
    assert.equal(door.status, 200, await door.text())
    assert.match(await (await call('/v1/chat/completions', line.body)).text(), /completion_window\W+2h/)
    await service.end('SIGTERM')
  })

  test('an empty argument or value is refused before anything is asked', async () => {
    for (const args of [
      ['requests', 'get', ''],
      ['batches', 'get', ' '],
      ['files', 'delete', ''],
      ['backup', ''],
      ['ask', '--model', 'sim-1', ''],
      ['ask', '--model', '', 'x'],
      ['run', ''],
    ]) {
      const { code, out, err } = await shell.offpeak(args, access)
      assert.deepEqual([code, out], [1, ''], args.join(' '))
      assert.match(err, /^offpeak: .* of "offpeak .*" is empty; is a variable of your script not set\?$/m)
    }
  })

  test('where no service runs, one is started for the question', async () => {
    const place = ['--config', 'quick.yaml', '--data', 'alone', '--port', '0']
    assert.equal((await (await shell.start('serve', ...place)).end('SIGTERM')).code, 0)
    // Nothing listens there.
    await writeFile(
      shell.at('ask.yaml'),
      `${await readFile(shell.at('quick.yaml'), 'utf8')}listen: {port: 1}\n`,
    )
    const args = ['ask', '--model', 'sim-1', '--config', 'ask.yaml', '--data', 'alone', 'What is a batch?']
    const { code, out, err } = await shell.spawned(args)
    assert.equal(code, 0, err)
    assert.match(out, /\w.*\n$/)
  })
})
