// How long the end of a batch takes, in virtual time: the lines of a file go through the queue of a lane to the simulated engine,
// so many at once. Beside it the same queue without expected lengths, the order of the file, and all lines by length, longest
// first, which has about the shortest end there is. The tail is the time from 99 % of the lines to the last one.
//
// The files mix labels of 5 tokens and reports of 1,000, told apart by the beginning of the prompt, by `max_tokens`, or not at all.
//
//   node bench/tail.ts [--lines 30000] [--slots 64,256] [--seed 1]

import { IN_FLIGHT, UNSENT } from '../src/dispatch/line-state.ts'
import { Run } from '../src/dispatch/run.ts'
import { FairQueue } from '../src/dispatch/senders/fair-queue.ts'
import { lowWaterMark } from '../src/dispatch/senders/lane.ts'
import { readChunkLines } from '../src/jsonl/chunk-lines.ts'
import { inPromptOrder } from '../src/jsonl/prompt-prefixes.ts'
import type { BatchRow, ChunkRow } from '../src/store/schema.ts'
import { Engine, engineSettings } from './engine/engine.ts'
import { Bench, option, rounded } from './harness.ts'
import { around, randomOf } from './live-day.ts'

interface Line {
  asks: string
  max_tokens: number | undefined
  prompt_tokens: number
  output_tokens: number
}

interface Family {
  asks: string
  max_tokens?: number
  prompt: number
  output: number
  /** Of the lines, 0 to 1. */
  share: number
}

const lines = option('lines', 30_000)
const slots = option('slots', '64,256').split(',').map(Number)
const random = randomOf(option('seed', 1))
await using bench = new Bench('tail')

const LABELS = { asks: 'Which label fits this text?', max_tokens: 2000, prompt: 300, output: 5, share: 0.9 }
const REPORTS = { asks: 'Write a report about it.', max_tokens: 2000, prompt: 300, output: 1000, share: 0.1 }
/** Beginnings by which a server's prefix cache gains: a lane groups lines by them. */
const SYSTEM = 'You are a careful assistant of a large company, and answer in plain words. '.repeat(8)
const FILES: Readonly<Record<string, () => Line[]>> = {
  'told by the beginning': () => shuffled(of([LABELS, REPORTS])),
  'told by max_tokens': () =>
    shuffled(
      of([
        { ...LABELS, asks: '', max_tokens: 16 },
        { ...REPORTS, asks: '' },
      ]),
    ),
  'told by long beginnings': () =>
    shuffled(of([LABELS, REPORTS].map((one) => ({ ...one, asks: one.asks + SYSTEM })))),
  'not told apart': () => shuffled(of([LABELS, REPORTS].map((one) => ({ ...one, asks: '' })))),
  'labels, then reports': () => of([LABELS, REPORTS]),
}
const CHUNK_LINES = 1000
const SERVER = { name: 'engine', circuit: { closed: true } }

for (const [name, made] of Object.entries(FILES)) {
  const all = made()
  for (const count of slots) {
    const sent = (source: Source): Sent => send(all.length, source, count)
    const file = sent(listed(all))
    const unknowing = sent(queued(all, count, false))
    const offpeak = sent(queued(all, count, true))
    const longest = sent(listed(longestFirst(all)))
    console.log(`\n${name}, ${count} at once`)
    console.table({ file, 'without lengths': unknowing, offpeak, 'longest first': longest })
    bench.figure(`${name}, ${count} at once: tail ÷ longest first`, offpeak.tail_s / longest.tail_s)
    bench.figure(`${name}, ${count} at once: tail ÷ without lengths`, offpeak.tail_s / unknowing.tail_s)
    bench.figure(`${name}, ${count} at once: time ÷ without lengths`, offpeak.seconds / unknowing.seconds)
  }
}

interface Source {
  next(): Line | null
  ended?(line: Line): void
}

interface Sent {
  seconds: number
  tail_s: number
  tokens_per_s: number
}

