// Streams a file from disk as multipart/form-data (RFC 7578) with a known length.
import { randomBytes } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { Readable } from 'node:stream'

export interface FilePart {
  path: string
  filename: string
  /** The name of its field; `file` if not given. */
  field?: string
  /** Where in the file it begins; 0 if not given. */
  start?: number
  /** At most this many bytes are read, so that a file that grows does not exceed the declared length. */
  bytes: number
}

export interface MultipartBody {
  headers: Record<string, string>
  content: Readable
}

const READ_BYTES = 256 * 1024

/** Sends `fields` before the file; calls `onBlock` with each block of the file. */
export function multipartFile(
  fields: Readonly<Record<string, string>>,
  file: FilePart,
  onBlock: (block: Buffer) => void,
): MultipartBody {
  const { start = 0 } = file
  const boundary = `offpeak-${randomBytes(16).toString('hex')}`
  const before = Buffer.from(
    Object.entries(fields)
      .map(
        ([name, value]) =>
          `--${boundary}\r\ncontent-disposition: form-data; name="${name}"\r\n\r\n${value}\r\n`,
      )
      .join('') +
      `--${boundary}\r\ncontent-disposition: form-data; name="${file.field ?? 'file'}"; filename="${quoted(file.filename)}"\r\n` +
      'content-type: application/jsonl\r\n\r\n',
  )
  const after = Buffer.from(`\r\n--${boundary}--\r\n`)
  async function* content(): AsyncGenerator<Buffer> {
    yield before
    if (file.bytes > 0) {
      const blocks: AsyncIterable<Buffer> = createReadStream(file.path, {
        start,
        end: start + file.bytes - 1,
        highWaterMark: READ_BYTES,
      })
      for await (const block of blocks) {
        onBlock(block)
        yield block
      }
    }
    yield after
  }
  return {
    headers: {
      'content-type': `multipart/form-data; boundary=${boundary}`,
      'content-length': String(before.length + file.bytes + after.length),
    },
    content: Readable.from(content(), { objectMode: false }),
  }
}

/** Escapes a file name as the WHATWG's form encoding does. */
function quoted(filename: string): string {
  return filename.replaceAll('\r', '%0D').replaceAll('\n', '%0A').replaceAll('"', '%22')
}
