import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { testClock } from '../../test/fakes/clock.ts'
import type { Entries } from '../jsonl/custom-ids.ts'
import { StreamingValidation } from './streaming-validation.ts'
import { type ValidationLimits, validateContent } from './validation.ts'

const BIG = 100_000_000
const LIMITS = { lines_max: 1_000_000, line_bytes_max: 100_000 }

function line(id: string | number, text = 'hello'): string {
  const body = { model: 'sim-1', messages: [{ role: 'user', content: text }] }
  return `${JSON.stringify({ custom_id: `${id}`, method: 'POST', url: '/v1/chat/completions', body })}\n`
}

function file(lines: number): Buffer {
  const text = 'so many words '.repeat(70)
  return Buffer.from(Array.from({ length: lines }, (_, i) => line(i, text)).join(''))
}

function readings(t: TestContext, limits: ValidationLimits = LIMITS): StreamingValidation {
  const early = new StreamingValidation({
    limits,
    clock: testClock(),
    onCrash: (error) => {
      throw error
    },
  })
  t.after(() => early.close())
  return early
}

const NO_IDS = { add: async () => assert.fail('all custom_ids fit into memory') }

async function judge(early: StreamingValidation, content: Buffer, piece_bytes = 50_000) {
  const along = early.begin('d', BIG, NO_IDS)
  assert(along)
  for (let at = 0; at < content.length; at += piece_bytes)
    await along.take(content.subarray(at, at + piece_bytes))
  return await along.verdict()
}

test('a file in order has its index when its last byte has come', async (t) => {
  const early = readings(t)
  const content = file(3000)
  const validated = await validateContent(async function* () {
    yield content
  }, LIMITS)
  assert(validated.ok)
  for (const piece_bytes of [7001, 65_536, 1_000_000, content.length]) {
    const found = await judge(early, content, piece_bytes)
    assert(found)
    assert.equal(found.line_count, 3000)
    assert.deepEqual(JSON.parse(found.index_json), validated.index)
  }
})

test('any file that is not in order is left to the validation that can say why', async (t) => {
  const early = readings(t, { ...LIMITS, lines_max: 4000 })
  const good = file(2000)
  const cases: Record<string, Buffer> = {
    'nothing at all': Buffer.alloc(0),
    'blank lines only': Buffer.from('\n\n\n'),
    'a bad line in the middle': Buffer.concat([good, Buffer.from('{"custom_id":1}\n'), file(10)]),
    'an id used twice': Buffer.concat([good, Buffer.from(line(1))]),
    'a last line cut short': good.subarray(0, -5),
    'no UTF-8': Buffer.concat([good, Buffer.of(0xff, 0x0a)]),
    'too many lines': file(4001),
    'a line that is too long': Buffer.concat([good, Buffer.from(line('long', 'x'.repeat(200_000)))]),
  }
  for (const [what, content] of Object.entries(cases)) assert.equal(await judge(early, content), null, what)
  assert.equal((await judge(early, good))?.line_count, 2000)
})

test('several files are read at once, each by itself; more than a few are not', async (t) => {
  const early = readings(t)
  const along = ['a', 'a', 'b', 'c'].map((project_id) => early.begin(project_id, BIG, NO_IDS))
  assert.equal(early.begin('d', BIG, NO_IDS), null)
  const contents = along.map((_, i) => file(1000 + i))
  for (let at = 0; at < contents[3]!.length; at += 30_000)
    for (const [i, one] of along.entries()) await one?.take(contents[i]!.subarray(at, at + 30_000))
  const found = await Promise.all(along.map((one) => one?.verdict()))
  assert.deepEqual(
    found.map((one) => one?.line_count),
    [1000, 1001, 1002, 1003],
  )
  assert(early.begin('a', BIG, NO_IDS))
})

test('one project cannot have all that are read at once', (t) => {
  const early = readings(t)
  assert(early.begin('a', BIG, NO_IDS))
  assert(early.begin('a', BIG, NO_IDS))
  assert.equal(early.begin('a', BIG, NO_IDS), null)
  assert(early.begin('b', BIG, NO_IDS))
})

