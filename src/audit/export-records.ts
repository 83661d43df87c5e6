// Reads the audit log in order: calls by the time of their answer, lines by the time when their chunk was sealed. The
// order never changes, and nothing is added before a position that was read: a reader that continues after the last
// record misses none and reads none twice.
//
// A row gets its time at the start of the transaction that inserts it. The log is therefore read up to a time before
// which no transaction may still be running: each ends sooner, by the timeouts of its statements.
import { isDamaged } from '../blobs/blobs.ts'
import { lineRequestId, parseLineRequestId } from '../domain/ids.ts'
import type { Model } from '../domain/model.ts'
import { lineNumbers } from '../jsonl/chunk-lines.ts'
import { finishedLines, type ReadPorts } from '../results/finished-lines.ts'
import { readRecords } from '../results/read-content.ts'
import { listAnsweredCalls } from '../store/calls.ts'
import { listSealedChunks, type SealedChunkRow } from '../store/chunks.ts'
import { type AuditPosition, type AuditWindow, LAST_OF_MS } from '../store/page.ts'
import type { HttpRequestRow } from '../store/schema.ts'
import { withServerNames } from './read-line.ts'

/** The least age of the records that are read. */
export const SETTLED_MS = 120_000
/** The limit of chunks that are read for a page. */
const CHUNKS_MAX = 16

const POSITION = /^(\d{1,15})-(req_[0-9a-z]{26,33}|z)$/

export const START: AuditPosition = { at: 0, id: LAST_OF_MS }

export function positionText({ at, id }: AuditPosition): string {
  return `${at}-${id}`
}

/** The position in a cursor; null for other text. */
export function parsePosition(text: string): AuditPosition | null {
  const [, at, id] = POSITION.exec(text) ?? []
  return at === undefined || id === undefined ? null : { at: Number(at), id }
}

/** A record: the row of a call, or a line's JSON without its last brace, where the position is added. */
type Entry = AuditPosition & ({ call: HttpRequestRow } | { line: Buffer })

export interface AuditPage {
  entries: Entry[]
  /** The position after which the next page begins. */
  next: AuditPosition
  hasMore: boolean
}

interface AuditOrder {
  /** The project of the records; null: all projects. */
  project_id: string | null
  after: AuditPosition
  limit: number
  /** The models that name the servers in records of lines; null for operators, who also read addresses. */
  models: ReadonlyMap<string, Model> | null
}

/** A page of the audit log, which may be short or empty although more records follow. */
export async function readAuditLog(
  ports: ReadPorts,
  { project_id, after, limit, models }: AuditOrder,
): Promise<AuditPage> {
  const until = ports.now - SETTLED_MS
  const window = (rows: number): AuditWindow => ({ project_id, after, until, limit: rows })
  const calls = await listAnsweredCalls(ports.db, window(limit))
  const chunks = await listSealedChunks(ports.db, window(CHUNKS_MAX))
  // Each window of rows is complete only up to its own end.
  const ends = [calls.end, chunks.end].filter((end) => end !== null).sort(inOrder)
  const [end] = ends
  const rows = [
    ...calls.rows.map((call) => ({ at: call.created, id: call.id, call })),
    ...chunks.rows.map((chunk) => ({
      ...{ at: chunk.sealed_at, id: lineRequestId(chunk.batch_id, chunk.first_line), chunk },
    })),
  ].sort(inOrder)
  const entries: Entry[] = []
  for (const row of rows) {
    if (end && inOrder(row, end) > 0) break
    if (entries.length >= limit) return pageOf(entries, true)
    if ('call' in row) entries.push(row)
    else entries.push(...(await linesOf(ports, row.chunk, after, models)))
    if (entries.length > limit) return pageOf(entries.slice(0, limit), true)
  }
  const last = entries.at(-1)
  if (end === undefined) return { entries, next: last ?? after, hasMore: false }
  if (last && inOrder(last, end) >= 0) return pageOf(entries, true)
  // A position must not show the ID of another project's row, unless a single millisecond has more rows than a window.
  const isPassed = project_id === null || end.at - 1 <= Math.max(after.at, last?.at ?? 0)
  return { entries, next: isPassed ? end : { at: end.at - 1, id: LAST_OF_MS }, hasMore: true }
}

function pageOf(entries: Entry[], hasMore: boolean): AuditPage {
  return { entries, next: entries.at(-1) ?? START, hasMore }
}

function inOrder(a: AuditPosition, b: AuditPosition): number {
  return a.at - b.at || (a.id < b.id ? -1 : a.id > b.id ? 1 : 0)
}

/** The records of the chunk's lines after `after`. A chunk that cannot be read has one record with the error. */
async function linesOf(
  ports: ReadPorts,
  chunk: SealedChunkRow,
  after: AuditPosition,
  models: AuditOrder['models'],
): Promise<Entry[]> {
  const { batch_id, sealed_at: at, first_line } = chunk
  const from = parseLineRequestId(after.id)
  const isBegun = at === after.at && from?.batchId === batch_id
  // Of chunks that share a stretch, only the one with that line.
  const begun = isBegun && (lineNumbers(chunk)?.includes(from.line) ?? true) ? from.line : 0
  try {
    const lines = (await finishedLines(ports, chunk)).filter(({ line }) => line > begun)
    const audits = lines.map(({ audit }) => audit)
    const records = await readRecords(ports.sealed, audits)
    return lines.map(({ line }, i) => {
      const record = Buffer.from(records[i] ?? '')
      const shown = models === null ? record : withServerNames(record, models)
      return { at, id: lineRequestId(batch_id, line), line: shown }
    })
  } catch (error) {
    if (!isDamaged(error)) throw error
    if (begun >= first_line) return []
    const about = {
      object: 'request',
      kind: 'unreadable',
      batch_id,
      line: first_line,
      lines: chunk.line_count,
    }
    const id = lineRequestId(batch_id, first_line)
    return [{ at, id, line: Buffer.from(JSON.stringify({ id, ...about })) }]
  }
}
