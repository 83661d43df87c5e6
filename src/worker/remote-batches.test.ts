// Lines at batch APIs, in a whole worker with a clock that the test moves.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import {
  ANSWERED,
  errorAnswer,
  FakeBatchApi,
  type FakeRemoteBatch,
  type FakeResult,
} from '../../test/fakes/batch-api.ts'
import { addQueuedBatch, RETRY } from '../../test/support/queued-batch.ts'
import { remoteRows } from '../../test/support/remote-rows.ts'
import { remoteWorld, SHORT } from '../../test/support/remote-world.ts'
import { addLimit } from '../../test/support/test-books.ts'
import { workerWorld } from '../../test/support/worker-world.ts'
import { REMOTE, UNSUBMITTED } from '../dispatch/line-state.ts'
import { BatchApiUpstream } from '../dispatch/senders/batch-apis/batch-api-upstream.ts'
import { readBatchProgress } from '../progress/waiting-reason.ts'
import { moveBatch } from '../store/batches.ts'
import { releaseChunk, wakeOverLimit } from '../store/chunks.ts'
import { addReservations } from '../store/ledger.ts'
import { deleteLimit, updateLimit } from '../store/limits.ts'
import { pauseBatch, resumeBatch } from '../store/pauses.ts'
import { endRemoteBatch } from '../store/remote-batches.ts'
import { openSession, setWorkerReport } from '../store/workers.ts'

const MINUTE_MS = 60_000
const DAY_MS = 24 * 60 * MINUTE_MS
const REJECTED = { message: 'one of the requests is invalid', code: 'invalid_request' }

test('what a batch API has answered is recorded while more than 1,000 lines of its project wait for a server', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 2, concurrency: 1 })
  const { api, worker, remote, upstream, store, sealed, clock } = world
  await world.handedOver()
  // From here on the server, which answers one line and no other, gets all lines.
  worker.setUpstreams(new Map([['m', [upstream, remote]]]), new Map())
  await addQueuedBatch(store, sealed, { chunks: 4, lines: 300 }, clock.now())
  await world.until(() => world.server.inFlight.length === 1 && worker.status.openChunks === 4, 10)
  api.complete(api.batches[0]!)
  await world.until(() => world.ended.length === 1, 100)
  assert.deepEqual(world.server.sent.length, 1)
})

test('a batch has begun once a batch API has its lines, however soon its chunk is parked', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 2 })
  await world.handedOver()
  await world.clock.advance(2_000)
  assert.equal((await world.batch()).status, 'in_progress')
})

test('eight identical lines that a batch API refuses take one batch there, and each of them fails', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 8, dedupe: 'all', content: () => 'the same' })
  const { api } = world
  await world.handedOver()
  assert.deepEqual(api.batches[0]!.contents, ['the same'])
  api.complete(api.batches[0]!, () => [400, { error: { message: 'no such parameter' } }])
  await world.until(() => world.ended.length === 1, 100)
  const { completed, failed } = await world.batch()
  assert.deepEqual([api.batches.length, completed, failed], [1, 0, 8])
})

test('a chunk with lines at a batch API and others that wait for a limit is left alone, ever longer', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 4 })
  const { store, project_id, clock, api } = world
  const limit = await store.write((tx) => addLimit(tx, project_id, { amount: 50 }))
  await world.handedOver()
  assert.ok(api.batches[0]!.contents.length < 4, 'the limit has room for some')
  const epoch = async (): Promise<number> => (await world.chunks())[0]!.epoch
  await clock.advance(30_000)
  const before = await epoch()
  await clock.advance(MINUTE_MS)
  const claims = (await epoch()) - before
  assert.ok(claims <= 2, `it was claimed ${claims} times in a minute`)
  const [chunk] = await world.chunks()
  assert.deepEqual([chunk?.state, chunk?.parked_reason], ['parked', 'usage_limit'])

  // Raised, it takes effect at once.
  await store.write((tx) => updateLimit(tx, project_id, limit, { amount: 100_000 }))
  await clock.advance(2_000)
  assert.deepEqual(api.batches.flatMap(({ contents }) => contents).sort(), ['l1', 'l2', 'l3', 'l4'])
  for (const batch of api.open) api.complete(batch)
  await world.until(() => world.ended.length === 1, 100)
  assert.equal((await world.batch()).completed, 4)
})

test('a limit that is raised while a chunk is being parked for it takes effect at once', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 4 })
  const { store, project_id, clock, api } = world
  const limit = await store.write((tx) => addLimit(tx, project_id, { amount: 50 }))
  await world.handedOver()
  await clock.advance(30_000)
  let isParking = false
  world.inWrite = async (tx) => {
    const parked = tx.selectFrom('chunks').select('idx').where('state', '=', 'parked')
    if (isParking || (await parked.executeTakeFirst()) === undefined) return
    isParking = true
    throw new Error('no answer, and no effect')
  }
  await store.write((tx) => wakeOverLimit(tx, project_id))
  await world.until(() => isParking, 100)
  await store.write((tx) => updateLimit(tx, project_id, limit, { amount: 100_000 }))
  await clock.advance(5_000)
  assert.deepEqual(api.batches.flatMap(({ contents }) => contents).sort(), ['l1', 'l2', 'l3', 'l4'])
})

