// A file as multipart/form-data (RFC 7578), streamed from disk with its length known beforehand.
import { randomBytes } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { Readable } from 'node:stream'

export interface FilePart {
  path: string
  filename: string
  /** Read at most this far, so that a file that grows meanwhile does not break the promise of its length. */
  bytes: number
}

export interface MultipartBody {
  headers: Record<string, string>
  content: Readable
}

const READ_BYTES = 256 * 1024

/** `fields` go before the file; `onBlock` sees the file's bytes as they are sent. */
export function multipartFile(
  fields: Readonly<Record<string, string>>,
  file: FilePart,
  onBlock: (block: Buffer) => void,
): MultipartBody {
  const boundary = `offpeak-${randomBytes(16).toString('hex')}`
  const before = Buffer.from(
    Object.entries(fields)
      .map(
        ([name, value]) =>
          `--${boundary}\r\ncontent-disposition: form-data; name="${name}"\r\n\r\n${value}\r\n`,
      )
      .join('') +
      `--${boundary}\r\ncontent-disposition: form-data; name="file"; filename="${quoted(file.filename)}"\r\n` +
      'content-type: application/jsonl\r\n\r\n',
  )
  const after = Buffer.from(`\r\n--${boundary}--\r\n`)
  async function* content(): AsyncGenerator<Buffer> {
    yield before
    if (file.bytes > 0) {
      const blocks: AsyncIterable<Buffer> = createReadStream(file.path, {
        end: file.bytes - 1,
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

/** As the WHATWG's form encoding writes file names. */
function quoted(filename: string): string {
  return filename.replaceAll('\r', '%0D').replaceAll('\n', '%0A').replaceAll('"', '%22')
}
