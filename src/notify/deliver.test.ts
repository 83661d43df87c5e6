import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import fc from 'fast-check'
import { Agent } from 'undici'
import { testClock } from '../../test/fakes/clock.ts'
import { testReceiver } from '../../test/fakes/receiver.ts'
import { masterKeyFromText } from '../blobs/master-key.ts'
import { newId } from '../domain/ids.ts'
import { ensureProject } from '../store/projects.ts'
import { insertRow, readRow } from '../store/rows.ts'
import type { TaskRow } from '../store/schema.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import { leaseTask, postponeTask } from '../store/tasks.ts'
import { updateDelivery, updateWebhook } from '../store/webhooks.ts'
import { closeSession, openSession } from '../store/workers.ts'
import { deliverer, nextAttemptAt, TRIED_FOR_MS } from './deliver.ts'
import { recordTestEvent } from './record-event.ts'
import { newSigningSecret } from './webhook-signature.ts'

/** The times of all attempts of a delivery that never succeeds, the first at 0. */
function attempts(chance: () => number, wait_ms = 0): number[] {
  const times = [0]
  for (;;) {
    const now = times.at(-1) ?? 0
    const next = nextAttemptAt({ started: 0, attempts: times.length }, now, chance(), wait_ms)
    if (next === null) return times
    times.push(next)
  }
}

test('an event is tried over three days, soon at first and then ever more rarely', () => {
  const seconds = attempts(() => 0.5).map((ms) => ms / 1000)
  assert.deepEqual(seconds.slice(0, 5), [0, 5, 35, 155, 755])
  assert.equal(seconds.at(-1), 3 * 24 * 3600)
  assert.ok(seconds.length >= 12 && seconds.length <= 20, `${seconds.length} attempts`)
})

test('whatever chance says, the last attempt is as the three days end', () => {
  fc.assert(
    fc.property(fc.array(fc.double({ min: 0, max: 0.999, noNaN: true }), { minLength: 30 }), (chances) => {
      let i = 0
      const times = attempts(() => chances[i++ % chances.length] ?? 0)
      assert.equal(times.at(-1), TRIED_FOR_MS)
      for (const [n, time] of times.entries()) assert.ok(n === 0 || time > (times[n - 1] ?? 0))
    }),
  )
})

test('two deliveries that failed together are not tried together', () => {
  const one = nextAttemptAt({ started: 0, attempts: 1 }, 0, 0.1)
  const other = nextAttemptAt({ started: 0, attempts: 1 }, 0, 0.9)
  assert.notEqual(one, other)
})

test('a receiver that asks for time gets it, and no delivery outlives its three days by that', () => {
  assert.equal(nextAttemptAt({ started: 0, attempts: 1 }, 0, 0.5, 60_000), 60_000)
  assert.equal(nextAttemptAt({ started: 0, attempts: 9 }, TRIED_FOR_MS - 1, 0.5, 60_000), TRIED_FOR_MS)
})

describe('a worker that has lost the lease of a delivery', () => {
  for (const leasedAgain of [false, true]) {
    const since = leasedAgain ? 'another worker has leased it' : 'it is queued'
    for (const status of [204, 500, 410])
      test(`records nothing of an attempt that was answered ${status}, while ${since}`, async () => {
        await using world = await deliveries()
        const { receiver, lose } = world
        let lost: Awaited<ReturnType<typeof lose>> | undefined
        receiver.answer = async ({ response }) => {
          lost = await lose(leasedAgain)
          response.writeHead(status).end()
        }
        await world.deliver()
        assert.equal(receiver.received.length, 1)
        assert.deepEqual(await world.rows(), lost)
      })

    for (const [how, end] of [
      ['ends no delivery to a webhook that is disabled', (world) => world.deliver({ disabled_at: 1 })],
      ['ends no task of a delivery that is done', (world) => world.deliver({}, 'delivered')],
      [
        'postpones nothing',
        ({ store, task }) => store.write((tx) => postponeTask(tx, task, 2 ** 50, 'it failed')),
      ],
    ] as const satisfies [string, (world: Deliveries) => Promise<unknown>][])
      test(`${how}, while ${since}`, async () => {
        await using world = await deliveries()
        const lost = await world.lose(leasedAgain)
        await end(world)
        assert.deepEqual((await world.rows()).tasks, lost.tasks)
        assert.deepEqual((await world.rows()).deliveries[0]?.last_error, null)
        assert.equal(world.receiver.received.length, 0)
      })
  }
})

type Deliveries = Awaited<ReturnType<typeof deliveries>>

/** A delivery that a worker has leased. */
async function deliveries() {
  const folder = await mkdtemp(join(tmpdir(), 'offpeak-deliver-'))
  const clock = testClock()
  const created = clock.now()
  const store = sqliteStore({ path: join(folder, 'offpeak.db'), leaseNow: clock.now })
  await store.migrate()
  const receiver = await testReceiver()
  const agent = new Agent()
  const master = masterKeyFromText(randomBytes(32).toString('base64'), 'a test')
  const webhook_id = newId('webhook', created)
  const [first, task] = await store.write(async (tx) => {
    const { id: project_id } = await ensureProject(tx, { id: 'p', name: 'p', plan: 'payg', created })
    await insertRow(tx, 'webhooks', {
      ...{ id: webhook_id, project_id, url: receiver.url, created },
      wrapped_secret: newSigningSecret(master, project_id, webhook_id).wrapped,
    })
    await recordTestEvent(tx, (await readRow(tx, 'webhooks', { id: webhook_id }))!, created)
    const worker = await openSession(tx, 60_000, created)
    const { id } = await tx.selectFrom('tasks').select('id').executeTakeFirstOrThrow()
    return [worker, (await leaseTask(tx, worker, id)) as TaskRow] as const
  })
  const rows = async () => ({
    tasks: await store.read.selectFrom('tasks').selectAll().execute(),
    deliveries: await store.read.selectFrom('deliveries').selectAll().execute(),
    webhooks: await store.read.selectFrom('webhooks').selectAll().execute(),
  })
  const handler = deliverer({ store, clock, master, random: () => 0.5, agent: async () => agent })
  return {
    ...{ store, receiver, task, rows },
    /** Ends the session of the worker; returns the rows afterwards. */
    async lose(leasedAgain: boolean) {
      await store.write(async (tx) => {
        await closeSession(tx, first)
        if (leasedAgain) await leaseTask(tx, await openSession(tx, 60_000, clock.now()), task.id)
      })
      return await rows()
    },
    /** Handles the task of the first worker, after a change of the webhook and the delivery. */
    async deliver(
      webhook: { disabled_at?: number } = {},
      status: 'pending' | 'delivered' = 'pending',
    ): Promise<void> {
      await store.write(async (tx) => {
        if (webhook.disabled_at !== undefined) await updateWebhook(tx, webhook_id, webhook)
        await updateDelivery(tx, task.subject, { status })
      })
      await handler(task, new AbortController().signal)
    },
    async [Symbol.asyncDispose]() {
      await agent.close()
      await receiver.close()
      await store.close()
      await rm(folder, { recursive: true, force: true })
    },
  }
}
