import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { runOffpeak } from '../../../test/fakes/offpeak.ts'
import { FIGURES, planCapacity } from './plan.ts'

const LOAD = { latency_s: 10, tokens: 300, peak: 1, retention_days: 90, concurrency_max: 2048 }

const plan = (...args: string[]) => runOffpeak(['plan', ...args])

test('every figure is the one that docs/scaling.md shows', () => {
  const page = readFileSync(new URL('../../../docs/scaling.md', import.meta.url), 'utf8').replaceAll(
    '\n',
    ' ',
  )
  for (const { text } of Object.values(FIGURES)) assert.ok(page.includes(text), text)
})

test('every command that measures a figure exists', () => {
  for (const { command } of Object.values(FIGURES)) {
    const [, file = ''] = command.split(' ')
    assert.match(readFileSync(new URL(`../../../${file}`, import.meta.url), 'utf8'), /^\/\/ /, command)
  }
})

test('a billion lines a day at ten seconds need the workers that the page calculates, and a spare', () => {
  const { workers, workers_by, stores, apis, database } = planCapacity({ ...LOAD, lines_per_day: 1e9 })
  assert.deepEqual([workers, workers_by, stores], [57 + 1, 'concurrency', 'postgres and a bucket'])
  assert.equal(apis, 2)
  assert.equal(Math.round(database.bytes_per_day / 1e7), 148)
})

test('a million lines a day are one process', () => {
  const { workers, apis, stores, database } = planCapacity({ ...LOAD, latency_s: 2, lines_per_day: 1e6 })
  assert.deepEqual([workers, apis, stores, database.connections], [1, 1, 'sqlite and a folder', 0])
})

test('with a quick model server, CPU bounds the workers', () => {
  const { workers, workers_by } = planCapacity({ ...LOAD, latency_s: 0.1, peak: 3, lines_per_day: 1e9 })
  assert.deepEqual([workers, workers_by], [7 + 1, 'cpu'])
})

test('docs/scaling.md has the workers, APIs and connections that the plan calculates', () => {
  const page = readFileSync(new URL('../../../docs/scaling.md', import.meta.url), 'utf8')
  const rows = [
    ...page.matchAll(/^\| (\d+)([MB]) \| (\d+) s \| ([\d,]+) \| ([a-z ]+) \| (\d+) \| (\d+) \| (\d+) \|$/gm),
  ]
  assert.equal(rows.length, 5)
  for (const [row, lines, unit, latency, ...shown] of rows) {
    const lines_per_day = Number(lines) * (unit === 'B' ? 1e9 : 1e6)
    const usual = { tokens: 700, peak: 3, retention_days: 90, concurrency_max: 2048 }
    const found = planCapacity({ lines_per_day, latency_s: Number(latency), ...usual })
    const { peak_lines_per_s, stores, workers, apis, database } = found
    const calculated = [
      Math.round(peak_lines_per_s).toLocaleString('en'),
      stores,
      workers,
      apis,
      database.connections,
    ]
    assert.deepEqual(shown, calculated.map(String), row)
  }
})

test('the plan names what to run, and the command behind each figure', async () => {
  const { code, out, err } = await plan('--lines-per-day', '100M', '--latency', '10', '--tokens', '700')
  assert.equal(code, 0, err)
  assert.match(
    out,
    /^1,157\/s on average, 3,472\/s at 3 times that: 34,723 lines in flight, and 2,430,556 tokens\/s/,
  )
  assert.match(out, /^workers +18 +bounded by lines in flight +node bench\/dispatch\.ts/m)
  assert.match(
    out,
    /^database +PostgreSQL, 12\.4 GiB +141 MiB a day; .*110 connections +node bench\/stores\.ts, node/m,
  )
  const json = await plan('--lines-per-day', '100M', '--latency', '10', '--tokens', '700', '--json')
  assert.partialDeepStrictEqual(JSON.parse(json.out), { plan: { workers: 18, apis: 2 } })
})

test('a number that is none is named', async () => {
  const { code, err } = await plan('--lines-per-day', 'many', '--latency', '1', '--tokens', '1')
  assert.equal(code, 1)
  assert.match(err, /argument 'many' is invalid\. Expected a number above 0/)
  assert.match(
    (await plan('--latency', '1', '--tokens', '1')).err,
    /'--lines-per-day <number>' not specified/,
  )
})