test('a small file, or one whose size nobody gives, starts no thread', (t) => {
  const early = readings(t)
  assert.equal(early.begin('a', 1_000_000, NO_IDS), null)
  assert.equal(early.begin('a', 0, NO_IDS), null)
  assert.equal(early.begin('a', Number.NaN, NO_IDS), null)
})

test('an upload waits for its reading instead of piling up', async (t) => {
  const early = readings(t)
  const along = early.begin('a', BIG, NO_IDS)
  assert(along)
  const content = file(10_000)
  const wait = along.take(content)
  assert(wait, 'ten megabytes do not fit into a few blocks')
  await wait
  assert.equal((await along.verdict())?.line_count, 10_000)
})

test('custom_ids of earlier lines are handed over, and an upload waits until they are stored', async (t) => {
  const early = readings(t, { ...LIMITS, ids_in_memory_max: 1000 })
  const parts: number[] = []
  const store = Promise.withResolvers<void>()
  const add = async (ids: readonly Entries[]): Promise<void> => {
    parts.push(ids.reduce((sum, { length }) => sum + length / 3, 0))
    await store.promise
  }
  const along = early.begin('a', BIG, { add })
  assert(along)
  let isTaken = false
  const taken = along.take(file(2900))?.then(() => {
    isTaken = true
  })
  while (parts.length === 0) await setImmediate()
  await setImmediate()
  assert.equal(isTaken, false)
  store.resolve()
  await taken
  const verdict = await along.verdict()
  const last = verdict?.ids.reduce((sum, { length }) => sum + length / 3, 0) ?? 0
  assert.equal(
    parts.reduce((sum, size) => sum + size, last),
    2900,
  )
  // A block has some 250 lines.
  for (const size of [...parts, last]) assert(size <= 1300, `${size} custom_ids in memory`)
})

test('a file whose custom_ids cannot be stored is left to the validation of what was stored', async (t) => {
  const early = readings(t, { ...LIMITS, ids_in_memory_max: 1000 })
  const along = early.begin('a', BIG, {
    async add() {
      throw new Error('the bucket is gone')
    },
  })
  assert(along)
  await along.take(file(3000))
  assert.equal(await along.verdict(), null)
})

test('an upload that breaks off makes room for another', async (t) => {
  const early = readings(t)
  const along = ['a', 'a', 'b', 'c'].map((project_id) => early.begin(project_id, BIG, NO_IDS))
  await along[0]?.take(file(100))
  along[0]?.leave()
  assert.equal(await along[0]?.verdict(), null)
  assert.equal((await judge(early, file(500)))?.line_count, 500)
})

test('uploads go on without a thread that ended, and the next one has a new one', async (t) => {
  const early = readings(t)
  const along = early.begin('a', BIG, NO_IDS)
  assert(along)
  const wait = along.take(file(10_000))
  await early.close()
  await wait
  await along.take(file(10))
  assert.equal(await along.verdict(), null)
  assert.equal((await judge(early, file(10)))?.line_count, 10)
})

test('the thread ends when no big file has come for a while', async (t) => {
  const clock = testClock()
  const early = new StreamingValidation({ limits: LIMITS, clock, onCrash: assert.fail })
  t.after(() => early.close())
  await judge(early, file(10))
  assert.equal(clock.waiting, 1)
  await clock.advance(60_000)
  assert.equal(clock.waiting, 0)
  assert.equal((await judge(early, file(10)))?.line_count, 10)
})

test('the thread knows the endpoints that the configuration declares', async (t) => {
  const declared = { path: '/v1/classify', prompt: ['input'], answer: 'data', unit: 'tokens' } as const
  const rest = { usage: { input: null, output: null }, limit: null, input_projected: null }
  const options = { limits: LIMITS, clock: testClock(), onCrash: () => assert.fail() }
  const content = Buffer.from(file(10).toString().replaceAll('/v1/chat/completions', '/v1/classify'))
  const verdicts: boolean[] = []
  for (const endpoints of [[], [{ ...declared, ...rest }]]) {
    const early = new StreamingValidation({ ...options, endpoints })
    t.after(() => early.close())
    verdicts.push((await judge(early, content)) !== null)
  }
  assert.deepEqual(verdicts, [false, true])
})
