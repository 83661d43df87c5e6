import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { promisify } from 'node:util'
import { cleanEnv } from '../../../test/support/offpeak-process.ts'

const folder = await mkdtemp(join(tmpdir(), 'offpeak-config-command-'))
after(() => rm(folder, { recursive: true }))
const MAIN = new URL('../../main.ts', import.meta.url).pathname
const offpeak = (...args: string[]) =>
  promisify(execFile)(process.execPath, [MAIN, 'config', ...args], { cwd: folder, env: cleanEnv() })

test('config check accepts a valid file, and names every mistake in another', async () => {
  await writeFile(join(folder, 'good.yaml'), 'region: eu\n')
  await writeFile(join(folder, 'bad.yaml'), 'regin: eu\nlisten: {port: http}\n')
  assert.equal((await offpeak('check', 'good.yaml')).stdout, 'good.yaml is valid.\n')
  await assert.rejects(offpeak('check', 'bad.yaml'), {
    code: 1,
    stderr:
      /bad\.yaml:2:10: listen\.port: expected a whole number[\s\S]*bad\.yaml:1:1: regin: unknown key; did you mean region/,
  })
})

test('config schema prints a JSON Schema', async () => {
  const { properties } = JSON.parse((await offpeak('schema')).stdout)
  assert.equal(properties.listen.properties.port.default, 8080)
})
