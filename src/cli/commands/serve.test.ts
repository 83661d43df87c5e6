import assert from 'node:assert/strict'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test from 'node:test'
import { testClock } from '../../../test/fakes/clock.ts'
import { launchOnly, runOffpeak } from '../../../test/fakes/offpeak.ts'
import { loadConfig } from '../../config/load.ts'
import type { Running } from '../shell.ts'

const config = loadConfig({ env: {}, overrides: { data: join(tmpdir(), 'offpeak-never-made') } })

/** `serve` whose start ends as `starting` does, and which was asked to stop meanwhile. */
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
