// Streams the content of a file. An upload is one blob; a result file is the sealed chunks of its batch in order. While
// one chunk is sent, the next is opened.

import type { ByteRange } from '../blobs/blobs.ts'
import { mapAhead } from '../domain/project-queue.ts'
import { readBlobRow } from '../store/blobs.ts'
import { chunksOf } from '../store/chunks.ts'
import type { FileRow } from '../store/schema.ts'
import type { Reader } from '../store/store.ts'
import type { Ports } from './journal.ts'
import { streamSpan } from './read-spans.ts'

/** A part of a blob. */
interface Piece {
  key: string
  range: ByteRange
}

/** The bytes of `range`, which lies within the file. Throws ContentDestroyed, ContentShort. */
export async function* readContent(ports: Ports, file: FileRow, range: ByteRange): AsyncGenerator<Buffer> {
  const pieces =
    file.content_blob === null ? resultPieces(ports.db, file, range) : [{ key: file.content_blob, range }]
  const open = new Set<AsyncGenerator<Buffer>>()
  const begin = async (
    piece: Piece,
  ): Promise<{ first: IteratorResult<Buffer>; bytes: AsyncGenerator<Buffer> }> => {
    const bytes = readPiece(ports, file.project_id, piece)
    open.add(bytes)
    return { first: await bytes.next(), bytes }
  }
  try {
    for await (const { first, bytes } of mapAhead(pieces, 1, begin)) {
      if (!first.done) {
        yield first.value
        yield* bytes
      }
      open.delete(bytes)
    }
  } finally {
    // The reader may stop early.
    for (const bytes of open) await bytes.return(undefined)
  }
}

async function* readPiece({ db, sealed }: Ports, project_id: string, piece: Piece): AsyncGenerator<Buffer> {
  const blob = await readBlobRow(db, piece.key)
  if (!blob) throw new ContentDestroyed(piece.key)
  yield* streamSpan(sealed, { project_id, blob, range: piece.range })
}

async function* resultPieces(db: Reader, file: FileRow, range: ByteRange): AsyncGenerator<Piece> {
  if (file.batch_id === null || file.part === null) return
  let offset = 0
  for await (const chunk of chunksOf(db, file.batch_id)) {
    const [key, bytes] =
      file.part === 'output' ? [chunk.output_blob, chunk.output_bytes] : [chunk.error_blob, chunk.error_bytes]
    const start = Math.max(range.start - offset, 0)
    const end = Math.min(range.end - offset, bytes)
    if (key !== null && start < end) yield { key, range: { start, end } }
    offset += bytes
    if (offset >= range.end) return
  }
  // The response has announced this many bytes, and the caller would wait for them.
  if (offset < range.end) throw new ContentShort(file, offset)
}

/** The file was deleted while it was being read. */
class ContentDestroyed extends Error {
  constructor(key: string) {
    super(`the content in ${key} has been destroyed`)
    this.name = 'ContentDestroyed'
  }
}

/** The database is damaged: the chunks of the batch are shorter than its file. */
class ContentShort extends Error {
  constructor({ id, bytes }: FileRow, actualBytes: number) {
    super(`the chunks of ${id} hold ${actualBytes} bytes, but the file has ${bytes}`)
    this.name = 'ContentShort'
  }
}
