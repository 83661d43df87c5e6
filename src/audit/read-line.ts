// Reads one line: its input and its result byte for byte, and its audit record. The answer is composed of stored bytes,
// so every number keeps its digits.
import { isDamaged } from '../blobs/blobs.ts'
import type { SealedBlobs } from '../blobs/sealed.ts'
import { endingOf } from '../domain/batch.ts'
import { unixSeconds } from '../domain/clock.ts'
import { timeOfId } from '../domain/ids.ts'
import { type Model, serverNameOf } from '../domain/model.ts'
import { LineScanner } from '../jsonl/line-scan.ts'
import { findLine, inputLines, type ReadPorts } from '../results/finished-lines.ts'
import type { FinishedLine, Span } from '../results/line-index.ts'
import { RESULT_TAIL } from '../results/line-record.ts'
import { streamSpan } from '../results/read-content.ts'
import { readChunkOfLine } from '../store/chunks.ts'
import { readVisibleInput } from '../store/files.ts'
import type { BatchRow, BlobRow, ChunkRow } from '../store/schema.ts'
import type { LineSummary } from '../wire/batch-line.ts'
import type { LineRecord } from '../wire/request-record.ts'
import type { BackgroundResponse } from '../wire/response.ts'
import { pendingSummary, summaryOfRecord } from './list-lines.ts'

/**
 * The JSON of a BatchLine; undefined when the batch has no such line, or has not been planned yet. `showInput`: whether
 * the caller may read input files. `models` name the servers; null for operators, who also read addresses.
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
  const input = await inputLine(ports, chunk, content, line)
  const found = await findLine(ports, chunk, line)
  const record = found && (await readRecord(ports.sealed, found.audit, models))
  let summary: LineSummary
  if (record) summary = summaryOfRecord(JSON.parse(record.toString('utf8')))
  else if (input) summary = pendingSummary(batch, { line, bytes: input })
  else return undefined
  const shown = `${JSON.stringify(summary).slice(0, -1)},"input":`
  const head = [Buffer.from(shown), (showInput && input) || NULL, Buffer.from(',"result":')]
  const tail = [Buffer.from(',"record":'), record ?? NULL, Buffer.from('}')]
  // The line break at the end of a result is whitespace in JSON.
  return recordText(ports.sealed, Buffer.concat(head), found?.result ?? null, Buffer.concat(tail))
}

async function inputLine(
  ports: ReadPorts,
  chunk: ChunkRow,
  content: BlobRow | undefined,
  wanted: number,
): Promise<Buffer | undefined> {
  try {
    return (await inputLines(ports, content, chunk)).find(({ line }) => line === wanted)?.bytes
  } catch (error) {
    // The input may have been deleted just now; the rest can still be read.
    if (!isDamaged(error)) throw error
    return undefined
  }
}

const NULL = Buffer.from('null')

/** The line as the input file has it; undefined where that is gone, or has no such line. */
export async function readInput(
  ports: ReadPorts,
  batch: BatchRow,
  line: number,
): Promise<Buffer | undefined> {
  const chunk = await readChunkOfLine(ports.db, batch.id, line)
  const content = await readVisibleInput(ports.db, batch, ports.now)
  return chunk && (await inputLine(ports, chunk, content, line))
}

/** A record with stored text between `head` and `tail`, or `null` without it. */
function recordText(sealed: SealedBlobs, head: Buffer, stored: Span | null, tail: Buffer): LineRecordText {
  const size = stored === null ? NULL.length : stored.range.end - stored.range.start
  const text = (async function* () {
    yield head
    if (stored === null) yield NULL
    else yield* streamSpan(sealed, stored)
    yield tail
  })()
  return { bytes: head.length + size + tail.length, text }
}

// Finds the audit record of a line by the address in its request ID: batch and line number name the chunk, and the
// chunk's audit blob (or, while it is open, its journals) has the record. The record is put together from stored
// bytes: a response is as large as a server made it, and is streamed.

/** The text of a JSON object with `bytes` bytes. */
export interface LineRecordText {
  bytes: number
  text: AsyncIterable<Buffer>
}

