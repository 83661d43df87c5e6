// What every database must do behind the store port, run against each adapter by its own test file. Each test
// has an empty database; `open` connects to it once more, as another process does.
import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import { sql } from 'kysely'
import { ulid } from 'ulid'
import { newId } from '../../src/domain/ids.ts'
import { encodeLineNumbers } from '../../src/jsonl/chunk-lines.ts'
import { removeUnsharedInput } from '../../src/lifecycle/remove-file.ts'
import { deleteOldCalls } from '../../src/maintenance/maintenance.ts'
import {
  addToBatch,
  insertBatch,
  listBatches,
  markInputDeleted,
  moveBatch,
  setBatch,
} from '../../src/store/batches.ts'
import { insertBlobs, knownBlobs, listPendingDeletion, readBlobRow } from '../../src/store/blobs.ts'
import {
  completeIdempotencyKey,
  forgetIdempotencyKeys,
  readIdempotency,
  reserveIdempotencyKey,
  takeCalls,
} from '../../src/store/calls.ts'
import {
  claimChunks,
  claimClosable,
  claimOfEntities,
  claimPlan,
  hasReadyChunk,
  listEnding,
  type ModelChoice,
  withReadyChunk,
} from '../../src/store/chunk-claims.ts'
import {
  chunksOf,
  commitChunk,
  dropJournal,
  firstUnsealed,
  insertChunks,
  listJournalParts,
  parkChunk,
  readChunkOfLine,
  releaseChunk,
  stretchesOf,
  wakeParked,
} from '../../src/store/chunks.ts'
import { claimInterval, writeProperty } from '../../src/store/database-properties.ts'
import {
  listExpiredFiles,
  listFiles,
  lockFileRow,
  lockInputFile,
  markDeleted,
  readFile,
} from '../../src/store/files.ts'
import { overLimitUntil } from '../../src/store/limits.ts'
import { ensureProject } from '../../src/store/projects.ts'
import {
  NOW as DATABASE_NOW,
  insertRow,
  insertRows,
  readOwn,
  readRow,
  updateRows,
} from '../../src/store/rows.ts'
import type {
  BatchRow,
  ChunkRow,
  FileRow,
  HttpRequestRow,
  TaskKind,
  TaskRow,
} from '../../src/store/schema.ts'
import { pullBackTimes } from '../../src/store/shared-clock.ts'
import { SchemaMismatch, type Store } from '../../src/store/store.ts'
import {
  claimTask,
  finishTask,
  hasDueTask,
  insertTask,
  postponeTask,
  type TaskChoice,
} from '../../src/store/tasks.ts'
import {
  beginCompletion,
  isCompleting,
  leaveCompletion,
  NOT_COMPLETING,
  renewCompletion,
} from '../../src/store/uploads.ts'
import {
  closeSession,
  type LaneReport,
  leasedChunks,
  leasedTasks,
  listLaneReports,
  lockSession,
  openSession,
  releaseTask,
  renewSession,
  requeueExpiredLeases,
  setLaneReports,
} from '../../src/store/workers.ts'
import { addLimit } from '../support/test-books.ts'

/** A database without rows, gone when it is disposed of together with whatever is connected to it. */
export interface EmptyDatabase extends AsyncDisposable {
  open(): Store
  /** Resolves once a transaction waits for another one. Null where a process has one writer, which takes turns. */
  contention: (() => Promise<void>) | null
}

const NOW = 1_800_000_000_000
const HOUR_MS = 3_600_000
const LEASE_MS = 60_000
const NO_DELTA = { completed: 0, failed: 0, cost_nanos: 0 }
const SEAL = { output_blob: null, output_bytes: 0, error_blob: null, error_bytes: 0, audit_blob: 'audit' }

