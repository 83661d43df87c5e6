import assert from 'node:assert/strict'
import { test } from 'node:test'
import { unsentRun } from '../../../test/support/unsent-run.ts'
import { IN_FLIGHT } from '../../dispatch/line-state.ts'
import type { Run } from '../../dispatch/run.ts'
import { lowWaterMark } from '../../dispatch/senders/lane.ts'
import { chunkSlots, demandOf, overtakenWork } from './demand.ts'

function lane(waiting: number, concurrency: number, blocked = false, waitingAtRisk = 0, takesAtRisk = false) {
  const isLow = waiting < lowWaterMark(concurrency)
  const now = { blocked: () => blocked, takesAtRisk: () => takesAtRisk }
  return { waiting, waitingAtRisk, concurrency, isLow, ...now }
}

test('a lane with enough lines does not keep another lane from getting lines', () => {
  const lanes = [
    ['busy', lane(5_000, 100)],
    ['idle', lane(0, 100)],
  ] as const
  assert.deepEqual(demandOf(lanes, 0), {
    wantsMore: false,
    low: ['idle'],
    enough: ['busy'],
    blocked: [],
    forAtRisk: ['busy', 'idle'],
  })
})

test('lines that wait for an unavailable model do not reduce the demand', () => {
  const lanes = [
    ['down', lane(50_000, 32, true)],
    ['up', lane(10, 32)],
  ] as const
  assert.deepEqual(demandOf(lanes, 0), {
    wantsMore: true,
    low: ['up'],
    enough: [],
    blocked: ['down'],
    forAtRisk: ['up'],
  })
})

test('fast servers need more lines ahead', () => {
  assert.equal(demandOf([['m', lane(1_500, 600)]], 0).wantsMore, false)
  assert.equal(demandOf([['m', lane(1_500, 800)]], 0).wantsMore, true)
})

test('few waiting lines are below every low-water mark, for which no lane is asked for its concurrency', () => {
  const idle = {
    ...lane(10, 0),
    get concurrency(): number {
      return assert.fail('it is asked for')
    },
  }
  const { wantsMore, forAtRisk } = demandOf(Object.entries({ a: idle, b: idle }), 0)
  assert.deepEqual([wantsMore, forAtRisk], [true, ['a', 'b']])
})

test('lines of at-risk batches are wanted up to a low-water mark of their own', () => {
  const lanes = [
    ['full', lane(50_000, 32, false, 999)],
    ['enough', lane(50_000, 32, false, 1_000)],
    ['down', lane(50_000, 32, true)],
    ['higher tier', lane(50_000, 32, true, 0, true)],
  ] as const
  assert.deepEqual(demandOf(lanes, 0).forAtRisk, ['full', 'higher tier'])
})

test('of one entity, chunks are claimed that are due before lines which wait, until enough are due as early', () => {
  const prompts = (count: number): string[] => Array(count).fill('')
  const later = unsentRun({ deadline: 9_000, prompts: prompts(900) })
  const last = unsentRun({ deadline: 10_000, prompts: prompts(3_000) })
  const other = unsentRun({ entity: 'e', deadline: 5_000, prompts: prompts(10) })
  const answered = unsentRun({ entity: 'done', deadline: 5_000, prompts: prompts(1) })
  answered.move(0, IN_FLIGHT, 'a test sends it')
  const of = (...runs: Run[]): [string, number, number][] =>
    overtakenWork(runs, new Map()).map(({ entity, before, last }) => [entity, before, last.claim.deadline])
  assert.deepEqual(of(last, later, other, answered), [
    ['e', 5_000, 5_000],
    ['', 10_000, 10_000],
  ])
  const more = unsentRun({ deadline: 8_000, prompts: prompts(100) })
  assert.deepEqual(of(last, later, more), [['', 9_000, 10_000]])
})

const MEMORY = 1_000

function chunks(count: number, model: string | null, project_id = 'a', bytes = 1) {
  return Array.from({ length: count }, () => ({
    claim: { project_id, model, remote_batches: 0 },
    bytes: Buffer.alloc(bytes),
    remoteWork: 0,
  }))
}

/** Chunks for which results of batch APIs are being read. */
function reading(count: number, bytes = 1) {
  return chunks(count, 'm', 'a', bytes).map(({ claim, ...chunk }) => ({
    ...chunk,
    claim: { ...claim, remote_batches: 1 },
    remoteWork: 1,
  }))
}

test('open chunks of one model, or of several models, leave the slots of other models free', () => {
  for (const model of ['slow', null]) {
    const { hasRoom, full, taken, packed } = chunkSlots([...chunks(64, model), ...chunks(3, 'quick')], MEMORY)
    assert.deepEqual(
      { hasRoom, full, taken, packed },
      { hasRoom: true, full: false, taken: [model], packed: [] },
    )
  }
  assert.deepEqual(chunkSlots(chunks(80, 'slow'), MEMORY).packed, ['slow'])
})

test('beyond the memory limit, some memory is left for projects without open chunks', () => {
  const state = (bytes: number): [boolean, boolean] => {
    const { hasRoom, full } = chunkSlots(chunks(1, 'm', 'a', bytes), MEMORY)
    return [hasRoom, full]
  }
  assert.deepEqual(state(MEMORY - 1), [true, false])
  assert.deepEqual(state(MEMORY), [false, false])
  assert.deepEqual(state(1.5 * MEMORY), [false, true])
  assert.deepEqual(chunkSlots([], 0).hasRoom, true, 'one chunk is always opened')
})

test('chunks for which results of batch APIs are read leave slots and memory to others, and others to them', () => {
  const slots = (...runs: ReturnType<typeof chunks>) => {
    const { hasRoom, taken, holders, mayRead } = chunkSlots(runs, MEMORY)
    return { hasRoom, taken, holders: [...holders.keys()], mayRead }
  }
  const free = { hasRoom: true, taken: [], holders: [] }
  assert.deepEqual(slots(...reading(64)), { ...free, mayRead: false })
  assert.deepEqual(slots(...reading(1, MEMORY)), { ...free, mayRead: false })
  assert.deepEqual(slots(...reading(1, MEMORY / 4)), { ...free, mayRead: true })
  assert.equal(slots(...chunks(1, 'm', 'a', MEMORY)).mayRead, true)
  assert.equal(slots(...chunks(1, 'm', 'a', 1.5 * MEMORY)).mayRead, false)
})

test('lists the projects with open chunks by model', () => {
  const { holders } = chunkSlots(
    [...chunks(2, 'm', 'a'), ...chunks(1, 'm', 'b'), ...chunks(1, null, 'c')],
    MEMORY,
  )
  assert.deepEqual([...(holders.get('m') ?? [])], ['a', 'b'])
  assert.deepEqual([...(holders.get(null) ?? [])], ['c'])
})
