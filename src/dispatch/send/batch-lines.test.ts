import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { ChunkLine } from '../../jsonl/chunk-lines.ts'
import { OpenChunk } from '../../results/open-chunk.ts'
import type { BatchRow, ChunkRow } from '../../store/schema.ts'
import { BatchLines, type Replica } from './batch-lines.ts'
import { byPrefix } from './line-request.ts'

function replica(name: string, closed = true): Replica & { circuit: { closed: boolean } } {
  return { name, circuit: { closed } }
}

function chunkOf(prompts: readonly string[], idx = 0): OpenChunk {
  const bytes = Buffer.from(prompts.join(''))
  let at = 0
  const lines = prompts.map((prompt) => {
    const start = at
    at += Buffer.byteLength(prompt)
    return { prompt: { start, end: at } } as ChunkLine
  })
  const claim = { project_id: 'p', entity: '', deadline: 1, idx } as ChunkRow
  return new OpenChunk(claim, { id: 'b', project_id: 'p' } as BatchRow, lines, bytes, [])
}

function add(lines: BatchLines, chunk: OpenChunk): void {
  lines.add(
    chunk,
    byPrefix(
      chunk,
      chunk.lines.map((_, i) => i),
    ),
  )
}

/** A prompt with a long beginning of its own number. */
function prompt(beginning: number, question: number): string {
  return `${String(beginning).padStart(4, '0')} ${'a handbook. '.repeat(50)}${question}`
}

/** Prompts that share `count` beginnings, in a mixed order. */
function prompts(count: number, each: number, from = 0): string[] {
  return Array.from({ length: count * each }, (_, i) => prompt((i * 7) % count, from + i))
}

/** Which beginnings each replica got, in the order of its lines, if all are equally fast. */
function deal(lines: BatchLines, replicas: readonly Replica[], able = replicas): Map<string, number[]> {
  const dealt = new Map(replicas.map(({ name }): [string, number[]] => [name, []]))
  for (let turn = 0; lines.count > 0; turn++) {
    const server = able[turn % able.length]!
    const { chunk, position } = lines.take(server, replicas)
    const { start } = chunk.lines[position]!.prompt
    dealt.get(server.name)!.push(Number(chunk.bytes.toString('utf8', start, start + 4)))
  }
  return dealt
}

/** How often a replica went on to another beginning. */
function switches(order: readonly number[]): number {
  return order.filter((beginning, i) => beginning !== order[i - 1]).length
}

function linesOf(...batches: readonly string[][]): BatchLines {
  const chunks = batches.map((one, i) => chunkOf(one, i))
  const lines = new BatchLines(chunks[0]!)
  for (const chunk of chunks) add(lines, chunk)
  return lines
}

test('every line is handed out once, whatever its beginning and whoever asks', () => {
  const all = [...prompts(13, 5), 'short', 'short', '', ...Array.from({ length: 20 }, (_, i) => `no ${i}`)]
  const lines = linesOf(all, all, prompts(40, 1))
  const replicas = [replica('a'), replica('b')]
  const seen = new Set<string>()
  for (let turn = 0; lines.count > 0; turn++) {
    const server = [...replicas, null][turn % 3]!
    const next = turn % 7 === 0 ? lines.draw((turn % 10) / 10) : lines.take(server, replicas)
    seen.add(`${next.chunk.claim.idx} ${next.position}`)
  }
  assert.equal(seen.size, 2 * all.length + 40)
})

test('a replica gets all lines of a beginning in a row, those of several chunks included', () => {
  const lines = linesOf(prompts(40, 5), prompts(40, 5, 1_000))
  const dealt = deal(lines, [replica('a'), replica('b'), replica('c'), replica('d')])
  const all = [...dealt.values()]
  const count = all.reduce((sum, order) => sum + switches(order), 0)
  // At the end, replicas without a pile of their own help the others.
  assert.ok(count <= 46, `${count} switches between 40 beginnings`)
  for (const order of all) assert.equal(order.length, 100)
})

test('what the lines of one chunk share by chance does not keep them apart from others', () => {
  const numbered = (from: number) => Array.from({ length: 100 }, (_, i) => prompt((i * 7) % 10, from + i))
  const lines = linesOf(numbered(1_000), numbered(2_000))
  const [order] = [...deal(lines, [replica('a')]).values()]
  assert.equal(switches(order!), 10)
})

test('the same beginnings go to the same replica again, in another worker as well', () => {
  const homes = (): Map<number, string> => {
    const found = new Map<number, string>()
    const lines = linesOf(prompts(12, 8))
    const replicas = [replica('a'), replica('b'), replica('c')]
    // What each replica takes first of all is certainly its own.
    for (const server of replicas) {
      const { chunk, position } = lines.take(server, replicas)
      const { start } = chunk.lines[position]!.prompt
      found.set(Number(chunk.bytes.toString('utf8', start, start + 4)), server.name)
    }
    return found
  }
  assert.equal(homes().size, 3)
  assert.deepEqual(homes(), homes())
})

test('of a replica that is down, the beginnings go to the others', () => {
  const lines = linesOf(prompts(30, 6))
  const replicas = [replica('a'), replica('b'), replica('c', false)]
  const dealt = deal(lines, replicas, replicas.slice(0, 2))
  assert.deepEqual(dealt.get('c'), [])
  const count = switches(dealt.get('a')!) + switches(dealt.get('b')!)
  assert.ok(count <= 34, `${count} switches between 30 beginnings`)
})

test('a beginning of which lines keep coming does not hold up the others', () => {
  const server = replica('a')
  const lines = linesOf([...prompts(1, 10), prompt(5, 1), prompt(5, 2)])
  const order: number[] = []
  for (let i = 0; i < 24; i++) {
    const { chunk, position } = lines.take(server, [server])
    const { start } = chunk.lines[position]!.prompt
    order.push(Number(chunk.bytes.toString('utf8', start, start + 4)))
    if (i < 12) add(lines, chunkOf(prompts(1, 2, i), i + 1))
  }
  assert.ok(order.indexOf(5) <= 10, order.join(' '))
})

test('prompts that share nothing keep the order of their chunks', () => {
  const lines = linesOf(['b', 'a'], ['d', 'c'])
  const replicas = [replica('x'), replica('y')]
  const order = [0, 1, 2, 3].map((i) => lines.take(replicas[i % 2]!, replicas))
  assert.deepEqual(
    order.map(({ chunk, position }) => [chunk.claim.idx, position]),
    [
      [0, 1],
      [0, 0],
      [1, 1],
      [1, 0],
    ],
  )
})

test('a removed chunk takes its lines along and leaves the others', () => {
  const lines = new BatchLines(chunkOf([]))
  const chunks = [chunkOf(prompts(5, 4), 0), chunkOf(prompts(5, 4), 1)]
  for (const chunk of chunks) add(lines, chunk)
  const server = replica('a')
  const taken = [0, 1, 2, 3, 4].map(() => lines.take(server, [server]))
  const fromFirst = taken.filter(({ chunk }) => chunk === chunks[0]).length
  const left = lines.remove(chunks[0]!)
  assert.equal(left.length, 20 - fromFirst)
  assert.equal(lines.count, 20 - (5 - fromFirst))
  while (lines.count > 0) assert.equal(lines.take(server, [server]).chunk, chunks[1])
})
