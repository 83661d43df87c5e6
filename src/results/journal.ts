// The journal: finished lines of chunks that are still open, written together so that a crash loses none.
// An entry is three lines of text: `LINE PART`, the result line, the audit line.
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'
import type { JournalPartRow } from '../store/schema.ts'
import type { Outcome } from './outcome.ts'

/** What sealing needs of a line that was finished earlier. */
export type Written = Pick<Outcome, 'line' | 'part' | 'result' | 'audit'>

export function encodeEntries(outcomes: readonly Written[]): Buffer {
  let text = ''
  for (const { line, part, result, audit } of outcomes) text += `${line} ${part}\n${result}\n${audit}\n`
  return Buffer.from(text)
}

export function decodeEntries(bytes: Buffer): Written[] {
  const rows = bytes.toString().split('\n')
  const entries: Written[] = []
  for (let at = 0; at + 2 < rows.length; at += 3) {
    const [line, part] = rows[at]!.split(' ')
    if (part !== 'output' && part !== 'error') throw new Error(`journal entry ${at / 3} reads "${rows[at]}"`)
    entries.push({ line: Number(line), part, result: rows[at + 1]!, audit: rows[at + 2]! })
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
