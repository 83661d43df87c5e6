// The index of the lines in the blobs of a chunk or in a journal, so that one line can be read without the others. It
// is the tail of the audit blob of a sealed chunk, and the tail of a journal:
//
//   entries (base64; for each line: number (4) | part (1) | result bytes (4) | audit bytes (4)) | footer (16 characters)
//
// Lines follow each other, so their lengths are enough. The tail does not end in a line break, unlike the JSON lines
// before it.
import { BlobDamaged, type ByteRange } from '../blobs/blobs.ts'
import type { SealedBlob, SealedBlobs } from '../blobs/sealed.ts'

/** A range of a blob. */
export interface Span {
  project_id: string
  blob: SealedBlob
  range: ByteRange
}

export interface LineSizes {
  /** The physical line number in the input file. */
  line: number
  part: 'output' | 'error'
  resultBytes: number
  auditBytes: number
}

export interface FinishedLine {
  line: number
  part: 'output' | 'error'
  audit: Span
  /** The location of the result; null once the result file has been deleted or has expired. */
  result: Span | null
}

const ENTRY_BYTES = 13
const FOOTER_BYTES = 16
const MAGIC = '#index-1'
/** Bytes that are read at once: the index of 3,000 lines, three times as many as a chunk has. */
const TAIL_BYTES = 64 * 1024

export function encodeLineIndex(lines: readonly LineSizes[]): Buffer {
  const entries = Buffer.allocUnsafe(ENTRY_BYTES * lines.length)
  let at = 0
  for (const { line, part, resultBytes, auditBytes } of lines) {
    at = entries.writeUInt32BE(line, at)
    at = entries.writeUInt8(part === 'output' ? 0 : 1, at)
    at = entries.writeUInt32BE(resultBytes, at)
    at = entries.writeUInt32BE(auditBytes, at)
  }
  return Buffer.from(entries.toString('base64') + lines.length.toString(16).padStart(8, '0') + MAGIC)
}

/** The index at the end of a blob, in the order in which the lines were written. Throws BlobDamaged. */
export async function readLineIndex(
  sealed: SealedBlobs,
  project_id: string,
  blob: SealedBlob,
): Promise<LineSizes[]> {
  const read = (bytes: number): Promise<Buffer> =>
    sealed.readAll(project_id, blob, { start: Math.max(0, blob.bytes - bytes), end: blob.bytes })
  let tail = await read(TAIL_BYTES)
  const footer = tail.toString('latin1', Math.max(0, tail.length - FOOTER_BYTES))
  if (!footer.endsWith(MAGIC)) throw new BlobDamaged(blob.key, 'it has no index of its lines')
  const count = Number.parseInt(footer.slice(0, 8), 16)
  const bytes = base64Bytes(ENTRY_BYTES * count) + FOOTER_BYTES
  if (bytes > tail.length) tail = await read(bytes)
  const text = tail.toString('latin1', tail.length - bytes, tail.length - FOOTER_BYTES)
  return decode(Buffer.from(text, 'base64'))
}

function decode(entries: Buffer): LineSizes[] {
  const lines: LineSizes[] = []
  for (let at = 0; at < entries.length; at += ENTRY_BYTES) {
    lines.push({
      line: entries.readUInt32BE(at),
      part: entries.readUInt8(at + 4) === 0 ? 'output' : 'error',
      resultBytes: entries.readUInt32BE(at + 5),
      auditBytes: entries.readUInt32BE(at + 9),
    })
  }
  return lines
}

function base64Bytes(bytes: number): number {
  return Math.ceil(bytes / 3) * 4
}

/** The lines in the blobs of a sealed chunk, as far as the blobs can still be read. */
export function placesInBlobs(
  lines: readonly LineSizes[],
  {
    project_id,
    audit,
    ...results
  }: Record<'output' | 'error', SealedBlob | undefined> & {
    project_id: string
    audit: SealedBlob
  },
): FinishedLine[] {
  const at = { output: 0, error: 0, audit: 0 }
  const next = (name: keyof typeof at, bytes: number): ByteRange => {
    const start = at[name]
    at[name] += bytes
    return { start, end: at[name] }
  }
  return lines.map(({ line, part, resultBytes, auditBytes }) => {
    const range = next(part, resultBytes)
    const blob = results[part]
    return {
      line,
      part,
      audit: { project_id, blob: audit, range: next('audit', auditBytes) },
      result: blob ? { project_id, blob, range } : null,
    }
  })
}
