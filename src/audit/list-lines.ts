// Browses the lines of a batch with filters, while it runs and afterwards. Chunks that cannot have a matching line, by
// their counts, are skipped; of those that can, so many are read for one page. A page that ends there is short, and
// the next one goes on.
import { isDamaged } from '../blobs/blobs.ts'
import { errorPattern } from '../domain/error-pattern.ts'
import type { ReadPorts } from '../results/chunk-journal.ts'
import { listChunks, readChunk, readChunkOfLine } from '../store/chunks.ts'
import { readVisibleInput } from '../store/files.ts'
import { ROWS_LOOKED_AT_MAX } from '../store/page.ts'
import type { BatchRow, BlobRow, ChunkRow } from '../store/schema.ts'
import type { LineSummary, LinesQuery } from '../wire/batch-line.ts'
import { chunkSummaries } from './chunk-summaries.ts'

/** Chunks that are read for one page, and rows of chunks that are looked at together. */
const CHUNKS_READ_MAX = 50
const ROWS_PER_READ = 200

export interface LinesPage {
  lines: LineSummary[]
  /** The `after` of the next page; null when nothing more can follow now. */
  next: number | null
}

export type Order = Required<Pick<LinesQuery, 'after' | 'limit'>> & LineFilter

export async function listLines(ports: ReadPorts, batch: BatchRow, order: Order): Promise<LinesPage> {
  const content = await readVisibleInput(ports.db, batch, ports.now)
  const lines: LineSummary[] = []
  let read = 0
  let seen = 0
  let fromIdx = (await readChunkOfLine(ports.db, batch.id, order.after + 1))?.idx ?? 0
  for (;;) {
    const chunks = await listChunks(ports.db, batch.id, fromIdx, ROWS_PER_READ)
    for (const chunk of chunks) {
      if (!mayMatch(chunk, order)) continue
      if (read++ === CHUNKS_READ_MAX) return { lines, next: Math.max(chunk.first_line - 1, order.after) }
      for await (const line of linesOfChunk(ports, batch, chunk, content, order)) {
        if (!matchesLine(line, order)) continue
        // One more than asked for tells whether there is more.
        if (lines.length === order.limit) return { lines, next: lines.at(-1)?.line ?? order.after }
        lines.push(line)
      }
    }
    const end = chunks.at(-1)
    if (chunks.length < ROWS_PER_READ || !end) return { lines, next: null }
    fromIdx = end.idx + 1
    seen += chunks.length
    // Blank lines have numbers and are not counted: the next page may look at the last chunk again.
    if (seen >= ROWS_LOOKED_AT_MAX) {
      const next = Math.max(end.first_line + end.line_count - 1, lines.at(-1)?.line ?? 0)
      return { lines, next }
    }
  }
}

/** A chunk that is sealed while it is read takes its journals with it: the rest is then in its blobs. */
async function* linesOfChunk(
  ports: ReadPorts,
  batch: BatchRow,
  chunk: ChunkRow,
  content: BlobRow | undefined,
  order: Order,
): AsyncGenerator<LineSummary, void, undefined> {
  const { status } = order
  // An error can only be that of a failed line.
  const wanted = order.code !== undefined || order.message !== undefined ? 'failed' : status
  let after = order.after
  try {
    for await (const line of chunkSummaries(ports, batch, chunk, content, { after, status: wanted })) {
      after = line.line
      yield line
    }
  } catch (error) {
    const now = isDamaged(error) ? await readChunk(ports.db, batch.id, chunk.idx) : undefined
    if (now?.state !== 'sealed' || chunk.state === 'sealed') throw error
    yield* chunkSummaries(ports, batch, now, content, { after, status: wanted })
  }
}

function mayMatch(chunk: ChunkRow, { status, code, message, model }: Order): boolean {
  // Once it was parked, its model is only that of the lines that were left.
  if (model !== undefined && chunk.model !== null && chunk.model !== model && chunk.epoch <= 1) return false
  if (code !== undefined || message !== undefined || status === 'failed') return chunk.failed > 0
  if (status === 'completed') return chunk.completed > 0
  return status !== 'pending' || chunk.state !== 'sealed'
}

export type LineFilter = Omit<LinesQuery, 'after' | 'limit'>

export function matchesLine(line: LineSummary, filter: LineFilter): boolean {
  const { status, code, message, model, entity, custom_id } = filter
  return (
    (status === undefined || line.status === status) &&
    (code === undefined || line.error?.code === code) &&
    (message === undefined || (line.error !== null && errorPattern(line.error.message) === message)) &&
    (model === undefined || line.model === model) &&
    (entity === undefined || line.entity === entity) &&
    (custom_id === undefined || line.custom_id.includes(custom_id))
  )
}