export function storeConformance(
  name: string,
  makeDatabase: (content?: 'empty') => Promise<EmptyDatabase>,
  skip: string | false = false,
): void {
  /** `other` is what another process has; where one process has one writer, it is the store itself. */
  const test = (sentence: string, body: (store: Store, other: Store) => Promise<void>): void => {
    it(sentence, { skip }, async () => {
      await using database = await makeDatabase()
      const store = database.open()
      await store.migrate()
      await body(store, database.contention ? database.open() : store)
    })
  }
  /** For what happens while two transactions run side by side. */
  const testSideBySide = (
    sentence: string,
    body: (store: Store, other: Store, contention: () => Promise<void>) => Promise<void>,
  ): void => {
    it(sentence, { skip }, async (context) => {
      await using database = await makeDatabase()
      const { contention } = database
      if (!contention) return context.skip('here one transaction runs at a time')
      const store = database.open()
      await store.migrate()
      await body(store, database.open(), contention)
    })
  }

  describe(`${name} as a store: transactions`, () => {
    test('what a transaction wrote is there for everybody once it has resolved', async (store, other) => {
      await store.write((tx) => ensureProject(tx, project('a')))
      assert.equal((await readRow(store.read, 'projects', { name: 'a' }))?.plan, 'payg')
      assert.equal((await readRow(other.read, 'projects', { name: 'a' }))?.plan, 'payg')
    })

    test('an asynchronous commit can be read by every process once it has resolved, and one that fails leaves nothing', async (store, other) => {
      await store.writeAsyncCommit((tx) => ensureProject(tx, project('a')))
      assert.equal((await readRow(other.read, 'projects', { name: 'a' }))?.name, 'a')
      const failure = new Error('changed my mind')
      const note = store.writeAsyncCommit(async (tx) => {
        await ensureProject(tx, project('b'))
        throw failure
      })
      await assert.rejects(note, failure)
      assert.equal(await readRow(store.read, 'projects', { name: 'b' }), undefined)
    })

    test('a transaction that fails leaves nothing, and its own error comes out', async (store) => {
      const failure = new Error('changed my mind')
      const change = store.write(async (tx) => {
        await ensureProject(tx, project('a'))
        throw failure
      })
      await assert.rejects(change, failure)
      assert.equal(await readRow(store.read, 'projects', { name: 'a' }), undefined)
      await store.write((tx) => ensureProject(tx, project('b')))
      assert.equal((await readRow(store.read, 'projects', { name: 'b' }))?.name, 'b')
    })

    test('a statement that the database refuses undoes the whole transaction', async (store) => {
      const change = store.write(async (tx) => {
        await ensureProject(tx, project('a'))
        await tx
          .insertInto('projects')
          .values({ ...project('b'), id: 'proj_a' })
          .execute()
      })
      await assert.rejects(change)
      assert.equal(await readRow(store.read, 'projects', { name: 'a' }), undefined)
    })

    test('others do not see a transaction before it has ended', async (store, other) => {
      await store.write(async (tx) => {
        await ensureProject(tx, project('a'))
        assert.equal(await readRow(other.read, 'projects', { name: 'a' }), undefined)
        assert.equal(await readRow(store.read, 'projects', { name: 'a' }), undefined)
      })
    })

    test('sums made by many at once lose nothing', async (store, other) => {
      const { batch } = await seed(store)
      const stores = [store, other]
      const delta = { completed: 1, cost_nanos: 7 }
      const adds = Array.from({ length: 30 }, (_, i) =>
        stores[i % stores.length]!.write((tx) => addToBatch(tx, batch.id, delta)),
      )
      await Promise.all(adds)
      const row = await readOwn(store.read, 'batches', 'proj_a', batch.id)
      assert.deepEqual([row?.completed, row?.cost_nanos], [30, 210])
    })

    test('whole numbers are numbers, up to the largest that one can hold', async (store) => {
      const { batch } = await seed(store)
      const delta = { cost_nanos: Number.MAX_SAFE_INTEGER }
      const row = await store.write((tx) => addToBatch(tx, batch.id, delta))
      assert.equal(row.cost_nanos, Number.MAX_SAFE_INTEGER)
      assert.equal(typeof row.created, 'number')
      const counted = await store.read
        .selectFrom('batches')
        .select((eb) => [eb.fn.countAll<number>().as('n'), eb.fn.sum<number>('total').as('s')])
        .executeTakeFirst()
      assert.deepEqual({ ...counted }, { n: 1, s: 3000 })
    })

    test('text comes back as it went in, whatever its characters', async (store) => {
      const text = 'ü 😀 \u202e \\ \' " % _ \n\t {"a":"\\u0000"}'
      await seed(store)
      await store.write((tx) => insertRow(tx, 'files', file('file_x', { filename: text })))
      assert.equal((await readFile(store.read, 'proj_a', 'file_x', NOW))?.filename, text)
    })

    test('text that no database stores is stored as U+FFFD, wherever it comes from', async (store) => {
      await seed(store)
      await store.write((tx) => insertRow(tx, 'files', file('file_x', { filename: 'a\0b \udc00c\ud800' })))
      const stored = 'a\ufffdb \ufffdc\ufffd'
      assert.equal((await readFile(store.read, 'proj_a', 'file_x', NOW))?.filename, stored)
    })
  })

  describe(`${name} as a store: migrations`, () => {
    it('processes that start at once bring the schema up together', { skip }, async (context) => {
      await using database = await makeDatabase('empty')
      if (!database.contention) return context.skip('here it takes real processes')
      const stores = Array.from({ length: 5 }, () => database.open())
      await Promise.all(stores.map((store) => store.migrate()))
      await stores[0]!.write((tx) => ensureProject(tx, project('a')))
      assert.equal((await readRow(stores[4]!.read, 'projects', { name: 'a' }))?.name, 'a')
    })

    test('migrating again changes nothing', async (store) => {
      await store.write((tx) => ensureProject(tx, project('a')))
      await store.migrate()
      assert.equal((await readRow(store.read, 'projects', { name: 'a' }))?.name, 'a')
    })

    test('a batch that ends has the mean of its run as its speed', async (store) => {
      const { batch } = await seed(store)
      const ended = await store.write(async (tx) => {
        await moveBatch(tx, batch.id, 'queued', 500)
        await moveBatch(tx, batch.id, 'in_progress', 1999)
        await updateRows(tx, 'batches', { id: batch.id })
          .set({ completed: 3, failed: 2, not_run: 2 })
          .execute()
        return await moveBatch(tx, batch.id, 'completed', 7000)
      })
      assert.equal(ended?.speed, 0.5, 'by whole seconds, without the lines that were not run')
    })

    test('a schema newer than this program is refused, and the error says what to do', async (store, other) => {
      await store.write(async (tx) => {
        await sql`INSERT INTO kysely_migration (name, timestamp) VALUES ('9999-future', 'later')`.execute(tx)
      })
      await assert.rejects(other.migrate(), (error) => {
        assert.ok(error instanceof SchemaMismatch)
        assert.match(error.message, /9999-future.*Run the version of offpeak that wrote this database/s)
        return true
      })
    })
  })

  describe(`${name} as a store: lists`, () => {
    test('IDs are ordered by their bytes, so a page ends where the next begins', async (store) => {
      await seed(store)
      // What the rules of languages order differently: digits, case, and signs that they pass over.
      const ids = ['file_00', 'file_0z', 'file_1', 'file_A', 'file_Z', 'file__', 'file_a', 'file_z', 'filea']
      for (const id of ids.toReversed()) await store.write((tx) => insertRow(tx, 'files', file(id)))
      const seen: string[] = []
      for (let behind: string | undefined; ; behind = seen.at(-1)) {
        const { rows: page } = await listFiles(store.read, 'proj_a', { limit: 2, behind }, NOW)
        if (page.length === 0) break
        seen.push(...page.map((row) => row.id))
      }
      assert.deepEqual(
        seen.filter((id) => ids.includes(id)),
        ids.toReversed(),
      )
    })

    test('a list has the rows of its project alone, newest first, filtered as asked', async (store) => {
      const { batch: first } = await seed(store)
      await seed(store, 'b')
      const second = await addBatch(store, 'a')
      await store.write((tx) => moveBatch(tx, second.id, 'queued', NOW))
      const ids = async (page: Parameters<typeof listBatches>[2]): Promise<string[]> =>
        (await listBatches(store.read, 'proj_a', page)).rows.map((row) => row.id)
      assert.deepEqual(await ids({ limit: 10 }), [second.id, first.id])
      assert.deepEqual(await ids({ limit: 1 }), [second.id])
      assert.deepEqual(await ids({ limit: 10, behind: second.id }), [first.id])
      assert.deepEqual(await ids({ limit: 10, order: 'asc' }), [first.id, second.id])
      assert.deepEqual(await ids({ limit: 10, order: 'asc', behind: first.id }), [second.id])
      assert.deepEqual(await ids({ limit: 10, status: 'queued' }), [second.id])
    })

    test('names are found in either case of any script, and listed by their bytes', async (store) => {
      await seed(store)
      for (const name of ['über', 'zoo', 'Über', 'ΣΟΦΟΣ', 'Zoo'])
        await addBatch(store, 'a', 1, { metadata: JSON.stringify({ name }) })
      const names = async (
        page: Partial<Parameters<typeof listBatches>[2]>,
      ): Promise<(string | undefined)[]> => {
        const { rows } = await listBatches(store.read, 'proj_a', { limit: 10, order: 'asc', ...page })
        return rows.filter(({ metadata }) => metadata !== null).map(({ name }) => name)
      }
      assert.deepEqual(await names({ search: 'ÜBER' }), ['über', 'Über'])
      assert.deepEqual(await names({ search: 'σοφος' }), ['ΣΟΦΟΣ'])
      assert.deepEqual(await names({ sort: 'name' }), ['Zoo', 'zoo', 'Über', 'über', 'ΣΟΦΟΣ'])
      await store.write((tx) => insertRow(tx, 'files', file('file_1', { filename: 'ÄRZTE.jsonl' })))
      const found = await listFiles(store.read, 'proj_a', { limit: 10, search: 'ärzte' }, NOW)
      assert.deepEqual(
        found.rows.map(({ id }) => id),
        ['file_1'],
      )
    })

    test('a deleted file is gone for its users, and expired files come oldest first', async (store) => {
      await seed(store)
      for (const [id, expires_at] of [
        ['file_late', NOW + 2],
        ['file_early', NOW],
        ['file_kept', NOW + 100],
      ] as const)
        await store.write((tx) => insertRow(tx, 'files', file(id, { expires_at })))
      const expired = (): Promise<string[]> => listExpiredFiles(store.read, NOW + 2, 10)
      assert.deepEqual(await expired(), ['file_early', 'file_late'])
      assert.equal(await store.write((tx) => markDeleted(tx, 'file_early', NOW)), true)
      assert.equal(await store.write((tx) => markDeleted(tx, 'file_early', NOW)), false)
      assert.equal(await readFile(store.read, 'proj_a', 'file_early', NOW - 1), undefined)
      assert.equal(await readFile(store.read, 'proj_b', 'file_late', NOW), undefined)
      assert.deepEqual(await expired(), ['file_late'])
      // What has expired is gone for its users, whether or not it was deleted since.
      const seenAt = async (now: number): Promise<string[]> =>
        (await listFiles(store.read, 'proj_a', { limit: 10 }, now)).rows
          .map(({ id }) => id)
          .filter((id) => id.startsWith('file_'))
      assert.ok((await seenAt(NOW + 1)).includes('file_late'))
      assert.ok(!(await seenAt(NOW + 2)).includes('file_late'))
      assert.equal(await readFile(store.read, 'proj_a', 'file_late', NOW + 2), undefined)
      assert.equal(await store.write((tx) => lockInputFile(tx, 'proj_a', 'file_late', NOW + 2)), undefined)
    })
  })

  describe(`${name} as a store: claims`, () => {
    test('two processes that claim at once never get the same chunk, and get all of them', async (store, other) => {
      const { batch } = await seed(store, 'a', 60)
      const stores = [store, other, other]
      const claimAll = async (mine: Store): Promise<number[]> => {
        const worker_id = await open(mine)
        const got: number[] = []
        for (;;) {
          const claims = await mine.write((tx) => claimChunks(tx, { ...order(worker_id), count: 4 }))
          if (claims.length === 0 && !(await hasReadyChunk(mine.read))) return got
          got.push(...claims.map((claim) => claim.idx))
          assert.ok(claims.every((claim) => claim.epoch === 1 && claim.worker_id === worker_id))
        }
      }
      const got = (await Promise.all(stores.map(claimAll))).flat()
      assert.equal(batch.chunk_count, 60)
      assert.deepEqual(
        got.sort((a, b) => a - b),
        Array.from({ length: 60 }, (_, i) => i),
      )
    })

    test('the last ready chunks are shared among the running workers; crashed workers get no share', async (store) => {
      await seed(store, 'a', 9)
      const [mine, theirs] = [await open(store), await open(store)]
      const claim = async (worker_id: string): Promise<number> => {
        const shared = { ...order(worker_id), count: 4 }
        return (await store.write((tx) => claimChunks(tx, shared))).length
      }
      assert.deepEqual([await claim(mine), await claim(theirs)], [4, 3])
      assert.equal(await claim(mine), 1)
      await store.write((tx) => closeSession(tx, theirs))
      assert.equal(await claim(mine), 4)
    })

    test('turns go to the project that has least, however much another brings', async (store) => {
      await seed(store, 'giant', 50)
      await seed(store, 'small', 2)
      const worker_id = await open(store)
      const claim = async (count: number, more: object = {}): Promise<string[]> =>
        (await store.write((tx) => claimChunks(tx, { ...order(worker_id), count, ...more }))).map(
          (chunk) => chunk.project_id,
        )
      assert.deepEqual((await claim(4)).sort(), ['proj_giant', 'proj_giant', 'proj_small', 'proj_small'])
      assert.deepEqual(await claim(3), ['proj_giant', 'proj_giant', 'proj_giant'])
      await seed(store, 'third', 5)
      assert.deepEqual(await claim(1), ['proj_third'])
      assert.deepEqual((await claim(4, { onePerProject: true })).sort(), ['proj_giant', 'proj_third'])
      assert.deepEqual(await claim(1, { exceptProjects: ['proj_giant', 'proj_third'] }), [])
      assert.equal(await hasReadyChunk(store.read, { exceptProjects: ['proj_giant', 'proj_third'] }), false)
      assert.equal(await hasReadyChunk(store.read, { exceptProjects: ['proj_giant'] }), true)
    })

    test('within a project the earliest deadline goes first; what is urgent, before everybody', async (store) => {
      await seed(store, 'a', 2)
      const sooner = await addBatch(store, 'a', 2, { expires_at: NOW + HOUR_MS })
      await seed(store, 'b', 2)
      const worker_id = await open(store)
      const claim = async (urgentBefore: number): Promise<string> => {
        const order = { worker_id, urgentBefore, count: 1 }
        const [chunk] = await store.write((tx) => claimChunks(tx, order))
        return `${chunk?.project_id}/${chunk?.batch_id === sooner.id ? 'sooner' : 'later'}/${chunk?.idx}`
      }
      assert.equal(await claim(0), 'proj_a/sooner/0')
      assert.equal(await claim(0), 'proj_b/later/0')
      assert.equal(await claim(NOW + 2 * HOUR_MS), 'proj_a/sooner/1')
    })

    test('chunks of an entity that are due before others are found and claimed by their model', async (store) => {
      const { project_id } = (await seed(store, 'a', 0)).batch
      const due = { expires_at: NOW + HOUR_MS }
      await addBatch(store, 'a', 3, { ...due, header_entity: 'e' }, ['m', 'n'])
      const worker_id = await open(store)
      const work = (entity: string, model: string | null, before: number) => ({
        ...{ project_id, entity, model, before },
      })
      const found = [work('e', 'm', due.expires_at + 1), work('e', null, due.expires_at + 1)]
      const not = [work('e', 'm', due.expires_at), work('f', 'm', NOW + 2 * HOUR_MS), work('e', 'o', NOW * 2)]
      assert.deepEqual(await withReadyChunk(store.read, [...not, ...found], 4), found)
      assert.deepEqual(await withReadyChunk(store.read, found, 1), found.slice(0, 1))
      assert.deepEqual(await withReadyChunk(store.read, [], 1), [])
      const many = Array.from({ length: 600 }, (_, i) => work(`${i}`, 'm', NOW * 2))
      assert.deepEqual(await withReadyChunk(store.read, [...many, ...found], 4), found)
      const claim = (): Promise<ChunkRow[]> =>
        store.write((tx) => claimOfEntities(tx, worker_id, [...not, ...found]))
      assert.deepEqual(
        (await claim()).map(({ idx }) => idx),
        [0, 2],
      )
      assert.deepEqual(await claim(), [])
      assert.deepEqual(await withReadyChunk(store.read, found, 4), [])
    })

    test('a claim leaves out the models that it names, or takes no other', async (store) => {
      await seed(store, 'a', 0)
      await addBatch(store, 'a', 4, {}, ['down', 'down', 'up'])
      const worker_id = await open(store)
      const claim = async (models?: ModelChoice): Promise<number[]> =>
        (await store.write((tx) => claimChunks(tx, { ...order(worker_id), count: 1, models }))).map(
          (chunk) => chunk.idx,
        )
      const down = { exceptModels: ['down', 'other'] }
      assert.deepEqual(await claim({ onlyModels: ['other'] }), [])
      assert.deepEqual(await claim({ onlyModels: ['up', 'other'] }), [2])
      // A chunk of several models may have lines that can run.
      assert.deepEqual([await claim(down), await claim(down)], [[3], []])
      assert.equal(await hasReadyChunk(store.read, { models: down }), false)
      assert.equal(await hasReadyChunk(store.read, { models: { onlyModels: ['down'] } }), true)
      assert.deepEqual(await claim(), [0])
    })

    test('chunks of a batch that is ending are claimed whatever they wait for, and no others', async (store) => {
      const { batch: other } = await seed(store, 'a', 1)
      const ending = await addBatch(store, 'a', 4)
      const deleted = await addBatch(store, 'a', 1)
      const overdue = await addBatch(store, 'a', 1, { expires_at: NOW })
      const worker_id = await open(store)
      await store.write((tx) =>
        tx
          .updateTable('chunks')
          .set((eb) => ({
            state: 'parked',
            run_at: eb(DATABASE_NOW, '+', HOUR_MS),
            parked_reason: eb.case().when('idx', '=', 3).then('stores_failing').else('usage_limit').end(),
          }))
          .where('batch_id', '=', ending.id)
          .where('idx', '>', 1)
          .execute(),
      )
      const claim = async (count: number) =>
        await store.write(async (tx) => {
          const ids = await listEnding(tx, NOW, 10)
          const claims = await claimClosable(tx, worker_id, ids, count)
          return claims.map(({ batch_id, idx, epoch }) => [batch_id, idx, epoch])
        })
      assert.deepEqual(await claim(10), [[overdue.id, 0, 1]])
      await store.write((tx) => moveBatch(tx, ending.id, 'cancelling', NOW))
      await store.write((tx) => markInputDeleted(tx, [deleted.id], NOW))
      assert.deepEqual(
        await claim(3),
        [0, 1, 2].map((idx) => [ending.id, idx, 1]),
      )
      assert.deepEqual(await claim(10), [[deleted.id, 0, 1]], 'what no store could open rests')
      assert.deepEqual(await claim(10), [])
      assert.equal((await readRow(store.read, 'chunks', { batch_id: other.id, idx: 0 }))?.state, 'ready')
    })

    test('a batch that is ending is found behind many whose chunks cannot be claimed yet', async (store) => {
      await seed(store, 'a', 0)
      const worker_id = await open(store)
      for (let i = 0; i < 3; i++) {
        const { id } = await addBatch(store, 'a', 1, { expires_at: NOW })
        await store.write((tx) => markInputDeleted(tx, [id], NOW))
      }
      await store.write((tx) => claimChunks(tx, { ...order(worker_id), count: 3 }))
      const last = await addBatch(store, 'a', 1, { expires_at: NOW })
      await store.write((tx) => markInputDeleted(tx, [last.id], NOW))
      assert.deepEqual(await listEnding(store.read, NOW, 2), [last.id])
      assert.deepEqual(await listEnding(store.read, NOW, 2, new Set(['batch_other'])), [])
    })

    test('the plan of a batch that is ending is claimed once', async (store) => {
      const { batch } = await seed(store, 'a', 1)
      await store.write((tx) => insertTask(tx, planOf(batch), NOW))
      const worker_id = await open(store)
      const claim = async () => await store.write((tx) => claimPlan(tx, worker_id, [batch.id, 'batch_other']))
      assert.equal((await claim())?.subject, batch.id)
      assert.equal(await claim(), undefined)
    })

    test('batches that are at risk go before everybody', async (store) => {
      await seed(store, 'a', 3)
      const late = await addBatch(store, 'a', 2, { expires_at: NOW + 48 * HOUR_MS })
      const worker_id = await open(store)
      const claims = await store.write((tx) =>
        claimChunks(tx, { ...order(worker_id), count: 3, urgentBatches: [late.id] }),
      )
      assert.deepEqual(
        claims.map((chunk) => chunk.batch_id === late.id),
        [true, true, false],
      )
    })

    test('what counts lines samples the rate of their batch, and an early count takes no sample', async (store) => {
      const { batch } = await seed(store)
      const count = async (completed: number, at: number): Promise<unknown[]> => {
        const row = await store.write((tx) => addToBatch(tx, batch.id, { completed, at }))
        return [row.rate_sampled_at, row.rate_lines, row.lines_per_s]
      }
      assert.deepEqual(await count(5, NOW), [NOW, 5, null])
      assert.deepEqual(await count(5, NOW + 500), [NOW, 5, null])
      assert.deepEqual(await count(15, NOW + 2_000), [NOW + 2_000, 25, 10])
      assert.deepEqual(await count(80, NOW + 4_000), [NOW + 4_000, 105, 25])
    })

    test('lane reports exist as long as the session of their worker', async (store) => {
      const worker_id = await open(store)
      const report: LaneReport = {
        model: 'm',
        state: 'failing',
        since: NOW,
        reason: null,
        batches: { b: '500: no' },
        last_error: '500: no',
        isOpen: false,
      }
      await store.write((tx) => setLaneReports(tx, worker_id, [report, { ...report, model: 'n' }]))
      await store.write((tx) => setLaneReports(tx, worker_id, [report]))
      const reports = await listLaneReports(store.read)
      assert.deepEqual(reports[0], report)
      assert.equal(reports.length, 1)
      await store.write((tx) => closeSession(tx, worker_id))
      assert.deepEqual(await store.read.selectFrom('lane_reports').selectAll().execute(), [])
    })

    testSideBySide('a claim passes over what another holds, instead of waiting', async (store, other) => {
      await seed(store, 'a', 2)
      const [mine, theirs] = [await open(store), await open(other)]
      await store.write(async (tx) => {
        const [first] = await claimChunks(tx, { ...order(mine), count: 1 })
        const [second] = await other.write((inner) => claimChunks(inner, { ...order(theirs), count: 1 }))
        assert.deepEqual([first?.idx, second?.idx], [0, 1])
      })
    })

    test('a commit counts only under the epoch it was claimed with', async (store) => {
      const { batch } = await seed(store, 'a', 1)
      const [mine, theirs] = [await open(store), await open(store)]
      const [first] = await store.write((tx) => claimChunks(tx, order(mine)))
      await store.write((tx) => closeSession(tx, mine))
      const [second] = await store.write((tx) => claimChunks(tx, order(theirs)))
      assert.deepEqual([first?.epoch, second?.epoch], [1, 2])
      const delta = { completed: 3, failed: 1, cost_nanos: 10 }
      assert.equal(await store.write((tx) => commitChunk(tx, first!, delta, SEAL, 1)), 'lost')
      assert.equal(await store.write((tx) => parkChunk(tx, first!, 0, 'late')), 'lost')
      await store.write((tx) => releaseChunk(tx, first!))
      const next = { ...second!, commit_seq: second!.commit_seq + 1 }
      assert.equal(await store.write((tx) => commitChunk(tx, second!, delta, null, 1)), 'accepted')
      assert.equal(await store.write((tx) => commitChunk(tx, next, delta, SEAL, 1)), 'accepted')
      assert.equal(await store.write((tx) => commitChunk(tx, second!, delta, SEAL, 1)), 'lost')
      const chunks = await Array.fromAsync(chunksOf(store.read, batch.id))
      assert.deepEqual(
        chunks.filter(({ state }) => state === 'sealed').map(({ idx }) => idx),
        [0],
      )
      const sealed = await readRow(store.read, 'chunks', { batch_id: batch.id, idx: 0 })
      assert.deepEqual([sealed?.completed, sealed?.failed, sealed?.cost_nanos], [6, 2, 20])
      assert.deepEqual(await store.write((tx) => claimChunks(tx, order(theirs))), [])
    })

    test('of two commits that build on the same state one takes effect, and the other is told so', async (store) => {
      const { batch } = await seed(store, 'a', 1)
      const worker_id = await open(store)
      const [claim] = await store.write((tx) => claimChunks(tx, order(worker_id)))
      const delta = { completed: 3, failed: 0, cost_nanos: 10 }
      const outcomes = [
        await store.write((tx) => commitChunk(tx, claim!, delta, null, 1)),
        await store.write((tx) => commitChunk(tx, claim!, delta, null, 1)),
        await store.write((tx) => commitChunk(tx, claim!, delta, SEAL, 1)),
        await store.write((tx) => parkChunk(tx, claim!, 0, 'late')),
      ]
      assert.deepEqual(outcomes, ['accepted', 'repeated', 'repeated', 'repeated'])
      const row = await readRow(store.read, 'chunks', { batch_id: batch.id, idx: 0 })
      assert.deepEqual([row?.state, row?.completed, row?.cost_nanos], ['leased', 3, 10])
      const next = { ...claim!, commit_seq: claim!.commit_seq + 1 }
      assert.equal(await store.write((tx) => parkChunk(tx, next, 0, 'resting')), 'accepted')
      assert.equal(await store.write((tx) => parkChunk(tx, next, 0, 'resting')), 'repeated')
      const [again] = await store.write(async (tx) => {
        await wakeParked(tx)
        return await claimChunks(tx, order(worker_id))
      })
      assert.deepEqual([again?.epoch, again?.commit_seq], [2, 2])
      assert.equal(await store.write((tx) => parkChunk(tx, next, 0, 'resting')), 'lost')
    })

    test('a parked chunk is ready again at its time', async (store) => {
      await seed(store, 'a', 2)
      const worker_id = await open(store)
      const claims = await store.write((tx) => claimChunks(tx, { ...order(worker_id), count: 2 }))
      await store.write((tx) => parkChunk(tx, claims[0]!, 0, 'blocked'))
      await store.write((tx) => parkChunk(tx, claims[1]!, HOUR_MS, 'blocked'))
      assert.equal(await hasReadyChunk(store.read), false)
      assert.equal(await store.write((tx) => wakeParked(tx)), 1)
      const again = await store.write((tx) => claimChunks(tx, { ...order(worker_id), count: 2 }))
      assert.deepEqual(
        again.map((chunk) => [chunk.idx, chunk.parked_reason, chunk.epoch]),
        [[0, null, 2]],
      )
    })

    testSideBySide(
      'a limit that is changed while a chunk is being parked for it finds the chunk parked',
      async (store, other, contention) => {
        const { batch } = await seed(store, 'a', 1)
        const worker_id = await open(store)
        const [claim] = await store.write((tx) => claimChunks(tx, order(worker_id)))
        await store.write((tx) => addLimit(tx, 'proj_a', { amount: 1 }))
        const changing = await store.write(async (tx) => {
          assert.equal(await overLimitUntil(tx, 'proj_a', 1, NOW), NOW)
          const begun = begin(other.write((inner) => addLimit(inner, 'proj_a', { amount: 2 })))
          await contention()
          await parkChunk(tx, claim!, HOUR_MS, 'usage_limit')
          return begun
        })
        await changing.done
        assert.equal((await readRow(store.read, 'chunks', { batch_id: batch.id, idx: 0 }))?.state, 'ready')
        assert.equal(await store.write((tx) => overLimitUntil(tx, 'proj_a', 1, NOW)), 0)
      },
    )

    test('the chunk of a line is found by its number', async (store) => {
      const { batch } = await seed(store, 'a', 3)
      for (const [line, idx] of [
        [1, 0],
        [1000, 0],
        [1001, 1],
        [2999, 2],
      ] as const)
        assert.equal((await readChunkOfLine(store.read, batch.id, line))?.idx, idx)
      assert.equal(await readChunkOfLine(store.read, 'batch_none', 1), undefined)
    })

    test('chunks are claimed in the order of their numbers, and read in that of their lines', async (store) => {
      const { batch } = await seed(store, 'a', 0)
      const firstLines = [1, 2001, 1001, 3001]
      await store.write((tx) =>
        insertChunks(
          tx,
          batch,
          firstLines.map((first_line, index) => ({
            ...{ index, first_line, line_count: 1000, byte_start: 0, byte_end: 1, model: null },
          })),
        ),
      )
      const worker_id = await open(store)
      const claims = await store.write((tx) => claimChunks(tx, { ...order(worker_id), count: 3 }))
      assert.deepEqual(
        claims.map(({ first_line }) => first_line),
        [1, 2001, 1001],
      )
      const read = async (from_line?: number) =>
        (await Array.fromAsync(chunksOf(store.read, batch.id, { from_line }))).map(({ idx }) => idx)
      assert.deepEqual(await read(), [0, 2, 1, 3])
      assert.deepEqual(await read(2001), [1, 3])
      const ended = { batch_id: batch.id, idx: 2 }
      await store.write((tx) => updateRows(tx, 'chunks', ended).set({ completed: 3, failed: 1 }).execute())
      const unannounced = async () =>
        (await Array.fromAsync(chunksOf(store.read, batch.id, { unannounced: true }))).map(({ idx }) => idx)
      assert.deepEqual(await unannounced(), [2])
      await store.write((tx) => updateRows(tx, 'chunks', ended).set({ announced: 4 }).execute())
      assert.deepEqual(await unannounced(), [])
      assert.equal((await readChunkOfLine(store.read, batch.id, 2000))?.idx, 2)
      assert.equal((await firstUnsealed(store.read, batch.id))?.first_line, 1)
    })

    test('chunks that share a stretch are claimed by their groups, and found by their lines', async (store) => {
      const { batch } = await seed(store, 'a', 0)
      const all = [[1, 4, 7], [9, 11], [2, 3], [10]]
      await store.write((tx) =>
        insertChunks(
          tx,
          batch,
          all.map((lines, index) => ({
            ...{ index, first_line: lines[0]!, line_count: lines.length, lines: encodeLineNumbers(lines) },
            ...{ byte_start: 0, byte_end: 1, model: null },
            ...{ stretch_line: lines[0]! < 9 ? 1 : 9, claim_group: index < 3 ? 1 : 2 },
          })),
        ),
      )
      const stretches = await Array.fromAsync(stretchesOf(store.read, batch.id))
      assert.deepEqual(
        stretches.map((chunks) => chunks.map(({ idx }) => idx)),
        [
          [0, 2],
          [1, 3],
        ],
      )
      for (const [idx, lines] of all.entries())
        for (const line of lines) assert.equal((await readChunkOfLine(store.read, batch.id, line))?.idx, idx)
      const [worker_id] = [await open(store), await open(store)]
      const shared = { ...order(worker_id), count: 3 }
      const claims = await store.write((tx) => claimChunks(tx, shared))
      assert.deepEqual(
        claims.map(({ idx }) => idx),
        [0, 1, 2],
        'the rest of the group, beyond a fair share of two',
      )
    })
  })

  describe(`${name} as a store: leases`, () => {
    test('the clock of the database judges a lease, whatever the workers take the time to be', async (store) => {
      const id = await store.write((tx) => openSession(tx, LEASE_MS, NOW - 500 * HOUR_MS))
      const { lease_until } = await sessionRow(store, id)
      const clock = await databaseNow(store)
      assert.ok(lease_until > clock && lease_until <= clock + LEASE_MS)
      assert.deepEqual(await store.write((tx) => requeueExpiredLeases(tx)), [])
      assert.equal(await store.write((tx) => renewSession(tx, id, 2 * LEASE_MS)), true)
      assert.ok((await sessionRow(store, id)).lease_until > lease_until)
    })

    test('an expired session cannot be renewed, and its work is requeued', async (store) => {
      const { batch } = await seed(store, 'a', 2)
      const [crashed, alive] = [await open(store), await open(store)]
      const [chunk] = await store.write((tx) => claimChunks(tx, order(crashed)))
      await store.write((tx) => insertTask(tx, planOf(batch), NOW))
      const task = await store.write((tx) => claimTask(tx, crashed, small('plan')))
      await runOut(store, crashed)
      assert.equal(await store.write((tx) => renewSession(tx, crashed, LEASE_MS)), false)
      assert.deepEqual(await store.write((tx) => requeueExpiredLeases(tx)), [crashed])
      const [again] = await store.write((tx) => claimChunks(tx, order(alive)))
      assert.deepEqual([again?.idx, again?.epoch], [chunk!.idx, 2])
      assert.equal(await store.write((tx) => finishTask(tx, task!)), false)
      const taken = await store.write((tx) => claimTask(tx, alive, small('plan')))
      assert.deepEqual([taken?.id, taken?.epoch, taken?.attempts], [task!.id, 2, 2])
    })

    test('a session that has run out or ended must not claim', async (store) => {
      const [late, ended] = [await open(store), await open(store)]
      const holds = (id: string): Promise<boolean> => store.write((tx) => lockSession(tx, id))
      assert.equal(await holds(late), true)
      await runOut(store, late)
      assert.equal(await holds(late), false)
      await store.write((tx) => closeSession(tx, ended))
      assert.equal(await holds(ended), false)
    })

    testSideBySide(
      'a session is not ended under the hands of a claim: its chunks are found by the rescue',
      async (store, other, contention) => {
        await seed(store, 'a', 1)
        const worker_id = await open(store)
        const rescue = await store.write(async (tx) => {
          await lockSession(tx, worker_id)
          await runOut(other, worker_id)
          // It has to wait for the claim to end, and must then see what was claimed.
          const begun = begin(other.write((inner) => requeueExpiredLeases(inner)))
          await contention()
          await claimChunks(tx, order(worker_id))
          return begun
        })
        assert.deepEqual(await rescue.done, [worker_id])
        assert.equal(await hasReadyChunk(store.read), true)
      },
    )

    test('a worker sees what it has leased, and a lease is released only as long as it is the same one', async (store) => {
      await seed(store, 'a', 3)
      const worker_id = await open(store)
      const claims = await store.write((tx) => claimChunks(tx, { ...order(worker_id), count: 2 }))
      const leased = claims.map(({ batch_id, idx, epoch }) => ({ batch_id, idx, epoch }))
      const seen = await leasedChunks(store.read, worker_id)
      assert.deepEqual(
        seen.map((chunk) => ({ ...chunk })).sort((a, b) => a.idx - b.idx),
        leased,
      )
      const [first] = claims
      await store.write((tx) => releaseChunk(tx, first!))
      const again = await store.write((tx) => claimChunks(tx, { ...order(worker_id), count: 5 }))
      assert.deepEqual(
        again.map((chunk) => [chunk.idx, chunk.epoch]),
        [
          [0, 2],
          [2, 1],
        ],
      )
      await store.write((tx) => releaseChunk(tx, first!))
      assert.equal((await leasedChunks(store.read, worker_id)).length, 3)
    })

    test('the same goes for the tasks of a worker', async (store) => {
      const { batch } = await seed(store)
      const worker_id = await open(store)
      await store.write((tx) => insertTask(tx, planOf(batch), NOW))
      const claim = () => store.write((tx) => claimTask(tx, worker_id, small('plan')))
      const leased = async () => (await leasedTasks(store.read, worker_id)).map((task) => ({ ...task }))
      const first = await claim()
      assert.deepEqual(await leased(), [{ id: first!.id, epoch: first!.epoch }])
      await store.write((tx) => releaseTask(tx, first!))
      assert.deepEqual(await leased(), [])
      const again = await claim()
      assert.equal(again!.id, first!.id)
      await store.write((tx) => releaseTask(tx, first!))
      assert.deepEqual(await leased(), [{ id: again!.id, epoch: again!.epoch }])
    })
  })

  describe(`${name} as a store: tasks`, () => {
    test('tasks of the kinds asked for come when they are due, the longest due first', async (store) => {
      const { batch } = await seed(store)
      const worker_id = await open(store)
      const clock = await databaseNow(store)
      const add = (kind: 'plan' | 'validate' | 'purge', run_at: number): Promise<void> =>
        store.write((tx) => insertTask(tx, { ...planOf(batch), kind, run_at }, NOW))
      await add('validate', clock - 1)
      await add('plan', clock - 5)
      await add('plan', clock + HOUR_MS)
      await add('purge', 0)
      const claim = async (): Promise<string | undefined> =>
        (await store.write((tx) => claimTask(tx, worker_id, small('plan', 'validate'))))?.kind
      assert.equal(await hasDueTask(store.read, small('plan', 'validate')), true)
      assert.deepEqual([await claim(), await claim(), await claim()], ['plan', 'validate', undefined])
      assert.equal(await hasDueTask(store.read, small('plan', 'validate')), false)
    })

    test('projects have their tasks claimed in turn, those with the fewest under way first', async (store) => {
      for (const name of ['a', 'b', 'c']) await seed(store, name)
      const worker_id = await open(store)
      const add = (name: string, large: number): Promise<void> =>
        store.write((tx) =>
          insertTask(
            tx,
            { kind: 'validate', subject: `file_${name}`, project_id: `proj_${name}`, large },
            NOW,
          ),
        )
      for (let i = 0; i < 3; i++) await add('a', 0)
      await add('c', 1)
      for (const name of ['b', 'b', 'c']) await add(name, 0)
      const claim = async (more: Partial<TaskChoice> = {}): Promise<TaskRow | undefined> =>
        await store.write((tx) => claimTask(tx, worker_id, { ...small('plan', 'validate'), ...more }))
      const first = await claim({ after: 'proj_a' })
      const turns = [first, await claim(), await claim({ exceptProjects: ['proj_b'] }), await claim()]
      assert.deepEqual(
        turns.map((task) => task?.project_id),
        ['proj_b', 'proj_a', 'proj_c', 'proj_a'],
      )
      await store.write((tx) => finishTask(tx, first!))
      assert.equal((await claim())?.project_id, 'proj_b', 'it has none under way')
      assert.equal((await claim({ exceptProjects: ['proj_a'] }))?.project_id, undefined)
      assert.equal((await claim({ large: true }))?.project_id, 'proj_c')
    })

    test('a task is claimed once, put off with its error, and ended once', async (store, other) => {
      const { batch } = await seed(store)
      await store.write((tx) => insertTask(tx, planOf(batch), NOW))
      const stores = [store, other]
      const claimed = await Promise.all(
        stores.map(async (mine) => {
          const worker_id = await open(mine)
          return await mine.write((tx) => claimTask(tx, worker_id, small('plan')))
        }),
      )
      const [task, ...more] = claimed.filter((one) => one !== undefined)
      assert.equal(more.length, 0)
      await store.write((tx) => postponeTask(tx, task!, 0, 'no luck'))
      const worker_id = await open(store)
      const again = await store.write((tx) => claimTask(tx, worker_id, small('plan')))
      assert.deepEqual([again?.last_error, again?.attempts, again?.epoch], ['no luck', 2, 2])
      assert.equal(await store.write((tx) => finishTask(tx, task!)), false)
      assert.equal(await store.write((tx) => finishTask(tx, again!)), true)
      assert.equal(await store.write((tx) => finishTask(tx, again!)), false)
    })
  })

  describe(`${name} as a store: journals, keys and files`, () => {
    test('a journal goes with the last chunk that needs it, also when two are sealed at once', async (store, other) => {
      const { batch } = await seed(store, 'a', 2)
      await addJournal(store, batch, 'journals/1', [0, 1])
      await addJournal(store, batch, 'journals/2', [0])
      assert.deepEqual(
        (await listJournalParts(store.read, batch.id, 0)).map((part) => part.journal_blob),
        ['journals/1', 'journals/2'],
      )
      await Promise.all([
        store.write((tx) => dropJournal(tx, batch.id, 0, NOW)),
        other.write((tx) => dropJournal(tx, batch.id, 1, NOW)),
      ])
      assert.deepEqual((await listPendingDeletion(store.read, 10)).sort(), ['journals/1', 'journals/2'])
      assert.equal(await readBlobRow(store.read, 'journals/1'), undefined)
      assert.deepEqual(await knownBlobs(store.read, ['journals/1', 'journals/3']), new Set(['journals/1']))
    })

    testSideBySide(
      'of two seals that share a journal, the second to end takes the journal along',
      async (store, other, contention) => {
        const { batch } = await seed(store, 'a', 2)
        await addJournal(store, batch, 'journals/1', [0, 1])
        const second = await store.write(async (tx) => {
          await dropJournal(tx, batch.id, 0, NOW)
          const begun = begin(other.write((inner) => dropJournal(inner, batch.id, 1, NOW)))
          await contention()
          return begun
        })
        await second.done
        assert.deepEqual(await listPendingDeletion(store.read, 10), ['journals/1'])
      },
    )

    test('a key is reserved once; the second to come waits for the first and sees its answer', async (store, other) => {
      const row = {
        project_id: 'proj_a',
        route: 'POST /v1/batches',
        key: 'k',
        fingerprint: 'f',
        request_id: 'req_1',
        created: NOW,
        expires: NOW + HOUR_MS,
      }
      const once = (mine: Store): Promise<string> =>
        mine.write(async (tx) => {
          if (await reserveIdempotencyKey(tx, row)) {
            await completeIdempotencyKey(tx, row, { status: 200, response: 'done' })
            return 'first'
          }
          return (await readIdempotency(tx, row, [row.route], NOW))?.response ?? 'nothing'
        })
      const answers = await Promise.all([store, other, other].map(once))
      assert.deepEqual(answers.sort(), ['done', 'done', 'first'])
      assert.equal(await readIdempotency(store.read, row, [row.route], NOW + HOUR_MS), undefined)
      assert.equal(await store.write((tx) => forgetIdempotencyKeys(tx, NOW + HOUR_MS, 0)), 0)
      assert.equal(await store.write((tx) => forgetIdempotencyKeys(tx, NOW + HOUR_MS, 9)), 1)
    })

    test('one call at a time has an upload to complete, until it leaves or its lease is over', async (store, other) => {
      await seed(store)
      const upload = { id: 'upload_x', project_id: 'proj_a', status: 'pending' as const }
      const rest = { filename: 'f', mime_type: 't', bytes: 1, part_bytes: 0, file_expires_after_ms: null }
      const times = { file_id: null, created: NOW, expires_at: NOW + HOUR_MS }
      await store.write((tx) => insertRow(tx, 'uploads', { ...upload, ...rest, ...times, ...NOT_COMPLETING }))
      const begun = (mine: Store, lease_ms: number): Promise<number | null> =>
        mine.write((tx) => beginCompletion(tx, 'upload_x', { order: 'o', lease_ms }))
      const both = await Promise.all([store, other].map((mine) => begun(mine, HOUR_MS)))
      assert.deepEqual(both.sort(), [1, null])
      assert.equal(await isCompleting(store.read, 'upload_x'), true)
      await store.write((tx) => leaveCompletion(tx, 'upload_x', 1, '{}'))
      assert.equal(await isCompleting(store.read, 'upload_x'), false)
      assert.equal(await begun(other, 0), 2)
      assert.equal(await begun(store, HOUR_MS), 3, 'the lease of the second is over')
      const late = { attempt: 2, lease_ms: HOUR_MS }
      await other.write((tx) => renewCompletion(tx, 'upload_x', late))
      await other.write((tx) => leaveCompletion(tx, 'upload_x', 2, '{}'))
      assert.equal(await isCompleting(store.read, 'upload_x'), true)
    })

    testSideBySide(
      'a file that a transaction builds on is not deleted before it has ended',
      async (store, other, contention) => {
        await seed(store)
        await store.write((tx) => insertRow(tx, 'files', file('file_x')))
        const deleting = await store.write(async (tx) => {
          assert.ok(await lockInputFile(tx, 'proj_a', 'file_x', NOW))
          const begun = begin(other.write((inner) => markDeleted(inner, 'file_x', NOW)))
          await contention()
          return begun
        })
        assert.equal(await deleting.done, true)
        assert.equal(await store.write((tx) => lockInputFile(tx, 'proj_a', 'file_x', NOW)), undefined)
        assert.equal((await store.write((tx) => lockFileRow(tx, 'file_x')))?.deleted_at, NOW)
      },
    )

    testSideBySide(
      'the input of a batch is not deleted while another batch is created from it',
      async (store, other, contention) => {
        const { batch } = await seed(store)
        const deleting = await store.write(async (tx) => {
          assert.ok(await lockInputFile(tx, 'proj_a', batch.input_file_id, NOW))
          const begun = begin(other.write((inner) => removeUnsharedInput(inner, batch, NOW)))
          await contention()
          await insertBatch(tx, newBatch('a'))
          return begun
        })
        await deleting.done
        assert.ok(await readFile(store.read, 'proj_a', batch.input_file_id, NOW))
      },
    )

    test('records of calls past their time are forgotten, all of them, and the others stay', async (store) => {
      const dayMs = 24 * HOUR_MS
      const rows = [NOW - 70 * dayMs, NOW - 40 * dayMs, NOW].map(httpCall)
      const many = Array.from({ length: 1_200 }, () => httpCall(NOW - 70 * dayMs))
      await store.write((tx) => insertRows(tx, 'http_requests', [...rows, ...many]))
      await deleteOldCalls(store, NOW - 35 * dayMs)
      const left = await store.read.selectFrom('http_requests').select('id').execute()
      assert.deepEqual(
        left.map(({ id }) => id),
        [rows[2]?.id],
      )
    })

    test('of those who ask for a turn one gets it, until it comes round again', async (store, other) => {
      const ask = (mine: Store) => mine.write((tx) => claimInterval(tx, 'swept_at', HOUR_MS))
      const taken = await Promise.all([store, other, store, other].map(ask))
      assert.deepEqual(taken.filter(Boolean), [true])
      assert.equal(await ask(other), false)
      await store.write((tx) => writeProperty(tx, 'swept_at', '1'))
      assert.equal(await ask(other), true)
    })

    test('calls that are taken by many at once all come out of one bucket', async (store, other) => {
      const bucket = { calls_max: 10, interval_us: 3_600_000_000 }
      const take = (mine: Store, calls: number) => mine.write((tx) => takeCalls(tx, 'key_1', calls, bucket))
      const taken = await Promise.all([store, other, store, other].map((mine) => take(mine, 3)))
      assert.deepEqual(
        taken.map(({ granted }) => granted).sort((a, b) => a - b),
        [1, 3, 3, 3],
      )
      assert.equal((await take(other, 1)).granted, 0)
      const passed = sql<number>`full_at - ${2 * bucket.interval_us}`
      await store.write((tx) => tx.updateTable('rate_buckets').set({ full_at: passed }).execute())
      assert.equal((await take(other, 5)).granted, 2)
      await store.write((tx) => tx.updateTable('rate_buckets').set({ full_at: 1 }).execute())
      assert.equal((await take(other, 50)).granted, 10)
    })

    test('a lease that lies further ahead than it was taken for is pulled back', async (store) => {
      const worker_id = await open(store)
      const pullBack = () => store.write((tx) => pullBackTimes(tx))
      const leaseOf = async (): Promise<number> =>
        (
          await store.read
            .selectFrom('workers')
            .selectAll()
            .where('id', '=', worker_id)
            .executeTakeFirstOrThrow()
        ).lease_until
      const before = await leaseOf()
      assert.equal(await pullBack(), 0)
      const ahead = sql<number>`lease_until + 3456000000`
      await store.write((tx) => tx.updateTable('workers').set({ lease_until: ahead }).execute())
      assert.ok((await pullBack()) > 0)
      assert.ok(Math.abs((await leaseOf()) - before) < 3_600_000)
    })

    test('the last two chunks, sealed at once by two workers, end the batch once', async (store, other) => {
      const { batch } = await seed(store, 'a', 2)
      await store.write((tx) => moveBatch(tx, batch.id, 'queued', NOW))
      await store.write((tx) => moveBatch(tx, batch.id, 'in_progress', NOW))
      const seal = async (mine: Store): Promise<boolean> => {
        const worker_id = await open(mine)
        const [claim] = await mine.write((tx) => claimChunks(tx, order(worker_id)))
        return await mine.write(async (tx) => {
          await commitChunk(tx, claim!, NO_DELTA, SEAL, 1)
          const row = await addToBatch(tx, batch.id, { chunks_sealed: 1 })
          if (row.chunks_sealed < row.chunk_count) return false
          return (await moveBatch(tx, batch.id, 'completed', NOW)) !== undefined
        })
      }
      const ended = await Promise.all([seal(store), seal(other)])
      assert.deepEqual(ended.sort(), [false, true])
    })
  })
}

