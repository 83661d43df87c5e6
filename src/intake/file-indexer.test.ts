import assert from 'node:assert/strict'
import { test } from 'node:test'
import { CHUNK_BYTES_MAX, CHUNK_LINES_MAX } from '../domain/batch.ts'
import { type InputLine, LineScanner } from '../jsonl/line-scan.ts'
import { FileIndexer } from './validation.ts'

function bytesOf(model: unknown, entity?: string, content = 'Hi'): Buffer {
  const line = {
    custom_id: 'a',
    method: 'POST',
    url: '/v1/chat/completions',
    body: { model, messages: [{ role: 'user', content }] },
    metadata: { entity },
  }
  return Buffer.from(JSON.stringify(line))
}

function lineOf(model: unknown, entity?: string): InputLine {
  return scanned(bytesOf(model, entity))
}

function scanned(bytes: Buffer, scanner = new LineScanner()): InputLine {
  const line = scanner.scan(bytes, 0, bytes.length)
  assert.ok(line.ok)
  return line
}

test('a chunk names the model of its lines if they have but one', () => {
  for (const [models, named] of [
    [['a', 'a', 'a'], 'a'],
    [['a', 'b', 'a'], null],
    [['a', null], null],
    [[null, 'a', 'a'], null],
    [[null], null],
  ] as const) {
    const indexer = new FileIndexer()
    for (const [i, model] of models.entries()) indexer.add(lineOf(model), i + 1, i, i + 1)
    assert.equal(indexer.finish().chunks[0]?.model, named, String(models))
  }
})

test('a chunk ends before the line that would be one too many', () => {
  const indexer = new FileIndexer()
  const line = lineOf('m')
  for (let i = 0; i <= CHUNK_LINES_MAX; i++) indexer.add(line, i + 5, 10 * i, 10 * i + 10)
  const end = 10 * CHUNK_LINES_MAX
  assert.deepEqual(indexer.finish().chunks, [
    { index: 0, first_line: 5, line_count: CHUNK_LINES_MAX, byte_start: 0, byte_end: end, model: 'm' },
    {
      index: 1,
      first_line: CHUNK_LINES_MAX + 5,
      line_count: 1,
      byte_start: end,
      byte_end: end + 10,
      model: 'm',
    },
  ])
})

test('a chunk begins with each pass of a nested loop over the same beginnings, and with no other line', () => {
  const lines = Array.from({ length: 2_100 }, (_, i) =>
    bytesOf('m', undefined, `${'Be brief. '.repeat(9)}${`document ${i} `.repeat(25)}`),
  )
  const sizesOf = (count: number, documentOf: (i: number) => number): number[] => {
    const [indexer, scanner] = [new FileIndexer(), new LineScanner()]
    for (let i = 0; i < count; i++) indexer.add(scanned(lines[documentOf(i)]!, scanner), i + 1, i, i + 1)
    return indexer.finish().chunks.map(({ line_count }) => line_count)
  }
  assert.deepEqual(
    sizesOf(6_300, (i) => i % 2_100),
    [1000, 1000, 100, 1000, 1000, 100, 1000, 1000, 100],
  )
  assert.deepEqual(
    sizesOf(2_500, (i) => (i * i) % 31),
    [1000, 1000, 500],
  )
})

test('a chunk ends before the line that would make it too large; a larger line is alone', () => {
  const indexer = new FileIndexer()
  const line = lineOf('m')
  const sizes = [CHUNK_BYTES_MAX - 10, 10, 1, CHUNK_BYTES_MAX + 1, 1]
  let at = 0
  for (const [i, size] of sizes.entries()) {
    indexer.add(line, i + 1, at, at + size)
    at += size
  }
  const chunks = indexer.finish().chunks
  assert.deepEqual(
    chunks.map(({ first_line, line_count }) => [first_line, line_count]),
    [
      [1, 2],
      [3, 1],
      [4, 1],
      [5, 1],
    ],
  )
  assert.equal(chunks[0]?.byte_end, CHUNK_BYTES_MAX)
})

test('lines are summed by model and entity, those without either included', () => {
  const indexer = new FileIndexer()
  const pairs: [unknown, string?][] = [
    ['m', 'a'],
    ['m', 'b'],
    ['n', 'a'],
    ['m', 'a'],
    ['m'],
    [7, 'a'],
    ['m', ''],
    ['m', 'a'],
  ]
  for (const [i, [model, entity]] of pairs.entries()) indexer.add(lineOf(model, entity), i + 1, i, i + 1)
  const { groups, unattributed } = indexer.finish()
  assert.deepEqual(
    groups.map(({ model, entity, lines }) => [model, entity, lines]),
    [
      ['m', 'a', 3],
      ['m', 'b', 1],
      ['n', 'a', 1],
      ['m', null, 2],
      [null, 'a', 1],
    ],
  )
  assert.deepEqual(unattributed, [])
})

test('a file of very many entities is summed by model once there are too many groups', () => {
  const indexer = new FileIndexer(3)
  for (let i = 0; i < 10; i++) indexer.add(lineOf(i % 2 ? 'm' : 'n', `user:${i}`), i + 1, i, i + 1)
  indexer.add(lineOf('n', 'user:0'), 11, 10, 11)
  const { groups, unattributed } = indexer.finish()
  assert.deepEqual(
    groups.map(({ entity, lines }) => [entity, lines]),
    [
      ['user:0', 2],
      ['user:1', 1],
      ['user:2', 1],
    ],
  )
  assert.deepEqual(
    unattributed.map(({ model, entity, lines }) => [model, entity, lines]),
    [
      ['m', null, 4],
      ['n', null, 3],
    ],
  )
})

test('the index of a file survives JSON', () => {
  const indexer = new FileIndexer()
  indexer.add(lineOf('m', 'e'), 1, 0, 9)
  const index = indexer.finish()
  assert.deepEqual(JSON.parse(JSON.stringify(index)), index)
})
