import assert from 'node:assert/strict'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test from 'node:test'
import { failureText } from './failure.ts'

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
