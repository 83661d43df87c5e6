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
      [['--model', 'sim-1', '--window', '7h', 'x'], /does not include this completion window/],
    ] as const) {
      const { code, out, err } = await shell.offpeak(['ask', ...args], access)
      assert.deepEqual([code, out], [1, ''], err)
      assert.match(err, words)
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
