// Batch APIs of which some calls are ill for good, in a whole worker with a clock that the test moves: each batch ends with
// its window or its cancel, and its lines go to a server in time.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { errorAnswer, type FakeCall } from '../../test/fakes/batch-api.ts'
import { remoteWorld, SHORT } from '../../test/support/remote-world.ts'
import { cancelBatch } from '../lifecycle/batch.ts'

/** What batch APIs answer for as long as they are ill. */
const ILLNESSES: Record<string, () => void | Promise<void>> = {
  '429': () => {
    throw errorAnswer(429, { message: 'slow down' })
  },
  '429 with an hour to wait': () => {
    throw errorAnswer(429, { message: 'slow down' }, { 'retry-after': '3600' })
  },
  '500': () => {
    throw errorAnswer(500, { message: 'oops' })
  },
  '404': () => {
    throw errorAnswer(404, { message: 'gone' })
  },
  nothing: () => new Promise(() => {}),
}

/** Which of its calls are ill, and whether the batch there has ended meanwhile. */
const ILL_CALLS = {
  looks: { kinds: ['read'], hasEnded: false },
  cancellations: { kinds: ['cancel'], hasEnded: false },
  'looks and cancellations': { kinds: ['read', 'cancel'], hasEnded: false },
  results: { kinds: ['results'], hasEnded: true },
  'creations and lists': { kinds: ['create', 'find'], hasEnded: false },
} satisfies Record<string, { kinds: FakeCall['kind'][]; hasEnded: boolean }>

for (const [calls, { kinds, hasEnded }] of Object.entries(ILL_CALLS))
  for (const [answer, illness] of Object.entries(ILLNESSES)) {
    const illWorld = async () => {
      const world = await remoteWorld({ chunks: 1, lines: 3, ...SHORT })
      const { api, worker, clock } = world
      const said: string[] = []
      api.onCall = async ({ kind }) => {
        said.push(kind)
        if (!kinds.some((one) => one === kind)) return
        if (kind === 'create') throw errorAnswer(500, { message: 'oops' })
        await illness()
      }
      await worker.start()
      await clock.advance(1_000)
      if (hasEnded) for (const batch of api.open) api.complete(batch)
      await clock.advance(10_000)
      return Object.assign(world, { said })
    }

    test(`a batch ends with its window while ${calls} are answered with ${answer}`, async () => {
      await using world = await illWorld()
      const { expires_at } = await world.batch()
      await world.clock.advance(expires_at - world.clock.now() + 1_500)
      assert.deepEqual(world.ended, ['expired'])
      if (!hasEnded && kinds[0] !== 'create')
        assert.ok(world.said.includes('cancel'), 'it was to be cancelled there')
    })

    test(`a batch is cancelled in a twentieth of its window while ${calls} are answered with ${answer}`, async () => {
      await using world = await illWorld()
      const { store, clock, said } = world
      const { id } = await world.batch()
      await store.write((tx) => cancelBatch(tx, 'p', id, clock.now()))
      await clock.advance(1_000)
      if (!hasEnded && kinds[0] !== 'create')
        assert.ok(said.includes('cancel'), 'it was to be cancelled there')
      await clock.advance(6_500)
      assert.deepEqual(world.ended, ['cancelled'])
    })

    test(`lines go to a server in time while ${calls} are answered with ${answer}`, async () => {
      await using world = await illWorld()
      const { worker, upstream, remote, clock, server } = world
      worker.setUpstreams(new Map([['m', [upstream, remote]]]), new Map())
      const { expires_at } = await world.batch()
      await clock.advance(expires_at - clock.now() - 20_000)
      assert.equal(server.sent.length, 3)
    })
  }