test('a batch that may have been created is looked for twice a minute at least, also if other lines wait for a limit', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 4 })
  const { store, project_id, clock, api } = world
  await store.write((tx) => addLimit(tx, project_id, { amount: 50 }))
  api.settleMs = 3 * MINUTE_MS
  const looks = [clock.now()]
  api.onCall = ({ kind }) => {
    if (kind === 'create') throw errorAnswer(500, { message: 'oops' })
    if (kind === 'find') looks.push(clock.now())
  }
  await world.worker.start()
  await clock.advance(api.settleMs)
  const gaps = looks.slice(1).map((at, i) => at - looks[i]!)
  assert.ok(gaps.length > 5 && Math.max(...gaps) < 32_000, gaps.join(' '))
})

test('a chunk whose other lines follow one at a batch API is left alone, too, while it waits for a limit', async () => {
  const content = (line: number): string => (line < 3 ? 'the same' : `l${line}`)
  await using world = await remoteWorld({ chunks: 1, lines: 4, dedupe: 'all', content })
  const { store, project_id, clock, api } = world
  await store.write((tx) => addLimit(tx, project_id, { amount: 50 }))
  await world.handedOver()
  assert.deepEqual(api.batches[0]!.contents, ['the same'])
  const epoch = async (): Promise<number> => (await world.chunks())[0]!.epoch
  await clock.advance(30_000)
  const before = await epoch()
  await clock.advance(MINUTE_MS)
  const claims = (await epoch()) - before
  assert.ok(claims <= 2, `it was claimed ${claims} times in a minute`)
})

test('a chunk that waits for a limit is sent as soon as the limit is deleted', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 1 })
  const { store, project_id, clock, api } = world
  const id = await store.write((tx) => addLimit(tx, project_id, { amount: 1_000 }))
  const batch_id = (await world.batch()).id
  const by = { entity: '', model: 'm', key_id: '' }
  const others = { batch_id, idx: 99, project_id, ...by, cost_nanos: 0, tokens: 990, requests: 1 }
  await store.write((tx) => addReservations(tx, [others]))
  await world.worker.start()
  await clock.advance(30_000)
  const [chunk] = await world.chunks()
  assert.deepEqual([chunk?.state, chunk?.parked_reason, api.uploads], ['parked', 'usage_limit', 0])
  assert.ok(await store.write((tx) => deleteLimit(tx, project_id, id)))
  await clock.advance(2_000)
  assert.equal(api.batches.length, 1)
})

for (const { code, status } of [
  { code: 'file_not_processed', status: 422 },
  { code: 'insufficient_quota', status: 400 },
])
  test(`lines wait while a batch API answers ${status} ${code}, and none fails`, async () => {
    await using world = await remoteWorld({ chunks: 1, lines: 3, retry: { outage_patience_ms: MINUTE_MS } })
    const { api, clock } = world
    api.onCall = ({ kind }) => {
      if (kind === 'create')
        throw errorAnswer(status, { message: 'the request on line 1 is invalid, for now', code })
    }
    await world.worker.start()
    await clock.advance(30_000)
    assert.ok(api.uploads > 1, 'it was tried again')
    const { completed, failed } = await world.batch()
    assert.deepEqual([completed, failed], [0, 0])
    api.onCall = () => {}
    await world.until(() => api.batches.length > 0, 1_000)
    assert.deepEqual(api.batches[0]!.contents, ['l1', 'l2', 'l3'])
    api.complete(api.batches[0]!)
    await world.until(() => world.ended.length === 1, 1_000)
    assert.equal((await world.batch()).completed, 3)
  })

for (const when of ['upload', 'create', 'later'] as const)
  for (const names of ['by number', 'by custom_id', 'not at all'] as const)
    test(`a line that is rejected with its file (${when}) and named ${names} fails alone`, async () => {
      await using world = await remoteWorld({ chunks: 1, lines: 40 })
      const { api } = world
      const bad = 'l23'
      const rejectionOf = (contents: readonly string[]) => {
        const at = contents.indexOf(bad)
        if (at === -1) return null
        if (names === 'not at all') return REJECTED
        if (names === 'by custom_id') return { ...REJECTED, message: `${api.idOf(bad)} is invalid` }
        return { ...REJECTED, message: `invalid request on line ${at + 1}` }
      }
      api.onCall = ({ kind, contents }) => {
        const rejection = kind === when ? rejectionOf(contents) : null
        if (rejection) throw errorAnswer(422, rejection)
      }
      await world.worker.start()
      for (let steps = 0; world.ended.length === 0; steps++) {
        assert.ok(steps < 10_000, 'it never ends')
        for (const batch of api.open) {
          const rejection = when === 'later' ? rejectionOf(batch.contents) : null
          if (rejection) api.fail(batch, rejection)
          else api.complete(batch)
        }
        await world.clock.advance(100)
      }
      const { completed, failed } = await world.batch()
      assert.deepEqual([completed, failed], [39, 1])
      // All, one alone where none is named, then each part of what was rejected in two: 20 and 19, 10 and 10, and so on.
      assert.ok(api.uploads <= (names === 'not at all' ? 14 : 2), `${api.uploads} uploads`)
    })

