// The journal: finished lines of open chunks, written together so that a crash loses none. An entry is three rows of
// text: `LINE PART`, the result line, the audit line. After the last entry comes an index (line-index.ts).
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'
import type { JournalPartRow } from '../store/schema.ts'
import { type LinePlace, placesInJournal, readLineIndex } from './line-index.ts'
import { scanRows } from './scan-rows.ts'
import type { Span } from './stream-span.ts'

/** The place of a finished line that is in a journal and not in memory. */
export interface Journalled extends LinePlace {
  journal: SealedBlob
}

/** The journal's bytes are intact, but contain something else than entries. */
export class JournalMalformed extends Error {}

/** In place of a project: a journal has lines of several projects. */
export const JOURNAL_OWNER = 'offpeak'

/** Longer than the first row of an entry can be. */
const HEAD_BYTES_MAX = 32
const HEAD = /^([1-9]\d*) (output|error)\n$/

/** Where a field of a line is. */
export function spanOf(line: Journalled, field: 'result' | 'audit'): Span {
  return { project_id: JOURNAL_OWNER, blob: line.journal, range: line[field] }
}

interface Part {
  part: Pick<JournalPartRow, 'byte_start' | 'byte_end'>
  blob: SealedBlob
}

/** Finds the entries of a part by reading all of it, which proves that they can be read. */
export async function scanJournal(sealed: SealedBlobs, { part, blob }: Part): Promise<Journalled[]> {
  const range = { start: part.byte_start, end: part.byte_end }
  const rows = scanRows(sealed.read(JOURNAL_OWNER, blob, range), HEAD_BYTES_MAX, range.start)
  const journal = { key: blob.key, wrapped_key: blob.wrapped_key, bytes: blob.bytes }
  const found: Journalled[] = []
  for (;;) {
    const { value: first } = await rows.next()
    if (!first) return found
    const head = HEAD.exec(first.head)
    if (!head) throw new JournalMalformed(`a journal entry begins with "${first.head}"`)
    const { value: result } = await rows.next()
    const { value: audit } = await rows.next()
    if (!result || !audit) throw new JournalMalformed('a journal entry is incomplete')
    found.push({
      line: Number(head[1]),
      part: head[2] === 'output' ? 'output' : 'error',
      result: { start: result.start, end: result.end },
      audit: { start: audit.start, end: audit.end },
      journal,
    })
  }
}

/** Finds the entries of a part by the journal's index. */
export async function findJournalled(sealed: SealedBlobs, { part, blob }: Part): Promise<Journalled[]> {
  const index = await readLineIndex(sealed, JOURNAL_OWNER, blob)
  if (!index) return await scanJournal(sealed, { part, blob })
  const journal = { key: blob.key, wrapped_key: blob.wrapped_key, bytes: blob.bytes }
  return placesInJournal(index, 0)
    .filter(({ result, audit }) => result.start > part.byte_start && audit.end <= part.byte_end)
    .map((place) => ({ ...place, journal }))
}