/** In a transaction, a promise that is returned would be waited for; wrapped, it goes on by itself. */
function begin<T>(done: Promise<T>): { done: Promise<T> } {
  done.catch(() => {})
  return { done }
}

function order(worker_id: string): { worker_id: string; urgentBefore: number; count: number } {
  return { worker_id, urgentBefore: 0, count: 1 }
}

function project(name: string): { id: string; name: string; plan: string; created: number } {
  return { id: `proj_${name}`, name, plan: 'payg', created: NOW }
}

function file(id: string, more: Partial<FileRow> = {}): FileRow {
  return {
    id,
    project_id: 'proj_a',
    purpose: 'batch',
    filename: 'in.jsonl',
    bytes: 1,
    line_count: 3000,
    status: 'processed',
    status_details: null,
    errors: null,
    created: NOW,
    expires_at: NOW + HOUR_MS,
    deleted_at: null,
    content_blob: null,
    index_blob: null,
    ids_blob: null,
    batch_id: null,
    part: null,
    source: null,
    not_kept: 0,
    ...more,
  }
}

/** A project with a file and a batch of `chunks` chunks that are ready. */
async function seed(store: Store, name = 'a', chunks = 3): Promise<{ batch: BatchRow }> {
  await store.write((tx) => ensureProject(tx, project(name)))
  const input = file(`file_in_${name}`, { project_id: `proj_${name}` })
  await store.write((tx) => insertRow(tx, 'files', input))
  return { batch: await addBatch(store, name, chunks) }
}

