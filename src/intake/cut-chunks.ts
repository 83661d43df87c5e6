// Groups the chunks of a file whose lines begin alike: one worker claims all chunks of a group. The chunks of a large
// file in which such lines are anywhere, as in a shuffled one, are cut along their beginnings. A stretch of consecutive
// lines is divided among chunks, one of each group, whose lines are copied once, since a worker would otherwise read the
// stretch for each of them. A result file is read by stretches as well (results/read-content.ts).
import { crc32 } from 'node:zlib'
import type { SealedBlob } from '../blobs/sealed.ts'
import { CHUNK_BYTES_MAX, CHUNK_LINES_MAX, type ChunkSpan } from '../domain/batch.ts'
import { LINE_BREAK } from '../jsonl/byte-lines.ts'
import { type ChunkLine, encodeLineNumbers, placesInChunk } from '../jsonl/chunk-lines.ts'
import type { Sharing } from '../jsonl/shared-beginnings.ts'

/** Lines of a group: as many as a worker claims at once, and at most as many as it may have open. */
const LINES_MIN = 4000
const LINES_MAX = 24_000
const BYTES_MAX = 32 * 1024 * 1024
/** The most chunks of a stretch. What begins alike further apart than their groups is not brought together. */
const GROUPS_MAX = 24
/** The bytes of a stretch in memory while it is divided. */
const STRETCH_BYTES = 32 * 1024 * 1024
/** The average fill of the chunks of a stretch: its lines are not divided evenly. */
const FILLED = 0.85
/** The least share of the prompts that has to be saved. */
const WORTH = 0.1

/** Reads the lines of a span; null where they cannot be read, `ending` where their batch needs them no more. */
export type ReadLines = (
  span: ChunkSpan,
) => Promise<{ bytes: Buffer; lines: readonly ChunkLine[] } | null | 'ending'>

interface Input {
  spans: readonly ChunkSpan[]
  sharing: Sharing
  read: ReadLines
  /** Stores the lines of a chunk. */
  write: (lines: Buffer, chunk: number) => Promise<SealedBlob>
  /** The lines of a group, at least; set by tests. */
  groupLinesMin?: number
}

/** The lines of a chunk that is being cut. */
interface Cut {
  lines: number[]
  pieces: Buffer[]
  bytes: number
  model: string | null | undefined
}

export interface CutChunks {
  spans: (ChunkSpan & { input_blob: string })[]
  blobs: SealedBlob[]
}

/**
 * Groups chunks in the order of their claims, where that order brings chunks from all over the file together: chunks with
 * the same beginnings go to one worker. Where an earlier chunk of the file follows a later one, others begin.
 */
export function groupByBeginnings(spans: readonly ChunkSpan[], groupLinesMin = LINES_MIN): ChunkSpan[] {
  const total = spans.reduce((sum, { line_count }) => sum + line_count, 0)
  const linesMin = Math.min(LINES_MAX / 2, Math.max(groupLinesMin, total / GROUPS_MAX))
  let [group, lines, bytes, before] = [1, 0, 0, 0]
  return spans.map((span) => {
    const { first_line, line_count, byte_start, byte_end } = span
    const isFull = lines + line_count > LINES_MAX || bytes + byte_end - byte_start > BYTES_MAX
    if (isFull || (lines >= linesMin && first_line < before)) [group, lines, bytes] = [group + 1, 0, 0]
    lines += line_count
    bytes += byte_end - byte_start
    before = first_line
    return { ...span, claim_group: group }
  })
}

/** Cuts a shuffled file along the beginnings that lines share; null where the chunks stay unchanged. */
export async function cutAlongBeginnings({
  sharing,
  read,
  write,
  groupLinesMin = LINES_MIN,
  ...input
}: Input): Promise<CutChunks | null> {
  const { prompt_bytes, shared_bytes, near_bytes, depth, isScattered } = sharing
  if (!isScattered || shared_bytes - near_bytes < WORTH * prompt_bytes) return null
  const spans = input.spans.toSorted((a, b) => a.first_line - b.first_line)
  const total = spans.reduce((sum, { line_count }) => sum + line_count, 0)
  const bytes = (spans.at(-1)?.byte_end ?? 0) - (spans[0]?.byte_start ?? 0)
  const parts = Math.ceil(Math.max(total / LINES_MAX, bytes / BYTES_MAX) / GROUPS_MAX)
  const groups = Math.min(GROUPS_MAX, Math.ceil(total / parts / groupLinesMin))
  if (groups < 2) return null
  const spansPerStretch = Math.max(
    1,
    Math.floor(Math.min(groups * FILLED, STRETCH_BYTES / (bytes / spans.length))),
  )
  const spansPerPart = Math.ceil(spans.length / parts / spansPerStretch) * spansPerStretch
  const cut: CutChunks = { spans: [], blobs: [] }
  for (let from = 0; from < spans.length; from += spansPerStretch) {
    const stretch = spans.slice(from, from + spansPerStretch)
    const chunks = Array.from(
      { length: groups },
      (): Cut => ({ lines: [], pieces: [], bytes: 0, model: undefined }),
    )
    for (const span of stretch) {
      const found = await read(span)
      if (found === null || found === 'ending') return null
      let next = 0
      for (const { start, end } of placesInChunk(found.bytes, span)) {
        const line = found.lines[next++]!
        const own = chunkFor(chunks, groupOf(found.bytes, line, depth, groups))
        own.model = own.model === undefined || own.model === line.model ? line.model : null
        own.lines.push(line.line)
        own.pieces.push(found.bytes.subarray(start, end), LINE_BREAK)
        own.bytes += end - start + 1
      }
    }
    const [first, last] = [stretch[0]!, stretch.at(-1)!]
    const part = Math.floor(from / spansPerPart)
    for (const [group, { lines, pieces, model = null }] of chunks.entries()) {
      if (lines.length === 0) continue
      const blob = await write(Buffer.concat(pieces), cut.blobs.length)
      cut.blobs.push(blob)
      cut.spans.push({
        ...first,
        byte_end: last.byte_end,
        stretch_line: first.first_line,
        first_line: lines[0]!,
        line_count: lines.length,
        lines: encodeLineNumbers(lines),
        model,
        claim_group: 1 + part * groups + group,
        input_blob: blob.key,
      })
    }
  }
  // Stable: the chunks of a group stay in the order of the file.
  cut.spans.sort((a, b) => a.claim_group! - b.claim_group!)
  for (const [index, span] of cut.spans.entries()) span.index = index
  return cut
}

/** The chunk of the group or, if that is full since too many lines begin alike, the emptiest. */
function chunkFor(chunks: readonly Cut[], group: number): Cut {
  const own = chunks[group]!
  const isFull = own.lines.length >= CHUNK_LINES_MAX || own.bytes > CHUNK_BYTES_MAX
  return isFull ? chunks.reduce((a, b) => (b.lines.length < a.lines.length ? b : a)) : own
}

function groupOf(bytes: Buffer, { model, prompt }: ChunkLine, depth: number, groups: number): number {
  const beginning = bytes.subarray(prompt.start, Math.min(prompt.end, prompt.start + depth))
  return (Math.imul(crc32(beginning, crc32(model ?? '')), 0x9e3779b1) >>> 0) % groups
}
