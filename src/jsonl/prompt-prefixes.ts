// Finds the prefixes that the prompts of a chunk share. Model servers cache the computation of a prefix, so lines that share
// one go to the same server, one after the other.
import { hash } from 'node:crypto'
import type { ChunkLine } from './chunk-lines.ts'

/** A shorter prefix saves a server too little: some 60 tokens. */
const DEPTH_MIN = 256
const DEPTH_MAX = 64 * 1024
const BLOCK = 256
/**
 * The unit of the length of prefixes: bytes that the lines of one chunk share by chance, such as the first digit of their
 * numbers, would keep them apart from those of other chunks.
 */
const DEPTH_STEP = 128

interface Prompts {
  /** The input, to which the prompts of the lines refer. */
  readonly bytes: Buffer
  readonly lines: readonly Pick<ChunkLine, 'prompt'>[]
}

export interface PrefixLines {
  /** Equal for lines that share the prefix, whatever their chunk. */
  key: string
  positions: readonly number[]
}

/** Sorts positions by prompt, so that lines that share a prefix follow one another. */
export function inPromptOrder({ bytes, lines }: Prompts, positions: number[]): number[] {
  return positions.sort((a, b) => {
    const left = lines[a]!.prompt
    const right = lines[b]!.prompt
    return bytes.compare(bytes, right.start, right.end, left.start, left.end) || a - b
  })
}

/**
 * The best length of a prefix in bytes, 0 for none: the length at which lines share the most bytes with their
 * neighbours. `positions` are in the order of the prompts.
 */
export function sharedDepth(of: Prompts, positions: readonly number[]): number {
  const shared: number[] = []
  for (let i = 1; i < positions.length; i++) {
    const length = sharedBytes(of, positions[i - 1]!, positions[i]!)
    if (length >= DEPTH_MIN) shared.push(length)
  }
  shared.sort((a, b) => b - a)
  let depth = 0
  let most = 0
  for (const [i, length] of shared.entries()) {
    const saved = length * (i + 1)
    if (saved < most) continue
    most = saved
    depth = length
  }
  return depth - (depth % DEPTH_STEP)
}

/** The lines by their first `depth` bytes, in the order of `positions`, which is that of the prompts. */
export function byPrefix(of: Prompts, positions: readonly number[], depth: number): PrefixLines[] {
  const { bytes, lines } = of
  const found: PrefixLines[] = []
  let first = 0
  for (let i = 1; i <= positions.length; i++) {
    if (i < positions.length && sharesPrefix(of, positions[i - 1]!, positions[i]!, depth)) continue
    const { start, end } = lines[positions[first]!]!.prompt
    const key = hash('sha1', bytes.subarray(start, Math.min(end, start + depth)), 'base64')
    found.push({ key, positions: positions.slice(first, i) })
    first = i
  }
  return found
}

function sharesPrefix({ bytes, lines }: Prompts, a: number, b: number, depth: number): boolean {
  const left = lines[a]!.prompt
  const right = lines[b]!.prompt
  if (left.end - left.start < depth || right.end - right.start < depth) return false
  return isAlike(bytes, left.start, right.start, depth)
}

function sharedBytes({ bytes, lines }: Prompts, a: number, b: number): number {
  const left = lines[a]!.prompt
  const right = lines[b]!.prompt
  const max = Math.min(left.end - left.start, right.end - right.start, DEPTH_MAX)
  let shared = 0
  while (shared + BLOCK <= max && isAlike(bytes, left.start + shared, right.start + shared, BLOCK))
    shared += BLOCK
  while (shared < max && bytes[left.start + shared] === bytes[right.start + shared]) shared++
  return shared
}

function isAlike(bytes: Buffer, a: number, b: number, length: number): boolean {
  // Most prompts differ early, and a comparison by the runtime costs more than that of a byte.
  if (bytes[a] !== bytes[b]) return false
  return bytes.compare(bytes, b, b + length, a, a + length) === 0
}