test('a line is named by its number in the file, also when others of it have been answered', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 4 })
  const { api } = world
  await world.handedOver()
  let reads = 0
  api.onCall = ({ kind }) => {
    if (kind === 'results' && ++reads === 2) throw errorAnswer(500, { message: 'oops' })
  }
  const results = new Map([
    ['l1', ANSWERED],
    ['l2', [500, {}] satisfies FakeResult],
  ])
  api.fail(api.batches[0]!, { ...REJECTED, line: 3 }, (content) => results.get(content) ?? null)
  await world.until(() => api.batches.length === 2, 1_000)
  assert.deepEqual(api.batches[1]!.contents, ['l2', 'l4'])
})

for (const kind of ['upload', 'create', 'later'] as const)
  for (const code of ['invalid_request', 'invalid_api_key', 'billing_hard_limit_reached'])
    test(`lines wait while a batch API refuses whichever it is offered (${kind}, ${code}), and the reason has its words`, async () => {
      await using world = await remoteWorld({
        ...{ chunks: 1, lines: 200 },
        retry: { outage_patience_ms: DAY_MS, backoff_min_ms: 1_000, backoff_max_ms: 20_000 },
      })
      const { api, clock, worker, store, models } = world
      const rejected = { message: 'Uploads are switched off for acme until its forms arrive.', code }
      let isRestricted = true
      // What is refused later is tried more often at first.
      const restrictedS = kind === 'later' ? 60 : 25
      api.onCall = (call) => {
        if (isRestricted && call.kind === kind) throw errorAnswer(400, rejected)
      }
      await worker.start()
      const reasons = new Map<string | undefined, string>()
      for (let seconds = 0; seconds < restrictedS; seconds++) {
        if (kind === 'later') for (const batch of api.open) api.fail(batch, rejected)
        await clock.advance(1_000)
        const batch = { ...(await world.batch()), models: '["m"]' }
        const known = await readBatchProgress(store, [batch], clock.now(), models)
        const reason = known.get(batch.id)?.waiting_reason
        if (reason) reasons.set(reason.code, reason.message)
      }
      const { completed, failed } = await world.batch()
      assert.deepEqual([completed, failed], [0, 0])
      assert.ok(api.uploads < restrictedS, `${api.uploads} uploads`)
      assert.match(reasons.get('model_unavailable') ?? '', /Uploads are switched off for acme/)
      // What it took may be refused later: that shows after a second.
      if (kind !== 'later') assert.equal(reasons.get('lines_failing'), undefined)
      isRestricted = false
      for (let seconds = 0; world.ended.length === 0 && seconds < 120; seconds++) {
        for (const one of api.open) api.complete(one)
        await clock.advance(1_000)
      }
      assert.equal((await world.batch()).completed, 200)
    })

test('of lines that are refused together without a name, those fail that are refused alone, and no other', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 200 })
  const { api, clock, worker } = world
  const isBad = (content: string): boolean => Number(content.slice(1)) % 40 === 7
  api.onCall = ({ kind, contents }) => {
    if (kind === 'create' && contents.some(isBad)) throw errorAnswer(400, REJECTED)
  }
  await worker.start()
  while (world.ended.length === 0) {
    for (const batch of api.open) api.complete(batch)
    await clock.advance(100)
  }
  const { completed, failed } = await world.batch()
  assert.deepEqual([completed, failed], [195, 5])
})

/** How batch APIs say that they have no room for a batch of its size. */
const SIZE_REFUSALS = {
  'an upload with 413': ['upload', 413, { message: 'Payload Too Large' }],
  'an upload with 400': ['upload', 400, { message: 'The file exceeds the maximum number of requests' }],
  'a creation with 400': ['create', 400, { message: 'no', code: 'token_limit_exceeded' }],
  'a creation with 429': [
    'create',
    429,
    { message: 'Enqueued token limit reached', code: 'rate_limit_exceeded' },
  ],
  'the batch itself': ['later', 0, { message: 'Enqueued token limit reached', code: 'token_limit_exceeded' }],
} as const

for (const [what, [when, status, error]] of Object.entries(SIZE_REFUSALS))
  test(`what is refused for its size is offered in two parts, and the next chunk no larger than that: ${what}`, async () => {
    await using world = await remoteWorld({ chunks: 2, lines: 20, retry: { throttled_attempts_max: 4 } })
    const { api, clock, worker } = world
    const offered: number[] = []
    const MOST = 3
    api.onCall = ({ kind, contents }) => {
      if (kind === 'upload') offered.push(contents.length)
      if (kind === when && contents.length > MOST) throw errorAnswer(status, error)
    }
    await worker.start()
    for (let steps = 0; world.ended.length === 0 && steps < 1_000; steps++) {
      for (const batch of api.open)
        if (when === 'later' && batch.contents.length > MOST) api.fail(batch, error)
        else api.complete(batch)
      await clock.advance(500)
    }
    assert.deepEqual((await world.batch()).completed, 40)
    assert.ok(offered.filter((lines) => lines === 20).length <= 2, offered.join(' '))
    assert.ok(offered.length < 40, offered.join(' '))
  })

