// How soon a server is full of lines that nothing is known of: a file on the simulated engine in virtual time, with the
// concurrency that a worker finds from answers and from the server's metrics, and with all lines at once.
//
//   node bench/ramp.ts [--max 1024]
import type { ServerTraffic } from '../src/backends/backend.ts'
import { type Call, ModelServer } from '../src/servers/upstream.ts'
import { Engine, engineSettings } from './engine/engine.ts'
import { Bench, median, option, rounded } from './harness.ts'

const concurrency_max = option('max', 1024)
await using bench = new Bench('ramp')

const ENGINES = { 'Llama 3.1 8B on an H100': {}, 'a slower card': { step_ms: 25, seq_ms: 0.1 } }
const LINES = [64, 192, 512, 1024, 4096]
const PROMPT_TOKENS = 300
/** How many tokens the nth answer has. */
const ANSWERS: Readonly<Record<string, (n: number) => number>> = {
  '16 tokens': () => 16,
  '200 tokens': () => 200,
  '20 to 400 tokens': (n) => 20 + ((n * 7919) % 381),
  '500 to 1,500 tokens': (n) => 500 + ((n * 7919) % 1001),
}
/** How often a worker looks at its servers. */
const LOOK_MS = 200

/** Virtual seconds of a file. `isKnown`: all lines are sent at once. */
async function secondsOf(
  lines: number,
  settings: object,
  tokensOf: (n: number) => number,
  isKnown: boolean,
): Promise<number> {
  const engine = new Engine(engineSettings(settings))
  let now = 0
  let sent = 0
  const readTraffic = async (): Promise<ServerTraffic> => {
    engine.advance(now)
    const { running, waiting, kv_usage: cache, generation_tokens: tokens } = engine.stats
    return { running, waiting, cache, tokens, steps: null }
  }
  const never = new Promise<never>(() => {})
  const backend = { name: 'engine', send: () => never, close: async () => {}, readTraffic }
  const server = new ModelServer({ backend, modelAlias: null, concurrency_max })
  const fill = (): void => {
    for (; sent < lines && (isKnown || server.accepts(now)); sent++) {
      const ticket = { batch_id: 'b', line: {}, missedBefore: false, probing: null }
      const call: Call = { ...ticket, sentAt: now, inFlight: 0, cohort: null }
      server.begin(call)
      const size = { prompt_tokens: PROMPT_TOKENS, output_tokens: tokensOf(sent) }
      engine.submit({ ...size, priority: 0, keys: [], onDone: (at) => server.took(call, at) }, now)
    }
  }
  for (let look = LOOK_MS / 2; ; ) {
    fill()
    const next = engine.nextAt
    if (next === null) return now / 1000
    now = Math.min(next, look)
    engine.advance(now)
    if (now < look) continue
    look += LOOK_MS
    if (sent < lines) await server.seekRoom(() => now)
  }
}

for (const [engine, settings] of Object.entries(ENGINES)) {
  const ratios: number[] = []
  for (const [answers, tokensOf] of Object.entries(ANSWERS))
    for (const lines of LINES) {
      const best = await secondsOf(lines, settings, tokensOf, true)
      const found = await secondsOf(lines, settings, tokensOf, false)
      ratios.push(found / best)
      console.log(`${engine}, ${lines} lines of ${answers}: ${rounded(best)} s at best, ${rounded(found)} s`)
    }
  bench.figure(`${engine}: time ÷ all lines at once, median`, median(ratios), { atMost: 1.05 })
  bench.figure(`${engine}: time ÷ all lines at once, worst`, Math.max(...ratios), { atMost: 1.2 })
}
