import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { ChunkSpan } from '../domain/batch.ts'
import { type ChunkLine, lineNumbers } from '../jsonl/chunk-lines.ts'
import { cutAlongBeginnings, groupByBeginnings } from './cut-chunks.ts'

const LINES = 12_000
const DOCUMENTS = 3_000
const SHARING = { prompt_bytes: 100, shared_bytes: 70, near_bytes: 5, depth: 256, isScattered: true as const }
const spans = Array.from({ length: LINES / 1000 }, (_, index): ChunkSpan => {
  const [byte_start, byte_end] = [index * 1000, (index + 1) * 1000]
  return { index, first_line: byte_start + 1, line_count: 1000, byte_start, byte_end, model: 'm' }
})

/** Documents are anywhere; the first of them is that of every second line. */
const documentOf = (line: number): number =>
  line % 2 === 0 ? 0 : ((Math.imul(line, 0x9e3779b1) >>> 7) % DOCUMENTS) + 1

async function read({ first_line, line_count }: ChunkSpan) {
  const all = Array.from({ length: line_count }, (_, i) => first_line + i)
  const bytes = Buffer.from(all.map((line) => `${documentOf(line)}`.padStart(8)).join('\n'))
  const lines = all.map(
    (line, i) => ({ line, model: 'm', prompt: { start: 9 * i, end: 9 * i + 8 } }) as ChunkLine,
  )
  return { bytes, lines }
}

async function write(): Promise<never> {
  throw new Error('nothing is copied')
}

test('lines that begin alike are in one group of chunks, of which none is larger than others', async () => {
  const written: Buffer[] = []
  const found = await cutAlongBeginnings({
    ...{ spans, sharing: SHARING, read },
    async write(bytes, chunk) {
      written[chunk] = bytes
      return { key: `${chunk}`, wrapped_key: '', bytes: bytes.length }
    },
  })
  assert.ok(found)
  const cut = found.spans
  assert.deepEqual(
    cut.map(({ index }) => index),
    cut.map((_, i) => i),
  )
  const groups = new Map<number, Set<number>>()
  const seen: number[] = []
  for (const span of cut) {
    const lines = lineNumbers(span) ?? []
    assert.ok(lines.length <= 1000 && lines.length === span.line_count && lines[0] === span.first_line)
    assert.ok(lines.every((line, i) => i === 0 || line > lines[i - 1]!))
    // A stretch ends where a chunk of the file did.
    assert.equal(span.byte_start + 1, span.stretch_line)
    assert.ok(lines.every((line) => line > span.byte_start && line <= span.byte_end))
    seen.push(...lines)
    const copied = written[Number(span.input_blob)]
    assert.equal(String(copied), lines.map((line) => `${documentOf(line)}\n`.padStart(9)).join(''))
    for (const line of lines) {
      const group = span.claim_group ?? 0
      groups.set(documentOf(line), (groups.get(documentOf(line)) ?? new Set()).add(group))
    }
  }
  assert.deepEqual(
    seen.sort((a, b) => a - b),
    Array.from({ length: LINES }, (_, i) => i + 1),
  )
  // What does not fit into a chunk goes to others, so a few documents are in two groups.
  assert.equal(groups.get(0)?.size, 3)
  const divided = [...groups.values()].filter((of) => of.size > 1).length
  assert.ok(divided < 0.3 * DOCUMENTS, `${divided} documents are divided`)
})

test('chunks stay as they are where too little is saved, and where the input cannot be read', async () => {
  const little = { ...SHARING, near_bytes: 65 }
  assert.equal(await cutAlongBeginnings({ spans, sharing: little, read, write }), null)
  const { isScattered: _, ...inOrder } = SHARING
  assert.equal(await cutAlongBeginnings({ spans, sharing: inOrder, read, write }), null)
  assert.equal(await cutAlongBeginnings({ spans: spans.slice(0, 4), sharing: SHARING, read, write }), null)
  assert.equal(await cutAlongBeginnings({ spans, sharing: SHARING, read: async () => null, write }), null)
})

test('chunks that an order brings together are in one group, of which none is larger than a worker may have open', () => {
  const groupsOf = (order: readonly number[]): number[] =>
    groupByBeginnings(order.map((chunk) => spans[chunk]!)).map(({ claim_group = 0 }) => claim_group)
  // Five questions about the documents of two chunks, and two about those of six.
  assert.deepEqual(groupsOf([0, 2, 4, 6, 8, 1, 3, 5, 7, 9]), [1, 1, 1, 1, 1, 2, 2, 2, 2, 2])
  assert.deepEqual(groupsOf([0, 6, 1, 7, 2, 8, 3, 9]), [1, 1, 1, 1, 2, 2, 2, 2])
  const large = spans.map((span) => ({ ...span, line_count: 7_000 }))
  assert.deepEqual(
    groupByBeginnings(large.slice(0, 6)).map(({ claim_group }) => claim_group),
    [1, 1, 1, 2, 2, 2],
  )
})
