// Reads the failed lines of a batch that has ended, with their bytes unchanged, for a new input file.
import { chunkSummaries, matchesLine } from '../audit/list-lines.ts'
import { isTerminal } from '../domain/batch.ts'
import { ApiError } from '../domain/errors.ts'
import { LINE_BREAK } from '../jsonl/byte-lines.ts'
import { type InputLine, inputLines, type ReadPorts } from '../results/finished-lines.ts'
import { stretchesOf } from '../store/chunks.ts'
import { readFile, readVisibleInput } from '../store/files.ts'
import type { BatchRow, BlobRow, ChunkRow, FileRow } from '../store/schema.ts'
import type { Reader } from '../store/store.ts'
import type { FailedLines } from '../wire/batch.ts'

const NONE: ReadonlySet<number> = new Set()

/** Checks a retry by rows alone, without reading a chunk; returns the batch's input. Throws batch_not_retryable. */
export async function checkRetry(
  db: Reader,
  batch: BatchRow,
  which: FailedLines,
  now: number,
): Promise<{ input: FileRow; content: BlobRow }> {
  if (!isTerminal(batch.status)) throw notRetryable(`The batch is ${batch.status}. Wait until it has ended.`)
  if (batch.failed === 0) throw nothingFailed(which)
  const content = await readVisibleInput(db, batch, now)
  const input = await readFile(db, batch.project_id, batch.input_file_id, now)
  if (!content || !input)
    throw notRetryable('The input file of the batch has been deleted or has expired. Upload it again.')
  return { input, content }
}

/** The name of the file with a batch's failed lines. */
export function retryFilename({ id, input_filename }: BatchRow): string {
  return `retry-of-${input_filename?.replace(/^(retry-of-)+/, '') ?? `${id}.jsonl`}`
}

function nothingFailed({ codes, ...filter }: FailedLines): ApiError {
  const parts = Object.entries(filter).map(([name, value]) => `${name} ${JSON.stringify(value)}`)
  const all = [...(codes === undefined ? [] : [codes.join(' or ')]), ...parts]
  return notRetryable(`The batch has no failed line${all.length === 0 ? '' : ` with ${all.join(' and ')}`}.`)
}

/** The failed lines that match `which`. Throws batch_not_retryable without a match. */
export async function* failedLines(
  ports: ReadPorts,
  batch: BatchRow,
  which: FailedLines,
): AsyncGenerator<Buffer, void, undefined> {
  const { content } = await checkRetry(ports.db, batch, which, ports.now)
  let isNone = true
  for await (const stretch of stretchesOf(ports.db, batch.id, { begun: true })) {
    const lines: InputLine[] = []
    for (const chunk of stretch) {
      const numbers = chunk.failed === 0 ? NONE : await failedNumbers(ports, batch, chunk, which)
      if (numbers.size === 0) continue
      isNone = false
      lines.push(...(await inputLines(ports, content, chunk)).filter(({ line }) => numbers.has(line)))
    }
    if (lines.length === 0) continue
    yield Buffer.concat(lines.sort((a, b) => a.line - b.line).flatMap(({ bytes }) => [bytes, LINE_BREAK]))
  }
  if (isNone) throw nothingFailed(which)
}

async function failedNumbers(
  ports: ReadPorts,
  batch: BatchRow,
  chunk: ChunkRow,
  { codes, line: only, ...filter }: FailedLines,
): Promise<Set<number>> {
  const numbers = new Set<number>()
  const failed = chunkSummaries(ports, batch, chunk, undefined, { after: 0, status: 'failed' })
  for await (const summary of failed) {
    const { line, error } = summary
    if (only !== undefined && line !== only) continue
    if (error && (codes === undefined || codes.includes(error.code)) && matchesLine(summary, filter))
      numbers.add(line)
  }
  return numbers
}

function notRetryable(message: string): ApiError {
  return new ApiError('batch_not_retryable', message)
}