async function addBatch(
  store: Store,
  name: string,
  chunks = 3,
  more: Partial<Pick<BatchRow, 'expires_at' | 'metadata' | 'header_entity'>> = {},
  models: readonly string[] = [],
): Promise<BatchRow> {
  return await store.write(async (tx) => {
    const batch = await insertBatch(tx, { ...newBatch(name), ...more })
    await setBatch(tx, batch.id, { chunk_count: chunks })
    const spans = Array.from({ length: chunks }, (_, index) => ({
      index,
      first_line: index * 1000 + 1,
      line_count: 1000,
      byte_start: index * 100,
      byte_end: index * 100 + 100,
      model: models[index] ?? null,
    }))
    await insertChunks(tx, batch, spans)
    return { ...batch, chunk_count: chunks }
  })
}

function newBatch(name: string) {
  return {
    id: newId('batch', NOW),
    project_id: `proj_${name}`,
    key_id: 'key_1',
    endpoint: '/v1/chat/completions' as const,
    input_file_id: `file_in_${name}`,
    completion_window: '24h',
    metadata: null,
    header_entity: null,
    language: null,
    total: 3000,
    created: NOW,
    expires_at: NOW + 24 * HOUR_MS,
  }
}

async function addJournal(
  store: Store,
  batch: BatchRow,
  key: string,
  chunks: readonly number[],
): Promise<void> {
  await store.write(async (tx) => {
    await insertBlobs(tx, 'offpeak', [{ key, wrapped_key: 'w', bytes: 10 }], NOW)
    await insertRows(
      tx,
      'journal_parts',
      chunks.map((idx) => ({
        batch_id: batch.id,
        idx,
        journal_blob: key,
        byte_start: 0,
        byte_end: 5,
        sums: '',
      })),
    )
  })
}

