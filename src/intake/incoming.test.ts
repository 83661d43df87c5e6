import assert from 'node:assert/strict'
import { join } from 'node:path'
import { type TestContext, test } from 'node:test'
import { temporaryDisk } from '../../test/support/temporary-disk.ts'
import { QUOTAS_DEFAULT, type Quotas } from '../domain/plan.ts'
import { sqliteStore } from '../store/sqlite/store.ts'
import type { Store } from '../store/store.ts'
import { type Announced, Incoming, type TakeBytes } from './incoming.ts'

const MIB = 1024 * 1024
const UNKNOWN: Announced = { bytes: 0, zstd: false }

async function emptyStore(t: TestContext): Promise<Store> {
  const disk = await temporaryDisk()
  const store = sqliteStore({ path: join(disk.root, 'offpeak.db') })
  await store.migrate()
  t.after(async () => {
    await store.close()
    await disk[Symbol.asyncDispose]()
  })
  return store
}

/** A call that receives content until the test ends it. */
class Call {
  readonly #entered = Promise.withResolvers<TakeBytes>()
  readonly #end = Promise.withResolvers<void>()
  readonly done: Promise<void>

  constructor(incoming: Incoming, announced = UNKNOWN, quotas: Partial<Quotas> = {}, project_id = 'proj_a') {
    const holder = { project_id, quotas: { ...QUOTAS_DEFAULT, ...quotas } }
    this.done = incoming.receive(holder, announced, async (take) => {
      this.#entered.resolve(take)
      await this.#end.promise
    })
    this.done.catch((error: unknown) => this.#entered.reject(error))
    this.#entered.promise.catch(() => {})
  }

  /** The code of the error that rejected the call, or null once it receives. */
  async errorCode(): Promise<string | null> {
    return await this.#entered.promise.then(
      () => null,
      (error) => error.details.quota ?? error.code,
    )
  }

  async take(bytes: number): Promise<string | null> {
    const take = await this.#entered.promise
    try {
      take(bytes)
      return null
    } catch (error) {
      this.#end.reject(error)
      await this.done.catch(() => {})
      return Object(error).details.quota
    }
  }

  async end(): Promise<void> {
    this.#end.resolve()
    await this.done
  }
}

test('a project has so many calls that bring content, of any kind, before any of it is read', async (t) => {
  const incoming = new Incoming(await emptyStore(t))
  const quotas = { uploads: 2 }
  const file = new Call(incoming, UNKNOWN, quotas)
  const part = new Call(incoming, { ...UNKNOWN, partOf: { id: 'upload_1', left: 10 } }, quotas)
  assert.deepEqual(await Promise.all([file, part].map((call) => call.errorCode())), [null, null])
  assert.equal(await new Call(incoming, UNKNOWN, quotas).errorCode(), 'uploads')
  assert.equal(incoming.files('proj_a'), 1)
  await part.end()
  assert.equal(await new Call(incoming, UNKNOWN, quotas).errorCode(), null)
})

test('calls share the memory of the process by what they may take, and no project takes all of it', async (t) => {
  const incoming = new Incoming(await emptyStore(t), { bytes: 32 * MIB, callBytes: 2 * MIB })
  const quotas = { uploads: null }
  const received = async (announced: Announced, project: string): Promise<number> => {
    for (let calls = 0; ; calls++)
      if ((await new Call(incoming, announced, quotas, project).errorCode()) !== null) return calls
  }
  assert.equal(await received(UNKNOWN, 'proj_a'), 8)
  assert.equal(await received({ bytes: 10, zstd: false }, 'proj_b'), 32, 'small ones take less')
  assert.equal(
    await new Call(incoming, { bytes: 0, zstd: true }, quotas, 'proj_c').errorCode(),
    'service_unavailable',
  )
  assert.equal(await new Call(incoming, UNKNOWN, quotas, 'proj_c').errorCode(), null)
})

test('bytes count before they are stored, those of calls that have not ended too', async (t) => {
  const incoming = new Incoming(await emptyStore(t))
  const quotas = { stored_bytes: 100 }
  const first = new Call(incoming, UNKNOWN, quotas)
  const second = new Call(incoming, UNKNOWN, quotas)
  assert.equal(await first.take(60), null)
  assert.equal(await second.take(41), 'stored_bytes')
  await first.end()
  assert.equal(await new Call(incoming, UNKNOWN, quotas).take(100), null, 'nothing of it was stored')
})

test('what a call announces counts before it comes', async (t) => {
  const incoming = new Incoming(await emptyStore(t))
  const quotas = { stored_bytes: MIB }
  const large = new Call(incoming, { bytes: MIB, zstd: false }, quotas)
  assert.equal(await large.errorCode(), null)
  assert.equal(await new Call(incoming, UNKNOWN, quotas).take(100 * 1024), 'stored_bytes')
  assert.equal(await large.take(MIB), null)
  assert.equal(await new Call(incoming, { bytes: 2 * MIB, zstd: false }, quotas).errorCode(), 'stored_bytes')
})

test('parts of an upload take the bytes that it was announced with, once', async (t) => {
  const incoming = new Incoming(await emptyStore(t))
  const quotas = { stored_bytes: 10 }
  const part = { ...UNKNOWN, partOf: { id: 'upload_1', left: 1000 } }
  const first = new Call(incoming, part, quotas)
  assert.equal(await first.take(1000), null)
  const second = new Call(incoming, part, quotas)
  assert.equal(await second.take(11), 'stored_bytes')
})
