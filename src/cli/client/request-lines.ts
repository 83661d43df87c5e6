// Reads the endpoint of a file of requests, and replaces the model in its lines, as bytes.
import { createReadStream } from 'node:fs'
import { DEFAULT_ENDPOINT, type EndpointPath } from '../../domain/endpoint.ts'
import { byteLines, hasByteOrderMark, isBlank } from '../../jsonl/byte-lines.ts'
import { LineScanner } from '../../jsonl/line-scan.ts'
import { counted } from '../terminal/format.ts'

/**
 * The endpoint of a file of requests: the `url` of its first line. For an unreadable line the default, since the
 * service rejects the file.
 */
export async function endpointOfFile(path: string): Promise<EndpointPath> {
  const scanner = new LineScanner({ validated: true })
  for await (const { line } of byteLines(createReadStream(path))) {
    const start = hasByteOrderMark(line, 0, line.length) ? 3 : 0
    if (isBlank(line, start, line.length)) continue
    const scanned = scanner.scan(line, start, line.length)
    return scanned.ok ? scanned.url : DEFAULT_ENDPOINT
  }
  return DEFAULT_ENDPOINT
}

const NEWLINE = Buffer.from('\n')
const NAMED_MAX = 3

/** The model that a run sets in its requests. */
export class ModelOverride {
  readonly model: string
  /** How many lines name each of the other models; null: none. */
  readonly #replaced = new Map<string | null, number>()

  constructor(model: string) {
    this.model = model
  }

  /** Lines that are no requests stay as they are: the service says what is wrong with them. */
  async *lines(input: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    const scanner = new LineScanner({ validated: true })
    const name = Buffer.from(JSON.stringify(this.model))
    for await (const { line: bytes } of byteLines(input)) {
      const line = scanner.scan(bytes, hasByteOrderMark(bytes, 0, bytes.length) ? 3 : 0, bytes.length)
      if (!line.ok || line.body.model === this.model) {
        yield Buffer.concat([bytes, NEWLINE])
        continue
      }
      const { span, model, model_spans } = line.body
      this.#replaced.set(model, (this.#replaced.get(model) ?? 0) + 1)
      const pieces: Uint8Array[] = []
      let at = 0
      for (const { start, end } of model_spans) {
        pieces.push(bytes.subarray(at, start), name)
        at = end
      }
      if (model_spans.length === 0) {
        at = span.start + 1
        const isEmpty = bytes.toString('utf8', at, span.end - 1).trim() === ''
        pieces.push(bytes.subarray(0, at), Buffer.from('"model":'), name, Buffer.from(isEmpty ? '' : ','))
      }
      yield Buffer.concat([...pieces, bytes.subarray(at), NEWLINE])
    }
  }

  /** `sim-1, in place of gpt-4o in 300 lines`; null where the file named no other model. */
  get text(): string | null {
    if (this.#replaced.size === 0) return null
    const all = [...this.#replaced].sort(([, a], [, b]) => b - a)
    const parts = all
      .slice(0, NAMED_MAX)
      .map(([model, lines]) => `${model ?? 'no model'} in ${counted(lines, 'line')}`)
    const more = all.length - parts.length
    return `${this.model}, in place of ${parts.join(', ')}${more > 0 ? ` and ${more} others` : ''}`
  }
}
