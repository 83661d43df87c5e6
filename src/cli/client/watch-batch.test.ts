import assert from 'node:assert/strict'
import { afterEach, beforeEach, describe, test } from 'node:test'
import { fastClock } from '../../../test/fakes/clock.ts'
import { ScriptedApi } from '../../../test/fakes/scripted-api.ts'
import { plain } from '../terminal/terminal.ts'
import { ApiClient } from './client.ts'
import { leftMs, nextRate, perSecond, watchBatch } from './watch-batch.ts'

const LOOK_MS = 5000

describe('a batch that is watched', () => {
  let api: ScriptedApi
  beforeEach(async () => {
    api = new ScriptedApi()
    await api.start()
  })
  afterEach(() => api.stop())

  /** The lines of progress, one for each poll of a batch with `done` lines finished. */
  async function shown(done: readonly number[], waiting?: string): Promise<string[]> {
    const lines: string[] = []
    api.script = {
      fault({ path }, nth) {
        if (!path.startsWith('/v1/batches/')) return undefined
        const completed = done[nth - 1] ?? 10
        const batch = {
          id: 'batch_1',
          object: 'batch',
          name: 'requests.jsonl',
          region: 'local',
          endpoint: '/v1/chat/completions',
          status: nth > done.length ? 'completed' : 'in_progress',
          input_file_id: 'file_1',
          completion_window: '24h',
          output_file_id: null,
          error_file_id: null,
          created: 0,
          created_at: 0,
          expires_at: 0,
          metadata: {},
          cost_usd: 0,
          request_counts: { total: 10, completed, failed: 0 },
          not_run: 0,
          ...(waiting === undefined
            ? {}
            : { waiting_reason: { code: 'model_unavailable', message: waiting } }),
        }
        return { status: 200, body: batch }
      },
    }
    const clock = fastClock()
    const client = new ApiClient({ baseUrl: api.url, apiKey: api.key, clock })
    await watchBatch(client, 'batch_1', {
      clock,
      signal: new AbortController().signal,
      pace: { firstMs: LOOK_MS, longestMs: LOOK_MS },
      view: {
        show: (_phase, line) => void lines.push(line(70, plain).replace(/[█░]+ +/, '')),
        message() {},
        stop() {},
      },
    })
    await client.close()
    return lines
  }

  test('shows its rate and the time left while lines finish', async () => {
    const lines = await shown([0, 2, 4])
    assert.match(lines[2] ?? '', /4\/10 lines {2}0\.4\/s {2}15s left/)
  })

  test('shows no time left when no line finishes, and soon says so', async () => {
    const lines = await shown([0, 4, 4, 4, 4, 4, 4, 4])
    assert.match(lines[2] ?? '', /left/)
    assert.doesNotMatch(lines[3] ?? '', /left|finished/)
    assert.match(lines[7] ?? '', /4\/10 lines {2}\$0\.00 {2}no line has finished for 30s$/)
  })

  test('says for how long it is stalled and why, as far as there is room', async () => {
    const lines = await shown(Array(26).fill(4), 'No server of the model m answers: ECONNREFUSED')
    assert.match(lines[25] ?? '', /\$0\.00 {2}stalled for 2m 05s: No server o…$/)
    assert.equal(lines[25]?.length, 70)
  })
})

test('the rate of a steady batch is known from the second sample on', () => {
  let point = nextRate(undefined, 0, 1000)
  assert.equal(perSecond(point), null)
  assert.equal(leftMs(point, 100), null)
  for (let look = 1; look <= 10; look++) {
    point = nextRate(point, look * 20, 1000 + look * 100)
    assert.ok(Math.abs((perSecond(point) ?? 0) - 200) < 1e-9)
  }
  assert.ok(Math.abs((leftMs(point, 400) ?? 0) - 1000) < 1e-6)
})

test('after one half-life the rate has moved half-way to a new speed', () => {
  let point = nextRate(undefined, 0, 0)
  for (let at = 1000; at <= 100_000; at += 1000) point = nextRate(point, at / 10, at)
  const done = point.done
  // From here on, no line finishes.
  for (let at = 101_000; at <= 105_000; at += 1000) point = nextRate(point, done, at)
  const rate = perSecond(point) ?? Number.NaN
  assert.ok(rate > 45 && rate < 55, `${rate}`)
})

test('a batch without progress has no estimate of the time left', () => {
  const point = nextRate(nextRate(undefined, 0, 0), 0, 5000)
  assert.equal(perSecond(point), 0)
  assert.equal(leftMs(point, 10), null)
})

test('lines done before the first sample, as in a resumed run, do not count', () => {
  const point = nextRate(nextRate(undefined, 5000, 0), 5010, 1000)
  assert.equal(perSecond(point), 10)
})

test('two samples at the same instant lose no lines', () => {
  let point = nextRate(nextRate(undefined, 0, 0), 5, 0)
  point = nextRate(point, 10, 1000)
  assert.equal(perSecond(point), 10)
})

test('when all lines are done, no time is left', () => {
  const point = nextRate(nextRate(undefined, 0, 0), 10, 1000)
  assert.equal(leftMs(point, 10), 0)
})
