// Finds the audit record of a line by the address in its request ID: batch and line number name the chunk, and the
// chunk's audit blob (or, while it is open, its journals) has the record. The record is put together from stored
// bytes: a response is as large as a server made it, and is streamed.
import type { SealedBlobs } from '../blobs/sealed.ts'
import { type Model, serverNameOf } from '../domain/model.ts'
import type { ReadPorts } from '../results/chunk-journal.ts'
import { findLine } from '../results/finished-lines.ts'
import { RESULT_TAIL } from '../results/result-line.ts'
import { type Span, streamSpan } from '../results/stream-span.ts'
import { readBatch } from '../store/batches.ts'
import { readChunkOfLine } from '../store/chunks.ts'

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
