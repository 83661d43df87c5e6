import assert from 'node:assert/strict'
import { EventEmitter } from 'node:events'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { testClock } from '../../../test/fakes/clock.ts'
import { BlobStoreFailed } from '../../blobs/blobs.ts'
import { failureText, interruption } from './failure.ts'

async function told(failing: () => Promise<unknown>): Promise<string> {
  try {
    await failing()
  } catch (error) {
    return failureText(error, false)
  }
  return 'nothing went wrong'
}

test('an error about a file in place of a folder says so', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-failure-'))
  t.after(() => rm(folder, { recursive: true }))
  const path = join(folder, 'data')
  await writeFile(path, '')
  const text = await told(() => mkdir(path, { recursive: true }))
  assert.equal(text, `offpeak: expected a folder, found a file: ${path}`)
})

test('a port that this user may not listen on is named with the option to change', () => {
  const error = Object.assign(new Error('listen EACCES: permission denied 127.0.0.1:80'), { code: 'EACCES' })
  assert.match(
    failureText(error, false),
    /may not listen on this port \(.*:80\); choose another --port, from 1024/,
  )
})

test('a bucket that does not open is an error with advice, not an unexpected one', () => {
  const error = new BlobStoreFailed('opening the bucket b', new Error('The specified bucket does not exist'))
  assert.match(
    failureText(error, false),
    /^offpeak: blob store failed while opening the bucket b: .* does not exist; check `blobs` in the config/,
  )
})

test('a folder that cannot be made is not called missing', async () => {
  const path = join(tmpdir(), 'offpeak-not-there', 'data')
  assert.match(
    await told(() => mkdir(path)),
    /^offpeak: this folder cannot be made here: \S+data; choose another/,
  )
})

test('an error about a foreign listen address names the option to change', async () => {
  const text = await told(async () => {
    const { promise, reject } = Promise.withResolvers<void>()
    createServer().once('error', reject).listen(0, '192.0.2.1')
    await promise
  })
  assert.match(
    text,
    /^offpeak: this machine does not have this address \(.*192\.0\.2\.1.*\); choose another --host$/,
  )
})

class Exited extends Error {}

class Source extends EventEmitter {
  ppid = 100
  exit(code: number): never {
    throw new Exited(String(code))
  }
}

test('the first signal starts a graceful shutdown, the second ends the process, however soon it comes', () => {
  const source = new Source()
  const signal = interruption(source, { clock: testClock(), underNpm: false })()
  assert.ok(!signal.aborted)
  source.emit('SIGTERM')
  assert.ok(signal.aborted)
  assert.throws(() => source.emit('SIGTERM'), new Exited('130'))
})

test('under npm, a forwarded Ctrl-C does not count as a second signal', async () => {
  const source = new Source()
  const clock = testClock()
  const signal = interruption(source, { clock, underNpm: true })()
  source.emit('SIGINT')
  source.emit('SIGINT')
  assert.ok(signal.aborted)
  await clock.advance(1_000)
  assert.throws(() => source.emit('SIGINT'), new Exited('130'))
})

test('under npm, the exit of the parent process counts as a signal', async () => {
  const source = new Source()
  const clock = testClock()
  const signal = interruption(source, { clock, underNpm: true })()
  await clock.advance(10_000)
  assert.ok(!signal.aborted)
  source.ppid = 1
  await clock.advance(1_000)
  assert.ok(signal.aborted)
  assert.equal(clock.waiting, 0)
})

test('without npm, a process continues after the exit of its parent', async () => {
  const source = new Source()
  const clock = testClock()
  const signal = interruption(source, { clock, underNpm: false })()
  source.ppid = 1
  await clock.advance(10_000)
  assert.ok(!signal.aborted)
})

test('without a handler, signals end the process as usual', () => {
  const source = new Source()
  interruption(source, { clock: testClock(), underNpm: true })
  assert.equal(source.listenerCount('SIGTERM'), 0)
})
