import { createReadStream } from 'node:fs'
import { DEFAULT_ENDPOINT, type EndpointPath } from '../../domain/endpoint.ts'
import { LineScanner } from '../../jsonl/line-scan.ts'
import { hasByteOrderMark, isBlank } from '../../jsonl/line-scan-span.ts'

// Splits a stream into lines without changing their bytes.

const NEWLINE = 0x0a

/** Yields each line without its `\n`, blank lines included. The caller may keep the bytes. */
export async function* byteLines(blocks: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  /** The blocks of a line whose end has not been read. */
  let open: Buffer[] = []
  for await (const block of blocks) {
    let start = 0
    for (let end = block.indexOf(NEWLINE); end !== -1; end = block.indexOf(NEWLINE, start)) {
      const last = block.subarray(start, end)
      yield open.length === 0 ? last : Buffer.concat([...open, last])
      open = []
      start = end + 1
    }
    if (start < block.length) open.push(block.subarray(start))
  }
  if (open.length > 0) yield Buffer.concat(open)
}

/**
 * The endpoint of a file of requests: the `url` of its first line. Where that cannot be read, the service says what is
 * wrong with the file.
 */
export async function endpointOfFile(path: string): Promise<EndpointPath> {
  const scanner = new LineScanner({ validated: true })
  for await (const line of byteLines(createReadStream(path))) {
    const start = hasByteOrderMark(line, 0, line.length) ? 3 : 0
    if (isBlank(line, start, line.length)) continue
    const scanned = scanner.scan(line, start, line.length)
    return scanned.ok ? scanned.url : DEFAULT_ENDPOINT
  }
  return DEFAULT_ENDPOINT
}