/** Sends lines as long as there are any, so many at once. */
function send(total: number, source: Source, count: number): Sent {
  const engine = new Engine(engineSettings({ max_num_seqs: 512 }))
  let [now, inFlight, ended, tokens, most] = [0, 0, 0, 0, 0]
  const fill = (): void => {
    for (; inFlight < count; inFlight++) {
      const line = source.next()
      if (line === null) return
      const onDone = (at: number): void => {
        now = at
        inFlight--
        tokens += line.output_tokens
        if (++ended === Math.floor(0.99 * total)) most = at
        source.ended?.(line)
        fill()
      }
      engine.submit({ ...line, priority: 0, keys: [], onDone }, now)
    }
  }
  fill()
  while (engine.nextAt !== null) engine.advance(engine.nextAt)
  const [seconds = 0, tail_s = 0] = [now, now - most].map((ms) => rounded(ms / 1000))
  return { seconds, tail_s, tokens_per_s: Math.round((1000 * tokens) / now) }
}

function listed(all: readonly Line[]): Source {
  let at = 0
  return { next: () => all[at++] ?? null }
}

function longestFirst(all: readonly Line[]): Line[] {
  return all.toSorted((a, b) => b.output_tokens - a.output_tokens)
}

/** The queue of a lane, which gets chunks as long as it has few lines. */
function queued(all: readonly Line[], concurrency: number, hasTail: boolean): Source {
  const queue = new FairQueue(new Set())
  const runs = Array.from({ length: Math.ceil(all.length / CHUNK_LINES) }, (_, idx) =>
    runOf(all, idx, hasTail),
  )
  const sent = new Map<Line, { run: Run; position: number }>()
  let opened = 0
  let waiting = 0
  const open = (): void => {
    for (
      ;
      opened < runs.length && waiting < Math.max(lowWaterMark(concurrency), queue.linesAhead);
      opened++
    ) {
      const run = runs[opened]!
      waiting += run.lines.length
      queue.add(run, inPromptOrder(run, run.positions()), waiting)
    }
  }
  return {
    next() {
      open()
      const entry = queue.next(SERVER, [SERVER])
      if (entry === null) return null
      const { run, position } = entry
      waiting--
      run.move(position, IN_FLIGHT, 'it is sent')
      const line = all[run.claim.idx * CHUNK_LINES + position]!
      sent.set(line, entry)
      return line
    },
    ended(line) {
      const { run, position } = sent.get(line)!
      queue.lengths.ended(run, position, line.output_tokens)
    },
  }
}

function runOf(all: readonly Line[], idx: number, hasTail: boolean): Run {
  const own = all.slice(idx * CHUNK_LINES, (idx + 1) * CHUNK_LINES)
  const texts = own.map(({ asks, max_tokens }, i) => {
    const content = `${asks} ${(idx * CHUNK_LINES + i) * 7919} and more of it`
    const body = { model: 'm', messages: [{ role: 'user', content }], max_tokens }
    return `${JSON.stringify({ custom_id: `${i}`, method: 'POST', url: '/v1/chat/completions', body })}\n`
  })
  const bytes = Buffer.from(texts.join(''))
  const span = {
    index: idx,
    first_line: 1,
    line_count: own.length,
    byte_start: 0,
    byte_end: bytes.length,
    model: null,
  }
  const defaults = { endpoint: '/v1/chat/completions', metadata: null, header_entity: null, reask: null }
  const read = readChunkLines(bytes, span, new Map(), defaults).map((line, i) => ({
    ...line,
    output_tokens_max: own[i]!.max_tokens ?? 0,
  }))
  const claim = { project_id: 'p', entity: '', deadline: 1_000, batch_id: 'b', idx } as ChunkRow
  const chunk_count = hasTail ? Math.ceil(all.length / CHUNK_LINES) : Number.POSITIVE_INFINITY
  const batch = {
    id: 'b',
    reask: null,
    prefix_bytes: 0,
    lines_ahead: 0,
    is_gathered: 0,
    chunk_count,
  } as BatchRow
  const run = new Run(claim, batch, read, bytes)
  for (const position of run.positions()) run.move(position, UNSENT, 'it waits')
  return run
}

/** The lines of families, one family after the other. */
function of(families: readonly Family[]): Line[] {
  return families.flatMap(({ asks, max_tokens, prompt, output, share }) =>
    Array.from({ length: Math.round(share * lines) }, () => ({
      ...{ asks, max_tokens },
      ...{ prompt_tokens: around(prompt, random), output_tokens: around(output, random) },
    })),
  )
}

function shuffled(all: Line[]): Line[] {
  for (let i = all.length - 1; i > 0; i--) {
    const other = Math.floor(random() * (i + 1))
    ;[all[i], all[other]] = [all[other]!, all[i]!]
  }
  return all
}
