// Reads one line: its input and its result byte for byte, and its audit record. They are put together from stored
// bytes, so that every number stays as it was written.
import { isDamaged } from '../blobs/blobs.ts'
import type { SealedBlobs } from '../blobs/sealed.ts'
import { type Model, serverNameOf } from '../domain/model.ts'
import { placesInChunk } from '../jsonl/chunk-lines.ts'
import type { ReadPorts } from '../results/chunk-journal.ts'
import { type FoundLine, findLine } from '../results/finished-lines.ts'
import { RESULT_TAIL } from '../results/result-line.ts'
import { type Span, streamSpan } from '../results/stream-span.ts'
import { readBatch } from '../store/batches.ts'
import { readChunkOfLine } from '../store/chunks.ts'
import { readVisibleInput } from '../store/files.ts'
import type { BatchRow, BlobRow, ChunkRow } from '../store/schema.ts'
import type { LineSummary } from '../wire/batch-line.ts'
import { pendingSummary, summaryOfRecord } from './list-lines.ts'

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

// Finds the audit record of a line by the address in its request ID: batch and line number name the chunk, and the
// chunk's audit blob (or, while it is open, its journals) has the record. The record is put together from stored
// bytes: a response is as large as a server made it, and is streamed.

/** A JSON object of `bytes` bytes. */
export interface LineRecordText {
  bytes: number
  text: AsyncIterable<Buffer>
}

/** What stands before the response in a result line: no string of JSON has a quote that is not escaped. */
const BEFORE_RESPONSE = ',"response":'
const SEARCHED_BYTES = 4096

/**
 * The record, with the line's `response` while its result file exists (null afterwards, and for lines that
 * failed). Undefined when the batch is not the project's, has no such line, or has not finished it yet. `models` name
 * the servers; null for operators, who also read addresses.
 */
export async function readLineRecord(
  ports: ReadPorts,
  project_id: string,
  batch_id: string,
  line: number,
  models: ReadonlyMap<string, Model> | null,
): Promise<LineRecordText | undefined> {
  const { db, sealed } = ports
  const batch = await readBatch(db, project_id, batch_id)
  const chunk = batch && (await readChunkOfLine(db, batch_id, line))
  const found = chunk && (await findLine(ports, chunk, line))
  if (!found) return undefined
  const { blob, range } = found.audit
  const stored = await sealed.readAll(found.audit.project_id, blob, range)
  const audit = models === null ? stored : withServerNames(stored, models)
  const record = audit.subarray(0, audit.lastIndexOf('}'))
  const head = Buffer.concat([record, Buffer.from(BEFORE_RESPONSE)])
  const response = found.part === 'output' && found.result ? await responseIn(sealed, found.result) : null
  if (!response) {
    const whole = Buffer.concat([head, Buffer.from('null}')])
    return { bytes: whole.length, text: streamed([whole]) }
  }
  const bytes = head.length + response.range.end - response.range.start + 1
  const text = streamSpan(sealed, response)
  return { bytes, text: streamed([head], text, [Buffer.from('}')]) }
}

async function responseIn(sealed: SealedBlobs, { project_id, blob, range }: Span): Promise<Span> {
  for (let searched = SEARCHED_BYTES; ; searched *= 2) {
    const end = Math.min(range.end, range.start + searched)
    const bytes = await sealed.readAll(project_id, blob, { start: range.start, end })
    const at = bytes.indexOf(BEFORE_RESPONSE)
    if (at !== -1) {
      const start = range.start + at + BEFORE_RESPONSE.length
      return { project_id, blob, range: { start, end: range.end - RESULT_TAIL.length } }
    }
    if (end === range.end) throw new Error(`a result line in ${blob.key} has no response`)
  }
}

async function* streamed(
  ...sources: (Iterable<Buffer> | AsyncIterable<Buffer>)[]
): AsyncGenerator<Buffer, void, undefined> {
  for (const source of sources) yield* source
}

// Callers read the names of model servers in records, not their addresses: a name that is made of an address, and a
// server that is no longer configured, are numbered.

/** `record`: JSON of a line's audit record. */
function withServerNames(record: Buffer, models: ReadonlyMap<string, Model>): Buffer {
  const { attempts, ...rest }: { attempts: { upstream: string }[]; upstream?: string } = JSON.parse(
    record.toString('utf8'),
  )
  const names = new Map<string, string>()
  const nameOf = (upstream: string): string => {
    const known = names.get(upstream) ?? serverNameOf(upstream, models)
    const name = known ?? `server-${names.size + 1}`
    names.set(upstream, name)
    return name
  }
  const shown = attempts.map((attempt) => ({ ...attempt, upstream: nameOf(attempt.upstream) }))
  const answered = rest.upstream === undefined ? {} : { upstream: nameOf(rest.upstream) }
  return Buffer.from(JSON.stringify({ ...rest, attempts: shown, ...answered }))
}
