// Finds the beginnings that the prompts of a chunk share. Model servers keep the work of a beginning in a cache, so lines
// that share one go to the same server, one after the other.
import { hash } from 'node:crypto'
import type { OpenChunk } from '../../results/open-chunk.ts'

/** A shorter beginning saves a server too little: some 60 tokens. */
const DEPTH_MIN = 256
const DEPTH_MAX = 64 * 1024
/** Bytes compared at once. */
const BLOCK = 256
/**
 * A beginning has a multiple of it: what the lines of one chunk share by chance, such as the first digit of their
 * numbers, keeps them apart from those of other chunks.
 */
const DEPTH_STEP = 128

export interface Beginning {
  /** Equal for lines that begin alike, whatever their chunk. */
  key: string
  positions: readonly number[]
}

/**
 * How many bytes a beginning should have, 0 for none: as many as make the bytes that lines share with their neighbours
 * the most. `positions` are in the order of the prompts.
 */
export function sharedDepth(chunk: OpenChunk, positions: readonly number[]): number {
  const shared: number[] = []
  for (let i = 1; i < positions.length; i++) {
    const length = sharedBytes(chunk, positions[i - 1]!, positions[i]!)
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
export function beginningsOf(chunk: OpenChunk, positions: readonly number[], depth: number): Beginning[] {
  const { bytes, lines } = chunk
  const found: Beginning[] = []
  let first = 0
  for (let i = 1; i <= positions.length; i++) {
    if (i < positions.length && beginsAlike(chunk, positions[i - 1]!, positions[i]!, depth)) continue
    const { start, end } = lines[positions[first]!]!.prompt
    const key = hash('sha1', bytes.subarray(start, Math.min(end, start + depth)), 'base64')
    found.push({ key, positions: positions.slice(first, i) })
    first = i
  }
  return found
}

function beginsAlike({ bytes, lines }: OpenChunk, a: number, b: number, depth: number): boolean {
  const left = lines[a]!.prompt
  const right = lines[b]!.prompt
  if (left.end - left.start < depth || right.end - right.start < depth) return false
  return bytes.compare(bytes, right.start, right.start + depth, left.start, left.start + depth) === 0
}

function sharedBytes({ bytes, lines }: OpenChunk, a: number, b: number): number {
  const left = lines[a]!.prompt
  const right = lines[b]!.prompt
  const max = Math.min(left.end - left.start, right.end - right.start, DEPTH_MAX)
  let shared = 0
  const isAlike = (from: number, to: number): boolean =>
    bytes.compare(bytes, right.start + from, right.start + to, left.start + from, left.start + to) === 0
  while (shared + BLOCK <= max && isAlike(shared, shared + BLOCK)) shared += BLOCK
  while (shared < max && bytes[left.start + shared] === bytes[right.start + shared]) shared++
  return shared
}
