import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type UnsentRun, unsentRun } from '../../../test/support/unsent-run.ts'
import { AnswerLengths } from '../../jsonl/answer-lengths.ts'
import { LineScanner } from '../../jsonl/line-scan.ts'
import { inPromptOrder } from '../../jsonl/prompt-prefixes.ts'
import { SharedBeginnings } from '../../jsonl/shared-beginnings.ts'
import { FINISHED, IN_FLIGHT, PAUSED, UNSENT } from '../line-state.ts'
import type { Run } from '../run.ts'
import { BatchLines, type Replica } from './fair-queue.ts'

function replica(name: string, closed = true): Replica & { circuit: { closed: boolean } } {
  return { name, circuit: { closed } }
}

function runOf(prompts: readonly string[], idx = 0): Run {
  return unsentRun({ prompts, idx })
}

function add(lines: BatchLines, run: Run): void {
  lines.add(run, inPromptOrder(run, run.positions()))
}

/** The next line of the replica, which is then in flight. */
function take(lines: BatchLines, server: Replica | null, replicas: readonly Replica[]) {
  const next = lines.next(server, replicas)
  next?.run.move(next.position, IN_FLIGHT, 'a test takes it')
  return next
}

function promptOf({ run, position }: { run: Run; position: number }): number {
  const { start } = run.lines[position]!.prompt
  return Number(run.bytes.toString('utf8', start, start + 4))
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
    dealt.get(server.name)!.push(promptOf(take(lines, server, replicas)!))
  }
  return dealt
}

/** How often a replica went on to another beginning. */
function switches(order: readonly number[]): number {
  return order.filter((beginning, i) => beginning !== order[i - 1]).length
}

/** Chunks of so many lines, of which a worker has some open. */
const CHUNK_LINES = 50
const CHUNKS_OPEN = 4

/** How many lines find their document in a cache of the last `cached`, of lines about `documents` in the order of a file. */
function hitsOf(documents: readonly number[], cached: number): number {
  const cache = new Set<number>()
  let hits = 0
  for (const document of documents) {
    if (cache.delete(document)) hits++
    cache.add(document)
    for (const oldest of cache) if (cache.size > cached) cache.delete(oldest)
  }
  return hits
}

/** The documents in the order in which lines about them are sent, by the plan of such a file. */
function sentOrder(documents: readonly number[]): number[] {
  const beginnings = new SharedBeginnings()
  const scanner = new LineScanner()
  const asked = documents.map((document, i) => prompt(document, i))
  for (const [i, content] of asked.entries()) {
    const body = { model: 'm', messages: [{ role: 'user', content }] }
    const bytes = Buffer.from(
      JSON.stringify({ custom_id: `${i}`, method: 'POST', url: '/v1/chat/completions', body }),
    )
    const line = scanner.scan(bytes, 0, bytes.length)
    assert.ok(line.ok)
    beginnings.add(line, Math.floor(i / CHUNK_LINES), i / CHUNK_LINES)
  }
  const count = Math.ceil(asked.length / CHUNK_LINES)
  const { chunks = Array.from({ length: count }, (_, i) => i), depth } = beginnings.finish(count)
  const runs = chunks.map((chunk, idx) => {
    const prompts = asked.slice(chunk * CHUNK_LINES, (chunk + 1) * CHUNK_LINES)
    return unsentRun({ prompts, idx, prefix_bytes: depth })
  })
  const lines = new BatchLines(runs[0]!, new AnswerLengths())
  const server = replica('a')
  const sent: number[] = []
  for (let opened = 0; sent.length < documents.length; ) {
    for (; opened < runs.length && lines.count < CHUNKS_OPEN * CHUNK_LINES; opened++)
      add(lines, runs[opened]!)
    sent.push(promptOf(take(lines, server, [server])!))
  }
  return sent
}

function linesOf(...batches: readonly string[][]): BatchLines {
  const runs = batches.map((one, i) => runOf(one, i))
  const lines = new BatchLines(runs[0]!, new AnswerLengths())
  for (const run of runs) add(lines, run)
  return lines
}