test('a batch there has no more lines, and no more tokens, than is configured', async () => {
  const api = new FakeBatchApi()
  for (const [most, lines] of [
    [{ lines_max: 3 }, [3, 3, 3, 1]],
    [{ tokens_max: 1 }, Array.from({ length: 10 }, () => 1)],
  ] as const) {
    const options = { name: 'cell', concurrency_max: 100, modelAlias: null, ...most }
    await using world = await remoteWorld({ chunks: 1, lines: 10 })
    const { clock, worker } = world
    const remote = new BatchApiUpstream({ ...options, api })
    worker.setUpstreams(new Map([['m', [remote]]]), new Map())
    api.batches.length = 0
    await worker.start()
    await clock.advance(5_000)
    assert.deepEqual(
      api.batches.map(({ contents }) => contents.length),
      lines,
    )
  }
})

test('lines that are called back lose no attempt', async () => {
  await using world = await remoteWorld({
    chunks: 1,
    lines: 2,
    ...SHORT,
    retry: { ...SHORT.retry, attempts_max: 1 },
  })
  const { worker, upstream, remote, clock, server } = world
  await world.handedOver()
  worker.setUpstreams(new Map([['m', [upstream, remote]]]), new Map())
  const { expires_at } = await world.batch()
  await clock.advance(expires_at - clock.now() - 20_000)
  assert.equal(server.sent.length, 2)
})

test('a batch API that has no room when a batch is collected is asked again ever later', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 1 })
  const { api, worker, clock } = world
  await worker.start()
  const madeAt: number[] = []
  while (madeAt.length < 15) {
    await world.until(() => api.open.length === 1, 100)
    madeAt.push(clock.now())
    api.fail(api.open[0]!, { code: 'quota_exceeded', message: 'no room' })
  }
  const waited = madeAt.map((at, i) => at - madeAt[i - 1]!)
  assert.ok(waited.at(-1)! > 3 * waited[5]!, waited.join(' '))
})

test('a batch API that rejects whatever it gets is tried a bounded number of times', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 200 })
  const { api } = world
  await world.worker.start()
  for (let steps = 0; world.ended.length === 0; steps++) {
    assert.ok(steps < 10_000, 'it never ends')
    for (const batch of api.open) api.fail(batch, REJECTED)
    await world.clock.advance(100)
  }
  const { completed, failed } = await world.batch()
  assert.deepEqual([completed, failed], [0, 200])
  // Parts down to single lines would be 399.
  assert.ok(api.batches.length < 200, `${api.batches.length} batches`)
})

for (const what of ['does not know the batches that it takes', 'never has the results that it names'])
  test(`a batch API that ${what} gets as many batches as a line has attempts`, async () => {
    await using world = await remoteWorld({ chunks: 1, lines: 3, retry: { outage_patience_ms: MINUTE_MS } })
    const { api, worker, clock } = world
    api.onCall = ({ kind }) => {
      if (kind === 'results') throw errorAnswer(404, { message: 'no such file' })
    }
    await worker.start()
    let created = 0
    for (let steps = 0; world.ended.length === 0; steps++) {
      assert.ok(steps < 1_000, 'it never ends')
      created += api.open.length
      if (what.startsWith('never')) for (const batch of api.open) api.complete(batch)
      else api.batches.splice(0)
      await clock.advance(1_000)
    }
    assert.deepEqual([created, (await world.batch()).failed], [3, 3])
  })

/** What a batch API has of two answers and one error when its batch ends, and a minute later. */
const LATE: Record<string, (batch: FakeRemoteBatch, api: FakeBatchApi) => () => void> = {
  'its error file'(batch) {
    const { error_file_id } = batch
    batch.error_file_id = null
    return () => Object.assign(batch, { error_file_id })
  },
  'both files'(batch) {
    const { output_file_id, error_file_id } = batch
    Object.assign(batch, { output_file_id: null, error_file_id: null })
    return () => Object.assign(batch, { output_file_id, error_file_id })
  },
  'an output of two answers, after one of the first'(batch, api) {
    const { output_file_id } = batch
    api.complete(batch, (content) => (content === 'l1' ? ANSWERED : content === 'l3' ? REFUSED : null))
    return () => Object.assign(batch, { output_file_id })
  },
  'its error file, though it was cancelled there,'(batch) {
    const { error_file_id } = batch
    const request_counts = { total: 3, completed: 2, failed: 1 }
    Object.assign(batch, { status: 'cancelled', error_file_id: null, request_counts })
    return () => Object.assign(batch, { error_file_id })
  },
  'its counts and both files'(batch) {
    const { output_file_id, error_file_id } = batch
    const request_counts = { total: 0, completed: 0, failed: 0 }
    Object.assign(batch, { output_file_id: null, error_file_id: null, request_counts })
    return () =>
      Object.assign(batch, {
        output_file_id,
        error_file_id,
        request_counts: { total: 3, completed: 2, failed: 1 },
      })
  },
}
const REFUSED: FakeResult = [400, { error: { message: 'no such parameter' } }]

