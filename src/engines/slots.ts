// How many requests a llama.cpp server works on at once, and how many tokens each may have.
import type { GgufModel } from './gguf.ts'

/** Of the memory that is free now; the rest is for what the server needs beside weights and cache. */
const MEMORY_SHARE = 0.7
const SLOTS_MAX = { cpu: 8, gpu: 32 }
const CONTEXT_MIN = 1024
/** A context is a multiple of it. */
const CONTEXT_STEP = 256
/** Where the model does not say. */
const CONTEXT_DEFAULT = 8192

export interface Slots {
  slots: number
  /** Tokens of each. */
  contextEach: number
}

/** `neededTokens`: what the longest request and its answer may take. */
export function slotsOf(
  model: GgufModel | null,
  neededTokens: number,
  machine: { freeBytes: number; hasGpu: boolean },
): Slots {
  const most = model?.context_length ?? CONTEXT_DEFAULT
  const wanted = Math.ceil(Math.max(neededTokens, CONTEXT_MIN) / CONTEXT_STEP) * CONTEXT_STEP
  const contextEach = Math.min(wanted, most)
  const slotsMax = machine.hasGpu ? SLOTS_MAX.gpu : SLOTS_MAX.cpu
  if (model === null || model.cache_bytes_per_token === null) return { slots: slotsMax, contextEach }
  const room = machine.freeBytes * MEMORY_SHARE - model.bytes
  const fitting = Math.floor(room / (contextEach * model.cache_bytes_per_token))
  return { slots: Math.max(1, Math.min(slotsMax, fitting)), contextEach }
}
