import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { promisify } from 'node:util'
import { testClock } from '../../../test/fakes/clock.ts'
import { launchOnly, runOffpeak } from '../../../test/fakes/offpeak.ts'
import { cleanEnv } from '../../../test/support/offpeak-process.ts'
import { loadConfig } from '../../config/load.ts'
import type { Running } from '../shell.ts'

const config = loadConfig({ env: {}, overrides: { data: join(tmpdir(), 'offpeak-never-made') } })

/** Runs `serve`, whose start ends like `starting`, and which is stopped meanwhile. */
async function stopped(starting: Promise<Running>): Promise<{ code: number; err: string }> {
  const clock = testClock()
  const ended = runOffpeak(['serve'], {
    clock,
    launch: launchOnly({ loadConfig: () => config, serve: () => starting }),
    interruption: () => AbortSignal.abort(),
  })
  await clock.advance(1_500)
  return await ended
}

test('a service that is stopped while its start waits for something ends by itself', async () => {
  const { code, err } = await stopped(new Promise(() => {}))
  assert.deepEqual([code, err], [130, 'offpeak: stopped before the service had started\n'])
})

test('a start that is about to end is ended in order', async () => {
  let stops = 0
  const url = 'http://127.0.0.1:1'
  const stop = async (): Promise<void> => void stops++
  const { code } = await stopped(Promise.resolve({ url, stop, stopped: new Promise(() => {}) }))
  assert.deepEqual([code, stops], [0, 1])
})

const folder = await mkdtemp(join(tmpdir(), 'offpeak-config-command-'))
after(() => rm(folder, { recursive: true }))
const MAIN = new URL('../../main.ts', import.meta.url).pathname
const offpeak = (...args: string[]) =>
  promisify(execFile)(process.execPath, [MAIN, 'config', ...args], { cwd: folder, env: cleanEnv() })

test('config check accepts a valid file, and names every mistake in another', async () => {
  await writeFile(join(folder, 'good.yaml'), 'region: eu\n')
  await writeFile(join(folder, 'bad.yaml'), 'regin: eu\nlisten: {port: http}\n')
  assert.equal((await offpeak('check', 'good.yaml')).stdout, 'good.yaml is valid.\n')
  assert.match((await offpeak('check')).stdout, /^No offpeak\.yaml is in this folder: the default .* valid/)
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
