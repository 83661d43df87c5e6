// One question, and its answer.
import assert from 'node:assert/strict'
import { readFile, writeFile } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { after, before, describe, test } from 'node:test'
import { type Ended, offpeak, offpeakWith } from '../fakes/offpeak.ts'
import { capturedTerminal } from '../fakes/terminal.ts'
import { TestService } from '../service.ts'
import { chatLine, Shell } from '../support/shell.ts'

const MODELS = 'models: [{id: sim-1, upstreams: [{type: sim}]}]'

describe('offpeak ask', { timeout: 120_000 }, () => {
  let service: TestService

  before(async () => {
    service = await TestService.start(MODELS)
  })

  after(() => service[Symbol.asyncDispose]())

  const ask = (...args: string[]): Promise<Ended> => offpeak(service, ...args)

  test('the answer to a question goes to standard output', async () => {
    const { code, out, err } = await ask('ask', '--model', 'sim-1', 'What is a batch?')
    assert.equal(code, 0, err)
    assert.match(out, /\w.*\n$/)
    assert.equal(err, '')
    const told = await ask('ask', '--model', 'sim-1', '--json', 'What is a batch?')
    const line: { custom_id: string; response: { body: { choices: { message: { content: string } }[] } } } =
      JSON.parse(told.out)
    assert.equal(line.custom_id, 'question')
    assert.ok(line.response.body.choices[0]?.message.content)
  })

  test('the question may come from standard input', async () => {
    const terminal = capturedTerminal()
    const stdin = Readable.from([Buffer.from('What is a batch?\n')])
    const args = ['ask', '--model', 'sim-1']
    const { code } = await offpeakWith(service, { terminal: { ...terminal, stdin } }, args)
    assert.equal(code, 0, terminal.err())
    assert.match(terminal.out(), /\w.*\n$/)
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
      const { code, out, err } = await ask('ask', ...args)
      assert.deepEqual([code, out], [1, ''], err)
      assert.match(err, words)
    }
  })

  test('commands that name no window, and Anthropic’s door, take the longest that the plan has', async () => {
    await using shell = await Shell.make()
    await using hours = await TestService.start(`${MODELS}\nplans: {payg: {completion_windows: [1h, 2h]}}`)
    const lines = await shell.input('hours.jsonl', chatLine('a'))
    for (const args of [
      ['ask', '--model', 'sim-1', 'hi'],
      ['run', lines, '--estimate'],
      ['run', lines],
    ]) {
      const { code, err } = await offpeak(hours, ...args)
      assert.equal(code, 0, `${args.join(' ')}: ${err}`)
    }
    const listed = JSON.parse((await offpeak(hours, 'batches', 'list', '--json')).out)
    const windows = (listed as { completion_window: string }[]).map((batch) => batch.completion_window)
    assert.deepEqual(windows, ['2h', '2h'])
    const call = (path: string, body: object) =>
      fetch(`${hours.url}${path}`, {
        method: 'POST',
        headers: { 'x-api-key': hours.key, 'content-type': 'application/json' },
        body: JSON.stringify(body),
      })
    const chat = { model: 'sim-1', messages: [{ role: 'user', content: 'hi' }] }
    const params = { ...chat, max_tokens: 5 }
    const door = await call('/v1/messages/batches', { requests: [{ custom_id: 'a', params }] })
    assert.equal(door.status, 200, await door.text())
    assert.match(await (await call('/v1/chat/completions', chat)).text(), /completion_window\W+2h/)
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
      const { code, out, err } = await ask(...args)
      assert.deepEqual([code, out], [1, ''], args.join(' '))
      assert.match(err, /^offpeak: .* of "offpeak .*" is empty; is a variable of your script not set\?$/m)
    }
  })

  test('where no service runs, one is started for the question', async () => {
    await using shell = await Shell.make()
    const own = ['--config', 'quick.yaml', '--data', 'alone']
    const first = await shell.offpeak(['run', await shell.input('one.jsonl', chatLine('a')), ...own])
    assert.equal(first.code, 0, first.err)
    // Nothing listens there.
    await writeFile(
      shell.at('ask.yaml'),
      `${await readFile(shell.at('quick.yaml'), 'utf8')}listen: {port: 1}\n`,
    )
    const args = ['ask', '--model', 'sim-1', '--config', 'ask.yaml', '--data', 'alone', 'What is a batch?']
    const { code, out, err } = await shell.offpeak(args)
    assert.equal(code, 0, err)
    assert.match(out, /\w.*\n$/)
  })
})
