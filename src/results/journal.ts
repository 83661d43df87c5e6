// The journal: finished lines of chunks that are still open, written together so that a crash loses none.
// An entry is three lines of text: `LINE PART`, the result line, the audit line.
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'
import type { JournalPartRow } from '../store/schema.ts'
import type { Outcome } from './outcome.ts'

const NEWLINE = 0x0a

/** What sealing needs of a line that was finished earlier. */
export type Written = Pick<Outcome, 'line' | 'part' | 'result' | 'audit'>

export function encodeEntries(outcomes: readonly Written[]): Buffer {
  return Buffer.concat(
    outcomes.flatMap(({ line, part, result, audit }) => [Buffer.from(`${line} ${part}\n`), result, audit]),
  )
}

export function decodeEntries(bytes: Buffer): Written[] {
  const entries: Written[] = []
  let at = 0
  const row = (): Buffer => {
    const end = bytes.indexOf(NEWLINE, at) + 1
    if (end === 0) throw new Error('a journal entry is cut short')
    const found = bytes.subarray(at, end)
    at = end
    return found
  }
  while (at < bytes.length) {
    const head = row().toString()
    const [line, part] = head.trimEnd().split(' ')
    if (part !== 'output' && part !== 'error') throw new Error(`a journal entry begins with "${head}"`)
    entries.push({ line: Number(line), part, result: row(), audit: row() })
  }
  return entries
}

/** Everything that the journals hold of one chunk. */
export async function readJournal(
  sealed: SealedBlobs,
  project_id: string,
  parts: readonly { part: JournalPartRow; blob: SealedBlob }[],
): Promise<Written[]> {
  const all: Written[] = []
  for (const { part, blob } of parts) {
    const pieces: Buffer[] = []
    for await (const piece of sealed.read(project_id, blob, { start: part.byte_start, end: part.byte_end })) {
      pieces.push(piece)
    }
    all.push(...decodeEntries(Buffer.concat(pieces)))
  }
  return all
}