for (const [what, begin] of Object.entries(LATE))
  test(`a batch API that names ${what} a minute after the end has no line sent again`, async () => {
    const retry = { outage_patience_ms: 2 * MINUTE_MS }
    await using world = await remoteWorld({ chunks: 1, lines: 3, retry })
    const { api, clock, store } = world
    await world.handedOver()
    const [batch] = api.batches
    assert.ok(batch)
    api.complete(batch, (content) => (content === 'l3' ? REFUSED : ANSWERED))
    const end = begin(batch, api)
    await clock.advance(MINUTE_MS)
    assert.deepEqual([world.ended.length, api.batches.length], [0, 1])
    end()
    await world.until(() => world.ended.length === 1, 1_000)
    const { completed, failed, cost_nanos } = await world.batch()
    assert.deepEqual([completed, failed, api.batches.length], [2, 1, 1])
    const [row] = await store.read.selectFrom('remote_batches').selectAll().execute()
    assert.deepEqual([row?.answered, row?.cost_nanos], [2, cost_nanos])
    assert.deepEqual([row?.output_file_id, row?.error_file_id], [batch.output_file_id, batch.error_file_id])
  })

test('lines without a result are sent again once a batch API has had its time to name one, and errors count then', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 3, retry: { outage_patience_ms: MINUTE_MS } })
  const { api, clock } = world
  await world.handedOver()
  const since = clock.now()
  api.complete(api.batches[0]!, (content) =>
    content === 'l1' ? null : content === 'l2' ? REFUSED : ANSWERED,
  )
  await world.until(() => api.batches.length === 2, 1_000)
  assert.ok(clock.now() - since >= MINUTE_MS, `after ${clock.now() - since} ms`)
  assert.deepEqual(api.batches[1]!.contents, ['l1'])
  api.complete(api.batches[1]!)
  await world.until(() => world.ended.length === 1, 1_000)
  const { completed, failed } = await world.batch()
  assert.deepEqual([completed, failed], [2, 1])
})

for (const [what, counted, leastMs, mostMs] of [
  ['does not count', { completed: 1, failed: 1 }, 30_000, 45_000],
  ['counts', { completed: 2, failed: 1 }, MINUTE_MS, 2 * MINUTE_MS],
  ['did not count at first', { completed: 1, failed: 1 }, MINUTE_MS, 2 * MINUTE_MS],
] as const)
  test(`a line that a completed batch ${what} and leaves out is sent again after ${leastMs / 1_000} s`, async () => {
    await using world = await remoteWorld({
      ...{ chunks: 1, lines: 3 },
      retry: { outage_patience_ms: MINUTE_MS },
    })
    const { api, clock } = world
    await world.handedOver()
    const [batch] = api.batches
    batch!.request_counts = { total: 3, ...counted }
    const since = clock.now()
    api.complete(batch!, (content) => (content === 'l1' ? null : content === 'l2' ? REFUSED : ANSWERED))
    if (what === 'did not count at first') {
      await clock.advance(10_000)
      batch!.request_counts.completed = 2
    }
    await world.until(() => api.batches.length === 2, 10_000)
    const tookMs = clock.now() - since
    assert.ok(tookMs >= leastMs && tookMs < mostMs, `after ${tookMs} ms`)
    assert.deepEqual(api.batches[1]!.contents, ['l1'])
  })

for (const [what, id] of [
  ['a lone surrogate', 'batch-\ud800'],
  ['a control character', 'batch-\u0000'],
  ['nothing', ''],
  ['a step up', '..'],
  ['more than anyone can mean', 'b'.repeat(10_000)],
] as const)
  test(`a batch whose ID is ${what} counts as not created, and its lines are sent again as often as any`, async () => {
    await using world = await remoteWorld({ chunks: 1, lines: 3, retry: { outage_patience_ms: DAY_MS } })
    const { api, worker } = world
    api.nextId = () => id
    await worker.start()
    await world.until(() => world.ended.length === 1, 1_000)
    assert.deepEqual([api.batches.length, (await world.batch()).failed], [RETRY.attempts_max, 3])
  })

test('what a batch API has answered counts when its batch is cancelled before that is known here', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 3, retry: { outage_patience_ms: DAY_MS } })
  const { api, store, clock } = world
  await world.handedOver()
  api.complete(api.batches[0]!)
  let isDown = true
  api.onCall = () => {
    if (isDown) throw errorAnswer(500, { message: 'oops' })
  }
  const { id } = await world.batch()
  await store.write((tx) => moveBatch(tx, id, 'cancelling', clock.now()))
  await clock.advance(5_000)
  isDown = false
  await world.until(() => world.ended.length > 0, 100)
  const { completed, failed } = await world.batch()
  assert.deepEqual([completed, failed], [3, 0])
})

