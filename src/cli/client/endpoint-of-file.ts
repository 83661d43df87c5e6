// The endpoint of a file of requests: the `url` of its first line. Where that cannot be read, the service says what is
// wrong with the file.
import { createReadStream } from 'node:fs'
import { DEFAULT_ENDPOINT, type EndpointPath } from '../../domain/endpoint.ts'
import { hasByteOrderMark, isBlank } from '../../jsonl/line-bytes.ts'
import { LineScanner } from '../../jsonl/line-scan.ts'
import { byteLines } from './byte-lines.ts'

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