/** The text before the response in a result line: within a JSON string, quotes are escaped. */
const BEFORE_RESPONSE = ',"response":'
const SEARCHED_BYTES = 4096

/**
 * The record of a line of the chunk, with its `response` while its result file exists (null afterwards, and for lines
 * that failed). Undefined when the line has not finished yet. `models` name the servers; null for operators, who also
 * read addresses.
 */
export async function readLineRecord(
  ports: ReadPorts,
  chunk: ChunkRow,
  line: number,
  models: ReadonlyMap<string, Model> | null,
): Promise<LineRecordText | undefined> {
  const found = await findLine(ports, chunk, line)
  return found && (await recordOfLine(ports.sealed, found, models))
}

export async function recordOfLine(
  sealed: SealedBlobs,
  found: FinishedLine,
  models: ReadonlyMap<string, Model> | null,
): Promise<LineRecordText> {
  const audit = await readRecord(sealed, found.audit, models)
  const { error }: { error: { code: string } | null } = JSON.parse(audit.toString('utf8'))
  const status = error === null ? 'completed' : (endingOf(error.code) ?? 'failed')
  const head = Buffer.concat([audit.subarray(0, -1), Buffer.from(`,"status":"${status}"${BEFORE_RESPONSE}`)])
  const response = found.part === 'output' && found.result ? await responseIn(sealed, found.result) : null
  return recordText(sealed, head, response, Buffer.from('}'))
}

/** The record of a line of the chunk that has not ended; undefined where there is no such line. */
export async function readPendingRecord(
  ports: ReadPorts,
  batch: BatchRow,
  chunk: ChunkRow,
  line: number,
): Promise<LineRecord | undefined> {
  const content = await readVisibleInput(ports.db, batch, ports.now)
  const bytes = await inputLine(ports, chunk, content, line)
  if (!bytes) return undefined
  const scanned = new LineScanner({ validated: true }).scan(bytes, 0, bytes.length)
  const { tags = null } = { ...JSON.parse(batch.metadata ?? '{}'), ...(scanned.ok && scanned.metadata) }
  const { id, custom_id, model, entity, conversation } = pendingSummary(batch, { line, bytes })
  return {
    ...{ id, batch_id: batch.id, custom_id, line, model, entity, conversation, tags, ...PENDING_LINE },
    created: acceptedAt(batch, custom_id),
    status: chunk.state === 'leased' ? 'in_progress' : 'queued',
  }
}

/**
 * The time (Unix s) at which a line was accepted: that of its batch; for a single request the time of its call, where the
 * custom_id is the ID of that.
 */
export function acceptedAt(batch: BatchRow, custom_id: string): number {
  const called = batch.is_gathered === 0 ? null : timeOfId('request', custom_id)
  const isOfBatch = called !== null && called > batch.created && called < batch.expires_at
  return unixSeconds(isOfBatch ? called : batch.created)
}

/** The fields that the records of all unfinished lines share. */
export const PENDING_LINE = {
  ...{ object: 'request' as const, kind: 'line' as const, status_code: null, attempts: [], usage: null },
  ...{ cost_usd: 0, error: null, response: null },
}

/** The status of a background response: servers mark an answer that was cut off as incomplete. */
export function responseStatus({
  status = 'queued',
  response,
  // Records of version 1.0.0 do not say so.
  incomplete = Object(Object(response).body).status === 'incomplete',
}: LineRecord): BackgroundResponse['status'] {
  if (incomplete) return 'incomplete'
  return status === 'expired' ? 'failed' : status
}

/** Reads a stored record, without its line break. */
async function readRecord(
  sealed: SealedBlobs,
  { project_id, blob, range }: Span,
  models: ReadonlyMap<string, Model> | null,
): Promise<Buffer> {
  const stored = await sealed.readAll(project_id, blob, range)
  const record = stored.subarray(0, stored.lastIndexOf('}') + 1)
  return models === null ? record : withServerNames(record, models)
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

// Callers read the names of model servers in records, not their addresses: a name made from an address, and a server
// that is no longer configured, are numbered.

/** Replaces server names; `record` is the JSON of a line's audit record. */
export function withServerNames(record: Buffer, models: ReadonlyMap<string, Model>): Buffer {
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