test('a cancellation that fails in a way of its own while a batch is looked at ends no process', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 3 })
  const { api, store, clock } = world
  await world.handedOver()
  const cancelled = Promise.withResolvers<void>()
  api.onCall = async ({ kind }) => {
    if (kind === 'cancel') {
      cancelled.resolve()
      throw new TypeError('an error of this program')
    }
    // The rejection of the cancellation is unhandled by then, unless somebody waits for it.
    await cancelled.promise.then(() => setImmediate())
    throw new TypeError('another one')
  }
  const { id } = await world.batch()
  await store.write((tx) => moveBatch(tx, id, 'cancelling', clock.now()))
  await clock.advance(5_000)
  await cancelled.promise
  api.onCall = () => {}
  api.complete(api.batches[0]!)
  await world.until(() => world.ended.length > 0, 1_000)
})

test('at the end of the window a batch is cancelled there, and what it had finished is recorded', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 3, ...SHORT })
  const { api, clock } = world
  await world.handedOver()
  const { expires_at } = await world.batch()
  const cancelledAt: number[] = []
  api.onCall = ({ kind }) => {
    if (kind !== 'cancel') return
    cancelledAt.push(clock.now())
    const [batch] = api.open
    if (batch)
      api.complete(batch, (content) => (content === batch.contents[0] ? ANSWERED : null), 'cancelled')
  }
  await clock.advance(expires_at - clock.now() + 10_000)
  const { completed, failed } = await world.batch()
  assert.deepEqual([world.ended, completed, failed], [['expired'], 1, 2])
  assert.deepEqual([api.batches.length, cancelledAt.length], [1, 1])
  assert.ok(cancelledAt[0]! < expires_at)
})

test('an output that never ends is read no longer than a batch there may take to be cancelled', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 3, ...SHORT })
  const { api, store, clock } = world
  await world.handedOver()
  api.endlessAfter = 1
  api.complete(api.batches[0]!)
  await clock.advance(10_000)
  assert.deepEqual(world.ended, [])
  const { id } = await world.batch()
  await store.write((tx) => moveBatch(tx, id, 'cancelling', clock.now()))
  await clock.advance(10_000)
  assert.deepEqual(world.ended, ['cancelled'])
  const { completed, failed } = await world.batch()
  assert.deepEqual([completed, failed], [1, 2], 'what it had answered by then counts')
})

test('an output that never ends is read no longer than the window, and as long after it', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 3, ...SHORT })
  const { api, clock } = world
  await world.handedOver()
  api.endlessAfter = 1
  api.complete(api.batches[0]!)
  const { expires_at } = await world.batch()
  await clock.advance(expires_at - clock.now() + 10_000)
  assert.deepEqual(world.ended, ['expired'])
  const { completed, failed } = await world.batch()
  assert.deepEqual([completed, failed], [1, 2])
})

test('a batch API that takes its time to deliver results keeps no line from a server', async () => {
  await using world = await remoteWorld({ chunks: 8, lines: 2, concurrency: 1, memoryBytes: 600 })
  const { api, worker, upstream, remote, store, sealed, clock } = world
  await worker.start()
  await world.until(() => api.batches.length === 8 && worker.status.openChunks === 0, 10)
  api.endlessAfter = 1
  for (const batch of api.batches) api.complete(batch)
  await clock.advance(10_000)
  worker.setUpstreams(new Map([['m', [upstream, remote]]]), new Map())
  await addQueuedBatch(store, sealed, { chunks: 1, lines: 1 }, clock.now())
  await world.until(() => world.server.inFlight.length === 1, 10)
})

test('results that are being read when a worker shuts down are left to the next one', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 3, ...SHORT })
  const { api, store, clock } = world
  await world.handedOver()
  api.endlessAfter = 1
  api.complete(api.batches[0]!)
  await clock.advance(5_000)
  const stopped = world.stop()
  await world.until(() => world.hasStopped, 1_000)
  await stopped
  const rows = await store.read.selectFrom('remote_batches').select(['state', 'status']).execute()
  assert.deepEqual(
    rows.map(({ state, status }) => [state, status]),
    [['ended', 'completed']],
  )
})

test('results that are read when a worker shuts down, for a batch that ends, are left to the next one at once', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 3 })
  const { api, store, clock } = world
  await world.handedOver()
  let reads = 0
  api.onCall = ({ kind, line }) => {
    if (kind === 'results' && line === 0 && ++reads === 1) throw errorAnswer(500, { message: 'oops' })
  }
  api.endlessAfter = 1
  api.complete(api.batches[0]!)
  await world.until(() => reads === 2, 100)
  const { id } = await world.batch()
  await store.write((tx) => moveBatch(tx, id, 'cancelling', clock.now()))
  await clock.advance(5_000)
  const stopped = world.stop()
  await world.until(() => world.hasStopped, 1_000)
  await stopped
  const [chunk] = await world.chunks()
  assert.ok(
    chunk?.state === 'ready' || chunk!.run_at <= clock.now(),
    `${chunk?.state} until ${chunk?.run_at}`,
  )
})

