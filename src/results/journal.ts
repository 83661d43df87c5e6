// The journal: finished lines of open chunks, written together so that a crash loses none. An entry is three rows of
// text: `LINE PART`, the result line, the audit line. After the last entry comes an index (line-index.ts).
import { BlobDamaged, type ByteRange } from '../blobs/blobs.ts'
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'
import type { JournalPartRow } from '../store/schema.ts'
import { type LinePlace, placesInJournal, readLineIndex } from './line-index.ts'
import type { Span } from './stream-span.ts'

/** The place of a finished line that is in a journal and not in memory. */
export interface Journalled {
  line: number
  part: 'output' | 'error'
  result: Span
  audit: Span
}

/** In place of a project: a journal has lines of several projects. */
export const JOURNAL_OWNER = 'offpeak'

/** Longer than the first row of an entry can be. */
const HEAD_BYTES_MAX = 32
const HEAD = /^([1-9]\d*) (output|error)\n$/

interface Part {
  part: Pick<JournalPartRow, 'byte_start' | 'byte_end'>
  blob: SealedBlob
}

/** Finds the entries of a part by reading all of it, which proves that they can be read. Throws BlobDamaged. */
export async function scanJournal(sealed: SealedBlobs, { part, blob }: Part): Promise<Journalled[]> {
  const range = { start: part.byte_start, end: part.byte_end }
  const rows = scanRows(sealed.read(JOURNAL_OWNER, blob, range), HEAD_BYTES_MAX, range.start)
  const found: LinePlace[] = []
  for (;;) {
    const { value: first } = await rows.next()
    if (!first) return journalled(blob, found)
    const head = HEAD.exec(first.head)
    if (!head) throw new BlobDamaged(blob.key, `a journal entry begins with "${first.head}"`)
    const { value: result } = await rows.next()
    const { value: audit } = await rows.next()
    if (!result || !audit) throw new BlobDamaged(blob.key, 'a journal entry is incomplete')
    found.push({
      line: Number(head[1]),
      part: head[2] === 'output' ? 'output' : 'error',
      result: { start: result.start, end: result.end },
      audit: { start: audit.start, end: audit.end },
    })
  }
}

/** Finds the entries of a part by the journal's index. */
export async function findJournalled(sealed: SealedBlobs, { part, blob }: Part): Promise<Journalled[]> {
  const places = placesInJournal(await readLineIndex(sealed, JOURNAL_OWNER, blob), 0)
  const isInPart = ({ result, audit }: LinePlace): boolean =>
    result.start > part.byte_start && audit.end <= part.byte_end
  return journalled(blob, places.filter(isInPart))
}

function journalled({ key, wrapped_key, bytes }: SealedBlob, places: readonly LinePlace[]): Journalled[] {
  const blob = { key, wrapped_key, bytes }
  const spanOf = (range: ByteRange): Span => ({ project_id: JOURNAL_OWNER, blob, range })
  return places.map((place) => ({ ...place, result: spanOf(place.result), audit: spanOf(place.audit) }))
}

/** A row of a blob, which ends with a line break. */
interface Row {
  start: number
  /** Behind its line break. */
  end: number
  /** Its first bytes, as many as requested. */
  head: string
}

const NEWLINE = 0x0a

/** `start` is the offset of the first piece. Bytes after the last line break are no row. */
export async function* scanRows(
  pieces: AsyncIterable<Buffer>,
  headBytes: number,
  start = 0,
): AsyncGenerator<Row, void, undefined> {
  let row = { start, head: '' }
  let at = start
  for await (const piece of pieces) {
    for (let from = 0; from < piece.length; ) {
      const found = piece.indexOf(NEWLINE, from)
      const end = found === -1 ? piece.length : found + 1
      const missing = headBytes - row.head.length
      if (missing > 0) row.head += piece.toString('latin1', from, Math.min(end, from + missing))
      from = end
      if (found === -1) continue
      yield { ...row, end: at + end }
      row = { start: at + end, head: '' }
    }
    at += piece.length
  }
}