test('every line is handed out once, whatever its beginning and whoever asks', () => {
  const all = [...prompts(13, 5), 'short', 'short', '', ...Array.from({ length: 20 }, (_, i) => `no ${i}`)]
  const lines = linesOf(all, all, prompts(40, 1))
  const replicas = [replica('a'), replica('b')]
  const seen = new Set<string>()
  for (let turn = 0; lines.count > 0; turn++) {
    const server = [...replicas, null][turn % 3]!
    const next = turn % 7 === 0 ? lines.draw((turn % 10) / 10) : lines.next(server, replicas)
    seen.add(`${next!.run.claim.idx} ${next!.position}`)
  }
  assert.equal(seen.size, 2 * all.length + 40)
})

test('a replica gets all lines of a beginning in a row, those of several chunks included', () => {
  const lines = linesOf(prompts(40, 5), prompts(40, 5, 1_000))
  const dealt = deal(lines, [replica('a'), replica('b'), replica('c'), replica('d')])
  const all = [...dealt.values()]
  const count = all.reduce((sum, order) => sum + switches(order), 0)
  // At the end, replicas without lines of their own help the others.
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
      found.set(promptOf(take(lines, server, replicas)!), server.name)
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
    order.push(promptOf(take(lines, server, [server])!))
    if (i < 12) add(lines, runOf(prompts(1, 2, i), i + 1))
  }
  assert.ok(order.indexOf(5) <= 10, order.join(' '))
})

test('prompts that share nothing keep the order of their chunks', () => {
  const lines = linesOf(['b', 'a'], ['d', 'c'])
  const replicas = [replica('x'), replica('y')]
  const order = [0, 1, 2, 3].map((i) => lines.next(replicas[i % 2]!, replicas))
  assert.deepEqual(
    order.map((one) => [one!.run.claim.idx, one!.position]),
    [
      [0, 1],
      [0, 0],
      [1, 1],
      [1, 0],
    ],
  )
})

test('a line that is not unsent when its turn comes is passed over, and its entry is dropped', () => {
  const runs = [runOf(prompts(5, 4), 0), runOf(prompts(5, 4), 1)] as const
  const lines = new BatchLines(runs[0], new AnswerLengths())
  for (const run of runs) add(lines, run)
  const server = replica('a')
  for (let i = 0; i < 5; i++) take(lines, server, [server])
  for (const position of runs[0].positions(UNSENT)) runs[0].move(position, PAUSED, 'its batch is paused')
  const left = runs[1].count(UNSENT)
  for (let i = 0; i < left; i++) assert.equal(take(lines, server, [server])?.run, runs[1])
  assert.equal(lines.next(server, [server]), null)
  assert.equal(lines.count, 0)
})

test('dropping stale entries keeps the others, in their order', () => {
  const all = prompts(3, 4)
  const [run, same] = [runOf(all), runOf(all)]
  const [lines, expected] = [linesOf([]), linesOf([])]
  add(lines, run)
  add(expected, same)
  for (const [i, one] of [run, same].entries())
    for (const position of [2, 5, 7]) one.move(position, i === 0 ? PAUSED : FINISHED, 'it is not sent')
  const before = lines.count
  lines.dropStale()
  assert.equal(before - lines.count, 3)
  assert.equal(lines.count, 9)
  const server = replica('a')
  const order = (of: BatchLines): (number | undefined)[] =>
    Array.from({ length: 9 }, () => of.next(server, [server])?.position)
  assert.deepEqual(order(lines), order(expected))
})

test('lines about one document are sent one after the other, also where they are far apart in the file', () => {
  const [documents, questions, cached] = [1_000, 4, 50]
  const byQuestion = Array.from({ length: documents * questions }, (_, i) => i % documents)
  const byDocument = Array.from({ length: documents * questions }, (_, i) => Math.floor(i / questions))
  const best = documents * (questions - 1)
  assert.equal(hitsOf(byQuestion, cached), 0)
  assert.ok(hitsOf(sentOrder(byQuestion), cached) >= 0.95 * best)
  assert.ok(hitsOf(sentOrder(byDocument), cached) >= 0.99 * best)
})

