// Validates an uploaded file: every line must be well formed and every custom_id unique. Memory grows by eight bytes
// per custom_id, and by one row of the index per chunk. Those eight bytes are a hash: if two are equal, a second pass
// compares the IDs.
import { ERRORS } from '../domain/errors.ts'
import type { FileIndex } from '../jsonl/file-index.ts'
import { type IdHash, SeededHash } from './custom-id-hash.ts'
import { describeInvalidLines, type InvalidLines, type LineError } from './invalid-lines.ts'
import { type LineSink, LineSplitter } from './line-split.ts'
import { FirstPass, type ValidationLimits } from './validation-first-pass.ts'
import { SecondPass } from './validation-second-pass.ts'

export type Validation =
  | { ok: true; bytes: number; line_count: number; index: FileIndex }
  | {
      ok: false
      /** Requests in the file; absent when validation stopped early. */
      line_count?: number
      /** The first ERRORS_LISTED_MAX invalid lines, in order. */
      errors: LineError[]
      /** Invalid lines found; there may be more when validation stopped early. */
      error_count: number
      /** For `status_details`: the first invalid line, what is wrong, how to fix it, and how many more there are. */
      details: string
    }

export interface ValidateOptions {
  signal?: AbortSignal
  /** Called with the bytes read so far, after each block of the first pass. */
  onProgress?: (bytes: number) => void
  /** For tests: a weak hash makes collisions frequent. */
  hash?: IdHash
}

/**
 * `open` reads the file from its beginning; it is called a second time only if two custom_ids may be equal.
 * Throws what the source throws, and the signal's reason once it is aborted.
 */
export async function validateContent(
  open: () => AsyncIterable<Buffer>,
  limits: ValidationLimits,
  options: ValidateOptions = {},
): Promise<Validation> {
  const { signal, onProgress, hash = new SeededHash() } = options
  const first = new FirstPass(limits, hash)
  const bytes = await read(open(), limits, first, signal, onProgress)
  if (first.line_count === 0 && first.bad.count === 0) {
    first.bad.add(1, 'empty_file', ERRORS.empty_file.message)
  }
  const bad =
    first.collisions === 0
      ? first.bad
      : first.bad.merge(await duplicates(open(), limits, first, hash, signal))
  if (bad.count > 0) {
    const { list: errors, count: error_count } = bad
    const details = describeInvalidLines(bad, !first.stopped)
    if (first.stopped) return { ok: false, errors, error_count, details }
    return { ok: false, line_count: first.line_count, errors, error_count, details }
  }
  // So many different IDs with equal 64-bit hashes cannot occur; the file was not read to its end.
  if (first.stopped) throw new Error('the hash of custom_ids does not tell them apart')
  return { ok: true, bytes, line_count: first.line_count, index: first.index() }
}

async function duplicates(
  blocks: AsyncIterable<Buffer>,
  limits: ValidationLimits,
  first: FirstPass,
  hash: IdHash,
  signal: AbortSignal | undefined,
): Promise<InvalidLines> {
  const second = new SecondPass(first.collided, first.last_collision_line, hash)
  await read(blocks, limits, second, signal)
  return second.bad
}

/** Passes the lines of the file to `pass` until it has stopped; returns the bytes read. */
async function read(
  blocks: AsyncIterable<Buffer>,
  limits: ValidationLimits,
  pass: LineSink & { readonly stopped: boolean },
  signal: AbortSignal | undefined,
  onProgress?: (bytes: number) => void,
): Promise<number> {
  const splitter = new LineSplitter(limits.line_bytes_max, pass)
  let bytes = 0
  signal?.throwIfAborted()
  for await (const block of blocks) {
    signal?.throwIfAborted()
    splitter.push(block)
    bytes += block.length
    onProgress?.(bytes)
    if (pass.stopped) return bytes
  }
  splitter.end()
  return bytes
}
