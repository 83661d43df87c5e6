// Reserving transactions that take effect after they have timed out, on a real database.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { testClock } from '../../../../test/fakes/clock.ts'
import { addLimit, leasedChunks, testBooks, total } from '../../../../test/support/test-books.ts'
import type { ChunkLine } from '../../../jsonl/chunk-lines.ts'
import { amountsByKey } from '../../../store/ledger.ts'
import { readRow } from '../../../store/rows.ts'
import type { Store } from '../../../store/store.ts'
import { UNFUNDED, UNSENT } from '../../line-state.ts'
import { Run } from '../../run.ts'
import { LimitGate } from './limit-gate.ts'
import { ReservedFunds } from './reserved-funds.ts'

const NOW = Date.UTC(2026, 0, 1)
const LINES = 4
const TOKENS = 10

/** A line whose projected spend is TOKENS tokens. */
function chunkLine(line: number): ChunkLine {
  const span = { start: 0, end: 0 }
  return {
    line,
    custom_id_json: `"${line}"`,
    model: 'm',
    known_model: 'm',
    entity: null,
    conversation: null,
    tags: null,
    body: span,
    model_spans: [],
    replaced: null,
    prompt: span,
    endpoint: '/v1/chat/completions',
    input_tokens: TOKENS,
    input_tokens_max: 0,
    entries: null,
    output_tokens_max: 0,
    prompt_bytes: null,
    isRepeatable: false,
    inputs: 1,
    choices: 1,
    projected: { cost_nanos: 0, tokens: TOKENS, requests: 1 },
    fault: null,
  }
}

/** The next write throws at once, and takes effect when `settle` is called. */
function lateWrites(store: Store): { store: Store; delay: () => void; settle: () => Promise<void> } {
  let isDelayed = false
  let late: (() => Promise<unknown>)[] = []
  const write: Store['write'] = async (change) => {
    if (!isDelayed) return await store.write(change)
    isDelayed = false
    late.push(() => store.write(change))
    throw new Error('no answer came in time')
  }
  return {
    store: new Proxy(store, {
      get: (target, key) => (key === 'write' ? write : Reflect.get(target, key, target)),
    }),
    delay: () => {
      isDelayed = true
    },
    settle: async () => {
      const all = late
      late = []
      for (const commit of all) await commit()
    },
  }
}

for (const order of ['before', 'after'] as const)
  test(`a reservation that takes effect late, ${order} its retry, counts once`, async () => {
    await using books = await testBooks()
    const { store, delay, settle } = lateWrites(books.store)
    const [claim] = await books.store.write((tx) => leasedChunks(tx, 1, NOW))
    assert.ok(claim)
    await books.store.write((tx) => addLimit(tx, claim.project_id, { amount: 1_000 }))
    const row = await readRow(books.store.read, 'chunks', { batch_id: claim.batch_id, idx: claim.idx })
    const batch = await readRow(books.store.read, 'batches', { id: claim.batch_id })
    assert.ok(row && batch)
    const lines = Array.from({ length: LINES }, (_, i) => chunkLine(i + 1))
    const run = new Run(row, batch, lines, Buffer.alloc(0))
    const funds = new ReservedFunds({ checkLimits() {} })
    const gate = new LimitGate({
      store,
      clock: testClock(NOW),
      random: () => 0.5,
      models: new Map(),
      funds,
      lines: {
        holdForCheck() {
          for (const position of run.positions()) run.setAllowed(position, false)
          for (const position of run.positions(UNSENT)) run.move(position, UNFUNDED, 'it is checked')
        },
        checked() {
          for (const position of run.positions(UNFUNDED))
            if (run.isAllowed(position)) run.move(position, UNSENT, 'it is allowed')
        },
        requeue: () => assert.fail('no price is raised'),
        reject: () => assert.fail('the limits are larger than a line'),
      },
      recorder: { settle: async () => {} },
      runs: [run],
      turn: { push: () => assert.fail('the lease is not lost') },
    })
    assert.equal(await gate.admit(run, 1, false), null)
    for (const position of run.positions()) run.move(position, UNSENT, 'it is allowed')

    delay()
    await assert.rejects(gate.recheck(new Map([[claim.project_id, 2]])), /no answer came in time/)
    assert.deepEqual(run.positions(UNSENT), [], 'nothing is sent while it is not known what is reserved')
    if (order === 'before') await settle()
    await gate.recheck(new Map([[claim.project_id, 2]]))
    await settle()

    assert.equal(
      total(await amountsByKey(books.store.read, 'reservations', claim.project_id)).tokens,
      LINES * TOKENS,
    )
    assert.deepEqual(run.positions(UNSENT), [0, 1, 2, 3])

    await books.store.write((tx) =>
      tx
        .updateTable('limits')
        .set({ amount: 2 * TOKENS })
        .execute(),
    )
    delay()
    await assert.rejects(gate.recheck(new Map([[claim.project_id, 3]])), /no answer came in time/)
    if (order === 'before') await settle()
    await gate.recheck(new Map([[claim.project_id, 3]]))
    await settle()
    assert.equal(
      total(await amountsByKey(books.store.read, 'reservations', claim.project_id)).tokens,
      2 * TOKENS,
    )
  })
