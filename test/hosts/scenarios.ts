// Each scenario cuts one host off while a batch runs, and holds the outcome to the promises of docs/reliability.md.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { setTimeout as wait } from 'node:timers/promises'
import { Client, names } from './client.ts'
import { addressOf, cut, type HostName, type Program, restore } from './hosts.ts'
import type { ModelCall } from './model-calls.ts'

export interface Hosts {
  url: string
  keyFile: string
  /** What the services take for the database. */
  database: 'postgres' | 'pgbouncer'
  /** The URL of the model server. */
  model: string
  services: Program[]
  doctor(...args: string[]): Promise<Program>
}

const LINES = 6_000
const LINE_NANOS = 3_000
/** A worker that can be reached again works again within this time. */
const BACK_MS_MAX = 45_000
const BATCH_MS_MAX = 120_000
/** A call to an API without a database is answered within this time. */
const CALL_MS_MAX = 60_000
/** How long a worker may take to commit an answer: what is older when it is cut off is never sent again. */
const COMMITTED_AFTER_MS = 3_000
const CUT_MS = 20_000

/** Returns the number of violations. `only`: a part of the names of the scenarios to run. */
export async function scenarios(hosts: Hosts, only: string): Promise<number> {
  const client = new Client({ url: hosts.url, key: readFileSync(hosts.keyFile, 'utf8').trim() }, CALL_MS_MAX)
  const calls = async (): Promise<ModelCall[]> =>
    (await (await fetch(`${new URL(hosts.model).origin}/calls`)).json()) as ModelCall[]
  const callsOf = async (name: string): Promise<ModelCall[]> =>
    (await calls()).filter(({ text }) => text.startsWith(`${name}-`))
  const from = (list: ModelCall[], host: HostName): ModelCall[] =>
    list.filter((call) => call.from === addressOf(host))
  let violations = 0

  const scenario = async (name: string, run: () => Promise<string>): Promise<void> => {
    if (!name.includes(only)) return
    try {
      process.stdout.write(`  ${name}: ${await run()}\n`)
    } catch (error) {
      violations++
      process.stdout.write(`  ${name}: VIOLATED: ${error instanceof Error ? error.message : String(error)}\n`)
      for (const { child, log } of hosts.services) {
        process.stdout.write(`    log of ${child.spawnargs.slice(3, 4).join(' ')}\n`)
        for (const row of log.slice(-8)) process.stdout.write(`      ${row.slice(0, 300)}\n`)
      }
    }
  }

  /** Resolves when both workers send lines of the batch. */
  const bothSend = async (name: string): Promise<void> => {
    for (const end = Date.now() + BATCH_MS_MAX; ; await wait(200)) {
      const list = await callsOf(name)
      if (from(list, 'worker-a').length > 100 && from(list, 'worker-b').length > 100) return
      assert.ok(Date.now() < end, 'one of the workers sends nothing')
    }
  }

  /** The batch has ended as promised; returns how many lines were sent again. */
  const check = async (
    name: string,
    id: string,
    limitMs: number,
    maySendAgain: (first: ModelCall) => boolean,
  ): Promise<number> => {
    const batch = await client.ended(id, limitMs)
    assert.equal(batch.status, 'completed')
    assert.deepEqual(batch.request_counts, { total: LINES, completed: LINES, failed: 0 })
    assert.equal(Math.round(batch.cost_usd * 1e9), LINES * LINE_NANOS)
    assert.deepEqual(await client.resultNames(batch), names(name, LINES))
    const byLine = Map.groupBy(await callsOf(name), ({ text }) => text)
    assert.equal(byLine.size, LINES)
    let again = 0
    for (const [text, [first, ...more]] of byLine) {
      again += more.length
      if (more.length === 0) continue
      assert.ok(
        more.length === 1 && first && maySendAgain(first),
        `${text} was sent ${more.length + 1} times`,
      )
    }
    return again
  }

  const isBack = async (host: HostName): Promise<number> => {
    const since = Date.now()
    for (let round = 0; ; round++) {
      const name = `back${since}x${round}`
      const id = await client.createBatch(name, LINES)
      for (const end = Date.now() + BATCH_MS_MAX; ; await wait(500)) {
        const first = from(await callsOf(name), host)[0]
        if (first) {
          await check(name, id, BATCH_MS_MAX, () => false)
          assert.ok(
            first.at - since < BACK_MS_MAX,
            `${host} sends again only after ${seconds(first.at - since)}`,
          )
          return first.at - since
        }
        assert.ok(Date.now() < end && Date.now() - since < 2 * BACK_MS_MAX, `${host} sends nothing any more`)
        if ((await client.batch(id)).status === 'completed') break
      }
    }
  }

  await scenario('nothing is cut', async () => {
    const id = await client.createBatch('plain', LINES)
    const begun = Date.now()
    await check('plain', id, BATCH_MS_MAX, () => false)
    return `${LINES} lines in ${seconds(Date.now() - begun)}, each sent once`
  })

  await scenario('worker cut off from the database', async () => {
    const id = await client.createBatch('database', LINES)
    await bothSend('database')
    const at = Date.now()
    cut('worker-a', hosts.database)
    try {
      const again = await check('database', id, BATCH_MS_MAX, (first) => {
        return first.from === addressOf('worker-a') && first.at > at - COMMITTED_AFTER_MS
      })
      const took = Date.now() - at
      restore('worker-a', hosts.database)
      return `the other finishes the batch after ${seconds(took)}, ${again} lines are sent again; works again ${seconds(await isBack('worker-a'))} after the cut ends`
    } catch (error) {
      restoreIfCut('worker-a', hosts.database)
      throw error
    }
  })

  await scenario('worker cut off from the database for 20 s, shorter than a statement may take', async () => {
    const id = await client.createBatch('short', LINES)
    await bothSend('short')
    const at = Date.now()
    cut('worker-a', hosts.database)
    await wait(CUT_MS)
    restore('worker-a', hosts.database)
    const again = await check('short', id, BATCH_MS_MAX, (first) => {
      return first.from === addressOf('worker-a') && first.at > at - COMMITTED_AFTER_MS
    })
    return `${again} lines are sent again; works again ${seconds(await isBack('worker-a'))} after the cut ends`
  })

  await scenario('worker cut off from the bucket for 20 s', async () => {
    const id = await client.createBatch('bucket', LINES)
    await bothSend('bucket')
    const at = Date.now()
    cut('worker-a', 'bucket')
    await wait(CUT_MS)
    restore('worker-a', 'bucket')
    const restored = Date.now()
    const again = await check('bucket', id, BATCH_MS_MAX, () => false)
    return `the batch is complete ${seconds(Date.now() - restored)} after the cut of ${seconds(restored - at)} ends, ${again} lines are sent again`
  })

  await scenario('worker cut off from the model server', async () => {
    const id = await client.createBatch('model', LINES)
    await bothSend('model')
    const at = Date.now()
    cut('worker-a', 'model')
    try {
      const again = await check('model', id, BATCH_MS_MAX, (first) => {
        return first.from === addressOf('worker-a') && first.at > at - COMMITTED_AFTER_MS
      })
      const took = Date.now() - at
      restore('worker-a', 'model')
      return `the other finishes the batch after ${seconds(took)}, ${again} lines are sent again; works again ${seconds(await isBack('worker-a'))} after the cut ends`
    } catch (error) {
      restoreIfCut('worker-a', 'model')
      throw error
    }
  })

  await scenario('API cut off from the database', async () => {
    cut('api', hosts.database)
    const begun = Date.now()
    const answers = await Promise.all(
      ['/v1/batches', '/v1/files', '/readyz'].map(async (path) => {
        const { status } = await client.call(path)
        return `${path} ${status} after ${seconds(Date.now() - begun)}`
      }),
    )
    const later = Date.now()
    const { status } = await client.call('/v1/batches')
    answers.push(`again ${status} after ${seconds(Date.now() - later)}`)
    restore('api', hosts.database)
    const restored = Date.now()
    while ((await client.call('/v1/batches')).status !== 200)
      assert.ok(Date.now() - restored < BACK_MS_MAX, 'the API does not recover')
    return `${answers.join(', ')}; recovers within ${seconds(Date.now() - restored)}`
  })

  await scenario('books and blobs', async () => {
    for (const args of [['books'], ['--quick']]) {
      const { child, ended, log, ready } = await hosts.doctor(...args)
      child.stdout?.resume()
      assert.equal(await ended, 0, `offpeak doctor ${args.join(' ')}: ${ready} ${log.join(' ')}`)
    }
    return 'offpeak doctor finds no damage and no difference'
  })
  return violations
}

function restoreIfCut(host: HostName, from: HostName): void {
  try {
    restore(host, from)
  } catch {
    // It was not cut any more.
  }
}

function seconds(ms: number): string {
  return `${(ms / 1000).toFixed(1)} s`
}
