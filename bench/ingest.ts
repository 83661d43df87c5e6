// Validation of an upload against the least anyone could do with it: JSON.parse of every line, on the same
// lines in the same process. Goal: at least half as fast. In turns with it, the same validation that does not find the
// beginnings which lines share: its CPU time should be at most 5 % less.
//
//   node bench/ingest.ts [--megabytes 200]
import { validateContent } from '../src/intake/validation.ts'
import { SharedBeginnings } from '../src/jsonl/shared-beginnings.ts'
import { Bench, inTurns, option } from './harness.ts'

const ROUNDS = 3
/** Two ways whose difference is small need more rounds. */
const ROUNDS_OF_BEGINNINGS = 15
const BLOCK_BYTES = 64 * 1024
const LIMITS = { lines_max: 10_000_000, line_bytes_max: 8 * 1024 * 1024 }
const WORDS =
  'the quick brown fox jumps over a lazy dog while seventeen engineers argue about tokens, prices and caches'.split(
    ' ',
  )

interface Input {
  name: string
  line_bytes: number
  /** Line breaks and quotes in the text, which JSON must escape. */
  escapes: boolean
  /** A share of text beyond ASCII. */
  foreign: boolean
  /** The bytes of the system prompt, in which all lines begin alike. */
  system?: number
}

const INPUTS: Input[] = [
  { name: '1 KiB lines, plain text', line_bytes: 1024, escapes: false, foreign: false },
  {
    name: '1 KiB lines, half of them one system prompt',
    line_bytes: 1024,
    escapes: false,
    foreign: false,
    system: 512,
  },
  { name: '1 KiB lines, escapes', line_bytes: 1024, escapes: true, foreign: false },
  { name: '1 KiB lines, escapes, German and Japanese', line_bytes: 1024, escapes: true, foreign: true },
  { name: '8 KiB lines, plain text', line_bytes: 8192, escapes: false, foreign: false },
  { name: '8 KiB lines, escapes', line_bytes: 8192, escapes: true, foreign: false },
]

const megabytes = option('megabytes', 200)
await using bench = new Bench('ingest')
console.log(`${megabytes} MB a file, best of ${ROUNDS}`)
for (const input of INPUTS) {
  const file = makeFile(input, megabytes * 1e6)
  const ratio = await compare(input, file)
  bench.figure(`${input.name}: validation ÷ JSON.parse`, ratio, { atLeast: 0.5 })
  bench.figure(`${input.name}: CPU with beginnings ÷ without`, await beginningsOf(file), { atMost: 1.05 })
}

/** The least CPU time of validation, divided by that of validation that does not look at beginnings. */
async function beginningsOf(file: Buffer[]): Promise<number> {
  const { add } = SharedBeginnings.prototype
  const validated = (with_beginnings: boolean) => async () => {
    SharedBeginnings.prototype.add = with_beginnings ? add : () => {}
    const before = process.cpuUsage()
    await validateAll(file)
    const { user, system } = process.cpuUsage(before)
    return user + system
  }
  const [found = [], left = []] = await inTurns(ROUNDS_OF_BEGINNINGS, [validated(true), validated(false)])
  SharedBeginnings.prototype.add = add
  return Math.min(...found) / Math.min(...left)
}

async function compare(input: Input, file: Buffer[]): Promise<number> {
  const bytes = file.reduce((sum, block) => sum + block.length, 0)
  let parse_ms = Number.POSITIVE_INFINITY
  let validateMs = Number.POSITIVE_INFINITY
  for (let round = 0; round < ROUNDS; round++) {
    parse_ms = Math.min(parse_ms, await timed(() => parseAll(file)))
    validateMs = Math.min(validateMs, await timed(() => validateAll(file)))
  }
  const ratio = parse_ms / validateMs
  console.log(
    `${input.name}: validateStream ${speed(bytes, validateMs)}, JSON.parse ${speed(bytes, parse_ms)}, ratio ${ratio.toFixed(2)}`,
  )
  return ratio
}

async function validateAll(file: Buffer[]): Promise<void> {
  const validation = await validateContent(() => stream(file), LIMITS)
  if (!validation.ok) throw new Error(validation.details)
}

async function* stream(file: Buffer[]): AsyncGenerator<Buffer> {
  yield* file
}

/** Lines that cross blocks are left out: the baseline has no joining to do. */
function parseAll(file: Buffer[]): void {
  for (const block of file) {
    let start = block.indexOf(10) + 1
    for (let end = block.indexOf(10, start); end >= 0; end = block.indexOf(10, start)) {
      JSON.parse(block.toString('utf8', start, end))
      start = end + 1
    }
  }
}

async function timed(run: () => Promise<void> | void): Promise<number> {
  const start = performance.now()
  await run()
  return performance.now() - start
}

function speed(bytes: number, ms: number): string {
  return `${(bytes / 1e3 / ms).toFixed(0)} MB/s`
}

function makeFile(input: Input, bytes: number): Buffer[] {
  const blocks: Buffer[] = []
  let rest = Buffer.alloc(0)
  for (let made = 0, i = 0; made < bytes; ) {
    const lines: string[] = []
    for (let size = 0; size < 16 * BLOCK_BYTES; i++) {
      const line = makeLine(input, i)
      lines.push(line)
      size += line.length + 1
    }
    rest = Buffer.concat([rest, Buffer.from(`${lines.join('\n')}\n`)])
    made += rest.length
    while (rest.length >= BLOCK_BYTES) {
      blocks.push(Buffer.from(rest.subarray(0, BLOCK_BYTES)))
      rest = rest.subarray(BLOCK_BYTES)
    }
    made -= rest.length
  }
  return [...blocks, rest]
}

function makeLine({ line_bytes, escapes, foreign, system = 0 }: Input, i: number): string {
  let text = ''
  for (let k = 0; text.length < line_bytes - 300 - system; k++) {
    text += `${WORDS[(k * 7 + i) % WORDS.length]} `
    if (escapes && k % 12 === 11) text += '\n'
    if (escapes && k % 31 === 30) text += '"so to speak" '
    if (foreign && k % 10 === 9) text += 'Übermäßig größere Straßen 東京の夜 '
  }
  return JSON.stringify({
    custom_id: `request-${i}`,
    method: 'POST',
    url: '/v1/chat/completions',
    body: {
      model: 'sim-1',
      messages: [
        { role: 'system', content: 'You are a helpful assistant. '.repeat(1 + system / 29) },
        { role: 'user', content: text },
      ],
      max_tokens: 256,
      temperature: 0.2,
    },
    metadata: { entity: `user:${i % 1000}` },
  })
}