test('lines do not wait for what lines have reserved that a batch API may have and that ended otherwise', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 3, model: (line) => (line < 3 ? 'm' : 'n') })
  const { store, project_id, clock, api, worker, models, upstream, remote, server } = world
  models.set('n', { ...models.get('m')!, id: 'n' })
  worker.setUpstreams(
    new Map([
      ['m', [remote]],
      ['n', [upstream]],
    ]),
    new Map(),
  )
  await store.write((tx) => addLimit(tx, project_id, { amount: 40 }))
  api.settleMs = DAY_MS
  api.onCall = ({ kind }) => {
    if (kind === 'create') throw errorAnswer(500, { message: 'oops' })
  }
  await worker.start()
  await clock.advance(10_000)
  assert.deepEqual([api.uploads, server.sent.length], [1, 0])
  models.delete('m')
  worker.setUpstreams(new Map([['n', [upstream]]]), new Map())
  await clock.advance(2 * MINUTE_MS)
  assert.equal(server.sent.length, 1)
})

test('lines that a limit keeps from being handed over wait for the limit, not for a batch that is not there', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 3, dedupe: 'all', content: () => 'the same' })
  const { api, store, project_id, clock } = world
  const limit = await store.write((tx) => addLimit(tx, project_id, { amount: 1_000 }))
  await world.handedOver()
  await store.write((tx) => updateLimit(tx, project_id, limit, { amount: 1 }))
  api.complete(api.batches[0]!, () => null)
  await clock.advance(5_000)
  const [chunk] = await world.chunks()
  assert.equal(chunk?.remote_batches, 0)
  assert.notEqual(chunk?.parked_reason, 'remote_batch')
  assert.equal(api.batches.length, 1)
})

test('lines that a crash left on their way to a batch API reserve nothing while they are paused', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 2 })
  const { api, remote, store, clock } = world
  const [run] = await world.open()
  for (const position of [0, 1])
    for (const state of [UNSUBMITTED, REMOTE]) run!.move(position, state, 'it is handed over')
  const row = await remoteRows(world).intend(run!, remote, [0, 1])
  await api.upload(row!.id, [])
  await store.write((tx) => releaseChunk(tx, run!.claim))
  const { id } = await world.batch()
  await store.write((tx) => pauseBatch(tx, id, clock.now()))
  await world.worker.start()
  await clock.advance(10_000)
  const [chunk] = await world.chunks()
  assert.deepEqual([chunk?.remote_batches, chunk?.parked_reason], [0, 'paused'])
  assert.deepEqual(await store.read.selectFrom('reservations').selectAll().execute(), [])
  assert.equal(await api.findFile(row!.id), null, 'its file is deleted there')
  await store.write((tx) => resumeBatch(tx, id, clock.now()))
  await world.until(() => api.batches.length === 1, 100)
  assert.deepEqual(api.batches[0]!.contents, ['l1', 'l2'])
})

test('lines that a crash left on their way to a batch API are not handed over just before the window ends', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 2, ...SHORT })
  const { api, remote, store, clock } = world
  const [run] = await world.open()
  for (const position of [0, 1])
    for (const state of [UNSUBMITTED, REMOTE]) run!.move(position, state, 'it is handed over')
  const row = await remoteRows(world).intend(run!, remote, [0, 1])
  await store.write((tx) => releaseChunk(tx, run!.claim))
  const { expires_at } = await world.batch()
  await clock.advance(expires_at - clock.now() - 4_000)
  await world.worker.start()
  await clock.advance(10_000)
  assert.deepEqual([world.ended, api.batches.length, await api.findFile(row!.id)], [['expired'], 0, null])
})

test('a batch API that answers nothing any more delays no look at another one', async () => {
  const [silent, other] = [new FakeBatchApi(), new FakeBatchApi()]
  await using world = await workerWorld({
    ...{ chunks: 1, lines: 1 },
    upstreams: () => [silent.upstream('silent')],
  })
  const { worker, store, sealed, clock } = world
  await worker.start()
  await world.until(() => silent.batches.length === 1 && worker.status.openChunks === 0, 10)
  const asked = Promise.withResolvers<void>()
  silent.onCall = () => asked.promise
  worker.setUpstreams(new Map([['m', [other.upstream('other'), silent.upstream('silent', 1)]]]), new Map())
  await addQueuedBatch(store, sealed, { chunks: 1, lines: 1 }, clock.now())
  await world.until(() => other.batches.length === 1, 10)
  other.complete(other.batches[0]!)
  await clock.advance(5_000)
  assert.deepEqual(world.ended, ['completed'])
  asked.resolve()
})

test('lines that a batch API of two could not take go to the other one next, though it has more lines', async () => {
  const [down, other] = [new FakeBatchApi(), new FakeBatchApi()]
  down.onCall = () => {
    throw errorAnswer(500, { message: 'oops' })
  }
  await using world = await workerWorld({
    ...{ chunks: 4, lines: 2 },
    upstreams: () => [down.upstream('down'), other.upstream('other')],
  })
  await world.worker.start()
  await world.until(() => other.batches.length === 4, 20)
  for (const batch of other.batches) other.complete(batch)
  await world.until(() => world.ended.length === 1, 100)
  const { completed } = await world.batch()
  assert.deepEqual([completed, down.uploads <= 4], [8, true], `${down.uploads} uploads`)
})