const LABEL = 'Which of these labels does the text below have? Text '
const REPORT = 'Write a long report on the subject of this text. Text '

/** The kinds of the lines of a chunk in the order in which they are sent, after labels and reports of such lengths have ended. */
function sentKinds(labelTokens: number, reportTokens: number, more: Partial<UnsentRun> = {}): string {
  const prompts = Array.from({ length: 12 }, (_, i) => `${i % 3 === 2 ? REPORT : LABEL}${i}`)
  const run = unsentRun({ prompts, chunk_count: 1, output_tokens_max: 2_000, ...more })
  const lengths = new AnswerLengths()
  for (let i = 0; i < prompts.length; i++) lengths.ended(run, i, i % 3 === 2 ? reportTokens : labelTokens)
  const lines = new BatchLines(run, lengths)
  add(lines, run)
  return Array.from({ length: prompts.length }, () => {
    const { position } = take(lines, null, [])!
    return position % 3 === 2 ? 'r' : 'l'
  }).join('')
}

test('at the end of a batch, lines go first whose answers are expected to be long', () => {
  assert.equal(sentKinds(5, 900), 'rrrrllllllll')
  assert.equal(sentKinds(900, 5), 'llllllllrrrr')
  const byPrompt = 'llllllllrrrr'
  assert.equal(sentKinds(5, 900, { chunk_count: 20 }), byPrompt)
  assert.equal(sentKinds(5, 900, { idx: 18, chunk_count: 20 }), 'rrrrllllllll')
  assert.equal(sentKinds(5, 900, { line_order: 'file' }), byPrompt)
  assert.equal(sentKinds(5, 900, { is_gathered: 1 }), byPrompt, 'single requests wait for nobody')
})

test('at the end of a batch, beginnings that are shared stay together', () => {
  const all = [LABEL, REPORT].flatMap((kind) =>
    Array.from({ length: 6 }, (_, i) => `${kind}${'of the handbook. '.repeat(30)}${i}`),
  )
  const run = unsentRun({ prompts: all, chunk_count: 1 })
  const lengths = new AnswerLengths()
  // A report among them is short.
  for (let i = 0; i < 60; i++) lengths.ended(run, i % 12, i % 12 < 6 || i % 12 === 11 ? 5 : 900)
  const lines = new BatchLines(run, lengths)
  add(lines, run)
  const server = replica('a')
  const kinds = Array.from({ length: 12 }, () => (take(lines, server, [server])!.position < 6 ? 'l' : 'r'))
  assert.equal(kinds.join(''), 'rrrrrrllllll')
})

test('expected lengths are those of the last answers to lines that begin alike, or else the limit', () => {
  const prompts = [0, 1, 2].map((i) => `${LABEL}${i}`)
  const [run, other] = [2_000, 300].map((output_tokens_max) => unsentRun({ prompts, output_tokens_max }))
  const lengths = new AnswerLengths()
  for (let i = 0; i < 2; i++) lengths.ended(run!, i, 10)
  assert.equal(lengths.expected(run!, 2), 2_000, 'two answers say little')
  for (let i = 0; i < 2_500; i++) lengths.ended(run!, i % 3, i < 500 ? 10 : 40)
  assert.ok(Math.abs(lengths.expected(run!, 2) - 40) < 1)
  assert.equal(lengths.expected(other!, 2), 300)
  const random = unsentRun({ prompts: Array.from({ length: 20_000 }, (_, i) => `${i * 7919} is all`) })
  for (let i = 0; i < random.lines.length; i++) lengths.ended(random, i, 7)
  assert.ok(Math.abs(lengths.expected(run!, 2) - 40) < 1, 'families with many lines are kept')
})
