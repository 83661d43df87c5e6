import assert from 'node:assert/strict'
import test from 'node:test'
import { LiveServer } from './live-server.ts'

test('a back-off is counted once, however long it lasts', async () => {
  const server = new LiveServer({ waiting_max: 0, cache_max: 0.85 })
  let now = 0
  const read = async (running: number, waiting: number): Promise<number> => {
    now += 500
    await server.read(
      async () => ({ running, waiting, cache: null, tokens: null }),
      { inFlight: 0, workers: 0 },
      () => now,
    )
    return server.backOffs
  }
  assert.equal(await read(0, 0), 0)
  server.begin()
  server.begin()
  assert.equal(await read(2, 0), 0)
  for (let i = 0; i < 5; i++) assert.equal(await read(8, 6), 1)
  server.end(100, 10)
  server.end(100, 10)
  assert.equal(await read(0, 0), 1)
})