function httpCall(created: number): HttpRequestRow {
  return {
    // Not `newId`, whose IDs never go back in time.
    id: `req_${ulid(created).toLowerCase()}`,
    project_id: 'proj_a',
    key_id: 'key_a',
    method: 'GET',
    path: '/v1/batches',
    status: 200,
    created,
    duration_ms: 3,
    entity: null,
    response: null,
    traceparent: null,
  }
}

function small(...kinds: TaskKind[]): TaskChoice {
  return { kinds, large: false }
}

function planOf(batch: BatchRow): { kind: 'plan'; subject: string; project_id: string } {
  return { kind: 'plan', subject: batch.id, project_id: batch.project_id }
}

async function open(store: Store): Promise<string> {
  return await store.write((tx) => openSession(tx, LEASE_MS, NOW))
}

/** As if the worker had shown no sign of life for longer than its lease. */
async function runOut(store: Store, worker_id: string): Promise<void> {
  await store.write((tx) =>
    tx.updateTable('workers').set({ lease_until: 1 }).where('id', '=', worker_id).execute(),
  )
}

async function sessionRow(store: Store, id: string): Promise<{ lease_until: number }> {
  return await store.read.selectFrom('workers').selectAll().where('id', '=', id).executeTakeFirstOrThrow()
}

async function databaseNow(store: Store): Promise<number> {
  const row = await store.write((tx) => tx.selectNoFrom(DATABASE_NOW.as('now')).executeTakeFirstOrThrow())
  assert.equal(typeof row.now, 'number')
  return row.now
}