const OVER_LIMIT: FakeResult = [
  null,
  { code: 'usage_limit_exceeded', message: 'A spending limit was reached.' },
]

test('lines that a limit of a batch API keeps from being answered wait there, ever longer, without using up attempts', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 2, retry: { throttled_attempts_max: 4 } })
  const { api, clock } = world
  let refused = 0
  api.onCall = ({ kind }) => {
    if (kind !== 'create' || refused === 5) return
    refused++
    throw errorAnswer(429, { message: 'no', code: 'usage_limit_exceeded' })
  }
  await world.worker.start()
  const madeAt: number[] = []
  while (madeAt.length < 4 * RETRY.attempts_max) {
    await world.until(() => api.open.length === 1, 100)
    madeAt.push(clock.now())
    api.complete(api.open[0]!, () => OVER_LIMIT)
  }
  const waited = madeAt.map((at, i) => at - madeAt[i - 1]!)
  assert.ok(waited.at(-1)! > 3 * waited[1]!, waited.join(' '))
  await world.until(() => api.open.length === 1, 1_000)
  api.complete(api.open[0]!)
  await world.until(() => world.ended.length === 1, 100)
  assert.equal((await world.batch()).completed, 2)
})

test('lines that a limit of one batch API keeps from being answered go to another one next', async () => {
  const [spent, other] = [new FakeBatchApi(), new FakeBatchApi()]
  await using world = await workerWorld({
    ...{ chunks: 1, lines: 2 },
    upstreams: () => [spent.upstream('spent'), other.upstream('other')],
  })
  await world.worker.start()
  await world.until(() => spent.batches.length === 1, 20)
  spent.complete(spent.batches[0]!, () => OVER_LIMIT)
  await world.until(() => other.batches.length === 1, 100)
  // Nor do they come back to one that does not even take them.
  other.complete(other.batches[0]!, () => OVER_LIMIT)
  spent.onCall = ({ kind }) => {
    if (kind === 'create') throw errorAnswer(429, { message: 'no', code: 'usage_limit_exceeded' })
  }
  await world.until(() => other.batches.length === 2, 100)
  other.complete(other.batches[1]!)
  await world.until(() => world.ended.length === 1, 100)
  assert.deepEqual([(await world.batch()).completed, spent.batches.length], [2, 1])
})

test('what a batch API has answered counts, also where a reload allows such lines no more', async () => {
  await using world = await remoteWorld({ chunks: 1, lines: 3 })
  const { api, worker, remote, models } = world
  await world.handedOver()
  models.set('m', { ...models.get('m')!, endpoints: ['/v1/embeddings'] })
  worker.setUpstreams(new Map([['m', [remote]]]), new Map())
  api.complete(api.batches[0]!, (content) => (content === 'l3' ? null : ANSWERED))
  await world.until(() => world.ended.length === 1, 100)
  const { completed, failed, cost_nanos } = await world.batch()
  assert.deepEqual([completed, failed, cost_nanos, api.batches.length], [2, 1, 2 * 5_000, 1])
})

for (const unknown of ['model', 'batch API'])
  test(`what a batch API has answered is left to a running worker that knows its ${unknown}, and is not lost`, async () => {
    await using world = await remoteWorld({ chunks: 1, lines: 2 })
    const { api, worker, remote, upstream, models, store, clock } = world
    await world.handedOver()
    const model = models.get('m')!
    // Another configuration is being rolled out: another worker has the one before.
    const other = await store.write((tx) => openSession(tx, 3_600_000, clock.now()))
    const upstreams = [
      { model: 'm', upstream: 'server' },
      { model: 'm', upstream: 'provider' },
    ].map((one) => ({
      ...{ ...one, in_flight: 0, concurrency: 1, concurrency_max: 1, circuit: 'closed' as const },
      ...{ lines_per_s: 0, latency_ms: null, errors_per_s: 0, last_error: null },
    }))
    const report = { open_chunks: 0, stores_failing: false, upstreams }
    await store.write((tx) => setWorkerReport(tx, other, report, clock.now()))
    if (unknown === 'model') models.delete('m')
    worker.setUpstreams(new Map(unknown === 'model' ? [] : [['m', [upstream]]]), new Map())
    api.complete(api.batches[0]!)
    const [row] = await store.read.selectFrom('remote_batches').selectAll().execute()
    const { output_file_id } = api.batches[0]!
    await store.write((tx) => endRemoteBatch(tx, row!, { status: 'completed', output_file_id }, clock.now()))
    await clock.advance(20_000)
    assert.deepEqual([world.ended, world.server.sent], [[], []])
    models.set('m', model)
    worker.setUpstreams(new Map([['m', [remote]]]), new Map())
    await world.until(() => world.ended.length === 1, 100)
    const { completed, failed } = await world.batch()
    assert.deepEqual([completed, failed, api.batches.length, world.server.sent], [2, 0, 1, []])
  })
