// All that is known of one line: its input and its result byte for byte, and its audit record. Put together from
// stored bytes, so that every number stays as it was written.
import { isDamaged } from '../blobs/blobs.ts'
import type { Model } from '../domain/model.ts'
import { placesInChunk } from '../jsonl/chunk-lines.ts'
import type { ReadPorts } from '../results/chunk-journal.ts'
import { type FoundLine, findLine } from '../results/finished-lines.ts'
import { streamSpan } from '../results/stream-span.ts'
import { readChunkOfLine } from '../store/chunks.ts'
import { readVisibleInput } from '../store/files.ts'
import type { BatchRow, BlobRow, ChunkRow } from '../store/schema.ts'
import type { LineSummary } from '../wire/batch-line.ts'
import { pendingSummary, summaryOfRecord } from './list-lines.ts'
import { type LineRecordText, withServerNames } from './read-line-record.ts'

/**
 * The JSON of a BatchLine; undefined when the batch has no such line, or has not been planned yet. `showInput`:
 * whether the caller may read input files. `models` name the servers; null for operators, who also read addresses.
 */
export async function readLine(
  ports: ReadPorts,
  batch: BatchRow,
  line: number,
  showInput: boolean,
  models: ReadonlyMap<string, Model> | null,
): Promise<LineRecordText | undefined> {
  const chunk = await readChunkOfLine(ports.db, batch.id, line)
  if (!chunk) return undefined
  const content = await readVisibleInput(ports.db, batch, ports.now)
  const input = content && (await inputLine(ports, chunk, content, line))
  const found = await findLine(ports, chunk, line)
  if (found) return await finishedLine(ports, found, showInput ? input : undefined, models)
  if (!input) return undefined
  return whole(pendingSummary(batch, { line, bytes: input }), showInput ? input : null)
}

async function inputLine(
  { sealed }: ReadPorts,
  chunk: ChunkRow,
  content: BlobRow,
  wanted: number,
): Promise<Buffer | undefined> {
  const range = { start: chunk.byte_start, end: chunk.byte_end }
  try {
    const bytes = await sealed.readAll(content.project_id, content, range)
    for (const { line, start, end } of placesInChunk(bytes, {
      index: chunk.idx,
      first_line: chunk.first_line,
    }))
      if (line === wanted) return bytes.subarray(start, end)
  } catch (error) {
    // It may have been deleted just now; the rest can still be read.
    if (!isDamaged(error)) throw error
  }
  return undefined
}

async function finishedLine(
  { sealed }: ReadPorts,
  { audit, result }: FoundLine,
  input: Buffer | undefined,
  models: ReadonlyMap<string, Model> | null,
): Promise<LineRecordText> {
  const stored = withoutBreak(await sealed.readAll(audit.project_id, audit.blob, audit.range))
  const record = models === null ? stored : withServerNames(stored, models)
  const summary = JSON.stringify(summaryOfRecord(JSON.parse(record.toString('utf8'))))
  const head = [Buffer.from(`${summary.slice(0, -1)},"input":`), input ?? NULL, Buffer.from(',"result":')]
  const tail = [Buffer.from(',"record":'), record, Buffer.from('}')]
  // A result ends with a line break, which JSON allows there.
  const size = result === null ? NULL.length : result.range.end - result.range.start
  const bytes = [...head, ...tail].reduce((sum, piece) => sum + piece.length, size)
  return { bytes, text: pieces(head, result === null ? [NULL] : streamSpan(sealed, result), tail) }
}

const NULL = Buffer.from('null')
const LF = 0x0a

function withoutBreak(row: Buffer): Buffer {
  return row.at(-1) === LF ? row.subarray(0, -1) : row
}

function whole(summary: LineSummary, input: Buffer | null): LineRecordText {
  const head = Buffer.from(`${JSON.stringify(summary).slice(0, -1)},"input":`)
  const all = Buffer.concat([head, input ?? NULL, Buffer.from(',"result":null,"record":null}')])
  return { bytes: all.length, text: pieces([all]) }
}

async function* pieces(
  ...sources: (Iterable<Buffer> | AsyncIterable<Buffer>)[]
): AsyncGenerator<Buffer, void, undefined> {
  for (const source of sources) yield* source
}
