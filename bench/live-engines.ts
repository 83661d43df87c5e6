// The model servers that bench/live.ts measures on: four that are bound by different things, and any number that are
// drawn at random, so that nothing is tuned to four.
import type { EngineOptions } from '../src/backends/sim/engine/engine-settings.ts'
import { randomOf, type Workload } from './live-day.ts'

export interface LiveCase {
  engine: EngineOptions
  work: Workload
  /** The least and the most of the server's capacity that live traffic takes in a day. */
  load: readonly [number, number]
}

const WORK: Workload = {
  live: { prompt: 512, output: 200, priority: 0 },
  batch: { prompt: 512, output: 200, priority: 10 },
}
const usual = (engine: EngineOptions): LiveCase => ({ engine, work: WORK, load: [0.2, 0.9] })

/** What bounds each: the time of a step; seats; the KV cache; a large model on one server. */
export const CASES: Readonly<Record<string, LiveCase>> = {
  h100: usual({}),
  seats: usual({ max_num_seqs: 64 }),
  cache: usual({ kv_blocks: 6_000 }),
  slow: usual({ step_ms: 25, seq_ms: 0.1, prefill_token_ms: 0.15, kv_blocks: 15_000 }),
}

/** Seats, speed, cache, and lengths of prompts and answers, each over an order of magnitude. */
export function drawnCase(seed: number): LiveCase {
  const random = randomOf(seed * 7919)
  const over = (low: number, high: number): number => low * (high / low) ** random()
  const requestOf = (priority: number) => ({
    prompt: Math.round(over(64, 1500)),
    output: Math.round(over(50, 400)),
    priority,
  })
  const max_num_seqs = Math.round(over(24, 384))
  const step_ms = round(over(4, 30))
  const seq_ms = round(step_ms * over(0.0005, 0.02))
  const prefill_token_ms = round(step_ms * over(0.0005, 0.006))
  const work = { live: requestOf(0), batch: requestOf(10) }
  const longest = Math.max(...Object.values(work).map(({ prompt, output }) => prompt + output))
  const kv_blocks = Math.round((max_num_seqs * longest * over(0.4, 3)) / 16)
  const max_num_batched_tokens = random() < 0.5 ? 2048 : 8192
  return {
    engine: { max_num_seqs, max_num_batched_tokens, kv_blocks, step_ms, seq_ms, prefill_token_ms },
    work,
    load: [0.2, 0.9],
  }
}

function round(value: number): number {
  return Number(value.toPrecision(3))
}
